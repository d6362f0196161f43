"""Fingerprints of a model's densities, so that a state of one model is not used with another.

A model's name and sites are not enough: closures, constants, shared arguments and its own source, such as the SD of its
noise, show in its values alone. So a fingerprint has

- the log prior, site by site, and the log-likelihood of each client's rows at a few fixed points, on which two machines
  agree up to rounding;
- a hash of the traced operations with all constants in them, if the model can be traced: two models that differ far
  from these points, or in a branch by the number of rows, differ there.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pyro_fed.density.compiling.compiler import FAILURES
from pyro_fed.density.compiling.tracing import to_graph
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import NestedRows, in_chunks

#: Clients whose values are listed one by one; those of all others are added up.
LISTED_CLIENTS = 200
#: Key of these others; clients' names are never empty.
OTHERS = ""
#: Largest difference of two values, as a share of the sum of the magnitudes of their terms: that of the same model on
#: two machines, or with another number of threads.
VALUE_TOLERANCES = {torch.float32: 1e-4, torch.float64: 1e-9}

#: Values at the fixed points: sums, and the sums of the magnitudes of their terms.
Values = list[tuple[float, float]]


def hash_tensors(tensors: Sequence[Tensor], text: str = "") -> str:
    """A hash of shapes, dtypes and values, and of some text."""
    state = hashlib.sha256(text.encode())
    for tensor in tensors:
        state.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
        state.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return state.hexdigest()[:32]


def label_digests(problem: Problem) -> dict[str, str]:
    """Hashes, by argument, of the labels that its codes stand for; without groups, which a client numbers itself."""
    arguments = problem.arguments
    owners = {owner for owner, *_ in arguments.nested_by_name.values()}
    return {
        name: hash_tensors([], repr(list(map(str, labels))))
        for name, labels in sorted(arguments.labels.items())
        if name not in owners
    }


#: The cure if clients' data frames differ: each client's are read by place where the rows are.
COLUMNS_CURE = "Read the same columns in the same order at all clients, such as by frame[['age', 'dose']]"
#: The cure if clients whose rows lie apart have other labels.
LABELS_CURE = (
    "text is numbered by the labels that a client has, so that the same code stands for something else at another: "
    "give the same categories in the same order at each, as in pandas.Categorical(column, categories=[...])"
)


def shared_arguments(problem: Problem) -> dict[str, str]:
    """The arguments that all clients share, and the model's `pyro.param` constants, name → value or hash."""
    arguments = problem.arguments
    shared = {
        name: leaf for i, (name, leaf) in enumerate(zip(arguments.names, arguments.leaves, strict=True))
        if i not in arguments.split
    }  # fmt: skip
    constants = {f"pyro.param {name}": value for name, value in problem.bound.constants.items()}
    return {
        name: hash_tensors([v]) if isinstance(v, Tensor) else _value_text(v) for name, v in (shared | constants).items()
    }


def _value_text(value: Any) -> str:
    """A Python value as text on which two processes agree."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return repr(value)[:200] if len(repr(value)) <= 200 else hashlib.sha256(repr(value).encode()).hexdigest()
    return type(value).__qualname__  # its other data show in the values and in the traced operations


def density_values(problem: Problem, client_rows: Sequence[Tensor], names: Sequence[str]) -> str:
    """The densities at the fixed points, as JSON that `difference` compares; `client_rows` are row positions (N_k,)."""
    generator = torch.Generator().manual_seed(0)
    spreads = torch.tensor([0.01, 0.3, 1.0, 2.0])  # unconstrained: from all but the origin to well outside it
    noise = torch.randn(len(spreads), problem.dim, generator=generator, dtype=torch.float64)
    points = (spreads[:, None] * noise).to(problem.rows[0].device, problem.dtype)
    with torch.no_grad():
        rows = torch.cat([problem.pointwise_log_lik(part) for part in in_chunks(points, problem.evaluations)])
        prior = [problem.log_terms(point, problem.fewest_rows)[0] for point in points]
    found = {
        "dtype": str(problem.dtype).removeprefix("torch."),
        "prior": {site: [_sums(terms[site]) for terms in prior] for site in prior[0]},
        "clients": _of_clients(problem, rows.double().cpu(), client_rows, names),
    }
    return json.dumps(found)


def _of_clients(
    problem: Problem, terms: Tensor, client_rows: Sequence[Tensor], names: Sequence[str]
) -> dict[str, list[Any]]:
    """A hash of each client's rows and their log-likelihood, from terms (points, N)."""
    found: dict[str, list[Any]] = {}
    for name, index in list(zip(names, client_rows, strict=True))[:LISTED_CLIENTS]:
        own = pytree.tree_leaves([leaf[index.to(leaf[:0].device if isinstance(leaf, Tensor) else "cpu")]
                                  for leaf in problem.rows])  # fmt: skip
        found[name] = [hash_tensors(own), [_sums(one[index]) for one in terms]]
    if len(names) > LISTED_CLIENTS:
        rest = torch.cat(list(client_rows[LISTED_CLIENTS:]))
        found[OTHERS] = ["", [_sums(one[rest]) for one in terms]]
    return found


def _sums(terms: Tensor) -> tuple[float, float]:
    terms = terms.detach().double()
    return float(terms.sum()), float(terms.abs().sum())


def difference(before: str, now: str, same_rows: bool) -> str:
    """A clause on where two models' `density_values` differ, of the same rows alone; "" if they agree."""
    then, here = json.loads(before), json.loads(now)
    if then["dtype"] != here["dtype"]:
        return f"it was computed in {then['dtype']}, and is in {here['dtype']} now"
    rounding = VALUE_TOLERANCES[getattr(torch, here["dtype"])]
    for site, values in here["prior"].items():
        if site not in then["prior"]:
            return f"site '{site}' is new"
        if clause := _difference_clause(then["prior"][site], values, rounding):
            return f"the log prior of {_site_text(site)} {clause}"
    for name, (rows, values) in here["clients"].items():
        old_rows, old = then["clients"].get(name, (None, None))
        if old is None or not (same_rows or (name != OTHERS and rows == old_rows)):
            continue
        if clause := _difference_clause(old, values, rounding):
            return f"the log-likelihood of {f'client {name}' if name else 'the other clients'} {clause}"
    return ""


def has_common_rows(before: str, now: str) -> bool:
    """Whether `difference` compares any rows of these, if they need not be the same."""
    then, here = json.loads(before)["clients"], json.loads(now)["clients"]
    return any(name and then.get(name, [None])[0] == rows for name, (rows, _) in here.items())


def _site_text(site: str) -> str:
    return f"site '{site}'" if site else "the transforms of constrained sites"


def _difference_clause(before: Values, now: Values, rounding: float) -> str:
    """Where two lists of values differ by more than rounding."""
    for (old, old_size), (new, new_size) in zip(before, now, strict=True):
        if old == new or (math.isnan(old) and math.isnan(new)):
            continue
        finite = math.isfinite(old) and math.isfinite(new)
        if not finite or abs(old - new) > rounding * max(1.0, old_size, new_size):
            return f"at a fixed point was {old:.6g} and is {new:.6g} now"
    return ""


def operations_hash(problem: Problem, rows: int = 2, nested: int | None = None) -> str:
    """A hash of the operations in few rows' densities and their constants; "not traced" if that fails."""
    if problem.looped:
        return "not traced"
    leaves, spec = pytree.tree_flatten(tuple(_first_nested_rows(leaf[:rows], nested) for leaf in problem.rows))
    z = torch.zeros(problem.dim, dtype=problem.dtype, device=leaves[0].device)

    def densities(z: Tensor, *flat: Tensor) -> tuple[Tensor, Tensor]:
        return problem.log_parts(z, pytree.tree_unflatten(list(flat), spec))

    try:
        with torch.no_grad():
            graph = to_graph(densities, [z, *(leaf.clone() for leaf in leaves)])
    except (*FAILURES, IndexError):
        return "not traced"
    constants = dict(graph.named_buffers()) | {n: v for n, v in vars(graph).items() if isinstance(v, Tensor)}
    names = sorted(constants)
    return hash_tensors([constants[name] for name in names], json.dumps([graph.code, names]))


def _first_nested_rows(rows: Any, nested: int | None) -> Any:
    """Row tensors, with at most `nested` rows of each group."""
    if nested is None or not isinstance(rows, NestedRows):
        return rows
    return NestedRows(rows.where[:, :nested], [leaf[:, :nested] for leaf in rows.leaves], nested)
