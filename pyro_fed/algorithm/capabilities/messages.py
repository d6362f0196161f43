"""What one client's message does beside those of the others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple, cast

from torch import Tensor

if TYPE_CHECKING:
    from pyro_fed.algorithm.combination import Bounded
    from pyro_fed.algorithm.contract import Algorithm
    from pyro_fed.algorithm.states import State
    from pyro_fed.density.problem import Problem
    from pyro_fed.graph import Graph


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
    """What came in a round; or in R rounds of as many clients, one after the other: then C is (R, C).

    Args:
        messages: (C, ...).
        clients: (C,) whose messages these are.
        round: its number, or that of the first round.
        seed: of the run, from which everybody's randomness follows.
        rows: of all clients as the server was told, (K,); None: as many each.
        problem: the model's densities, of which a server may take the prior.
        graph: over which agents talk.
        noise: entries of the clients' randomness that `Moving.replays` names, (T, C, ...), of several rounds
            (T, R C, ...), where whoever drew it is in this process; None: to be drawn again.
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

    def one_by_one(self) -> list[Sent]:
        """What came in each of several rounds."""
        each = []
        for number, clients in enumerate(self.clients):
            messages = {name: value[number] for name, value in self.messages.items()}
            places = slice(number * len(clients), (number + 1) * len(clients))
            noise = None if self.noise is None else {name: value[:, places] for name, value in self.noise.items()}
            each.append(self._replace(messages=messages, clients=clients, round=self.round + number, noise=noise))
        return each


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

    def moved_rounds(self, before: Sequence[State], kept: State, sent: Sent) -> Tensor:
        """`moved` for R rounds of as many clients, (R, C).

        Args:
            before: the server's state before each round.
            kept: as for `moved`, before and after all of them.
            sent: the messages of all rounds.
        """
        import torch  # here, so that algorithms are listed without

        each = zip(before, sent.one_by_one(), strict=True)
        return torch.stack([self.moved(shared, kept, one) for shared, one in each])
