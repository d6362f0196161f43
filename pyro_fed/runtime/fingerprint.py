"""The fingerprint of a run: everything that its result depends on, as text, saved with its state.

It is compared when a run is resumed. A model is identified by its densities (`density.fingerprint`) and not by its
name, which does not show changes in closures, constants, shared arguments and source code.
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
from pyro_fed.conventions.nested_settings import settings_line
from pyro_fed.conventions.version import VERSION
from pyro_fed.density.fingerprint import (
    density_values,
    difference,
    has_common_rows,
    hash_tensors,
    operations_hash,
    shared_arguments,
)
from pyro_fed.errors import CheckpointError
from pyro_fed.graph import Graph
from pyro_fed.policy.results import integrates_latents

if TYPE_CHECKING:
    from pyro_fed.federation.federation import Federation

#: Marks that are JSON: of `density_values`, and of a dictionary. All others are plain text.
DENSITY, SHARED = "density", "shared arguments"
#: The mark of the traced operations.
PROGRAM = "traced density"
#: The mark that may differ: a state after some rounds is also the state of a longer run.
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
    """The marks of a run: everything that its result depends on, name → text."""
    problem = federation.problem
    return {
        "versions": f"pyro_fed {VERSION}, torch {torch.__version__}, pyro {pyro.__version__}",
        "algorithm": settings_line(algorithm),
        ROUNDS: str(num_rounds),
        "clients": json.dumps(federation.client_names),
        "data": hash_tensors([*pytree.tree_leaves(problem.rows), federation.row_counts, *federation.client_rows]),
        **model_marks(federation),
        "schedule": _text(schedule),
        "graph": f"{_text(graph)} {_weights(graph)}",
        "combination": _text(combination),
        "start": str(start),
        "seed": str(seed),
    }


def model_marks(federation: Federation) -> dict[str, str]:
    """The marks of a federation's model, name → text."""
    problem = federation.problem
    sites = {name: site.shape for name, site in problem.sites.items()}
    return {
        "model": f"{getattr(problem.model, '__qualname__', type(problem.model).__name__)} with sites {sites}",
        "quadrature": repr(problem.quadrature),
        SHARED: json.dumps(shared_arguments(problem)),
        DENSITY: density_values(problem, federation.client_rows, federation.client_names),
        PROGRAM: operations_hash(problem),
    }


def require_run(folder: Path, found: dict[str, str], own_marks: dict[str, str], any_rounds: bool = True) -> None:
    """Require that a saved state belongs to the same run; the error names all differences, the model first."""
    other_rows = any(found.get(name) != own_marks[name] for name in ("data", "clients"))
    model = ["model", DENSITY] if other_rows else ["model", "quadrature", SHARED, DENSITY, PROGRAM]
    # Only the first difference of the models is named, since it causes the others, such as other log-likelihoods.
    clauses = [
        next(filter(None, (_difference(name, found.get(name), own_marks[name], not other_rows) for name in model)), "")
    ]
    handled = {"model", "quadrature", SHARED, DENSITY, PROGRAM} | ({ROUNDS} if any_rounds else set())
    rest = [name for name in own_marks if name not in handled]
    rest.sort(key=lambda name: name == "versions")  # last, since versions are rarely the reason
    clauses += [_difference(name, found.get(name), own_marks[name]) for name in rest]
    if said := "; ".join(filter(None, clauses)):
        raise CheckpointError(
            f"the state in {folder} is that of another run: {said}. Run with what it was made with, or choose "
            "another folder"
        )


def require_model(folder: Path, found: dict[str, str], algorithm: Algorithm, federation: Federation) -> None:
    """Require that a saved state belongs to the same algorithm and model; its clients may differ.

    The rule that integrates rows' latents out, and with it the operations, may differ too: they are chosen by the rows.
    """
    mine = {"algorithm": settings_line(algorithm), **model_marks(federation)}
    names = ["algorithm", "model"]
    integrated = integrates_latents(federation.problem.traits)
    if not (integrated or has_common_rows(found.get(DENSITY, '{"clients": {}}'), mine[DENSITY])):
        names.append(PROGRAM)  # without common rows, likelihoods cannot be compared
    clauses = [_difference(name, found.get(name), mine[name]) for name in names]
    clauses.append(_difference(DENSITY, found.get(DENSITY), mine[DENSITY], same_rows=False))
    for clause in filter(None, clauses):
        raise CheckpointError(f"{folder} cannot be the start: {clause}")


def _difference(name: str, found: str | None, mine: str, same_rows: bool = True) -> str:
    """A clause on the difference of a mark; "" if there is none."""
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
    """A value's `repr` without addresses in memory, so that two processes agree on it."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def _weights(graph: Any) -> str:
    """A hash of W in all rounds of a graph's window, which the graph's `repr` does not show."""
    if not isinstance(graph, Graph):
        return ""
    matrices = [graph.expected(round).tocoo() for round in range(graph.window)]
    return hash_tensors([torch.as_tensor(part) for w in matrices for part in (w.row, w.col, w.data)])
