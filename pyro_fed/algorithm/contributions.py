"""Each client's contribution to the result, as far as the server knows it.

A server may know more about its clients than `combine` needs: each client's Gaussian site, how far its message moves
the result, the range of honest messages, and how much privacy noise remains. A separate object has this knowledge. It
serves limits on faulty clients, clients that leave, influence and differential privacy.

    def contributions(self) -> Contributions:
        return EPContributions(self)

The default of each method means that the quantity is unknown, or the operation unsupported.

The ledger is the sum of the parts of each client's messages that the server has used. If the result is a product of
Gaussian sites,

    q ∝ t_0 Π_k t_k,     t_k ← t_k Δ_k^f       f the used fraction of message Δ_k

each client can be divided out of q, whatever state it keeps itself.
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
    """The messages of a round, or of R successive rounds with C clients each, with axes (R, C) in place of (C,)."""

    messages: State  # (C, ...)
    clients: Tensor  # the clients that sent them, (C,)
    round: int  # the round, or the first of the rounds
    seed: int  # the seed of the run, which determines all randomness
    rows: Tensor | None = None  # number of rows that each client claims, (K,); None if all have the same
    problem: Problem | None = None  # the model's densities, for the prior
    graph: Graph | None = None  # the graph of agents
    #: The clients' randomness named in `Contributions.replayed_noise`, (T, C, ...), or (T, R C, ...) of several rounds,
    #: if it was drawn in this process; None draws it again.
    noise: State | None = None

    @property
    def own_rows(self) -> Tensor | None:
        """Numbers of rows of the clients that sent the messages, (C,)."""
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

    shared: State  # the server's state, corrected where a single client could have decided it
    messages: State  # (C, ...)
    corrections: State  # sent to the clients in addition to `SiteKeeping.feedback`, (C, ...)
    cut: Tensor  # excess of each message over its limit, in SDs or as the log of a factor, (C,); 0 within the limit
    widened: Tensor | None = None  # ratio of an SD to the SD with the unlimited message, (C,), if known


class NoisyRound(NamedTuple):
    """A round whose messages contained privacy noise."""

    clients: int  # number of clients that worked
    figures: dict[str, float]  # of the algorithm's `monitor`


@dataclass(frozen=True)
class Contributions:
    """Each client's contribution to an algorithm's result, and operations of the server on it.

    In all methods `shared` is the server's state before `combine`, `local` the clients' states (K, ...), `ledger` the
    server's record of all clients (K, ...), which may be empty, and `messages` are those of C clients, (C, ...).

    Args:
        algorithm: the algorithm with its settings. The method `contributions` of an algorithm returns the subclass of
            its kind.

    Class attributes:
        messages_alike: whether similar clients send similar numbers. Log-likelihoods are not: one unlikely row lowers
            all of a client's values.
        replayed_noise: entries of the clients' randomness, of `Algorithm.draw_noise`, that `client_shift_sds` needs.
        noise_in_draws: whether privacy noise in messages is part of the algorithm's own randomness, so that the draws
            already include it.
    """

    algorithm: Any

    messages_alike: ClassVar[bool] = True
    replayed_noise: ClassVar[frozenset[str]] = frozenset()
    noise_in_draws: ClassVar[bool] = False

    # -- sites ----------------------------------------------------------------------------------------------
    def client_sites(self, shared: State, local: State) -> State | None:
        """The clients' sites, `precision` (K, D, D) or (K, D) and `eta` (K, D), where q ∝ t_0 Π_k t_k; else None."""
        return None

    def client_sites_after(self, sites: State, messages: State, feedback: State) -> State | None:
        """The sites (C, ...) after a round, from its messages and the feedback; None if undetermined."""
        return None

    def ledger_at_start(self, shared: State, local: State, *, bounded: bool = False) -> State:
        """The ledger at the start of a phase; with `bounded` messages `account_for_bounds` replaces unknown sites."""
        sites = self.client_sites(shared, local)
        if sites is None or not fits_in_memory(sum(value.numel() for value in sites.values())):
            sites = self.account_for_bounds(shared, local) if bounded else {}
        return {name: value.detach().double().clone() for name, value in sites.items()}

    def ledger_after(self, ledger: State, clients: Tensor, messages: State, feedback: State) -> State:
        """The ledger after a round of clients (C,) with feedback (C, ...); empty if undetermined."""
        new = self.client_sites_after(select(ledger, clients), messages, feedback) if ledger else None
        if new is None:
            return {}
        after = {name: value.clone() for name, value in ledger.items()}
        for name, value in after.items():
            value[clients] = new[name].to(value)
        return after if all(bool(torch.isfinite(value).all()) for value in after.values()) else {}

    # -- the effect of one client's message -----------------------------------------------------------------
    def client_shift_sds(self, shared: State, ledger: State, sent: SentMessages) -> Tensor | None:
        """Shift of the mean of the parameter that each message moves most, in SDs, (C,); None if unknown.

        For particles and chains, the part that the other clients' messages do not explain.
        """
        return None

    def client_shift_sds_of_rounds(self, before: Sequence[State], ledger: State, sent: SentMessages) -> Tensor | None:
        """`client_shift_sds` of R rounds of C clients each, (R, C), with the server's state before each round."""
        each = list[Tensor]()
        for shared, one in zip(before, sent.one_by_one(), strict=True):
            shifts = self.client_shift_sds(shared, ledger, one)
            if shifts is None:
                return None
            each.append(shifts)
        return torch.stack(each)

    # -- faulty clients -------------------------------------------------------------------------------------
    def bounding_obstacle(self) -> str | None:
        """Why `combination.Bounded` cannot limit a client's effect, with the cure.

        "" if `bounded_messages` is possible; None, the default, if the algorithm has no rule for it.
        """
        return None

    def bounded_messages(self, limits: Bounded, shared: State, ledger: State, sent: SentMessages) -> BoundedMessages:
        """A round's messages within the limits; called only if `bounding_obstacle` is ""."""
        raise NotImplementedError

    def substitute_messages(self, shared: State, ledger: State, messages: State, clients: Tensor) -> State | None:
        """Substitutes for unusable messages of clients (C',), so that no faulty client stops a bounded round.

        They are for missing clients in a round that needs all, and otherwise for clients whose reply is not finite. An
        empty dictionary means that the other messages suffice; None, the default, that there is no substitute.
        """
        return None

    def account_for_bounds(self, shared: State, local: State) -> State:
        """The server's record of all clients, (K, ...), for limits on their messages without `client_sites`."""
        return {}

    # -- other forms of the algorithm, and privacy ------------------------------------------------------------
    def form_for(self, combination: Combination | None) -> Any:
        """The algorithm in the form that a run's combination of messages, if any, needs; SettingError if there is none.

        With privacy noise, steps must not depend on earlier steps: acceleration, for example, would amplify the noise.
        With `Bounded`, settings are replaced by ones that allow limits.
        """
        return self.algorithm

    def form_for_clients(self) -> Any:
        """The algorithm with the settings that clients know from their recipe, without those of the server alone."""
        return self.algorithm

    def noise_left(self, rounds: list[NoisyRound], num_clients: int) -> tuple[Any, float]:
        """A round that adds the noise of all `rounds` to the last state at once, and the factor on its noise.

        By default the variances of all rounds are summed. This is an upper bound: if clients start from what they
        received, as in FedAvg, their messages cancel part of the noise. The algorithm has no limits on steps, which
        would also limit the noise.
        """
        return self.algorithm, math.sqrt(len(rounds))
