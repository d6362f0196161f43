"""The partitions, by rows (`IID`, `QuantitySkew`, `ByGroup`, `SortedBy`, `Explicit`) or by labels, and `parse`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np

from pyro_fed.conventions.calls import checked
from pyro_fed.errors import SettingError
from pyro_fed.federation.partition.base import (
    MAX_FLOAT_LABELS,
    ByValue,
    Partition,
    check_alpha,
    cuts,
    deal,
    dirichlet,
    pack,
)

USAGE = (
    "write iid, dirichlet:ALPHA, quantity:ALPHA, shards:CLASSES, majority:SHARE, "
    "sorted, sorted:COLUMN, group or group:COLUMN"
)


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
                "or leave num_clients out for one client a group"
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


@dataclass(frozen=True, eq=False)
class Dirichlet(ByValue):
    """Label skew: the rows of each label go to the clients in shares ~ Dirichlet(alpha, ..., alpha).

    A client may end without rows, the more easily the smaller alpha is.

    Args:
        alpha: concentration, > 0. Small: a label sits at few clients. Large: every client has the
            pooled mix of labels.
        by: labels, one a row; None takes those handed to `split`.

    Raises:
        SettingError: `alpha` out of its range; labels that are missing or not one a row.

    Source: Yurochkin et al., Bayesian nonparametric federated learning of neural networks (2019).

    Example:
        >>> pf.Federation(model, (x, y), plate="data", num_clients=10, partition=pf.partition.Dirichlet(0.3, by=y))
    """

    alpha: float
    by: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_alpha(self, self.alpha)
        super().__post_init__()

    def assign(self, num_rows: int, num_clients: int, rng: np.random.Generator, labels: Any) -> list[np.ndarray]:
        per_label = self.rows_by_label(num_rows, labels)
        weights = [dirichlet(self, self.alpha, num_clients, rng) for _ in per_label]
        return deal(per_label, weights, rng)


@dataclass(frozen=True, eq=False)
class LabelShards(ByValue):
    """Each client holds rows of `classes_per_client` labels, and of no other.

    The clients choose in turn, each the labels with the fewest holders so far (ties at random); a
    label's rows are then dealt out evenly to its holders. A label with fewer rows than holders leaves
    some of them without it. Unlike shards cut from sorted rows, none straddles two labels.

    Args:
        classes_per_client: labels a client holds, at least 1.
        by: labels, one a row; None takes those handed to `split`.

    Raises:
        SettingError: `classes_per_client` is more than the labels, or so few that the clients cannot hold all of them.

    Source: the "pathological" split of McMahan et al. (2017), in the form "each client owns only three
    types" of Yang, Liu and Kassab, Client selection for federated Bayesian learning, Section IV-A.

    Example:
        >>> pf.Federation(model, (x, y), plate="data", num_clients=10, partition=pf.partition.LabelShards(2, by=y))
    """

    classes_per_client: int
    by: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.classes_per_client, int | np.integer) or self.classes_per_client < 1:
            raise self.error(
                f"classes_per_client is {self.classes_per_client!r}, expected a whole number of at least 1"
            )
        super().__post_init__()

    def assign(self, num_rows: int, num_clients: int, rng: np.random.Generator, labels: Any) -> list[np.ndarray]:
        per_label = self.rows_by_label(num_rows, labels)
        holders = self._holders(len(per_label), num_clients, rng)
        return deal(per_label, [h / h.sum() for h in holders], rng)

    def _holders(self, num_labels: int, num_clients: int, rng: np.random.Generator) -> np.ndarray:
        """(labels, clients) matrix of ones where the client holds the label."""
        if self.classes_per_client > num_labels:
            raise self.error(
                f"classes_per_client is {self.classes_per_client}, but the data have {num_labels} labels; "
                f"take at most {num_labels}"
            )
        if self.classes_per_client * num_clients < num_labels:
            least = math.ceil(num_labels / num_clients)
            raise self.error(
                f"{num_clients} clients of {self.classes_per_client} classes cannot hold "
                f"{num_labels} labels; raise classes_per_client to at least {least} or add clients"
            )
        holders = np.zeros((num_labels, num_clients))
        for client in range(num_clients):
            least_held = np.lexsort((rng.random(num_labels), holders.sum(axis=1)))
            holders[least_held[: self.classes_per_client], client] = 1.0
        return holders


@dataclass(frozen=True, eq=False)
class MajorityShare(ByValue):
    """Label skew of a set strength: a part `share` of every label goes to the clients at home with it.

    Labels in ascending order are dealt out to the clients in turn (client k is at home with label
    k mod C when there are at least as many clients as labels C; otherwise label c is at home with client
    c mod K). Each label's home clients share `share` of its rows evenly; all others share the rest evenly.

    Two labels, four clients, share 0.8: "each agent stores 40% of one label and 10% of the other"
    (Kassab and Simeone, DSVGD, Section 7). Two equally frequent labels and share 0.9 give every client
    "the ratio 1:9" (Yang, Liu and Kassab, Section IV-A); where labels are not equally frequent, a client's
    ratio is 1:9 times that of the labels' frequencies.

    Args:
        share: part of a label's rows that stays at home, in [0, 1].
        by: labels, one a row; None takes those handed to `split`.

    Raises:
        SettingError: `share` out of its range; labels that are missing or not one a row.

    Example:
        >>> pf.Federation(model, (x, y), plate="data", num_clients=4, partition=pf.partition.MajorityShare(0.8, by=y))
    """

    share: float
    by: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.share, Real) or not 0 <= float(self.share) <= 1:
            raise self.error(f"share is {self.share!r}, expected a number in [0, 1]")
        super().__post_init__()

    def assign(self, num_rows: int, num_clients: int, rng: np.random.Generator, labels: Any) -> list[np.ndarray]:
        per_label = self.rows_by_label(num_rows, labels)
        cycle = min(len(per_label), num_clients)
        homes = [np.arange(num_clients) % cycle == label % cycle for label in range(len(per_label))]
        return deal(per_label, [self._weights(home) for home in homes], rng)

    def _weights(self, home: np.ndarray) -> np.ndarray:
        if home.all():
            return np.full(len(home), 1 / len(home))
        weights: np.ndarray = np.where(home, self.share / home.sum(), (1 - self.share) / (~home).sum())
        return weights


@dataclass(frozen=True, eq=False)
class FeatureSkew(ByValue):
    """Same labels, different features: within each label the rows sorted by a feature are cut into equal blocks.

    Every client has the pooled mix of labels, up to a row a label, and its own range of the feature: writers whose
    digits look different, hospitals whose patients differ in age. Ties are in row order.

    Args:
        feature: value that differs between clients, one a row.
        by: labels, one a row; None takes those handed to `split`.

    Raises:
        SettingError: a feature or labels that are not one value a row.

    Source: the third kind of non-IID data of Wang et al., Peer-to-peer variational federated learning over arbitrary
    graphs, Definition 2; "concept drift (same label, different features)" of Kairouz et al. (2021), Section 3.1.

    Example:
        >>> skewed = pf.partition.FeatureSkew(feature=x[:, 0], by=y)
        >>> pf.Federation(model, (x, y), plate="data", num_clients=5, partition=skewed)
    """

    feature: Any = field(repr=False)
    by: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        values = self._freeze("feature")
        if values.dtype.kind not in "biuf" or not np.isfinite(values.astype(float)).all():
            raise self.error(f"feature must be one finite number for each row, received {values.dtype} values")

    def dealt_by(self, num_rows: int, labels: Any = None) -> np.ndarray | None:
        """The feature, since every client has the pooled mix of labels."""
        return np.asarray(self.feature)

    def assign(self, num_rows: int, num_clients: int, rng: np.random.Generator, labels: Any) -> list[np.ndarray]:
        if len(self.feature) != num_rows:
            raise self.error(f"feature has {len(self.feature)} values for {num_rows} rows")
        parts: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
        for rows in self.rows_by_label(num_rows, labels):
            ordered = rows[np.argsort(self.feature[rows], kind="stable")]
            for mine, block in zip(parts, np.array_split(ordered, num_clients), strict=True):
                mine.append(block)
        return [np.concatenate(mine) for mine in parts]


#: Partitions written NAME:NUMBER, with the number's type.
NUMBERED: dict[str, tuple[Callable[[Any], Partition], type]] = {
    "dirichlet": (Dirichlet, float),
    "quantity": (QuantitySkew, float),
    "shards": (LabelShards, int),
    "majority": (MajorityShare, float),
}

#: Partitions written NAME (by the labels) or NAME:COLUMN.
BY_COLUMN: dict[str, Callable[[Any], Partition]] = {"sorted": SortedBy, "group": ByGroup}


@checked
def parse(text: str, columns: Any = None, named: Mapping[str, Any] | None = None) -> Partition:
    """The partition that a text such as "dirichlet:0.3" stands for.

    Args:
        text: NAME or NAME:VALUE; see the table in `pyro_fed.partition`.
        columns: matrix (rows, columns), usually the model's covariates, from which sorted:COLUMN and
            group:COLUMN take the column with that index, counted from 0.
        named: columns by name, for which sorted:COLUMN and group:COLUMN may give the name; upper or lower case is one.

    Raises:
        SettingError: an unknown name, a missing or unreadable value, or a column that is not there.

    Example:
        >>> pf.partition.parse("dirichlet:0.3")
    """
    name, colon, value = (part.strip() for part in text.lower().partition(":"))
    if name == "iid" and not colon:
        return IID()
    if name in NUMBERED and value:
        kind, read = NUMBERED[name]
        return kind(_number(text, value, read))
    if name in BY_COLUMN and bool(colon) == bool(value):
        return BY_COLUMN[name](_column(text, value, columns, named or {}) if value else None)
    raise SettingError(f"partition {text!r} cannot be parsed; {USAGE}")


def _number(text: str, value: str, read: type) -> Any:
    try:
        return read(value)
    except ValueError:
        kind = "a whole number" if read is int else "a number"
        raise SettingError(f"partition {text!r}: {value!r} is not {kind}; {USAGE}") from None


def _column(text: str, value: str, columns: Any, named: Mapping[str, Any]) -> Any:
    found = [column for name, column in named.items() if name.lower() == value]
    if len(found) == 1:
        return found[0]
    if named and not value.lstrip("-").isdigit():
        several = "several columns" if found else "no column"
        written = text.partition(":")[2].strip()
        raise SettingError(f"partition {text!r}: there is {several} {written!r}; there are {list(named)}")
    index = _number(text, value, int)
    shape = np.shape(columns)
    if len(shape) != 2:
        raise SettingError(
            f"partition {text!r} names a column, but the data's first argument has shape {shape}, "
            "expected (rows, columns); leave the column out to use the labels"
        )
    if not 0 <= index < shape[1]:
        raise SettingError(f"partition {text!r}: columns run from 0 to {shape[1] - 1}")
    column: np.ndarray = columns[:, index]
    return column
