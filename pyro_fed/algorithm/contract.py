"""The interface of an inference algorithm: settings, and pure functions of tensors.

An algorithm is a frozen, keyword-only dataclass. `run` calls its methods in this order, round after round. A name in
parentheses is the optional capability that a method belongs to (see `algorithm.capabilities`):

    init        the server's state and the clients' states
    prepare     the server's computations with the model before a round
    indicate    every client's indicator, if the schedule asks, and `importance` its meaning (Indicators)
    download    what a scheduled client receives
    draw_noise  all randomness of one client's round, from a generator of (seed, round, client)
    local_step  the client's work: a message, its new state, and figures for the record
    objections  messages that are not used, with the reasons
    combine     the server's (or each agent's) new state from the messages
    refine      the server's computations with the model on that state
    feedback    what the server sends to the clients after the round (SiteKeeping)
    settle      the clients' new states, given the feedback (SiteKeeping)
    monitor     figures of the round, and `converged` whether to stop
    conclude    the server's computations with the model after the last round
    sample      draws from the result

States and messages are flat dictionaries of tensors. At the clients every tensor has a leading axis C over the clients
that work in this round, so that one call serves many clients. Functions of one client are mapped over this axis, and
compiled, by `problem.scan` or `problem.mapped`.

`Tempered` algorithms are those of generalised Bayes. A `Plan` tries several algorithms until a result has no doubts.
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
    """The start of a warm-started algorithm: the final states of `Algorithm.warm_start`.

    Attributes:
        shared: the server's state.
        local: the clients' states, each (K, ...), such as their Gaussian sites.
    """

    shared: State
    local: State


def required_start(start: Start | None, algorithm: Any) -> Start:
    """The warm start of an algorithm that needs one; SettingError if there is none."""
    if start is None:
        name = type(algorithm).__name__
        raise SettingError(f"{name} needs the final states of its `warm_start`: use pyro_fed.run, which runs it first")
    return start


@dataclass(frozen=True, kw_only=True)
class Algorithm(SettingsRepr, ABC):
    """Base class of inference algorithms.

    Subclasses must define the abstract methods; all others have defaults for algorithms that do not need them. Optional
    capabilities, such as a graph in place of the server, are in `algorithm.capabilities`.

    Class attributes:
        draws_are: what `sample` returns: "particles", "independent" draws of a density, Markov "chains",
            "agents" (one chain for each agent), or a "point".
        remedy: the cure if the audit finds its draws wrong; "" is the default for the kind of draws.
        needs_all: whether a round needs all its clients, so that a client that failed is asked again.
        additive: whether `combine` uses only sums of the messages, weighted by the clients' shares of the rows, and the
            clients keep no state that depends on their own messages. Secure aggregation may then add the messages up,
            or a robust mean replace them.
        may_be_infinite: entries of the server's state in which an infinity or a NaN means "unknown". In other entries
            that were finite it ends the run.
        pooled: whether it works on the pooled data, as those of a single client.
        joint: whether an algorithm on pooled data uses the joint density of all latents; for other algorithms the rows'
            own latents are integrated out.
        on_cpu: whether its steps are computed on the CPU on every device of the federation. Pyro's samplers and guides
            draw random numbers within the step from torch's global generator, which differ on another device.
        provisional: codes of its `warnings` that are withdrawn if exact chains confirm its moments.
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
        """The algorithm that `run` uses in place of this one: another one if the settings require it, else this.

        Example:
            >>> pf.FedEP(guide=my_guide).delegate()
            GuidedFedEP(guide=__main__.my_guide)
        """
        return self

    def for_draws(self, num_draws: int) -> Self:
        """This algorithm for a result with this number of draws, if it computes them during its rounds.

        Args:
            num_draws: number of draws of the result.
        """
        return self

    @abstractmethod
    def default_rounds(self, num_clients: int) -> int:
        """Number of rounds if the user gives none."""

    def expected_rounds(self, dim: int) -> int | None:
        """Number of rounds that suffice for an approximately Gaussian posterior; None if unknown.

        Args:
            dim: D, the number of parameters of the model.
        """
        return None

    def default_schedule(self) -> Schedule:
        """The schedule if the user gives none: every client works in every round."""
        return All()

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """An algorithm to run first, whose final states, the server's and the clients', `init` gets as `start`."""
        return None

    def row_temperature(self) -> float:
        """α: the likelihood of the clients' rows is raised to the power 1/α; 1 is Bayes.

        Code that uses rows other than by `ClientData` must apply the temperature itself.
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
            num_clients: K, the number of clients.
            generator: source of randomness.
            start: final states of `warm_start`: `start.shared`, and `start.local` with one entry for each client; None
                without a warm start.
        """

    def prepare(self, problem: Problem, shared: State) -> State:
        """The server's state after its computations with the model before a round, such as those on the prior."""
        return shared

    def download(self, shared: State, clients: Tensor) -> State:
        """What clients (C,) receive, with a leading axis C; by default the server's whole state."""
        return {name: value.expand(len(clients), *value.shape) for name, value in shared.items()}

    def draw_noise(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        """All randomness of one client's round, a pytree with leading step axes, or ().

        Args:
            problem: the model's densities.
            num_rows: number of rows of the client.
            generator: seeded by (seed, round, client).

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
            shared: what the clients received, (C, ...).
            local: the clients' states, (C, ...).
            data: the clients' rows.
            noise: the clients' randomness, (steps, C, ...).

        Returns:
            messages (C, ...), new local states (C, ...), figures for the record (C,). A client keeps its new state if
            the server uses its message; otherwise it keeps the old one.
        """

    def reply_like(self, shared: State) -> State | None:
        """Zeros in the shapes of a client's message; None if the shapes must be found by a step on an artificial row.

        Args:
            shared: what clients receive, (C, ...).
        """
        return None

    def objections(self, received: State, messages: State) -> message_limits.Objections:
        """Reasons to reject messages, with the clients (C,) that each applies to.

        Args:
            received: what the clients received, (C, ...).
            messages: what the clients sent, (C, ...), all finite.
        """
        return message_limits.grown(received, messages)

    @abstractmethod
    def combine(self, shared: State, messages: State, weights: Any) -> State:
        """The new state of the server from C messages.

        Args:
            shared: the old state; without a server, the states of the C agents that are awake.
            messages: (C, ...). If a round has several consensus steps, the agents' new states are the messages of the
                next step.
            weights: the clients' shares of the rows, (C,). Without a server, the mixing weights W of the awake agents,
                (C, C), as SciPy sparse rows, or the row of one agent, (1, C), to compute only its state.
        """

    def refine(self, problem: Problem, shared: State) -> State:
        """The server's state after its computations with the model that follow `combine`."""
        return shared

    def monitor(self, before: State, after: State) -> dict[str, float]:
        """Figures of the round; progress bars show `change` as the measure of convergence."""
        return {}

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        """Whether to stop, from the figures of all rounds so far; None if there is no criterion.

        A run whose last value is False reports that it has not converged.
        """
        return None

    # -- the clients' contributions -------------------------------------------------------------------------
    def contributions(self) -> Contributions:
        """Each client's contribution to the result, as far as the server knows it; by default it is unknown.

        Example:
            def contributions(self):
                return MyContributions(self)  # a subclass of `Contributions` with the methods that it supports
        """
        return Contributions(self)

    # -- the result -----------------------------------------------------------------------------------------
    def conclude(self, problem: Problem, shared: State) -> State:
        """The server's state after its last computations with the model, such as running a guide for draws."""
        return shared

    @abstractmethod
    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        """Draws from the result, (chain, draw, D), unconstrained."""

    def sample_stats(self, shared: State, draws: Tensor) -> dict[str, Tensor]:
        """Further variables of the result's `sample_stats` for draws (chain, draw, D), each (chain, draw)."""
        return {}

    def log_density(self, shared: State, draws: Tensor) -> Tensor | None:
        """The log density of the distribution of the draws, for importance ratios; None if unknown.

        Args:
            shared: the server's last state.
            draws: points (chain, draw, D).

        Returns:
            (chain, draw), up to a constant.
        """
        return None

    def own_errors(self, figures: Mapping[str, float]) -> tuple[float, float]:
        """The algorithm's own estimates of the largest error of a mean, in SDs, and of a log SD; 0 by default.

        Args:
            figures: figures of the last round.
        """
        return 0.0, 0.0

    def advice(self, problem: Problem, before: State) -> str:
        """The cure for an update that is not finite, as the end of a sentence.

        Args:
            problem: the model's densities.
            before: the server's state before the update.
        """
        return "reduce the step size"

    def warnings(self, record: Record, problem: Problem) -> Sequence[Finding | str]:
        """Reasons not to trust the result, each a finding or a sentence; empty if there are none.

        Args:
            record: the run's record.
            problem: the model's densities.
        """
        return []


def overrides(algorithm: Algorithm, *methods: str) -> bool:
    """Whether an algorithm overrides one of these methods that have a default."""
    return any(getattr(type(algorithm), name) is not getattr(Algorithm, name) for name in methods)


@dataclass(frozen=True, kw_only=True)
class Tempered(Algorithm):
    """Base of algorithms in which the likelihood of the clients' rows is raised to the power 1/α.

    Args:
        temperature: α of generalised Bayes; the likelihood is raised to 1/α.
    """

    temperature: float = 1.0

    def row_temperature(self) -> float:
        """α."""
        return self.temperature


@dataclass(frozen=True)
class Stage:
    """One algorithm of a plan, and the form of the model that it runs on."""

    algorithm: Algorithm
    noncentred: bool = False  # whether to use the model's non-centred form, if it has one
    title: str = ""  # its name after open settings have been chosen; "" derives it from the settings


@dataclass(frozen=True, kw_only=True)
class Plan(SettingsRepr, ABC):
    """Algorithms that a run tries in turn, each judged as if run alone, until a result has no doubts.

    A stage that starts from the result of another one, as `FedAIS` from the sites of `FedEP`, does not run it again. A
    result without doubts that follows a doubted one must be confirmed by another stage (see `confirm`).

    Args:
        max_rounds: limit on the rounds of all stages together; None is no limit.
        max_bytes: limit on the bytes that the clients receive and send in all stages together; None is no limit. The
            first round of a phase may exceed it, because the size of its messages is unknown before.
        max_seconds: limit on the time of all stages together, in seconds; None is no limit. See `max_seconds` of
            `pyro_fed.run`.
        confirm: largest number of further stages that are tried to confirm a result without doubts that follows a
            doubted one. A second result, as computed or as corrected by the audit's chains, must agree with it. 0 does
            not confirm.
        mean_error: largest difference of a mean between two results that agree, in SDs.
        sd_factor: largest ratio of an SD between two results that agree.
        aim_mean_error: target for the error of a mean, in SDs, as estimated by the audit's chains. A result that misses
            a target, but has no doubts, is followed by stages that may be more accurate (see `refine`).
        aim_sd_factor: target for the factor by which an SD is wrong.
        refine: largest number of stages that are tried for a missed target; 0 tries none.
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
        """The target limits of errors, which are tighter than those of a wrong result."""
        return Limits(self.aim_mean_error, self.aim_sd_factor)

    @abstractmethod
    def stages(self, problem: Problem, graph: Graph | None) -> Sequence[Algorithm | Stage]:
        """The stages to try, in order: at least one, the first of them on the unchanged model.

        Args:
            problem: the model's densities.
            graph: the graph of agents; None with a server.
        """
