"""Fingerprints of a model's densities, which prevent a state of one model from being used with another.

A model's name and sites do not identify it: closures, constants, shared arguments and its source, such as the SD of the
noise, change only its values. A fingerprint consists of

- the log prior, site by site, and the log-likelihood of each client's rows at a few fixed points; two machines agree
  on these up to rounding;
- a hash of the traced operations and their constants, if the model can be traced. It distinguishes models that differ
  far from these points, or in a branch on the number of rows.
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

#: Number of clients whose values are listed separately; the values of other clients are added up.
LISTED_CLIENTS = 200
#: Key of the other clients; no client has an empty name.
OTHERS = ""
#: Largest difference between values of the same model on two machines, or with different numbers of threads, relative
#: to the sum of the magnitudes of their terms.
VALUE_TOLERANCES = {torch.float32: 1e-4, torch.float64: 1e-9}

#: Values at the fixed points: sums, and the sums of the magnitudes of their terms.
Values = list[tuple[float, float]]


def hash_tensors(tensors: Sequence[Tensor], text: str = "") -> str:
    """A hash of the shapes, dtypes and values of tensors, and of a text."""
    state = hashlib.sha256(text.encode())
    for tensor in tensors:
        state.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
        state.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return state.hexdigest()[:32]


def label_digests(problem: Problem) -> dict[str, str]:
    """A hash of each argument's labels; without the groups of nested plates, which each client numbers itself."""
    arguments = problem.arguments
    owners = {owner for owner, *_ in arguments.nested_by_name.values()}
    return {
        name: hash_tensors([], repr(list(map(str, labels))))
        for name, labels in sorted(arguments.labels.items())
        if name not in owners
    }


#: The cure if clients' data frames differ, since remote clients read columns by position.
COLUMNS_CURE = "Read the same columns in the same order at all clients, such as by frame[['age', 'dose']]"
#: The cure if the labels of remote clients differ.
LABELS_CURE = (
    "each client numbers text by its own labels, so that the same code has another meaning at another client: "
    "give the same categories in the same order at each client, as in pandas.Categorical(column, categories=[...])"
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
    return type(value).__qualname__  # the values and the traced operations reflect its other data


def density_values(problem: Problem, client_rows: Sequence[Tensor], names: Sequence[str]) -> str:
    """The densities at the fixed points, as JSON for `difference`; `client_rows` are row positions (N_k,)."""
    points = _fixed_points(problem, problem.dim)
    with torch.no_grad():
        rows = torch.cat([problem.pointwise_log_lik(part) for part in in_chunks(points, problem.evaluations)])
    clients = _client_values(problem, rows.double().cpu(), client_rows, names)
    return json.dumps(_prior_values(problem, points) | {"clients": clients})


def prior_fingerprint(problem: Problem, dim: int) -> str:
    """The log prior of the first `dim` parameters at the fixed points, as JSON for `difference`; nothing of rows."""
    latents_of_rows = torch.zeros(problem.dim - dim, device=problem.rows[0].device, dtype=problem.dtype)
    points = torch.stack([torch.cat([point, latents_of_rows]) for point in _fixed_points(problem, dim)])
    return json.dumps(_prior_values(problem, points) | {"clients": {}})


def _fixed_points(problem: Problem, dim: int) -> Tensor:
    """Points (P, dim), the same whenever they are made."""
    generator = torch.Generator().manual_seed(0)
    spreads = torch.tensor([0.01, 0.3, 1.0, 2.0])  # unconstrained: from near the origin to the tails
    noise = torch.randn(len(spreads), dim, generator=generator, dtype=torch.float64)
    return (spreads[:, None] * noise).to(problem.rows[0].device, problem.dtype)


def _prior_values(problem: Problem, points: Tensor) -> dict[str, Any]:
    with torch.no_grad():
        prior = [problem.log_terms(point, problem.fewest_rows)[0] for point in points]
    return {
        "dtype": str(problem.dtype).removeprefix("torch."),
        "prior": {site: [_signed_and_absolute_sums(terms[site]) for terms in prior] for site in prior[0]},
    }


def _client_values(
    problem: Problem, terms: Tensor, client_rows: Sequence[Tensor], names: Sequence[str]
) -> dict[str, list[Any]]:
    """A hash of each client's rows, and their log-likelihood from terms (points, N)."""
    hashes_and_sums: dict[str, list[Any]] = {}
    for name, index in list(zip(names, client_rows, strict=True))[:LISTED_CLIENTS]:
        row_leaves = pytree.tree_leaves([leaf[index.to(leaf[:0].device if isinstance(leaf, Tensor) else "cpu")]
                                  for leaf in problem.rows])  # fmt: skip
        hashes_and_sums[name] = [hash_tensors(row_leaves), [_signed_and_absolute_sums(one[index]) for one in terms]]
    if len(names) > LISTED_CLIENTS:
        other_rows = torch.cat(list(client_rows[LISTED_CLIENTS:]))
        hashes_and_sums[OTHERS] = ["", [_signed_and_absolute_sums(one[other_rows]) for one in terms]]
    return hashes_and_sums


def _signed_and_absolute_sums(terms: Tensor) -> tuple[float, float]:
    terms = terms.detach().double()
    return float(terms.sum()), float(terms.abs().sum())


def difference(before: str, now: str, same_rows: bool) -> str:
    """A clause on the first difference of two models' `density_values` on the same rows; "" if they agree."""
    old_values, new_values = json.loads(before), json.loads(now)
    if old_values["dtype"] != new_values["dtype"]:
        return f"it was computed in {old_values['dtype']}, and is in {new_values['dtype']} now"
    rounding = VALUE_TOLERANCES[getattr(torch, new_values["dtype"])]
    for site, values in new_values["prior"].items():
        if site not in old_values["prior"]:
            return f"site '{site}' is new"
        if clause := _difference_clause(old_values["prior"][site], values, rounding):
            return f"the log prior of {_site_text(site)} {clause}"
    if list(old_values["prior"]) != list(new_values["prior"]):  # a flat prior is the same at all points
        before_sites, now_sites = ([site for site in one["prior"] if site] for one in (old_values, new_values))
        return f"its sites were {before_sites}, in this order, and are {now_sites} now"
    for name, (rows, values) in new_values["clients"].items():
        old_rows, old_sums = old_values["clients"].get(name, (None, None))
        if old_sums is None or not (same_rows or (name != OTHERS and rows == old_rows)):
            continue
        if clause := _difference_clause(old_sums, values, rounding):
            return f"the log-likelihood of {f'client {name}' if name else 'the other clients'} {clause}"
    return ""


def has_common_rows(before: str, now: str) -> bool:
    """Whether two sets of `density_values` have the rows of a client in common."""
    old_clients, new_clients = json.loads(before)["clients"], json.loads(now)["clients"]
    return any(name and old_clients.get(name, [None])[0] == rows for name, (rows, _) in new_clients.items())


def _site_text(site: str) -> str:
    return f"site '{site}'" if site else "the transforms of constrained sites"


def _difference_clause(before: Values, now: Values, rounding: float) -> str:
    """A clause on the first pair of values that differ by more than rounding; "" if there is none."""
    for (old, old_size), (new, new_size) in zip(before, now, strict=True):
        if old == new or (math.isnan(old) and math.isnan(new)):
            continue
        finite = math.isfinite(old) and math.isfinite(new)
        if not finite or abs(old - new) > rounding * max(1.0, old_size, new_size):
            return f"at a fixed point was {old:.6g} and is {new:.6g} now"
    return ""


def operations_hash(problem: Problem, rows: int = 2, nested: int | None = None) -> str:
    """A hash of the operations and constants in the densities of a few rows; "not traced" if tracing fails."""
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
