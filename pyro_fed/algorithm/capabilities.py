"""What some algorithms can do besides the contract: small classes, each taken up by those that need it.

    class FedEP(Algorithm, SiteKeeping, ServerWork): ...

The round loop asks by `isinstance`. What a capability does not say has a default that does nothing.

    Pooled        works on the pooled data, as those of a single client
    OnGraph       works without a server: one state an agent, mixed over a graph
    Indicators    answers a schedule that asks how important each client is
    SiteKeeping   its clients keep what the server made of their messages
    Sites         its answer is the prior's Gaussian site times one of each client
    Bounding      what one client's message does can be held to what the others' do
    Moving        how far each client's message moves the answer in a round is known
    Chains        several chains, each at a client of its own in a round
    ServerWork    the server's own work with the model, before and after a round
    KnownDensity  the log density that its draws come from is known
    OwnErrors     its figures tell how far off its answer may be
    Provisional   what its own figures have against its answer counts unless exact chains find that right
    DrawStats     more columns for `sample_stats`
    Tempered      its clients' rows count by one over its temperature
    Advice        a cure of its own for an update that left the finite numbers
    NoiseTracking what becomes in its server's state of noise that came with messages is known
    NoiseWithin   noise that came with messages is part of its own randomness
    Delegates     what a user names; by its settings another algorithm may be run in its place
    FitsSize      its defaults are others where the model is large
    OnCPU         its steps are computed on the CPU whatever the federation's device
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self, cast

from torch import Tensor

from pyro_fed.algorithm.states import prefixed, within
from pyro_fed.errors import SettingError

if TYPE_CHECKING:
    from pyro_fed.algorithm.combination import Bounded
    from pyro_fed.algorithm.contract import Algorithm, Noise
    from pyro_fed.algorithm.privacy import Private
    from pyro_fed.algorithm.record import Record
    from pyro_fed.algorithm.states import State
    from pyro_fed.density.problem import Problem
    from pyro_fed.density.rows.batches import ClientData
    from pyro_fed.graph import Consensus, Graph


class Pooled:
    """Works on the pooled data, as those of a single client.

    Class attributes:
        joint: works on the joint density of all latents; others see the rows' own latents integrated out.
    """

    joint: ClassVar[bool] = False


class OnCPU:
    """Its steps are computed on the CPU whatever the federation's device.

    Pyro's own samplers and guides draw random numbers within the step, from torch's global generator: on a device they
    would be others, and would change the state of that device's generator.
    """


@dataclass(frozen=True, kw_only=True)
class Tempered:
    """Its clients' rows come with their likelihood raised to one over the temperature, as in generalised Bayes.

    What works on rows otherwise than as `ClientData` gives them takes a temperature of its own.

    Args:
        temperature: α; 1 is Bayes.
    """

    temperature: float = 1.0


class OnGraph(ABC):
    """Works without a server: `shared` has one state an agent, and `combine` mixes those of neighbours.

    Class attributes:
        symmetric: entries of messages that are symmetric matrices, of which a triangle travels; `combine` is given them
            as it travels.
        coarse: entries of which single precision is enough: after a round's first step their changes are told in it.
    """

    symmetric: ClassVar[frozenset[str]] = frozenset()
    coarse: ClassVar[frozenset[str]] = frozenset()

    def on_graph(self, graph: Graph) -> Self:
        """This algorithm with the settings that the graph asks for."""
        return self

    @abstractmethod
    def consensus_steps(self, graph: Graph, sleepers: bool) -> int:
        """Consensus steps a round.

        Args:
            graph: who talks to whom; already found to be connected.
            sleepers: whether a schedule may put agents to sleep.

        Raises:
            GraphError: the algorithm is not exact on this graph.
        """

    def consensus(self, graph: Graph, sleepers: bool) -> Consensus:
        """What these steps are: of W itself, unless the algorithm says otherwise.

        Args:
            graph: who talks to whom.
            sleepers: whether a schedule may put agents to sleep.
        """
        from pyro_fed.graph.consensus import plain  # here, so that algorithms load without SciPy

        return plain(self.consensus_steps(graph, sleepers))

    def witness(self, before: State, after: State) -> State:
        """What each agent tells all others of its round, so that all can judge it alike, (A, ...).

        By default both states, whole; an algorithm whose `monitor` needs less says less.

        Args:
            before: the agents' states before the round, (A, ...).
            after: their states after it.
        """
        return prefixed("before", before) | prefixed("after", after)

    def judged(self, told: State) -> dict[str, float]:
        """`Algorithm.monitor`, from what the agents tell each other.

        Args:
            told: their `witness`, (A, ...).
        """
        before, after = within(told, "before"), within(told, "after")
        figures: dict[str, float] = self.monitor(before, after)  # type: ignore[attr-defined]  # an algorithm has it
        return figures


class Indicators(ABC):
    """Answers a schedule that asks how important each client is.

    Class attributes:
        indicators: what may be asked for, such as ("ksd", "hip").
    """

    indicators: ClassVar[tuple[str, ...]]

    @abstractmethod
    def indicate(self, kind: str, problem: Problem, shared: State, local: State, data: ClientData) -> State:
        """What C clients answer, (C, ...).

        Args:
            kind: one of `indicators`.
            problem: the model's densities.
            shared: what the clients received, (C, ...).
            local: their states, (C, ...).
            data: their rows.
        """

    @abstractmethod
    def importance(self, kind: str, shared: State, answers: State) -> Tensor:
        """The clients' importance (K,), not negative, from their answers (K, ...)."""


class SiteKeeping(ABC):
    """Its clients keep what the server made of their messages, such as their sites.

    Class attributes:
        corrected: `settle` takes up `correction_precision` and `correction_eta` of what it is told, so that a server
            may shorten messages.
    """

    corrected: ClassVar[bool] = False

    @abstractmethod
    def feedback(self, after: State, clients: Tensor) -> tuple[State, State]:
        """What the server tells the clients of a round about their messages.

        Args:
            after: the server's state after `combine` and `ServerWork.refine`.
            clients: (C,) in the order in which `combine` saw their messages.

        Returns:
            what each is told, (C, ...), and more figures for the record, (C,).
        """

    def alone(self, messages: State) -> State:
        """Messages without what a server that shortens them must not look at."""
        return messages

    @abstractmethod
    def settle(self, told: State, local: State) -> State:
        """What the C clients of a round keep, (C, ...).

        Args:
            told: the server's `feedback`, (C, ...).
            local: their states as `local_step` returned them, (C, ...).
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
        raise no_sites(self)


class Sites(ABC):
    """Its answer is q ∝ t_0 Π_k t_k, Gaussian sites on the flat vector, so that a client can be divided out of it."""

    @abstractmethod
    def sites(self, shared: State, local: State) -> State | None:
        """The clients' sites, from what they keep.

        Args:
            shared: the server's state.
            local: the clients', (K, ...).

        Returns:
            `precision` (K, D, D) or (K, D) and `eta` (K, D); None where the answer is no product of such sites.
        """

    def followed(self, sites: State, messages: State, told: State) -> State | None:
        """The sites after a round, as the server can tell from what it was sent and what it took of that.

        Args:
            sites: of the round's clients before it, (C, ...).
            messages: of these, (C, ...).
            told: the server's `SiteKeeping.feedback`, (C, ...).

        Returns:
            None where the messages do not tell.
        """
        return None


class Held(NamedTuple):
    """A round's messages within the limits of `combination.Bounded`.

    Args:
        shared: the server's state, with what no client may decide alone put right.
        messages: (C, ...).
        told: what the clients are told besides `SiteKeeping.feedback`, (C, ...).
        cut: by how many SDs, or logarithms of a factor, each message was beyond its limit, (C,); 0: not at all.
        widened: how many times as wide an SD is as with that message uncut, (C,); None: not known.
    """

    shared: State
    messages: State
    told: State
    cut: Tensor
    widened: Tensor | None = None


class Sent(NamedTuple):
    """What came in a round.

    Args:
        messages: (C, ...).
        clients: (C,) whose messages these are.
        round: its number.
        seed: of the run, from which everybody's randomness follows.
        rows: of all clients as the server was told, (K,); None: as many each.
        problem: the model's densities, of which a server may take the prior.
        graph: over which agents talk.
        noise: entries of the clients' randomness that `Moving.replays` names, (T, C, ...), where whoever drew it is in
            this process; None: to be drawn again.
    """

    messages: State
    clients: Tensor
    round: int
    seed: int
    rows: Tensor | None = None
    problem: Problem | None = None
    graph: Graph | None = None
    noise: State | None = None

    @property
    def own_rows(self) -> Tensor | None:
        """Of the clients whose messages these are, (C,)."""
        return None if self.rows is None else self.rows[self.clients]


class NoisyRound(NamedTuple):
    """A round whose messages came with noise.

    Args:
        clients: how many worked.
        figures: the algorithm's `monitor`.
    """

    clients: int
    figures: dict[str, float]


class Bounding(ABC):
    """What one client's message does can be held to what the others' do, see `combination.Bounded`.

    Class attributes:
        alike: whether like clients send like numbers; one unlikely row makes all of a client's log-likelihoods small.
    """

    alike: ClassVar[bool] = True

    @abstractmethod
    def hold(self, limits: Bounded, shared: State, kept: State, sent: Sent) -> Held:
        """A round's messages within the limits.

        Args:
            limits: the combination.
            shared: the server's state before `combine`.
            kept: what the server knows of all clients' sites, (K, ...); empty where it knows nothing.
            sent: the messages.
        """

    def silent(self, shared: State, kept: State, messages: State, clients: Tensor) -> State | None:
        """Messages for clients whose own cannot be used, (C', ...), so that no liar stops a round.

        Asked for those that are missing in a round that needs everybody, else for those whose reply is not finite.

        Args:
            shared: the server's state.
            kept: what the server knows of all clients' sites, (K, ...).
            messages: of the other clients of the round, (C, ...).
            clients: that have none, (C',).

        Returns:
            an empty dictionary where the others' messages are enough; None, the default, where nothing can stand there.
        """
        return None

    def known(self, shared: State, local: State) -> State:
        """What the server may keep account of, of all clients, from a phase's beginning, (K, ...); none by default.

        Sites that `Sites` gives need not be named here.

        Args:
            shared: the server's state.
            local: the clients', (K, ...).
        """
        return {}

    def boundable(self) -> Algorithm:
        """This algorithm, with what it would choose by itself chosen so that it can be bounded."""
        return cast("Algorithm", self)

    def cannot_bound(self) -> str:
        """Why not with these settings, and the cure; "" where it can."""
        return ""


class Moving(ABC):
    """How far each client's message moves the answer in a round is known.

    Class attributes:
        replays: entries of the clients' randomness, of `Algorithm.draw_noise`, that `moved` needs.
    """

    replays: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def moved(self, shared: State, kept: State, sent: Sent) -> Tensor:
        """By how many SDs of the answer each message moves the mean of the parameter that it moves most, (C,).

        Of particles and chains, which all clients move to and fro: besides what the others' messages explain.

        Args:
            shared: the server's state before `combine`.
            kept: what the server knows of all clients' sites, (K, ...); empty where it knows nothing.
            sent: the messages, as they are taken.
        """

    def moved_rounds(self, before: Sequence[State], kept: State, sent: Sequence[Sent]) -> Tensor:
        """The same of R rounds of as many clients, (R, C).

        Args:
            before: the server's state before each round.
            kept: as for `moved`, before and after all of them.
            sent: the messages of each.
        """
        import torch  # here, so that algorithms are listed without

        return torch.stack([self.moved(shared, kept, one) for shared, one in zip(before, sent, strict=True)])


def no_sites(algorithm: object) -> SettingError:
    """The error of an algorithm whose clients' contributions cannot be put in or taken out."""
    return SettingError(
        f"{type(algorithm).__name__} has no sites that could be put in or taken out: run it afresh on the clients that "
        "are left, or use FedEP"
    )


class Chains(ABC):
    """Several chains, each at a client of its own in a round.

    The schedule is asked once a chain, and the clients of a round are the answers, one after the other: a client may
    stand there several times, messages come in that order, and `combine` knows which chain each belongs to.
    """

    @property
    @abstractmethod
    def num_slots(self) -> int:
        """How many times a round the schedule is asked: the number of chains."""

    @abstractmethod
    def stand_in(self, shared: State, messages: State, slots: Tensor, asked: Tensor) -> State:
        """What `combine` gets where visits failed, (C, ...).

        Args:
            shared: the server's state.
            messages: those that came, (A, ...).
            slots: (A,) the places of those clients among the ones that were asked.
            asked: (C,) the clients that were asked.
        """


class LocalRounds(NamedTuple):
    """What R rounds of C clients each have received and sent, and their figures, each (R, C, ...)."""

    received: State
    messages: State
    figures: State


class Uninterrupted(ABC):
    """Rounds between which the server decides nothing, so that an executor may do several before it answers.

    A client's reply is judged by itself (`Algorithm.objections`), and what is left of the server's part of a round,
    `combine` and `monitor`, can be made up for afterwards.
    """

    @abstractmethod
    def rounds_ahead(self, shared: State) -> int:
        """Rounds until the server looks at what it has, that with the look included; 1 is one at a time."""

    @abstractmethod
    def onward(self, received: State, messages: State, clients: Tensor) -> State:
        """What the next round's clients (C,) receive, as `download` would say after `combine`, (C, ...)."""

    @abstractmethod
    def combine_rounds(self, shared: State, messages: State) -> list[State]:
        """The server's state after each of R rounds, whose messages are (R, C, ...)."""

    def local_rounds(
        self,
        problem: Problem,
        received: State,
        local: State,
        data: ClientData,
        clients: Tensor,
        at: Tensor,
        noise: Noise,
    ) -> LocalRounds | None:
        """The local steps of R rounds one after the other, where clients keep nothing new of them.

        It is `local_step` of each, with `onward` in between, and as right where it is None: they are done so then.

        Args:
            problem: the model's densities.
            received: what the first round's clients received, (C, ...).
            local: the states of those who are asked, (K, ...).
            data: their rows.
            clients: numbers of each round's clients, (R, C).
            at: where they stand in `local` and `data`, (R, C).
            noise: of all rounds, (steps, R C, ...).
        """
        return None


class ServerWork:
    """The server's own work with the model, such as on the prior."""

    def prepare(self, problem: Problem, shared: State) -> State:
        """The server's state at the beginning of a round."""
        return shared

    def refine(self, problem: Problem, shared: State) -> State:
        """The server's state after `combine`."""
        return shared


class KnownDensity(ABC):
    """The log density that its draws come from is known, so that importance ratios can judge them."""

    @abstractmethod
    def log_density(self, shared: State, draws: Tensor) -> Tensor | None:
        """At draws (chain, draw, D), up to a constant: (chain, draw); None where it is not known after all."""


class OwnErrors(ABC):
    """Its figures tell how far off its answer may be."""

    @abstractmethod
    def own_errors(self, figures: Mapping[str, float]) -> tuple[float, float]:
        """The largest error of a mean, in SDs, and of the logarithm of an SD, as far as it can tell; 0 where not.

        Args:
            figures: of its last round.
        """


class Provisional(ABC):
    """What its own figures have against its answer's moments counts unless exact chains find these right."""

    @abstractmethod
    def provisional(self, record: Record) -> str:
        """That one of its `warnings`, or "" where its figures have nothing against the moments.

        Args:
            record: of the run.
        """


class DrawStats(ABC):
    """More columns for `sample_stats`."""

    @abstractmethod
    def sample_stats(self, shared: State, draws: Tensor) -> dict[str, Tensor]:
        """Of draws (chain, draw, D), each column (chain, draw)."""


class Advice(ABC):
    """A cure of its own for an update that left the finite numbers; that of others is to reduce the step size."""

    @abstractmethod
    def advice(self, problem: Problem, before: State) -> str:
        """The cure, as the end of a sentence.

        Args:
            problem: the model's densities.
            before: the server's state before that update.
        """


class NoiseTracking(ABC):
    """What becomes in its server's state of noise that came with the messages of earlier rounds is known."""

    @abstractmethod
    def evenly(self) -> Self:
        """This algorithm with steps that do not depend on the steps before.

        Acceleration, say, would follow the noise, by a part that depends on it.

        Raises:
            SettingError: a setting has such steps; names it and the cure.
        """

    @abstractmethod
    def noise_kept(self, rounds: list[NoisyRound], num_clients: int) -> tuple[Self, float]:
        """A round that puts all rounds' noise into the last state at once.

        Args:
            rounds: those in which somebody worked.
            num_clients: K.

        Returns:
            this algorithm without what would hold noise back as it holds back a long step, and how many times as
            loud as in one of the rounds its messages' noise has to be.
        """


class NoiseWithin(ABC):
    """Noise that came with its messages is a part of its own randomness, so that its draws have it as they are."""

    @abstractmethod
    def privately(self, private: Private | None) -> Self:
        """This algorithm, which knows of the noise.

        Args:
            private: the run's combination, where that is differential privacy.

        Raises:
            SettingError: its settings do not go with that noise; names them and the cure.
        """

    @abstractmethod
    def at_client(self) -> Self:
        """This algorithm as the clients know it, by their own recipe, which says nothing of the server's noise."""


class Delegates(ABC):
    """What a user names; by its settings another algorithm may be run in its place.

    Example:
        >>> resolved(pf.FedEP(guide=my_guide))
        GuidedFedEP(guide=__main__.my_guide)
    """

    @abstractmethod
    def delegate(self) -> Algorithm:
        """The algorithm that is run: another one, or this."""


class DrawsAhead(ABC):
    """Its draws are made during its rounds, so that it has to know before them how many a run is asked for."""

    @abstractmethod
    def for_draws(self, num_draws: int) -> Self:
        """This algorithm, which makes so many.

        Args:
            num_draws: as many as the run's result is to have.
        """


class FitsSize(ABC):
    """Its defaults are others where the model is large: a network, say."""

    @abstractmethod
    def fitted(self, problem: Problem) -> Algorithm:
        """This algorithm with the settings that the model's size asks for; what a user has set stays as it is.

        Args:
            problem: the model's densities.

        Raises:
            SettingError: it cannot be run on a model of that size; names what can.
        """


def resolved(algorithm: Algorithm) -> Algorithm:
    """The algorithm that is run where a user names this one."""
    return algorithm.delegate() if isinstance(algorithm, Delegates) else algorithm


def run_as(algorithm: Algorithm, problem: Problem) -> Algorithm:
    """The algorithm that is run where a user names this one, with the settings that the model's size asks for.

    Args:
        algorithm: what a user or another algorithm names.
        problem: the model's densities.
    """
    found = resolved(algorithm)
    return found.fitted(problem) if isinstance(found, FitsSize) else found


def check_taken_up(algorithm: Algorithm) -> None:
    """Refuse an algorithm that has a capability's methods without having taken it up: nobody would call them.

    Args:
        algorithm: what is to be run.

    Raises:
        SettingError: names the methods and the capability.
    """
    kind = type(algorithm)
    with_methods = (
        OnGraph,
        Indicators,
        SiteKeeping,
        Sites,
        Bounding,
        Moving,
        Chains,
        ServerWork,
        KnownDensity,
        Provisional,
        DrawStats,
        Advice,
        NoiseTracking,
        Delegates,
        FitsSize,
    )
    for capability in with_methods:
        required: frozenset[str] = getattr(capability, "__abstractmethods__", frozenset())
        methods = {name for name, value in vars(capability).items() if callable(value) and not name.startswith("_")}
        found = sorted(name for name in methods | required if hasattr(kind, name))
        if isinstance(algorithm, capability) or not found or not required <= set(found):
            continue
        raise SettingError(
            f"{kind.__name__} has {', '.join(found)}, which belongs to the capability {capability.__name__} and is not "
            f"called without it: write `class {kind.__name__}(Algorithm, {capability.__name__})`, with "
            f"`from pyro_fed.algorithm.capabilities import {capability.__name__}`"
        )
