"""Labels of rows, for partitions that skew them and for tables of the clients' data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.distributions import constraints

from pyro_fed.density.checks.lookups import Lookups
from pyro_fed.density.layout import name_dims
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.arguments import Arguments
from pyro_fed.density.running.trace_sites import innermost
from pyro_fed.errors import SettingError, listed

#: Whole numbers with more distinct values than this are not labels.
MAX_LABELS = 20


def row_labels(arguments: Arguments) -> np.ndarray | None:
    """The last argument with one number a row, (N,); None if there is none."""
    one_a_row = [leaf for _, nested, leaf in arguments.columns if nested is None and leaf.dim() == 1]
    return one_a_row[-1].cpu().numpy() if one_a_row else None


def discrete_labels(arguments: Arguments) -> np.ndarray | None:
    """The last argument with one number a row, if it holds a few distinct whole numbers; else None."""
    return discrete(row_labels(arguments))


def discrete(labels: np.ndarray | None) -> np.ndarray | None:
    """Labels (N,) if these are a few distinct whole numbers, else None."""
    if labels is None:
        return None
    values = np.unique(labels)
    return labels if len(values) <= MAX_LABELS and np.all(values == np.round(values)) else None


def observed_counts(problem: Problem) -> list[np.ndarray]:
    """The observed values that have the distribution of a count, in the original order of rows."""
    nodes = problem.execute_at(torch.zeros(problem.dim, dtype=problem.dtype), problem.all_rows).trace.nodes
    return [nodes[name]["value"].cpu().numpy() for name in problem.layout.observed if _counts(nodes[name]["fn"])]


def _counts(fn: Any) -> bool:
    """Whether values are counts 0, 1, 2, ..., without a name for each, as categories have."""
    fn = innermost(fn)
    trials = fn.total_count if isinstance(fn, torch.distributions.Binomial) else None
    endless = getattr(fn, "support", None) is constraints.nonnegative_integer
    return endless or (trials is not None and bool((trials > 1).any()))


def no_counts(labels: np.ndarray | None, counts: Sequence[np.ndarray]) -> np.ndarray | None:
    """Labels (N,), or None if they equal one of the counts."""
    same = (labels is not None and one.shape == labels.shape and np.array_equal(one, labels) for one in counts)
    return None if any(same) else labels


def label_coords(
    problem: Problem, dims: Mapping[str, Sequence[str]], coords: Mapping[str, Any]
) -> dict[str, list[Any]]:
    """Labels of text and categories as coordinates of the dimensions that their codes index.

    A dimension that merely has as many elements as there are labels gets no coordinates.

    Args:
        problem: the model's densities.
        dims: the user's names of dimensions.
        coords: the user's coordinates.

    Raises:
        SettingError: the user's coordinates of a dimension differ from the labels of the codes that index it.
    """
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
                if dim in coords:
                    _check_called(argument, labels, dim, coords[dim])
                elif dim != problem.plate:
                    found.setdefault(dim, list(labels))
    return found


def _in_question(labels: Sequence[Any], size: int, given: Any) -> bool:
    """Whether these labels' codes may index a dimension that has no coordinates, or other ones, so far."""
    return len(labels) == size if given is None else len(labels) <= size and not _same_names(labels, given)


def _same_names(labels: Sequence[Any], given: Sequence[Any]) -> bool:
    """Whether these are the same names, compared as text: 1 and "1" are the same."""
    return list(map(str, labels)) == list(map(str, given))


def _check_called(argument: str, labels: Sequence[Any], dim: str, given: Sequence[Any]) -> None:
    """Refuse coordinates of elements that differ from the labels of the codes that index them."""
    if not _same_names(labels, given):
        raise SettingError(
            f"coords['{dim}'] is [{listed(given)}], but elements along '{dim}' are looked up by argument '{argument}', "
            f"whose codes 0, 1, ... stand for [{listed(labels)}]: each would be called by another one's name. Leave "
            f"the coordinate out, which is these labels then; name all of them in it, each once; or rename the "
            f"categories, pandas.Categorical({argument}).rename_categories(...)"
        )


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
