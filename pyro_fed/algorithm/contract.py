"""What an inference algorithm is: settings, and pure functions between tensors.

An algorithm is a frozen, keyword-only dataclass. `run` calls its methods in this order, round after round:

    init        the server's state and the clients' states
    prepare     the server's own work with the model before a round (its prior)
    report      where the schedule asks: every client's indicator, and `importance` what the server makes of it
    download    what a scheduled client receives
    draw_noise  all randomness of one client's round, from a generator of (seed, round, client)
    local_step  the client's work: a message, its new state, and figures for the record
    objections  which messages cannot be honest and are not used
    combine     the server's (or each agent's) new state from the messages
    refine      the server's own work with the model on that state
    feedback    what the server tells the clients about their messages
    settle      what the clients keep, now that they know
    monitor     figures of the round, `converged` whether to stop
    sample      draws from the result

States and messages are flat dictionaries of tensors. At a client everything has a leading axis C over the
clients that work in this round, so that one call serves many clients at once; what is written per client
goes through `problem.scan` or `problem.mapped`, which map it over that axis and compile it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from pyro_fed.algorithm import message_limits
from pyro_fed.algorithm.schedule import All, Schedule
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.errors import SettingError

if TYPE_CHECKING:
    from pyro_fed.density.problem import Problem
    from pyro_fed.graph import Graph

State = dict[str, Tensor]
Noise = Any


class Start(NamedTuple):
    """Where a warm-started algorithm begins: the final states of `Algorithm.warm_start`.

    Attributes:
        shared: the server's.
        local: the clients', each (K, ...), such as their Gaussian sites.
    """

    shared: State
    local: State


def started(start: Start | None, algorithm: Any) -> Start:
    """The warm start of an algorithm that cannot do without.

    Raises:
        SettingError: there is none.
    """
    if start is None:
        name = type(algorithm).__name__
        raise SettingError(
            f"{name} begins where its `warm_start` ends: run it with pyro_fed.run, which does that first"
        )
    return start


@dataclass(frozen=True, kw_only=True)
class Algorithm(ABC):
    """Base class of inference algorithms.

    Class attributes:
        centralized: works on the pooled data, as the data of a single client.
        draws_are: what `sample` returns: "particles", "independent" draws of a density, Markov "chains",
            "agents" (one chain an agent), or a "point".
        joint: works on the joint density of all latents; others see the rows' own integrated out.
        serverless: has one state an agent and mixes them over a graph.
        indicators: what a schedule may ask the clients for, see `report`.
        needs_all: a round without one of its clients means nothing, so that a client that failed is asked again.
        additive: `combine` asks for no more of the messages than their sums, each weighted by the client's share of
            the rows: they could be added up by secure aggregation.
        keeps_sites: the clients keep what their messages changed, in `local`.
    """

    centralized: ClassVar[bool] = False
    joint: ClassVar[bool] = False
    draws_are: ClassVar[str] = "independent"
    serverless: ClassVar[bool] = False
    indicators: ClassVar[tuple[str, ...]] = ()
    needs_all: ClassVar[bool] = False
    additive: ClassVar[bool] = False
    keeps_sites: ClassVar[bool] = False

    @abstractmethod
    def default_rounds(self, num_clients: int) -> int:
        """Number of rounds where the user gives none."""

    def default_schedule(self) -> Schedule:
        """Who works in a round where the user gives no schedule: every client."""
        return All()

    @property
    def num_slots(self) -> int | None:
        """How many times a round the schedule is asked, once a chain; None for one common answer.

        With slots, `clients` of a round is the concatenation of the answers: a client may stand in it several
        times, messages come in that order, and `combine` knows which chain each belongs to.
        """
        return None

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """An algorithm to run first, whose final states, the server's and the clients', `init` gets as `start`."""
        return None

    def on_graph(self, graph: Graph) -> Algorithm:
        """This algorithm with the settings that the graph asks for."""
        return self

    def consensus_steps(self, graph: Graph, sleepers: bool) -> int:
        """Consensus steps a round over a graph, of an algorithm that is `serverless`.

        Args:
            graph: who talks to whom; already found to be connected.
            sleepers: whether a schedule may put agents to sleep.

        Raises:
            GraphError: the algorithm is not exact on this graph.
        """
        return 1

    @abstractmethod
    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """The server's state, and the clients' with a leading client axis (K, ...).

        Args:
            problem: the model's densities.
            num_clients: K.
            generator: source of randomness.
            start: final states of `warm_start`: `start.shared`, and `start.local` with one entry a client;
                None where it names no algorithm.
        """

    def regroup(self, problem: Problem, shared: State, local: State, origin: Tensor) -> tuple[State, State]:
        """The states of an earlier run with other clients.

        Args:
            problem: the model with the present clients' data.
            shared: the server's, from the earlier run.
            local: the earlier clients', (K, ...).
            origin: (K',) where each present client was among the earlier ones, -1 where it is new.

        Raises:
            SettingError: a client's contribution cannot be taken out.
        """
        raise SettingError(
            f"{type(self).__name__} has no sites that could be put in or taken out: run it afresh on the clients that "
            "are left, or use FedEP"
        )

    def prepare(self, problem: Problem, shared: State) -> State:
        """The server's state at the beginning of a round: its own work with the model, such as on the prior."""
        return shared

    def download(self, shared: State, clients: Tensor) -> State:
        """What clients (C,) receive, with a leading axis C; by default all of the server's state."""
        return {name: value.expand(len(clients), *value.shape) for name, value in shared.items()}

    def report(self, kind: str, problem: Problem, shared: State, local: State, data: ClientData) -> State:
        """What C clients answer when a schedule asks for an indicator, (C, ...).

        Args:
            kind: one of `indicators`.
            problem: the model's densities.
            shared: what the clients received, (C, ...).
            local: their states, (C, ...).
            data: their rows.
        """
        raise NotImplementedError(f"{type(self).__name__} has no indicator {kind!r}")

    def importance(self, kind: str, shared: State, reports: State) -> Tensor:
        """The clients' importance (K,), not negative, from their reports (K, ...)."""
        return reports[kind]

    def draw_noise(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        """All randomness of one client's round, a pytree with leading step axes, or ()."""
        return ()

    @abstractmethod
    def local_step(
        self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise
    ) -> tuple[State, State, State]:
        """The work of C clients in one round.

        Args:
            problem: the model's densities.
            shared: what they received, (C, ...).
            local: their states, (C, ...).
            data: their rows.
            noise: their randomness, (steps, C, ...).

        Returns:
            messages (C, ...), new local states (C, ...), figures for the record (C,).
        """

    def objections(self, received: State, messages: State) -> message_limits.Objections:
        """Why messages are not to be used: reason → the clients (C,) that it holds for.

        Args:
            received: what the clients got, (C, ...).
            messages: what they sent, (C, ...), all finite.
        """
        return message_limits.grown(received, messages)

    def stand_in(self, shared: State, messages: State, slots: Tensor, asked: Tensor) -> State:
        """What `combine` gets where clients failed: by default the messages that came.

        Args:
            shared: the server's state.
            messages: those that came, (A, ...).
            slots: (A,) the places of those clients among the ones that were asked.
            asked: (C,) the clients that were asked.
        """
        return messages

    @abstractmethod
    def combine(self, shared: State, messages: State, weights: Any) -> State:
        """The new state of the server from C messages.

        Args:
            shared: the state before; of a serverless algorithm the states of the C agents that are awake.
            messages: (C, ...). Where a graph takes several steps a round, the agents' new states are the next
                step's messages.
            weights: (C,) the clients' shares of the rows; of a serverless algorithm the mixing weights W of the
                awake agents, (C, C), SciPy sparse rows.
        """

    def refine(self, problem: Problem, shared: State) -> State:
        """The server's state after `combine` and its own work with the model, such as on the prior."""
        return shared

    def feedback(self, after: State, clients: Tensor) -> tuple[State, State]:
        """What the server tells the clients of a round about their messages.

        Args:
            after: the server's state after `combine` and `refine`.
            clients: (C,) in the order in which `combine` saw their messages.

        Returns:
            what each is told, (C, ...), and more figures for the record, (C,).
        """
        return {}, {}

    def settle(self, told: State, local: State) -> State:
        """What the C clients of a round keep, (C, ...).

        Args:
            told: the server's `feedback`, (C, ...).
            local: their states as `local_step` returned them, (C, ...).
        """
        return local

    def monitor(self, before: State, after: State) -> dict[str, float]:
        """Figures of the round; `change` is shown as the convergence figure."""
        return {}

    @property
    def deterministic(self) -> bool:
        """Whether a client's round has no randomness, so that none need be drawn."""
        return type(self).draw_noise is Algorithm.draw_noise

    @property
    def stops_itself(self) -> bool:
        """Whether `converged` can say yes; if so, a run that ends without it warns."""
        return type(self).converged is not Algorithm.converged

    def converged(self, figures: list[dict[str, float]]) -> bool:
        """Whether to stop, from the figures of all rounds so far."""
        return False

    @abstractmethod
    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        """Draws from the result, (chain, draw, D), unconstrained."""

    def log_density(self, shared: State, draws: Tensor) -> Tensor | None:
        """Log density of what `sample` draws from at its draws, (chain, draw), up to a constant; None: not known."""
        return None

    def sample_stats(self, shared: State, draws: Tensor) -> dict[str, Tensor]:
        """More columns for `sample_stats`, each (chain, draw)."""
        return {}

    def warnings(self, record: Any) -> list[str]:
        """Why the result should not be trusted, one sentence each; empty where it can be."""
        return []

    def struggled(self, record: Any) -> bool:
        """Whether the chains bear the marks of a funnel: divergences, or chains that disagree."""
        return False

    def advice(self, problem: Problem, before: State) -> str:
        """The cure for an update that left the finite numbers."""
        return "reduce the step size"
