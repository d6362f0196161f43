"""What an inference algorithm is: settings, and pure functions between tensors.

An algorithm is a frozen, keyword-only dataclass. `run` calls its methods in this order, round after round; those
with a name in brackets belong to a capability that some algorithms take up (see `algorithm.capabilities`):

    init        the server's state and the clients' states
    prepare     the server's own work with the model before a round
    indicate    where the schedule asks: every client's indicator, and `importance` what it means (Indicators)
    download    what a scheduled client receives
    draw_noise  all randomness of one client's round, from a generator of (seed, round, client)
    local_step  the client's work: a message, its new state, and figures for the record
    objections  which messages cannot be honest and are not used
    combine     the server's (or each agent's) new state from the messages
    refine      the server's own work with the model on that state
    feedback    what the server tells the clients about their messages (SiteKeeping)
    settle      what the clients keep, now that they know (SiteKeeping)
    monitor     figures of the round, `converged` whether to stop
    conclude    the server's own work with the model after the last round
    sample      draws from the result

States and messages are flat dictionaries of tensors. At a client everything has a leading axis C over the
clients that work in this round, so that one call serves many clients at once; what is written per client
goes through `problem.scan` or `problem.mapped`, which map it over that axis and compile it.

`Tempered` algorithms are those of generalised Bayes. A `Plan` runs several algorithms in turn until one has no doubts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyro_fed.conventions.limits import MATTERS, SD_MATTERS, Limits
from pyro_fed.conventions.nested_settings import SettingsRepr
from pyro_fed.conventions.setting_checks import check_at_least, check_positive
from pyro_fed.errors import SettingError

if TYPE_CHECKING:
    from pyro_fed.density.problem import Problem
    from pyro_fed.graph import Graph


from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from pyro_fed.algorithm import message_limits
from pyro_fed.algorithm.contributions import Contributions
from pyro_fed.algorithm.schedule import All, Schedule
from pyro_fed.algorithm.states import State as State
from pyro_fed.codes.finding import Finding
from pyro_fed.density.rows.batches import ClientData

if TYPE_CHECKING:
    from pyro_fed.algorithm.record import Record
    from pyro_fed.density.problem import Problem


#: All randomness of a step: a pytree of tensors.
Noise = Any
#: The result of a client's step: messages, new local states, figures for the record.
LocalResult = tuple[State, State, State]


class Start(NamedTuple):
    """Where a warm-started algorithm begins: the final states of `Algorithm.warm_start`.

    Attributes:
        shared: the server's.
        local: the clients', each (K, ...), such as their Gaussian sites.
    """

    shared: State
    local: State


def required_start(start: Start | None, algorithm: Any) -> Start:
    """The warm start of an algorithm that needs one; SettingError if there is none."""
    if start is None:
        name = type(algorithm).__name__
        raise SettingError(
            f"{name} begins where its `warm_start` ends: run it with pyro_fed.run, which does that first"
        )
    return start


@dataclass(frozen=True, kw_only=True)
class Algorithm(SettingsRepr, ABC):
    """Base class of inference algorithms.

    Abstract methods have to be written; every other one has a default, which is right for an algorithm that has no use
    for it. Parts of a run that few algorithms have, such as a graph in place of the server, are in
    `algorithm.capabilities`.

    Class attributes:
        draws_are: what `sample` returns: "particles", "independent" draws of a density, Markov "chains",
            "agents" (one chain an agent), or a "point".
        remedy: what to do where the audit finds its draws wrong; "" takes what fits the kind of draws.
        needs_all: a round without one of its clients means nothing, so that a client that failed is asked again.
        additive: `combine` asks for no more of the messages than their sums, each weighted by the client's share of
            the rows, and the clients keep nothing that follows from their own: the messages could be added up by
            secure aggregation, or be replaced by a robust mean.
        may_be_infinite: entries of the server's state in which an infinity or a NaN means "not known yet"; in any other
            that was finite it ends the run.
        pooled: it works on the pooled data, as those of a single client.
        joint: of an algorithm on pooled data: it works on the joint density of all latents, while others see the rows'
            own latents integrated out.
        on_cpu: its steps are computed on the CPU whatever the federation's device. Pyro's own samplers and guides draw
            random numbers within the step, from torch's global generator: on a device they would be others, and would
            change the state of that device's generator.
        provisional: the codes of those of its `warnings` that count only until exact chains find its moments right.
    """

    draws_are: ClassVar[str] = "independent"
    remedy: ClassVar[str] = ""
    needs_all: ClassVar[bool] = False
    additive: ClassVar[bool] = False
    may_be_infinite: ClassVar[frozenset[str]] = frozenset()
    pooled: ClassVar[bool] = False
    joint: ClassVar[bool] = False
    on_cpu: ClassVar[bool] = False
    provisional: ClassVar[frozenset[str]] = frozenset()

    # -- before a run ---------------------------------------------------------------------------------------
    def delegate(self) -> Algorithm:
        """The algorithm that is run where a user names this one: another one by its settings, or this.

        Example:
            >>> pf.FedEP(guide=my_guide).delegate()
            GuidedFedEP(guide=__main__.my_guide)
        """
        return self

    def for_draws(self, num_draws: int) -> Self:
        """This algorithm for a result of so many draws, if it makes these during its rounds.

        Args:
            num_draws: as many as the run's result is to have.
        """
        return self

    @abstractmethod
    def default_rounds(self, num_clients: int) -> int:
        """Number of rounds if the user gives none."""

    def expected_rounds(self, dim: int) -> int | None:
        """Number of rounds that are enough where the posterior is about Gaussian; None if that is not known before.

        Args:
            dim: D, parameters of the model.
        """
        return None

    def default_schedule(self) -> Schedule:
        """The schedule if the user gives none: every client works in every round."""
        return All()

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """An algorithm to run first, whose final states, the server's and the clients', `init` gets as `start`."""
        return None

    def row_temperature(self) -> float:
        """α: the rows that clients get count with their likelihood to the power 1/α; 1 is Bayes.

        What works on rows otherwise than as `ClientData` gives them takes a temperature of its own.
        """
        return 1.0

    # -- a round --------------------------------------------------------------------------------------------
    @abstractmethod
    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """The server's state, and the clients' with a leading client axis (K, ...).

        Args:
            problem: the model's densities.
            num_clients: how many there are, K.
            generator: source of randomness.
            start: final states of `warm_start`: `start.shared`, and `start.local` with one entry a client;
                None if it names no algorithm.
        """

    def prepare(self, problem: Problem, shared: State) -> State:
        """The server's own work with the model at the beginning of a round, such as on the prior: its state."""
        return shared

    def download(self, shared: State, clients: Tensor) -> State:
        """What clients (C,) receive, with a leading axis C; by default all of the server's state."""
        return {name: value.expand(len(clients), *value.shape) for name, value in shared.items()}

    def draw_noise(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        """All randomness of one client's round, a pytree with leading step axes, or ().

        Args:
            problem: the model's densities.
            num_rows: rows of the client.
            generator: of (seed, round, client).

        Returns:
            Tensors (steps, ...), or a dictionary of them; `local_step` gets those of C clients, (steps, C, ...).

        Example:
            def draw_noise(self, problem, num_rows, generator):
                return {"normal": torch.randn(self.steps, problem.dim, generator=generator, dtype=problem.dtype)}
        """
        return ()

    @abstractmethod
    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """The work of C clients in one round.

        Args:
            problem: the model's densities.
            shared: what they received, (C, ...).
            local: their states, (C, ...).
            data: their rows.
            noise: their randomness, (steps, C, ...).

        Returns:
            messages (C, ...), new local states (C, ...), figures for the record (C,). A client keeps its new state if
            the server uses its message; otherwise it continues from the state before.
        """

    def reply_like(self, shared: State) -> State | None:
        """A client's message as zeros, for its shapes; None where a step on a made-up row has to tell them.

        Args:
            shared: what clients receive, (C, ...).
        """
        return None

    def objections(self, received: State, messages: State) -> message_limits.Objections:
        """Why messages are not to be used: reason → the clients (C,) that it holds for.

        Args:
            received: what the clients got, (C, ...).
            messages: what they sent, (C, ...), all finite.
        """
        return message_limits.grown(received, messages)

    @abstractmethod
    def combine(self, shared: State, messages: State, weights: Any) -> State:
        """The new state of the server from C messages.

        Args:
            shared: the state before; of a serverless algorithm the states of the C agents that are awake.
            messages: (C, ...). Where a graph takes several steps a round, the agents' new states are the next
                step's messages.
            weights: (C,) the clients' shares of the rows; of a serverless algorithm the mixing weights W of the
                awake agents, (C, C), SciPy sparse rows; or the row of one agent, (1, C), whose state alone is wanted.
        """

    def refine(self, problem: Problem, shared: State) -> State:
        """The server's own work with the model after `combine`: its state."""
        return shared

    def monitor(self, before: State, after: State) -> dict[str, float]:
        """Figures of the round; `change` is shown as the convergence figure."""
        return {}

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        """Whether to stop, from the figures of all rounds so far; None if there is no criterion.

        A run that ends at a False says that it has not converged.
        """
        return None

    # -- the clients' parts in the answer -------------------------------------------------------------------
    def contributions(self) -> Contributions:
        """What each client has put into the answer, as far as the server can tell; by default nothing is known.

        Example:
            def contributions(self):
                return MyContributions(self)  # a kind of `Contributions`, with the methods that it can answer
        """
        return Contributions(self)

    # -- the answer -----------------------------------------------------------------------------------------
    def conclude(self, problem: Problem, shared: State) -> State:
        """The server's own work with the model before draws are made, such as running a guide: its state."""
        return shared

    @abstractmethod
    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        """Draws from the result, (chain, draw, D), unconstrained."""

    def sample_stats(self, shared: State, draws: Tensor) -> dict[str, Tensor]:
        """More columns of the result's `sample_stats` for draws (chain, draw, D), each (chain, draw)."""
        return {}

    def log_density(self, shared: State, draws: Tensor) -> Tensor | None:
        """The log density that the draws come from, so that importance ratios can judge them; None if unknown.

        Args:
            shared: the server's last state.
            draws: points (chain, draw, D).

        Returns:
            (chain, draw), up to a constant.
        """
        return None

    def own_errors(self, figures: Mapping[str, float]) -> tuple[float, float]:
        """The largest error of a mean, in SDs, and of the logarithm of an SD, as far as it can tell; else 0.

        Args:
            figures: of its last round.
        """
        return 0.0, 0.0

    def advice(self, problem: Problem, before: State) -> str:
        """The cure for an update that left the finite numbers, as the end of a sentence.

        Args:
            problem: the model's densities.
            before: the server's state before that update.
        """
        return "reduce the step size"

    def warnings(self, record: Record, problem: Problem) -> Sequence[Finding | str]:
        """Why the result should not be trusted, a finding or a sentence each; empty if it can be trusted.

        Args:
            record: what happened in the run.
            problem: the model's densities.
        """
        return []


def overrides(algorithm: Algorithm, *methods: str) -> bool:
    """Whether an algorithm overrides one of these methods that have a default."""
    return any(getattr(type(algorithm), name) is not getattr(Algorithm, name) for name in methods)


@dataclass(frozen=True, kw_only=True)
class Tempered(Algorithm):
    """Base of algorithms whose clients' rows come with their likelihood to the power 1/α.

    Args:
        temperature: α; 1 is Bayes.
    """

    temperature: float = 1.0

    def row_temperature(self) -> float:
        """α."""
        return self.temperature


@dataclass(frozen=True)
class Stage:
    """One algorithm of a plan, and on what."""

    algorithm: Algorithm
    noncentred: bool = False  # on the form of the model in which effects are in units of their own scale, if it has one
    title: str = ""  # its name once its open settings have been chosen; "" names it by its settings


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
