"""What each client has put into the answer, as far as the server can tell.

An algorithm's server may know more of its clients than `combine` asks for: each one's Gaussian site, how far its
message moves the answer, what an honest message may look like beside the others', what is left of the noise of privacy.
All of that is in one object beside the algorithm, which serves faulty clients, clients that leave, influence and
differential privacy; the algorithm itself has none of it.

    def contributions(self) -> Contributions:
        return EPContributions(self)

Each method has a default, which says that this is not known, or cannot be done.

The ledger is the sum of what the server has taken of each client's messages. Where the answer is a product of Gaussian
sites,

    q ∝ t_0 Π_k t_k,     t_k ← t_k Δ_k^f       a message Δ_k, taken to the fraction f

so that each client can be divided out of q, whatever it has at home: this is how much of the answer is its doing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from pyro_fed.algorithm.states import State, select
from pyro_fed.ops.memory import fits_in_memory

if TYPE_CHECKING:
    from pyro_fed.algorithm.combination import Bounded, Combination
    from pyro_fed.density.problem import Problem
    from pyro_fed.graph import Graph


class SentMessages(NamedTuple):
    """What came in a round; or in R rounds of as many clients, one after the other: then C is (R, C)."""

    messages: State  # (C, ...)
    clients: Tensor  # (C,) whose messages these are
    round: int  # or the first of the rounds
    seed: int  # of the run, from which everybody's randomness follows
    rows: Tensor | None = None  # number of rows that each client claims, (K,); None if all have the same
    problem: Problem | None = None  # the model's densities, of which a server may take the prior
    graph: Graph | None = None  # over which agents talk
    #: What `Contributions.replayed_noise` names of the clients' randomness, (T, C, ...), or (T, R C, ...) of several
    #: rounds, where whoever drew it is in this process; None: to be drawn again.
    noise: State | None = None

    @property
    def own_rows(self) -> Tensor | None:
        """Number of rows of the clients that sent the messages, (C,)."""
        return None if self.rows is None else self.rows[self.clients]

    def one_by_one(self) -> list[SentMessages]:
        """The messages of each of several rounds."""
        each = []
        for number, clients in enumerate(self.clients):
            messages = {name: value[number] for name, value in self.messages.items()}
            places = slice(number * len(clients), (number + 1) * len(clients))
            noise = None if self.noise is None else {name: value[:, places] for name, value in self.noise.items()}
            each.append(self._replace(messages=messages, clients=clients, round=self.round + number, noise=noise))
        return each


class BoundedMessages(NamedTuple):
    """A round's messages within the limits of `combination.Bounded`."""

    shared: State  # the server's state, with what no client may decide alone put right
    messages: State  # (C, ...)
    told: State  # what the clients are told besides `SiteKeeping.feedback`, (C, ...)
    cut: Tensor  # SDs, or logarithms of a factor, by which each message was beyond its limit, (C,); 0: not at all
    widened: Tensor | None = None  # how many times as wide an SD is as with that message uncut, (C,), where known


class NoisyRound(NamedTuple):
    """A round whose messages came with noise."""

    clients: int  # how many worked
    figures: dict[str, float]  # the algorithm's `monitor`


@dataclass(frozen=True)
class Contributions:
    """What each client has put into an algorithm's answer, and what the server can do about it.

    In all methods `shared` is the server's state before `combine`, `local` the clients' states (K, ...), `ledger` what
    the server knows of all clients (K, ...), empty if nothing, and `messages` are those of C clients, (C, ...).

    Args:
        algorithm: whose answer it is, with its settings. Kinds of algorithms have kinds of this class, which are named
            by their `contributions`.

    Class attributes:
        messages_alike: whether like clients send like numbers; one unlikely row makes all of a client's log-likelihoods
            small.
        replayed_noise: entries of the clients' randomness, of `Algorithm.draw_noise`, that `client_shift_sds` needs.
        noise_in_draws: noise that came with messages is a part of the algorithm's own randomness, so that its draws
            have it as they are.
    """

    algorithm: Any

    messages_alike: ClassVar[bool] = True
    replayed_noise: ClassVar[frozenset[str]] = frozenset()
    noise_in_draws: ClassVar[bool] = False

    # -- sites ----------------------------------------------------------------------------------------------
    def client_sites(self, shared: State, local: State) -> State | None:
        """The clients' sites, `precision` (K, D, D) or (K, D) and `eta` (K, D), where q ∝ t_0 Π_k t_k; else None."""
        return None

    def client_sites_after(self, sites: State, messages: State, told: State) -> State | None:
        """The sites (C, ...) after a round, by its messages and what clients are told of them; None if undetermined."""
        return None

    def ledger_at_start(self, shared: State, local: State, *, bounded: bool = False) -> State:
        """The ledger at the beginning of a phase; `bounded` messages may need an account where there are no sites."""
        found = self.client_sites(shared, local)
        if found is None or not fits_in_memory(sum(value.numel() for value in found.values())):
            found = self.account_for_bounds(shared, local) if bounded else {}
        return {name: value.detach().double().clone() for name, value in found.items()}

    def ledger_after(self, ledger: State, clients: Tensor, messages: State, told: State) -> State:
        """The ledger after a round of clients (C,) who are told (C, ...); empty if the messages do not determine it."""
        new = self.client_sites_after(select(ledger, clients), messages, told) if ledger else None
        if new is None:
            return {}
        after = {name: value.clone() for name, value in ledger.items()}
        for name, value in after.items():
            value[clients] = new[name].to(value)
        return after if all(bool(torch.isfinite(value).all()) for value in after.values()) else {}

    # -- what one client's message does ---------------------------------------------------------------------
    def client_shift_sds(self, shared: State, ledger: State, sent: SentMessages) -> Tensor | None:
        """SDs by which each message moves the mean of the parameter that it moves most, (C,); None if unknown.

        Of particles and chains, which all clients move to and fro: besides what the others' messages explain.
        """
        return None

    def client_shift_sds_of_rounds(self, before: Sequence[State], ledger: State, sent: SentMessages) -> Tensor | None:
        """`client_shift_sds` of R rounds of as many clients, (R, C), with the server's state before each of them."""
        each = list[Tensor]()
        for shared, one in zip(before, sent.one_by_one(), strict=True):
            found = self.client_shift_sds(shared, ledger, one)
            if found is None:
                return None
            each.append(found)
        return torch.stack(each)

    # -- faulty clients -------------------------------------------------------------------------------------
    def bounding_obstacle(self) -> str | None:
        """Why a client's effect cannot be bounded by that of the others, and the cure, see `combination.Bounded`.

        "" if `bounded_messages` is possible; None, the default, if there is no rule for it at all.
        """
        return None

    def bounded_messages(self, limits: Bounded, shared: State, ledger: State, sent: SentMessages) -> BoundedMessages:
        """A round's messages within the limits; called if there is no `bounding_obstacle`."""
        raise NotImplementedError

    def substitute_messages(self, shared: State, ledger: State, messages: State, clients: Tensor) -> State | None:
        """Messages for clients (C',) whose own cannot be used, so that no faulty client stops a bounded round.

        Asked for those that are missing in a round that needs everybody, else for those whose reply is not finite. An
        empty dictionary where the others' messages are enough; None, the default, where nothing can stand there.
        """
        return None

    def account_for_bounds(self, shared: State, local: State) -> State:
        """What the server needs of all clients, (K, ...), to bound their messages where there are no `client_sites`."""
        return {}

    # -- other forms of the algorithm, and privacy ------------------------------------------------------------
    def form_for(self, combination: Combination | None) -> Any:
        """The algorithm in the form that a run's combination of messages, if any, needs; SettingError if it has none.

        With the noise of privacy its steps must not depend on those before: acceleration, say, would follow the noise,
        by a part that depends on it. To be bounded, it gets settings with which it can be.
        """
        return self.algorithm

    def form_for_clients(self) -> Any:
        """The algorithm as the clients know it, by their own recipe, without settings of the server alone."""
        return self.algorithm

    def noise_left(self, rounds: list[NoisyRound], num_clients: int) -> tuple[Any, float]:
        """A round that puts the noise of all `rounds` into the last state at once, and how many times as loud it is.

        By default the variances of all rounds are added up, which is an upper bound: where clients start from what they
        received, as in FedAvg, their messages undo a part of the noise. The algorithm is without what would hold noise
        back as it holds back a long step.
        """
        return self.algorithm, math.sqrt(len(rounds))
