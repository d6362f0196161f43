"""What may be run besides an algorithm: a plan, several algorithms one after the other until one has no doubts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.conventions.limits import MATTERS, SD_MATTERS, Limits
from pyro_fed.conventions.nested_settings import SettingsRepr
from pyro_fed.conventions.setting_checks import check_at_least, check_positive
from pyro_fed.errors import SettingError

if TYPE_CHECKING:
    from pyro_fed.density.problem import Problem
    from pyro_fed.graph import Graph


@dataclass(frozen=True)
class Stage:
    """One algorithm of a plan, and on what.

    Args:
        algorithm: what is run.
        noncentred: on the form of the model in which effects are in units of their own scale, where it has one.
        title: its name once its open settings have been chosen; "" names it by its settings.
    """

    algorithm: Algorithm
    noncentred: bool = False
    title: str = ""


@dataclass(frozen=True, kw_only=True)
class Plan(SettingsRepr, ABC):
    """Algorithms that a run tries in turn, each judged as if it were run alone: the first without doubts answers.

    What one of them starts from and another has been already, such as the sites of `FedEP` for `FedAIS`, is not run
    again. Where an answer was doubted, a later one without doubts must be confirmed by another, see `confirm`.

    Args:
        max_rounds: rounds of all stages together; None: no limit.
        max_bytes: bytes that the clients receive and send in all stages together; None: no limit. What they will send
            in the first round of a phase is not known before it, and may come on top.
        max_seconds: seconds on the clock of all stages together; None: no limit. See `max_seconds` of `pyro_fed.run`.
        confirm: an answer without doubts that comes after a doubted one has to be confirmed by a second one that agrees
            with it, as found or as the audit's chains correct it. So many more stages are tried for that; 0: none.
        mean_error: the most that any mean of two answers that agree may differ, in SDs.
        sd_factor: the largest ratio of any SD of two answers that agree.
        aim_mean_error: the error of a mean that is aimed at, in SDs, as the audit's chains estimate it. An answer that
            misses an aim, but has no doubts, is followed by stages that may be better, see `refine`.
        aim_sd_factor: the factor by which an SD may be off, as an aim.
        refine: the most stages that are tried for a missed aim; 0: none.
    """

    max_rounds: int | None = None
    max_bytes: int | None = None
    max_seconds: float | None = None
    confirm: int = 2
    mean_error: float = MATTERS
    sd_factor: float = SD_MATTERS
    aim_mean_error: float = 0.1
    aim_sd_factor: float = 1.1
    refine: int = 3

    def __post_init__(self) -> None:
        check_at_least(self, 1, "max_rounds", "max_bytes", allow_none=True)
        check_at_least(self, 0, "confirm", "refine")
        check_positive(self, "mean_error", "aim_mean_error")
        check_positive(self, "max_seconds", allow_none=True)
        for name in ("sd_factor", "aim_sd_factor"):
            if not getattr(self, name) > 1:
                raise SettingError(f"{type(self).__name__}: {name} must be above 1, received {getattr(self, name)}")

    @property
    def aim(self) -> Limits:
        """The limits that an answer should keep to, finer than those that make one wrong."""
        return Limits(self.aim_mean_error, self.aim_sd_factor)

    @abstractmethod
    def stages(self, problem: Problem, graph: Graph | None) -> Sequence[Algorithm | Stage]:
        """The stages to try, in order; at least one, and the first of them is on the unchanged model.

        Args:
            problem: the model's densities, which say what can be run on them.
            graph: who talks to whom; None with a server.
        """
