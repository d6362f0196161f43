"""A posterior with a known answer, and how its rows go to clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyro_fed.errors import SettingError
from pyro_fed.federation import partition as partitions
from pyro_fed.federation.federation import Federation
from pyro_fed.federation.partition.base import as_values

#: Classes that a continuous target is cut into where rows are dealt out by labels: its quarters.
LABELS = 4

#: What reads a column, one value a row, from the model's arguments.
Column = Callable[[tuple[Any, ...]], Any]


class NotApplicable(SettingError):
    """A split that a case does not have: too few rows, or no groups."""


@dataclass(frozen=True)
class Reference:
    """What is known of a posterior.

    Args:
        values: by site, `(chain, draw, *shape)`.
        exact: whether its moments are those of the posterior, to many digits, and not those of a random sample.
        source: where it comes from, in a few words.
    """

    values: Mapping[str, np.ndarray]
    exact: bool
    source: str


@dataclass(frozen=True)
class Case:
    """A posterior with a known answer.

    Args:
        name: unique.
        kind: "analytic", "gallery" or "posteriordb".
        about: what is hard or easy about it, in a line.
        model: an ordinary Pyro model.
        data: makes its positional arguments, in double precision.
        reference: from these arguments to what is known.
        sort_by: the column that clients are sorted by.
        labels: the column whose classes a Dirichlet split deals out; a continuous one is cut into quarters.
        groups: the column of groups, where there are any.
        plate: name of the plate that is split.
        rows: where that is a plate of groups, as in `Federation`.
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
    """How rows go to clients.

    Args:
        how: "iid", "sorted", "group" or "dirichlet:ALPHA".
        clients: how many.
    """

    how: str
    clients: int

    @classmethod
    def parse(cls, text: str) -> Split:
        """From a text such as "sorted/10" or "dirichlet:0.3/100".

        Raises:
            SettingError: another text.
        """
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
        """The partition of a case's rows.

        Raises:
            NotApplicable: the case has too few rows, or no groups.
        """
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
        """The case's rows over clients.

        Args:
            case: the posterior.
            seed: of the split.

        Raises:
            NotApplicable: as `partition`.
        """
        args = case.data()
        how = self.partition(case, args)
        return Federation(
            case.model, args, plate=case.plate, rows=case.rows, num_clients=self.clients, partition=how, seed=seed
        )


def classes(values: Any) -> np.ndarray:
    """Labels as they are, and a continuous target's quarters."""
    column = as_values(values, "the labels")
    if len(np.unique(column)) <= LABELS:
        return np.unique(column, return_inverse=True)[1]
    cuts = np.quantile(column, np.arange(1, LABELS) / LABELS)
    found: np.ndarray = np.searchsorted(cuts, column, side="right")
    return found


def _is_number(text: str) -> bool:
    try:
        return float(text) > 0
    except ValueError:
        return False
