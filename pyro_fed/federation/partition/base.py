"""The common part of all partitions: the contract, the input checks, the post-condition, and dealing rows in shares.

A partition answers one question: which rows of the pooled data does each client hold? The answer is
a list of row-index arrays, one a client, that are sorted, disjoint and together hold every row once.
`Partition.split` checks the input, asks the subclass's `assign` and checks that post-condition, so
a partition written by a user is held to the same contract as those in this package.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import torch

from pyro_fed.conventions.calls import Checked, explained
from pyro_fed.errors import SettingError, shown

#: Floating-point labels with more distinct values than this count as a continuous target.
MAX_FLOAT_LABELS = 50


class Partition(ABC, metaclass=Checked):
    """How rows go to clients. Subclasses are frozen dataclasses that implement `assign`.

    Example:
        >>> parts = pf.partition.IID().split(len(y), 10, np.random.default_rng(0))
    """

    def split(
        self, num_rows: int, num_clients: int | None, rng: np.random.Generator, labels: Any = None
    ) -> list[np.ndarray]:
        """Deal the rows out to the clients.

        Args:
            num_rows: number of rows of the pooled data.
            num_clients: number of clients; None takes `default_num_clients`.
            rng: source of all randomness; the same state gives the same split.
            labels: one value a row, (num_rows,), used if the partition's own `by` is None.

        Returns:
            One sorted int64 array of row indices a client. A client may hold no row.

        Raises:
            ValueError: for a setting or an argument that cannot be honoured.
        """
        if not isinstance(rng, np.random.Generator):
            raise self.error(f"rng is {type(rng).__name__}; pass a generator: np.random.default_rng(0)")
        if num_clients is None:
            num_clients = self.default_num_clients(labels)
        self._check_sizes(num_rows, num_clients)
        own = explained(SettingError, f"{type(self).__name__}.assign failed")
        return self._checked(own(self.assign)(num_rows, num_clients, rng, labels), num_rows, num_clients)

    @abstractmethod
    def assign(self, num_rows: int, num_clients: int, rng: np.random.Generator, labels: Any) -> Sequence[np.ndarray]:
        """Row indices of every client in any order; arguments as in `split`, sizes already checked.

        Args:
            num_rows: number of rows.
            num_clients: number of clients.
            rng: source of all randomness.
            labels: one value a row, or None.
        """

    def default_num_clients(self, labels: Any = None) -> int:
        """Default number of clients; only some partitions have one.

        Args:
            labels: one value a row, (num_rows,), or None.

        Raises:
            SettingError: the partition has none.
        """
        raise self.error("the number of clients is not given; pass num_clients")

    def names(self, num_clients: int, labels: Any = None) -> list[Any] | None:
        """Names of the clients; None if the partition has no names for them, and they are numbered.

        Args:
            num_clients: number of clients.
            labels: those handed to `split`, or None.
        """
        return None

    def dealt_by(self, num_rows: int, labels: Any = None) -> np.ndarray | None:
        """The values by which rows of one data set were dealt out, (num_rows,); None for real clients, or chance.

        Clients with the rows of certain outcomes differ from each other under any model.

        Args:
            num_rows: number of rows.
            labels: those handed to `split`, or None.
        """
        return None

    def error(self, message: str) -> SettingError:
        """A SettingError that names the partition.

        Args:
            message: what is wrong, and the cure.
        """
        return SettingError(f"{type(self).__name__}: {message}")

    def _check_sizes(self, num_rows: int, num_clients: int) -> None:
        for name, value in (("num_rows", num_rows), ("num_clients", num_clients)):
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise self.error(f"{name} is {value!r}, expected a whole number of at least 1")
        if num_clients > num_rows:
            raise self.error(f"{num_clients} clients for {num_rows} rows; take at most {num_rows} clients or add rows")

    def _checked(self, parts: Sequence[np.ndarray], num_rows: int, num_clients: int) -> list[np.ndarray]:
        """The post-condition: num_clients parts, in range, disjoint, every row once. Sorts each part."""
        if isinstance(parts, Iterator):
            parts = list(parts)
        if (
            isinstance(parts, Mapping | str | bytes)
            or not hasattr(parts, "__len__")
            or not hasattr(parts, "__getitem__")
        ):
            raise self.error(
                f"assign returned {shown(parts)}, expected a list of {num_clients} arrays of row numbers, one a client"
            )
        if len(parts) != num_clients:
            raise self.error(f"holds rows of {len(parts)} clients, but num_clients is {num_clients}")
        numbers = [np.sort(self._row_numbers(client, rows)) for client, rows in enumerate(parts)]
        owner = np.full(num_rows, -1, dtype=np.int64)
        for client, rows in enumerate(numbers):
            self._claim(owner, client, rows)
        missing = np.flatnonzero(owner < 0)
        if missing.size:
            raise self.error(
                f"{missing.size} of {num_rows} rows belong to no client, the first is row {missing[0]}; "
                "give them to a client or take them out of the data"
            )
        return numbers

    def _row_numbers(self, client: int, rows: Any) -> np.ndarray:
        """The rows of a client as int64; refused instead of rounded if they are not whole."""
        numbers = as_values(rows, f"{type(self).__name__}: the rows of client {client}")
        if numbers.size and not np.issubdtype(numbers.dtype, np.integer):
            raise self.error(
                f"the rows of client {client} are {numbers.dtype}, expected whole numbers; "
                "turn a mask into row numbers by np.flatnonzero(mask)"
            )
        return numbers.astype(np.int64)

    def _claim(self, owner: np.ndarray, client: int, rows: np.ndarray) -> None:
        """Write `client` as the owner of its sorted `rows`, each of which must exist and be free."""
        outside = rows[(rows < 0) | (rows >= len(owner))]
        if outside.size:
            raise self.error(f"client {client} holds row {outside[0]}, but rows run from 0 to {len(owner) - 1}")
        taken = rows[owner[rows] >= 0]
        if taken.size:
            raise self.error(
                f"client {client} holds row {taken[0]}, which client {owner[taken[0]]} already holds; "
                "a row belongs to one client"
            )
        twice = rows[1:][rows[1:] == rows[:-1]]
        if twice.size:
            raise self.error(f"client {client} holds row {twice[0]} more than once")
        owner[rows] = client

    def __eq__(self, other: object) -> bool:
        """Equal settings; arrays compare by value, which a dataclass's own equality cannot do."""
        if type(self) is not type(other):
            return NotImplemented
        mine, others = vars(self), vars(other)
        return all(_same_values(value, others[name]) for name, value in mine.items() if name != "row_labels")

    def __hash__(self) -> int:
        return hash(repr(self))


class ByValue(Partition):
    """A partition by one value a row: its own `by`, or the labels handed to `split`."""

    by: np.ndarray | None
    #: Index of each setting that is a column of pandas, by the setting's name.
    row_labels: Mapping[str, pd.Index] = MappingProxyType({})

    def values(self, num_rows: int, labels: Any) -> np.ndarray:
        """The checked value of every row, (num_rows,): the partition's own `by`, or the labels handed to `split`."""
        values = self._labels_or_by(labels)
        if len(values) != num_rows:
            source = "labels" if self.by is None else "by"
            raise self.error(
                f"{source} has {len(values)} values for {num_rows} rows; give one value for each row, in row order"
            )
        return values

    def dealt_by(self, num_rows: int, labels: Any = None) -> np.ndarray | None:
        """The partition's own `by`, or the labels."""
        return self.values(num_rows, labels)

    def rows_by_label(self, num_rows: int, labels: Any) -> list[np.ndarray]:
        """Rows of every distinct label, labels in ascending order; refuses a continuous target."""
        values = self.values(num_rows, labels)
        distinct, codes = np.unique(values, return_inverse=True)
        if np.issubdtype(values.dtype, np.floating) and len(distinct) > MAX_FLOAT_LABELS:
            raise self.error(
                f"the labels are floats with {len(distinct)} distinct values (more than {MAX_FLOAT_LABELS}), "
                "a continuous column: use SortedBy(by=...), give by= a column of classes, or cast the labels to "
                "integers if they are classes"
            )
        return [np.flatnonzero(codes == code) for code in range(len(distinct))]

    def _labels_or_by(self, labels: Any) -> np.ndarray:
        if self.by is not None:
            return self.by
        if labels is None:
            raise self.error("there are no labels; pass by= with one value for each row")
        return as_values(labels, f"{type(self).__name__}: labels")

    def __post_init__(self) -> None:
        """Replace `by` by a checked read-only array."""
        if self.by is not None:
            self._freeze("by")

    def _freeze(self, name: str) -> np.ndarray:
        """Replace a setting with one value a row by a checked read-only array, and store its rows' index."""
        given = getattr(self, name)
        if isinstance(given, pd.DataFrame | pd.Series):
            object.__setattr__(self, "row_labels", {**self.row_labels, name: given.index})
        values = as_values(given, f"{type(self).__name__}: {name}").copy()
        values.setflags(write=False)
        object.__setattr__(self, name, values)
        return values


def as_values(values: Any, name: str) -> np.ndarray:
    """One value a row as a 1-D array, from an array, tensor, Series or sequence; `name` is for messages."""
    if isinstance(values, str):
        raise SettingError(f"{name} is the text {values!r}; give the column itself, such as frame[{values!r}]")
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().numpy()
    if isinstance(values, list | tuple) or str(getattr(values, "dtype", "")) == "object":
        _check_kinds(list(values), name)
    array = np.asarray(values)
    if array.dtype == object:  # a column of strings: let numpy find the common type
        array = np.asarray(array.tolist())
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise SettingError(f"{name} has shape {array.shape}, expected one value for each row: (rows,)")
    if array.dtype == object:
        raise SettingError(f"{name} mixes types that do not sort together; give only numbers or only strings")
    missing = np.flatnonzero(array != array)  # NaN and NaT differ from themselves
    if missing.size:
        raise SettingError(f"{name}[{missing[0]}] is {array[missing[0]]} ({missing.size} missing in all)")
    return array


def _same_values(a: Any, b: Any) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(np.array_equal, a, b))
    return bool(np.array_equal(a, b)) if a is not None and b is not None else a is b


def _check_kinds(values: list[Any], name: str) -> None:
    """Refuse missing labels, and text beside numbers, which NumPy would turn into text: 1 and "1" would be equal."""
    missing = [i for i, value in enumerate(values) if value is None]
    if missing:
        raise SettingError(
            f"{name}[{missing[0]}] is None ({len(missing)} missing in all): leave these rows out, or give them a label"
        )
    text = [i for i, value in enumerate(values) if isinstance(value, str)]
    if text and len(text) < len(values):
        other = next(i for i, value in enumerate(values) if not isinstance(value, str))
        raise SettingError(
            f"{name} mixes types: [{text[0]}] is {values[text[0]]!r}, [{other}] is {values[other]!r}; give "
            "numbers or strings alone"
        )


def check_alpha(partition: Partition, alpha: Any) -> None:
    """Refuse a Dirichlet concentration that is not a finite number > 0 with the partition's SettingError."""
    if isinstance(alpha, bool) or not isinstance(alpha, Real) or not 0 < float(alpha) < math.inf:
        raise partition.error(f"alpha is {alpha!r}, expected a finite number > 0; small means skewed, large means even")


def dirichlet(partition: Partition, alpha: float, num_clients: int, rng: np.random.Generator) -> np.ndarray:
    """Shares of the clients, (num_clients,), summing to 1, ~ Dirichlet(alpha, ..., alpha)."""
    shares = rng.dirichlet(np.full(num_clients, float(alpha)))
    if not np.isclose(shares.sum(), 1.0):  # the gamma variates behind it left the floats
        raise partition.error(f"alpha={alpha} is outside the range of floating point; take 1e-3 to 1e6")
    return shares


def cuts(shares: np.ndarray, num_rows: int) -> np.ndarray:
    """Positions (clients - 1,) at which to cut rows so that parts have the shares (clients,), to the nearest row."""
    positions: np.ndarray = np.rint(np.cumsum(shares)[:-1] * num_rows)
    return positions.astype(np.int64)


def deal(
    rows_by_label: Sequence[np.ndarray], shares: Sequence[np.ndarray], rng: np.random.Generator
) -> list[np.ndarray]:
    """The rows of each client, after each label's shuffled rows are dealt out in that label's shares (clients,)."""
    parts = [
        np.split(rng.permutation(rows), cuts(share, len(rows)))
        for rows, share in zip(rows_by_label, shares, strict=True)
    ]
    return [np.concatenate(client) for client in zip(*parts, strict=True)]


def pack(sizes: np.ndarray, num_clients: int) -> np.ndarray:
    """Client of each group, (groups,): the largest group first, to the client with the fewest rows."""
    owner, load = np.empty(len(sizes), dtype=np.int64), np.zeros(num_clients, dtype=np.int64)
    for group in np.argsort(-sizes, kind="stable"):
        owner[group] = load.argmin()
        load[owner[group]] += sizes[group]
    return owner
