"""What the rows are called by: labels for partitions that skew them, and for tables of who holds what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from pyro_fed.density.checks.lookups import Lookups
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.arguments import Arguments

#: Whole numbers with more different values than this are no labels.
MAX_LABELS = 20


def row_labels(arguments: Arguments) -> np.ndarray | None:
    """The last argument with one number a row, (N,); None where there is none.

    Args:
        arguments: the model's, with the row-sharded leaves marked.
    """
    one_a_row = [leaf for _, nested, leaf in arguments.columns if nested is None and leaf.dim() == 1]
    return one_a_row[-1].cpu().numpy() if one_a_row else None


def discrete_labels(arguments: Arguments) -> np.ndarray | None:
    """The same where it holds a few different whole numbers, else None.

    Args:
        arguments: the model's, with the row-sharded leaves marked.
    """
    return discrete(row_labels(arguments))


def discrete(labels: np.ndarray | None) -> np.ndarray | None:
    """Labels (N,) if these are a few different whole numbers, else None."""
    if labels is None:
        return None
    values = np.unique(labels)
    return labels if len(values) <= MAX_LABELS and np.all(values == np.round(values)) else None


def label_coords(problem: Problem, coords: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Labels of text and categories as coordinates of the dimensions that are looked up by their codes.

    A dimension that merely has as many elements is not named by them.

    Args:
        problem: the model's densities.
        coords: those given.
    """
    sites = {**problem.layout.latents, **problem.layout.local}
    free = {dim for site in sites.values() for dim in site.dims} - {*coords, problem.plate}
    sizes = {size for site in sites.values() for dim, size in zip(site.dims, site.shape, strict=True) if dim in free}
    arguments = problem.arguments
    found: dict[str, list[Any]] = {}
    lookups: Lookups | None = None
    for name, labels in arguments.labels.items():
        codes = arguments.leaves[arguments.names.index(name)]
        if len(labels) not in sizes or codes.dim() != 1:
            continue
        lookups = lookups or Lookups(problem.bound)
        for site, axis in lookups.axes(codes, len(labels)):
            dim = sites[site].dims[axis] if site in sites else None
            if dim in free:
                found.setdefault(dim, list(labels))
    return found


def client_table(client_rows: Sequence[Tensor], names: Sequence[str], labels: np.ndarray | None) -> pd.DataFrame:
    """A row a client: its number of rows, their share of all, and how often each label occurs among them.

    Args:
        client_rows: each client's row positions, (N_k,).
        names: the clients' names.
        labels: (N,), or None for a table without.
    """
    counts = np.array([len(index) for index in client_rows])
    table = pd.DataFrame({"rows": counts, "share": counts / counts.sum()}, index=pd.Index(names, name="client"))
    if labels is not None:
        for value in np.unique(labels):
            table[f"label {value:g}"] = [int((labels[index.numpy()] == value).sum()) for index in client_rows]
    return table
