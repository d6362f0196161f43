"""What the functions of the round loop share: a run's fixed parts (`Context`), and its present `Phase`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

from pyro_fed.algorithm.combination import Combination
from pyro_fed.algorithm.contract import Algorithm, Start
from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.schedule import Schedule
from pyro_fed.algorithm.states import State
from pyro_fed.density.problem import Problem
from pyro_fed.federation.federation import Federation
from pyro_fed.graph import Graph
from pyro_fed.policy import Choice
from pyro_fed.runtime.budget import Budget
from pyro_fed.runtime.checkpoint import Checkpoint
from pyro_fed.runtime.evaluation import Evaluation
from pyro_fed.runtime.executors import Executor
from pyro_fed.runtime.growth import Growth
from pyro_fed.runtime.interruption.sigint import Interruption
from pyro_fed.runtime.messages.expected import Expected
from pyro_fed.runtime.network import Connect, connect


@dataclass
class Context:
    """The parts of a run that are the same in all phases; only the compiler learns how many rounds are ahead.

    Attributes:
        federation: the model and its clients.
        problem: the model's densities, as this run compiles them.
        graph: who talks to whom; None with a server.
        executor: has the clients' work done.
        seed: the run's seed.
        progress: whether progress is shown.
        record: what has happened so far.
        min_clients: the quorum, see `run`.
        combination: what the server does with messages; None adds them up as the algorithm says.
        checkpoint: where states are saved; None for nowhere.
        start: the states of an earlier run from which this one starts; None for none.
        evaluation: the user's figures; None for none.
        budget: the limits of rounds, bytes and time.
        interruption: whether the user has asked the run to stop.
        connect: makes the network of a phase.
        choices: the settings that were chosen for each resolved algorithm, in the order of resolution.
        expected: the specification of the present phase's messages, for a user's executor; None for no check.
    """

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
    choices: list[tuple[Algorithm, tuple[Choice, ...]]] = field(default_factory=list)
    expected: Expected | None = None


@dataclass
class Phase:
    """One algorithm of a run, and how far its rounds have come.

    Attributes:
        algorithm: the phase's algorithm.
        number: 0 for the first phase of the run.
        rounds: number of rounds of the phase.
        given: the user's schedule, in the last phase; None for the algorithm's own.
        shared: the server's state.
        local: the clients' states before the first round; empty once the executor has them.
        done: number of rounds that it has had.
        last: whether this is the run's own algorithm, and not one from which that starts.
        settled: whether it starts from a converged phase, so that its first state is a posterior already.
        ledger: the server's account of the clients' sites; empty if it has none.
        name: the phase's name in the progress bar.
        drawn: the schedule's period for which `slots` was drawn; -1 before the first.
        slots: the schedule's answers for an algorithm with slots (`Chains`), slot after slot, by round.
        growth: how large the state has been, to notice growth without end.
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
    slots: Callable[[int], list[int]] | None = None
    growth: Growth = field(default_factory=Growth)

    @cached_property
    def schedule(self) -> Schedule:
        """The user's, or the algorithm's own."""
        own = self.given is None or self.algorithm.pooled
        return self.algorithm.default_schedule() if own else cast(Schedule, self.given)
