"""Whose state it is: what a run's answer depends on, as text that is kept beside its state and compared.

The model is known by its densities (`density.fingerprint`), not by its name: what it has from closures, constants,
shared arguments and its source would otherwise be missed, and the old answer returned as that of another model.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyro
import torch
from torch.utils import _pytree as pytree

from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.conventions.settings_repr import described
from pyro_fed.conventions.version import VERSION
from pyro_fed.density.fingerprint import compared, density_values, difference, hashed, shared_arguments, traced
from pyro_fed.errors import CheckpointError
from pyro_fed.graph import Graph

if TYPE_CHECKING:
    from pyro_fed.federation.federation import Federation

#: Marks that are JSON of `density_values`, and JSON of a dictionary; all others are text.
DENSITY, SHARED = "density", "shared arguments"
#: The mark of the traced operations.
PROGRAM = "traced density"
#: A state after some rounds is that of a longer run as well, so that their number may be another.
ROUNDS = "number of rounds"


def fingerprint(
    algorithm: Algorithm,
    federation: Federation,
    num_rounds: int,
    schedule: Any,
    graph: Any,
    seed: int,
    combination: Any,
    start: Any,
) -> dict[str, str]:
    """What a run's answer depends on, name → text."""
    problem = federation.problem
    return {
        "versions": f"pyro_fed {VERSION}, torch {torch.__version__}, pyro {pyro.__version__}",
        "algorithm": described(algorithm),
        ROUNDS: str(num_rounds),
        "clients": json.dumps(federation.client_names),
        "data": hashed([*pytree.tree_leaves(problem.rows), federation.row_counts, *federation.client_rows]),
        **model_marks(federation),
        "schedule": _text(schedule),
        "graph": f"{_text(graph)} {_weights(graph)}",
        "combination": _text(combination),
        "start": str(start),
        "seed": str(seed),
    }


def model_marks(federation: Federation) -> dict[str, str]:
    """What the model is known by, name → text."""
    problem = federation.problem
    return {
        "model": describe_model(federation),
        "quadrature": repr(problem.quadrature),
        SHARED: json.dumps(shared_arguments(problem)),
        DENSITY: density_values(problem, federation.client_rows, federation.client_names),
        PROGRAM: traced(problem),
    }


def describe_model(federation: Federation) -> str:
    """The model's name and its sites."""
    problem = federation.problem
    sites = {name: site.shape for name, site in problem.sites.items()}
    return f"{getattr(problem.model, '__qualname__', type(problem.model).__name__)} with sites {sites}"


def require_run(folder: Path, found: dict[str, str], mine: dict[str, str], any_rounds: bool = True) -> None:
    """Require the state of the same run.

    Args:
        folder: where the state is.
        found: its marks.
        mine: those of this run.
        any_rounds: whether their numbers of rounds may differ.

    Raises:
        CheckpointError: names all that differs, the model first, and both values.
    """
    other_rows = any(found.get(name) != mine[name] for name in ("data", "clients"))
    model = ["model", DENSITY] if other_rows else ["model", "quadrature", SHARED, DENSITY, PROGRAM]
    # What follows from another model, such as a log-likelihood of other sites, says no more of it.
    clauses = [next(filter(None, (_unlike(name, found.get(name), mine[name], not other_rows) for name in model)), "")]
    told = {"model", "quadrature", SHARED, DENSITY, PROGRAM} | ({ROUNDS} if any_rounds else set())
    rest = [name for name in mine if name not in told]
    rest.sort(key=lambda name: name == "versions")  # what differs between them is most often no fault
    clauses += [_unlike(name, found.get(name), mine[name]) for name in rest]
    if said := "; ".join(filter(None, clauses)):
        raise CheckpointError(
            f"the state in {folder} is that of another run: {said}. Run with what it was made with, or choose "
            "another folder"
        )


def require_model(folder: Path, found: dict[str, str], algorithm: Algorithm, federation: Federation) -> None:
    """Require the state of the same algorithm and model, whose clients may be others.

    Args:
        folder: where the state is.
        found: its marks.
        algorithm: what is to start from it.
        federation: on what.

    Raises:
        CheckpointError: names what differs, and both values.
    """
    mine = {"algorithm": described(algorithm), **model_marks(federation)}
    names = ["algorithm", "model", "quadrature"]
    if not compared(found.get(DENSITY, '{"clients": {}}'), mine[DENSITY]):
        names.append(PROGRAM)  # no client is the same, so that no likelihood can be compared
    clauses = [_unlike(name, found.get(name), mine[name]) for name in names]
    clauses.append(_unlike(DENSITY, found.get(DENSITY), mine[DENSITY], same_rows=False))
    for clause in filter(None, clauses):
        raise CheckpointError(f"{folder} cannot be the start: {clause}")


def _unlike(name: str, found: str | None, mine: str, same_rows: bool = True) -> str:
    """How a mark differs, as a clause; "" where it does not."""
    if found == mine:
        return ""
    if found is None:
        return f"it does not say its {name}"
    if name == DENSITY:
        clause = difference(found, mine, same_rows)
        return f"its model is another, {clause}" if clause else ""
    if name == SHARED:
        then, here = json.loads(found), json.loads(mine)
        odd = next(key for key in {**then, **here} if then.get(key) != here.get(key))
        return f"its shared argument '{odd}' is {then.get(odd)}, this run's is {here.get(odd)}"
    if name == PROGRAM:
        return "its model is another: the operations that its density consists of, or constants in them, differ"
    return f"its {name} is {found!r}, this run's is {mine!r}"


def _text(value: Any) -> str:
    """A `repr` on which two processes agree: without addresses."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def _weights(graph: Any) -> str:
    """A hash of W in all rounds of a graph's window, which its `repr` does not tell."""
    if not isinstance(graph, Graph):
        return ""
    matrices = [graph.expected(round).tocoo() for round in range(graph.window)]
    return hashed([torch.as_tensor(part) for w in matrices for part in (w.row, w.col, w.data)])
