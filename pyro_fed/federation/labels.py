"""Labels of rows and elements, and how a model uses columns of text.

The codes of text are in alphabetical order. This does not matter if the model compares with labels, or if each label
looks up an element of its own and elements differ in nothing else: renumber the labels, and the elements of the latents
with them, and the density is the same. It changes for `scale[severity]` of a table of constants, groups with a
covariate of their own, ranks, sums over preceding elements, and a first label that is the reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.distributions import constraints

from pyro_fed.conventions.limits import SAME_SHARE
from pyro_fed.conventions.names import as_it_looks
from pyro_fed.density.bound import BoundModel
from pyro_fed.density.checks.lookups import Lookups, num_elements
from pyro_fed.density.layout import name_dims
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.arguments import Arguments
from pyro_fed.density.rows.labelled import Labels
from pyro_fed.density.running.handlers import Execution
from pyro_fed.density.running.model_calls import is_shared
from pyro_fed.density.running.trace_sites import innermost
from pyro_fed.errors import SettingError, listed, warn_user

#: Whole numbers with more distinct values than this are not labels.
MAX_LABELS = 20


def row_labels(arguments: Arguments, plate: str | None = None) -> np.ndarray | None:
    """The last argument with one number a row, of a nested plate or of the partitioned one, (N,); None without any."""
    one_a_row = [leaf for _, nested, leaf in arguments.columns if nested == plate and leaf.dim() == 1]
    return one_a_row[-1].cpu().numpy() if one_a_row else None


def discrete_labels(labels: np.ndarray | None, counts: Sequence[np.ndarray]) -> np.ndarray | None:
    """Labels (N,) if these are a few distinct whole numbers, and not one of the observed counts; else None."""
    if labels is None or any(np.array_equal(one, labels) for one in counts):
        return None
    values = np.unique(labels)
    return labels if len(values) <= MAX_LABELS and np.all(values == np.round(values)) else None


def observed_counts(problem: Problem) -> list[np.ndarray]:
    """The observed values that have the distribution of a count, in the original order of rows."""
    nodes = problem.execute_at(torch.zeros(problem.dim, dtype=problem.dtype), problem.all_rows).trace.nodes
    return [nodes[name]["value"].cpu().numpy() for name in problem.layout.observed if _is_count(nodes[name]["fn"])]


def _is_count(fn: Any) -> bool:
    """Whether values are counts 0, 1, 2, ..., without a name for each, as categories have."""
    fn = innermost(fn)
    trials = fn.total_count if isinstance(fn, torch.distributions.Binomial) else None
    endless = getattr(fn, "support", None) is constraints.nonnegative_integer
    return endless or (trials is not None and bool((trials > 1).any()))


def label_coords(
    problem: Problem, dims: Mapping[str, Sequence[str]], coords: Mapping[str, Any]
) -> dict[str, list[Any]]:
    """Labels of text and categories as coordinates of the dimensions that their codes index."""
    sites = {**problem.layout.latents, **problem.layout.local}
    named = {name: name_dims(site.dims, dims.get(name, ())) for name, site in sites.items()}
    shapes = [(dim, size) for name, site in sites.items() for dim, size in zip(named[name], site.shape, strict=True)]
    arguments = problem.arguments
    found: dict[str, list[Any]] = {}
    lookups: Lookups | None = None
    for argument, labels in arguments.labels.items():
        codes = arguments.leaves[arguments.names.index(argument)]
        sizes = {size for dim, size in shapes if dim != problem.plate and _in_question(labels, size, coords.get(dim))}
        if not sizes or codes.dim() != 1:
            continue
        lookups = lookups or Lookups(problem.bound)
        for size in sorted(sizes):
            for site, axis in lookups.axes(codes, size):
                dim = named[site][axis] if site in sites else problem.plate
                if dim in coords and not _same_names(labels, coords[dim]):
                    raise SettingError(
                        f"coords['{dim}'] is [{listed(coords[dim])}], but elements along '{dim}' are looked up by "
                        f"argument '{argument}', whose codes 0, 1, ... stand for [{listed(labels)}]: each element "
                        "would get the name of another one. Leave the coordinate out, so that it is these labels; "
                        "name all "
                        "of them in it, each once; or rename the categories, "
                        f"pandas.Categorical({argument}).rename_categories(...)"
                    )
                if dim not in coords and dim != problem.plate:
                    found.setdefault(dim, list(labels))
    return found


def _in_question(labels: Sequence[Any], size: int, given: Any) -> bool:
    """Whether these labels' codes may index a dimension that has no coordinates, or other ones, so far."""
    return len(labels) == size if given is None else len(labels) <= size and not _same_names(labels, given)


def _same_names(labels: Sequence[Any], given: Sequence[Any]) -> bool:
    """Whether these are the same names, compared as text: 1 and "1" are the same."""
    return list(map(str, labels)) == list(map(str, given))


def entry_labels(
    problem: Problem, dims: Mapping[str, Sequence[str]], coords: Mapping[str, Sequence[Any]]
) -> dict[str, tuple[Sequence[Any] | None, ...]]:
    """Labels of entries along each dimension of the latent sites; None along dimensions without labels."""
    found = {}
    for name, site in {**problem.layout.latents, **problem.layout.local}.items():
        along = tuple(coords.get(dim) for dim in name_dims(site.dims, dims.get(name, ())))
        if any(labels is not None for labels in along):
            found[name] = along
    return found


def client_table(client_rows: Sequence[Tensor], names: Sequence[str], labels: np.ndarray | None) -> pd.DataFrame:
    """A table with a row for each client: its number of rows, their share of all, and counts of its labels (N,)."""
    counts = np.array([len(index) for index in client_rows])
    table = pd.DataFrame({"rows": counts, "share": counts / counts.sum()}, index=pd.Index(names, name="client"))
    if labels is not None:
        for value in np.unique(labels):
            table[f"label {value:g}"] = [int((labels[index.numpy()] == value).sum()) for index in client_rows]
    return table


class Use(Enum):
    """How a model uses a column of labels."""

    NONE = "none"
    COMPARED = "compared"
    LOOKED_UP = "looked up"
    NUMBERED = "numbered"


def warn_of_labels(problem: Problem, clients: Sequence[Tensor], names: Sequence[str]) -> None:
    """Warn of text whose numbering matters but was not given, and of clients with different codings."""
    arguments = problem.arguments
    if not arguments.labels:
        return
    uses = label_uses(problem.bound)
    for name, use in uses.items():
        labels = arguments.labels[name]
        if use is Use.NUMBERED and not labels.ordered:
            numbers = listed(f"{label!r} = {number}" for number, label in enumerate(labels))
            warn_user(
                f"the model depends on how the labels of argument '{name}' are numbered, and their order was not "
                f"given: it takes them in sorted order, {numbers}. Give the order, pandas.Categorical({name}, "
                "categories=[...], "
                f"ordered=True), or take the labels themselves, ({name} == {labels[-1]!r}) or {name}.map({{...}})"
            )
    for name, labels in arguments.labels.items():
        warn_of_other_codings(name, labels, _labels_of_clients(arguments, name, clients), names, uses.get(name))


def warn_of_other_codings(
    name: str, labels: Labels, each: Sequence[set[Any]], names: Sequence[str], use: Use | None
) -> None:
    """Warn of clients that seem to use labels of their own for categories that the others have too."""
    for text in _other_codings(name, labels, each, names, use):
        warn_user(
            f"{text}: these are different categories to the model. Where they are meant to be the same, write them "
            f"alike at all clients, such as by column.map({{...}}); else name all of them at each client, "
            "pandas.Categorical(column, categories=[...])"
        )


def label_uses(bound: BoundModel) -> dict[str, Use]:
    """How the model uses each column of labels."""
    bound = replace(bound, constants={k: v for k, v in bound.constants.items() if not is_shared(k)}).doubled()
    lookups = Lookups(bound)
    arguments, found = bound.arguments, dict[str, Use]()
    before = _total(lookups.execution, bound.dtype)
    for name, labels in arguments.labels.items():
        at, count = arguments.names.index(name), len(labels)
        if count < 2:
            continue
        codes: Tensor = arguments.leaves[at]
        leaves = [*arguments.leaves[:at], (codes + 1) % count, *arguments.leaves[at + 1 :]]
        other = replace(arguments, leaves=tuple(leaves))
        if _same(before, _log_density(replace(bound, arguments=other), lookups, {})):
            found[name] = Use.NONE
            continue
        moved = Labels((labels[-1], *labels[:-1]), ordered=labels.ordered)
        anew = replace(bound, arguments=replace(other, labels={**arguments.labels, name: moved}))
        if _same(before, _log_density(anew, lookups, {})):
            found[name] = Use.COMPARED
            continue
        turned: dict[str, Tensor] = {}
        for size in {count, *num_elements(bound, [codes])} - set(range(count)):
            order = torch.tensor([count - 1, *range(count - 1), *range(count, size)])
            for latent, axis in lookups.axes(codes.flatten(), size) if codes.dim() == 1 else ():
                value = turned.get(latent, lookups.sites[latent]["value"].detach())
                turned[latent] = value.index_select(axis, order)
        same = _same(before, _log_density(anew, lookups, turned))
        found[name] = Use.LOOKED_UP if same else Use.NUMBERED
    return found


def _log_density(bound: BoundModel, lookups: Lookups, turned: Mapping[str, Tensor]) -> Tensor:
    """`_total` of a run at the values of the latents in that of `lookups`, or those in `turned`."""

    def source(msg: Any, transform: Any) -> Tensor:
        name = msg["name"]
        z: Tensor = transform.inv(turned[name]) if name in turned else lookups.places[name].detach()
        return z

    with torch.no_grad():
        return _total(bound.execute(source, bound.all_rows, densities=True), bound.dtype)


def _total(execution: Execution, dtype: torch.dtype) -> Tensor:
    """Sum () of all sites' log densities, with a weight for each row, without infinite ones."""
    total = torch.zeros((), dtype=dtype)
    for node in execution.trace.nodes.values():
        if isinstance(terms := node.get("log_prob"), Tensor):
            terms = terms.detach()
            weights = torch.linspace(1.0, 2.0, terms.numel()).reshape(terms.shape) if node["is_observed"] else 1.0
            total = total + (weights * terms.nan_to_num(0.0, 0.0, 0.0)).sum()
    return total


def _same(one: Tensor, other: Tensor) -> bool:
    return bool(torch.isclose(one, other, rtol=SAME_SHARE, atol=SAME_SHARE, equal_nan=True))


def _labels_of_clients(arguments: Arguments, name: str, clients: Sequence[Tensor]) -> list[set[Any]]:
    """The labels in each client's rows."""
    for column, nested, leaf in arguments.columns:
        if column == name:
            numbers = (leaf[arguments.rows_of(nested, rows)].unique().tolist() for rows in clients)
            return [{arguments.labels[name][number] for number in each} for each in numbers]
    return []


def _other_codings(
    name: str, labels: Labels, each: Sequence[set[Any]], names: Sequence[str], use: Use | None
) -> Iterator[str]:
    """Sentences on clients that seem to use labels of their own for categories that the others have too."""
    held = [(client, mine) for client, mine in zip(names, each, strict=False) if mine]
    if labels.ordered or len(held) < 2 or use is Use.NONE:
        return
    seen = {who: {as_it_looks(str(label)).casefold() for label in mine} for who, mine in held}
    apart = [(who, mine) for who, mine in held if not any(seen[who] & seen[other] for other in seen if other != who)]
    # Names of hospitals are looked up, and no client has another's: these are not codings of one another.
    if apart and (use is Use.COMPARED or len(apart) < len(held)):
        who, mine = apart[-1]
        other, theirs = next((who, mine) for who, mine in held if (who, mine) != apart[-1])
        yield (
            f"argument '{name}' has the labels [{listed(sorted(map(str, mine)))}] at client {who}, none of which "
            f"another client has, such as {other} with [{listed(sorted(map(str, theirs)))}]"
        )
        return
    pairs = [
        (short, long)
        for short in labels
        for long in labels
        if _abbreviates(short, long) and not any({short, long} <= mine for _, mine in held)
    ]
    if pairs:
        texts = listed(f"{short!r} and {long!r}" for short, long in pairs)
        yield f"argument '{name}' has the labels {texts}, never both at one client"


def _abbreviates(short: Any, long: Any) -> bool:
    """Whether one label is the beginning of another, in letters alone: "M" of "male", but not "site 1" of "site 12"."""
    if not isinstance(short, str) or not isinstance(long, str):
        return False
    one, two = as_it_looks(short).casefold().rstrip("."), as_it_looks(long).casefold()
    return one.isalpha() and two.isalpha() and len(one) < len(two) and two.startswith(one)
