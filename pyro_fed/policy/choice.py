"""A choice of a setting, with its reason; the tables of rules by which settings are chosen; and refusals of models."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyro_fed.algorithm.combination import Bounded, Combination
from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.privacy import Private
from pyro_fed.conventions.nested_settings import GIVEN, explicit_settings
from pyro_fed.density.traits import LARGE_DIM, Traits
from pyro_fed.errors import ModelError, SettingError
from pyro_fed.graph import Graph

#: The reasons of settings that no rule changes.
AS_SET, DEFAULT = "as it is set", "its default"


class Decision(NamedTuple):
    """The value that a rule gives a setting, and the reason as a clause."""

    value: Any
    reason: str


@dataclass(frozen=True)
class Setup:
    """Arguments of a run, other than the algorithm, on which choices depend.

    Attributes:
        graph: the graph of agents; None with a server.
        combination: the combination of the clients' messages; None sums them.
    """

    graph: Graph | None = None
    combination: Combination | None = None

    @property
    def groups_take_turns(self) -> bool:
        """Whether different agents are awake in each round."""
        return self.graph is not None and self.graph.active(0) is not None

    @property
    def private(self) -> bool:
        """Whether each round adds privacy noise."""
        return isinstance(self.combination, Private)

    @property
    def bounded(self) -> bool:
        """Whether the effect of one client's message is limited relative to the others'."""
        return isinstance(self.combination, Bounded)


@dataclass(frozen=True)
class Case:
    """The inputs of a rule."""

    algorithm: Any  # with the choices so far
    traits: Traits
    own: frozenset[str]  # names of the settings that the user has set
    chosen: frozenset[str]  # names of the settings that rules have changed so far
    setup: Setup


#: A rule chooses one setting; None leaves it unchanged.
Rule = Callable[[Case], Decision | None]


@dataclass(frozen=True)
class Row:
    """One line of a table: a setting, the rule that chooses it, and how a user overrides it."""

    setting: str
    rule: Rule
    override: str


@dataclass(frozen=True)
class Table:
    """The rules of one kind of algorithm in the order of application, and checks that refuse models."""

    rows: tuple[Row, ...] = ()
    checks: tuple[Callable[[Case], None], ...] = ()


@dataclass(frozen=True)
class Choice:
    """The value of one setting in a run, with its reason.

    `override` is how a user sets it; "" if the user has set it.
    """

    setting: str
    value: Any
    reason: str
    override: str


@dataclass(frozen=True)
class Resolved:
    """An algorithm without open settings, and the choices of its rules."""

    algorithm: Algorithm
    choices: tuple[Choice, ...] = ()


def apply_table(algorithm: Algorithm, table: Table, traits: Traits, setup: Setup) -> Resolved:
    """An algorithm with its settings chosen by a table of rules; the same object if none of them changes."""
    own, draft = explicit_settings(algorithm), algorithm
    changes: dict[str, Any] = {}
    choices: list[Choice] = []
    for row in table.rows:
        decision = row.rule(Case(draft, traits, own, frozenset(changes), setup))
        value = getattr(draft, row.setting)
        if decision is None:
            choices.append(Choice(row.setting, value, AS_SET if row.setting in own else DEFAULT, ""))
            continue
        choices.append(Choice(row.setting, decision.value, decision.reason, row.override))
        if value != decision.value:
            changes[row.setting] = decision.value
            draft = _with_change(draft, row.setting, decision.value)
    for check in table.checks:
        check(Case(draft, traits, own, frozenset(changes), setup))
    if not changes:
        return Resolved(algorithm, tuple(choices))
    found: Any = dataclasses.replace(algorithm, **changes)
    object.__setattr__(found, GIVEN, own | changes.keys())  # `replace` has written all of them
    return Resolved(found, tuple(choices))


def _with_change(draft: Any, setting: str, value: Any) -> Any:
    """A copy with another value, unchecked, since settings are checked together after all choices."""
    changed = copy(draft)
    object.__setattr__(changed, setting, value)
    return changed


def affordable_rows(case: Case) -> None:
    """Refuse networks whose rows' own latents are too costly to integrate out at many points."""
    case.traits.require_affordable()


def few_enough_to_weigh(case: Case) -> None:
    """Refuse importance weights for models with many parameters."""
    dim = case.traits.dim
    if dim <= LARGE_DIM:
        return
    raise SettingError(
        f"{type(case.algorithm).__name__} cannot weight draws of {dim:,} parameters: the ratio of two densities "
        f"varies so much that one draw has all the weight. The limit is {LARGE_DIM:,}; use FedEP, which uses "
        f"stochastic gradients there, or DSVGD"
    )


def proper_prior(why: str, cure: str, where: Callable[[Case], bool] = lambda case: True) -> Callable[[Case], None]:
    """A check that refuses improper priors where an algorithm needs the prior; `why` and `cure` are clauses."""

    def check(case: Case) -> None:
        improper = sorted(case.traits.improper)
        if improper and where(case):
            raise ModelError(
                f"{type(case.algorithm).__name__}: {why}, and the priors of sites {improper} are improper, which have "
                f"no draws and no mean: give them proper priors, or {cure}"
            )

    return check
