"""A case: a posterior with a known answer; and a split of its rows over clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyro_fed.errors import SettingError
from pyro_fed.federation import partition as partitions
from pyro_fed.federation.federation import Federation
from pyro_fed.federation.partition.base import as_values

#: For a split by labels, a continuous target is cut at its quartiles into this many classes.
MAX_CLASSES = 4

#: A function that reads a column, with one value for each row, from the model's arguments.
Column = Callable[[tuple[Any, ...]], Any]


class NotApplicable(SettingError):
    """A split that a case does not have: too few rows, or no groups."""


@dataclass(frozen=True)
class Reference:
    """Draws that represent a case's posterior.

    Args:
        values: draws `(chain, draw, *shape)` by site.
        exact: True if the draws' moments equal the posterior's to many digits; False for a random sample.
        source: where the draws come from, in a few words.
    """

    values: Mapping[str, np.ndarray]
    exact: bool
    source: str


@dataclass(frozen=True)
class Case:
    """A posterior with a known answer.

    Args:
        name: name of the case; unique.
        kind: "analytic", "gallery" or "posteriordb".
        about: a description in a line.
        model: an ordinary Pyro model.
        data: returns the model's positional arguments, in double precision.
        reference: takes these arguments, and returns draws of the posterior.
        sort_by: the column by which the split "sorted" sorts the rows.
        labels: the column whose classes a Dirichlet split deals out; a continuous column is cut at its quartiles.
        groups: the column of groups for the split "group"; None if the case has no groups.
        plate: name of the plate that is split.
        rows: as for `Federation`, if the plate is one of groups whose rows are in plates of their own.
    """

    name: str
    kind: str
    about: str
    model: Callable[..., Any]
    data: Callable[[], tuple[Any, ...]]
    reference: Callable[[tuple[Any, ...]], Reference]
    sort_by: Column
    labels: Column
    groups: Column | None = None
    plate: str = "data"
    rows: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Split:
    """A way to split rows over clients: "iid", "sorted", "group" or "dirichlet:ALPHA", and the number of clients."""

    how: str
    clients: int

    @classmethod
    def parse(cls, text: str) -> Split:
        """Read a split from a text such as "sorted/10" or "dirichlet:0.3/100"."""
        how, _, count = text.strip().lower().partition("/")
        kind, _, alpha = how.partition(":")
        known = how in ("iid", "sorted", "group") or (kind == "dirichlet" and _is_number(alpha))
        if not known or not count.isdecimal() or not int(count):
            raise SettingError(
                f"partition {text!r}: expected iid, sorted, group or dirichlet:ALPHA, a slash and the number of "
                "clients, such as sorted/10"
            )
        return cls(how, int(count))

    def __str__(self) -> str:
        return f"{self.how}/{self.clients}"

    def partition(self, case: Case, args: tuple[Any, ...]) -> partitions.Partition:
        """The partition of a case's rows; NotApplicable if it has too few rows, or no groups."""
        column = as_values(case.sort_by(args), f"the column that '{case.name}' is sorted by")
        if len(column) < self.clients:
            raise NotApplicable(f"{case.name} has {len(column)} rows, too few for {self.clients} clients")
        if self.how == "iid":
            return partitions.IID()
        if self.how == "sorted":
            return partitions.SortedBy(by=column)
        if self.how == "group":
            return self._by_group(case, args)
        return partitions.Dirichlet(float(self.how.partition(":")[2]), by=classes(case.labels(args)))

    def _by_group(self, case: Case, args: tuple[Any, ...]) -> partitions.Partition:
        groups = as_values(case.groups(args), f"the groups of '{case.name}'") if case.groups else np.zeros(0)
        count = len(np.unique(groups))
        if count < self.clients:
            raise NotApplicable(f"{case.name} has {count} groups, too few for {self.clients} clients")
        return partitions.ByGroup(by=groups)

    def federation(self, case: Case, seed: int) -> Federation:
        """A federation with the case's rows split over clients; NotApplicable as for `partition`."""
        args = case.data()
        how = self.partition(case, args)
        return Federation(
            case.model, args, plate=case.plate, rows=case.rows, num_clients=self.clients, partition=how, seed=seed
        )


def classes(values: Any) -> np.ndarray:
    """Class of each row: labels counted from 0, or the quarter that a continuous value is in."""
    column = as_values(values, "the labels")
    if len(np.unique(column)) <= MAX_CLASSES:
        return np.unique(column, return_inverse=True)[1]
    cuts = np.quantile(column, np.arange(1, MAX_CLASSES) / MAX_CLASSES)
    found: np.ndarray = np.searchsorted(cuts, column, side="right")
    return found


def _is_number(text: str) -> bool:
    try:
        return float(text) > 0
    except ValueError:
        return False
