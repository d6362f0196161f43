"""A run's result while it is judged: its draws, the run, and the findings so far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.states import State
from pyro_fed.audit import Evidence
from pyro_fed.codes.finding import Finding, Topic, doubts_among, is_about
from pyro_fed.conventions.limits import Limits
from pyro_fed.density.problem import Problem
from pyro_fed.runtime.context import Context


@dataclass(frozen=True)
class CheckInputs:
    """The inputs of the checks of a result.

    Attributes:
        algorithm: the algorithm that was run.
        context: the run; its record has the findings so far.
        shared: the server's last state; empty if it is no longer known.
        draws: (chain, draw, D), unconstrained.
        audit: whether the user wants the result to be audited.
        aim: limits finer than `WRONG`, up to which the audit should measure errors; None for none.
    """

    algorithm: Algorithm
    context: Context
    shared: State
    draws: Tensor
    audit: bool
    aim: Limits | None = None

    @property
    def record(self) -> Record:
        """The run's record."""
        return self.context.record

    @property
    def problem(self) -> Problem:
        """The model's densities."""
        return self.context.problem

    @cached_property
    def evidence(self) -> Evidence:
        """The input of the audit."""
        context = self.context
        return Evidence(
            self.algorithm,
            context.federation,
            context.problem,
            self.shared,
            self.draws,
            context.record,
            context.seed,
            self.aim,
        )

    @property
    def doubts(self) -> list[Finding]:
        """The findings so far that speak against the result."""
        return doubts_among(self.record.findings)

    def has(self, topic: Topic) -> bool:
        """Whether there is a finding about a topic."""
        return is_about(self.record.findings, topic)


#: From a result to what was found; nothing where there is nothing to say.
Check = Callable[[CheckInputs], list[Finding]]
