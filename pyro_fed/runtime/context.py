"""The shared data of the round loop: the constant parts of a run (`Context`), and its current `Phase`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

from pyro_fed.algorithm.combination import Combination
from pyro_fed.algorithm.contract import Algorithm, Start
from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.schedule import Schedule
from pyro_fed.algorithm.states import State
from pyro_fed.conventions import seeding
from pyro_fed.density.problem import Problem
from pyro_fed.errors import PyroFedError, SettingError
from pyro_fed.federation.federation import Federation
from pyro_fed.graph import Graph
from pyro_fed.ops.gaussian import ImproperGaussianError
from pyro_fed.policy import Choice
from pyro_fed.results.to_arviz import posterior_alone
from pyro_fed.runtime.budget import Budget, Interruption
from pyro_fed.runtime.checkpoint import Checkpoint
from pyro_fed.runtime.executors import Executor
from pyro_fed.runtime.executors.local import Expected
from pyro_fed.runtime.network import Connect, connect

#: A user's function of the current posterior, as InferenceData with only the group `posterior`, which returns figures
#: by name.
Evaluate = Callable[[Any], Mapping[str, float]]


@dataclass(frozen=True)
class Evaluation:
    """A user's function of `num_draws` draws of the posterior, called `every` rounds."""

    evaluate: Evaluate
    every: int
    num_draws: int

    def __post_init__(self) -> None:
        if self.every < 1:
            raise SettingError(f"evaluate_every must be at least 1, received {self.every}")

    def figures(self, algorithm: Algorithm, context: Context, shared: State) -> dict[str, float]:
        """The function's figures of a state; empty while there is no distribution."""
        problem, generator = context.problem, seeding.torch_generator(context.seed, seeding.DRAWS)
        try:
            shared = algorithm.conclude(problem, shared)
            draws = algorithm.sample(shared, self.num_draws, generator).to(problem.dtype)
        except ImproperGaussianError:
            return {}
        posterior = posterior_alone(algorithm, context.federation, problem, draws, context.record)
        try:
            figures: Any = self.evaluate(posterior)
        except PyroFedError:
            raise
        except Exception as error:  # any error of the user's function, which is kept as the cause
            raise SettingError(f"evaluate raised {type(error).__name__}: {error}") from error
        try:
            return {str(name): float(value) for name, value in figures.items()}
        except (AttributeError, TypeError, ValueError) as error:
            raise SettingError(
                f"evaluate must return numbers by name, such as {{'accuracy': 0.9}}, received {figures!r}"
            ) from error


@dataclass
class Context:
    """The parts of a run that are the same in all phases, except for the compiler's number of remaining rounds."""

    federation: Federation
    problem: Problem  # as this run compiles it
    graph: Graph | None  # None with a server
    executor: Executor
    seed: int
    progress: bool
    record: Record
    min_clients: int | None = None
    combination: Combination | None = None  # None combines messages as the algorithm does
    checkpoint: Checkpoint | None = None
    start: Start | None = None  # the states of an earlier run
    evaluation: Evaluation | None = None
    budget: Budget = field(default_factory=Budget)
    interruption: Interruption = field(default_factory=Interruption)
    connect: Connect = connect  # makes the network of a phase
    choices: list[tuple[Algorithm, tuple[Choice, ...]]] = field(default_factory=list)  # in the order of resolution
    expected: Expected | None = None  # the form of the phase's messages, if a user's executor computes them

    @property
    def hides_clients(self) -> bool:
        """Whether the run is private: single messages are not inspected, and clients' figures not recorded."""
        return self.combination is not None and self.combination.private


@dataclass
class Phase:
    """One algorithm of a run, and the progress of its rounds."""

    algorithm: Algorithm
    number: int
    rounds: int
    shared: State
    local: State  # before the first round; empty once the executor has them
    done: int = 0  # rounds
    given: Schedule | None = None  # the user's, in the last phase
    last: bool = False  # whether it is the run's own algorithm, and not one that this starts from
    settled: bool = False  # whether it starts from a converged phase, so that its first state is a posterior
    ledger: State = field(default_factory=dict)  # the server's record of the clients' sites
    name: str = ""  # in the progress bar
    drawn: int = -1  # the schedule's period for which `slots` was drawn
    slots: Callable[[int], list[int]] | None = None  # the clients that the schedule chose for `Chains`, by round

    @cached_property
    def schedule(self) -> Schedule:
        """The user's, or the algorithm's own."""
        own = self.given is None or self.algorithm.pooled
        return self.algorithm.default_schedule() if own else cast(Schedule, self.given)
