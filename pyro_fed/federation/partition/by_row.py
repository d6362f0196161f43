"""Partitions that need no classes: `IID`, `QuantitySkew`, `ByGroup`, `SortedBy`, `Explicit`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pyro_fed.federation.partition.base import MAX_FLOAT_LABELS, ByValue, Partition, check_alpha, cuts, dirichlet, pack


@dataclass(frozen=True, eq=False)
class IID(Partition):
    """Rows at random, in parts whose sizes differ by one row at most.

    Example:
        >>> pf.Federation(model, (x, y), plate="data", num_clients=10, partition=pf.partition.IID())
    """

    def assign(self, num_rows: int, num_clients: int, rng: np.random.Generator, labels: Any) -> list[np.ndarray]:
        return np.array_split(rng.permutation(num_rows), num_clients)


@dataclass(frozen=True, eq=False)
class QuantitySkew(Partition):
    """Random rows, clients of unequal size: min_rows each, the rest in shares ~ Dirichlet(alpha).

    Args:
        alpha: concentration, > 0. Small: a few clients hold nearly all rows. Large: equal sizes.
        min_rows: rows that every client holds at least.

    Raises:
        SettingError: a setting out of its range; fewer rows than `min_rows` for each client.

    Example:
        >>> pf.Federation(model, (x, y), plate="data", num_clients=10, partition=pf.partition.QuantitySkew(0.5))
    """

    alpha: float
    min_rows: int = 1

    def __post_init__(self) -> None:
        check_alpha(self, self.alpha)
        if not isinstance(self.min_rows, int | np.integer) or self.min_rows < 0:
            raise self.error(f"min_rows is {self.min_rows!r}, expected a whole number of at least 0")

    def assign(self, num_rows: int, num_clients: int, rng: np.random.Generator, labels: Any) -> list[np.ndarray]:
        spare = num_rows - num_clients * self.min_rows
        if spare < 0:
            raise self.error(
                f"{num_clients} clients of at least {self.min_rows} rows need {num_clients * self.min_rows} "
                f"rows, there are {num_rows}; lower min_rows or num_clients"
            )
        extra = cuts(dirichlet(self, self.alpha, num_clients, rng), spare)
        return np.split(rng.permutation(num_rows), extra + self.min_rows * np.arange(1, num_clients))


@dataclass(frozen=True, eq=False)
class ByGroup(ByValue):
    """The rows of one group stay together: hospitals, users, schools.

    As many clients as distinct values (the default number): client k holds the k-th value in ascending
    order, and has its name if `by` is given. Fewer: whole groups are dealt out, the largest first, each to the
    client with the fewest rows.

    If the plate is one of groups, with rows of their own (`Federation(..., rows={"patients": "hospital"})`), and the
    values differ, they are the names of its elements in order: text or categories in `hospital` are coded by them,
    whether all of them occur or not. There the column of the rows, `ByGroup(frame["hospital"])`, does too.

    Args:
        by: group, one a row; None takes the labels handed to `split`, and of a plate of groups each by itself.

    Raises:
        SettingError: more clients than groups; groups that are not one value a row, or a continuous column.

    Example:
        >>> pf.Federation(model, (x, y), plate="data", partition=pf.partition.ByGroup(by=hospital))
    """

    by: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._freeze_by()

    def default_num_clients(self, labels: Any = None) -> int:
        """The number of distinct groups."""
        return len(np.unique(self._labels_or_by(labels)))

    def names(self, num_clients: int, labels: Any = None) -> list[Any] | None:
        """The groups' values, if the groups have a column of their own and each client has one group."""
        groups = [] if self.by is None else np.unique(self.by).tolist()
        return groups if len(groups) == num_clients and len(set(map(str, groups))) == num_clients else None

    def dealt_by(self, num_rows: int, labels: Any = None) -> np.ndarray | None:
        """None, since groups exist without the partition."""
        return None

    def assign(self, num_rows: int, num_clients: int, rng: np.random.Generator, labels: Any) -> list[np.ndarray]:
        groups, codes, sizes = np.unique(self.values(num_rows, labels), return_inverse=True, return_counts=True)
        if np.issubdtype(groups.dtype, np.floating) and len(groups) > MAX_FLOAT_LABELS and (groups % 1 != 0).any():
            raise self.error(
                f"the groups are fractions with {len(groups)} distinct values (more than {MAX_FLOAT_LABELS}), a "
                "continuous column: give by= the column that names each row's group, or use SortedBy(by=...)"
            )
        if num_clients > len(groups):
            raise self.error(
                f"{num_clients} clients for {len(groups)} groups; take at most {len(groups)} clients, "
                "or leave num_clients out for one a group"
            )
        owner = np.arange(num_clients) if num_clients == len(groups) else pack(sizes, num_clients)
        return [np.flatnonzero(owner[codes] == client) for client in range(num_clients)]


@dataclass(frozen=True, eq=False)
class SortedBy(ByValue):
    """Rows sorted by a value (ties in row order), cut into contiguous blocks of equal size.

    The hardest split for a regression: no two clients see the same range of the covariate.

    Args:
        by: value to sort by, one a row; None takes the labels handed to `split`.

    Example:
        >>> pf.Federation(model, (x, y), plate="data", num_clients=5, partition=pf.partition.SortedBy(by=x[:, 0]))
    """

    by: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._freeze_by()

    def assign(self, num_rows: int, num_clients: int, rng: np.random.Generator, labels: Any) -> list[np.ndarray]:
        return np.array_split(np.argsort(self.values(num_rows, labels), kind="stable"), num_clients)


@dataclass(frozen=True, eq=False)
class Explicit(Partition):
    """The rows of each client, listed.

    Args:
        indices: one sequence of row numbers a client, together every row once; an empty one is allowed.

    Example:
        >>> first, second = range(20), range(20, len(y))
        >>> pf.Federation(model, (x, y), plate="data", partition=pf.partition.Explicit([first, second]))
    """

    indices: Sequence[Any] = field(repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self,
            "indices",
            tuple(self._row_numbers(client, rows) for client, rows in enumerate(self.indices)),
        )

    def default_num_clients(self, labels: Any = None) -> int:
        """The number of lists."""
        return len(self.indices)

    def assign(self, num_rows: int, num_clients: int, rng: np.random.Generator, labels: Any) -> list[np.ndarray]:
        return list(self.indices)
