"""What a run carries: what stays the same over it, and the phase it is in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

from pyro_fed.algorithm.capabilities import Pooled
from pyro_fed.algorithm.combination import Combination
from pyro_fed.algorithm.contract import Algorithm, Start
from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.schedule import Schedule
from pyro_fed.algorithm.states import State
from pyro_fed.density.problem import Problem
from pyro_fed.federation.federation import Federation
from pyro_fed.graph import Graph
from pyro_fed.runtime.budget import Budget
from pyro_fed.runtime.checkpoint import Checkpoint
from pyro_fed.runtime.evaluation import Evaluation
from pyro_fed.runtime.executors import Executor
from pyro_fed.runtime.growth import Growth
from pyro_fed.runtime.interruption.sigint import Interruption
from pyro_fed.runtime.network import Connect, connect


@dataclass
class Context:
    """What stays the same over the phases of a run, but for the rounds ahead, which the problem's compiler knows."""

    federation: Federation
    problem: Problem
    graph: Graph | None
    executor: Executor
    seed: int
    progress: bool
    record: Record
    min_clients: int | None = None
    combination: Combination | None = None
    checkpoint: Checkpoint | None = None
    start: Start | None = None
    evaluation: Evaluation | None = None
    budget: Budget = field(default_factory=Budget)
    interruption: Interruption = field(default_factory=Interruption)
    connect: Connect = connect


@dataclass
class Phase:
    """An algorithm on its way through its rounds.

    Attributes:
        number: 0 for the first of the run.
        rounds: how many it is to have.
        given: the user's schedule, of the last phase.
        local: the clients' states before its rounds; empty once the executor has them.
        done: rounds it has had.
        last: whether it is the run's own algorithm, and none that this starts from.
        settled: whether it starts from one that had converged, so that its first state is a posterior already.
        ledger: the clients' sites as the server can follow them; empty where it cannot.
        name: as its progress is shown.
        drawn: the schedule's period of which there are `slots`: what it answers each of an algorithm's, by round.
        growth: how large its state has been, to tell when it grows without end.
    """

    algorithm: Algorithm
    number: int
    rounds: int
    given: Schedule | None
    shared: State
    local: State
    done: int = 0
    last: bool = False
    settled: bool = False
    ledger: State = field(default_factory=dict)
    name: str = ""
    drawn: int = -1
    slots: list[Callable[[int], list[int]]] = field(default_factory=list)
    growth: Growth = field(default_factory=Growth)

    @cached_property
    def schedule(self) -> Schedule:
        """The user's, or the algorithm's own."""
        own = self.given is None or isinstance(self.algorithm, Pooled)
        return self.algorithm.default_schedule() if own else cast(Schedule, self.given)
