"""Contributions of the clients of expectation propagation: the sites that they keep, and the changes that they send.

A site is limited by the others', and the client receives the part that was cut from its change, so that its site is the
one in q (see `algorithm.bounding`). Of private rounds that take the fraction δ of their messages and replace a share u
of the earlier contribution to q, the noise in q has the variance v, in units of one round's messages:

    v ← (1 - u)² v + δ²
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from pyro_fed.algorithm.combination import Bounded, Combination
from pyro_fed.algorithm.contributions import BoundedMessages, NoisyRound, SentMessages
from pyro_fed.algorithm.states import State
from pyro_fed.errors import SettingError
from pyro_fed.infer.ep.steps import CHANGE
from pyro_fed.infer.sites.gaussian_sites import SiteContributions, as_state, gaussian, held_changes
from pyro_fed.ops.gaussian import Gaussian


@dataclass(frozen=True)
class EPContributions(SiteContributions):
    """Contributions to `FedEP` and its kin."""

    # -- sites ----------------------------------------------------------------------------------------------
    def client_sites(self, shared: State, local: State) -> State | None:
        """The clients' sites, unless an optimiser moves q and the sites by different amounts."""
        if not self.algorithm.is_product or "eta" not in local:
            return None
        return as_state(gaussian(local))

    def client_sites_after(self, sites: State, messages: State, told: State) -> State | None:
        """The sites after a round, settled as the clients settle them, from the received messages."""
        told = {name: value for name, value in told.items() if not name.startswith("correction_")}  # in them already
        changes = self.algorithm.changes_of(messages)
        after: State = self.algorithm.settle(told, {**sites, **as_state(changes, CHANGE)})
        return after

    def site_changes(self, shared: State, ledger: State, sent: SentMessages) -> Gaussian:
        """The changes that clients send."""
        changes: Gaussian = self.algorithm.changes_of(sent.messages)
        return changes

    # -- faulty clients -------------------------------------------------------------------------------------
    def bounding_obstacle(self) -> str | None:
        """The reason why sites cannot be bounded: an optimiser moves q and the sites differently; or ""."""
        if not self.algorithm.is_product:
            return "an optimiser moves q and the sites by different amounts; leave it out"
        return ""

    def bounded_messages(self, limits: Bounded, shared: State, ledger: State, sent: SentMessages) -> BoundedMessages:
        """Messages with the changes limited by the other clients' sites, and the part that each client was cut."""
        if not ledger:
            raise SettingError(
                f"{type(self.algorithm).__name__}: the clients' sites have too many numbers for the server to hold "
                "each to the others': take covariance='diag', or FedAvg with combination.Median()"
            )
        base = gaussian(shared, "prior_").product(gaussian(shared, "prior_delta_"))
        changes, centre = self.site_changes(shared, ledger, sent), gaussian(shared).mean()
        held, *cut = held_changes(limits, base, gaussian(ledger), sent.clients, changes, centre, sent.rows)
        told = as_state(held.quotient(changes), "correction_")
        return BoundedMessages(shared, without_value(sent.messages) | as_state(held), told, *cut)

    # -- privacy --------------------------------------------------------------------------------------------
    def form_for(self, combination: Combination | None) -> Any:
        """The algorithm, for privacy without acceleration, which would follow the noise; refuses optimisers there."""
        if combination is None or not combination.private:
            return self.algorithm
        if not self.algorithm.is_product:
            raise SettingError(
                f"{type(self.algorithm).__name__}: an optimiser takes a part of each round's noise that changes with "
                "the round, and the result's SDs could not have it: leave it out"
            )
        return self.algorithm.for_private_rounds()

    def noise_left(self, rounds: list[NoisyRound], num_clients: int) -> tuple[Any, float]:
        """SD of the accumulated noise, √v, in units of the unrestricted step δ."""
        variance, taken = 0.0, 1.0
        for one in rounds:
            taken = one.figures["fraction"]
            variance = (1 - self.undone_share(taken, one.clients, num_clients)) ** 2 * variance + taken**2
        free = self.algorithm.controlled_by(self.algorithm.control.without_limits())
        return free, variance**0.5 / self.algorithm.damping_for(rounds[-1].clients)

    def undone_share(self, taken: float, clients: int, num_clients: int) -> float:
        """u, the share of q's noise that a round undoes: none, as clients measure changes from noiseless sites."""
        return 0.0


@dataclass(frozen=True)
class AverageSiteContributions(EPContributions):
    """Contributions to `FedSEP`, whose clients keep nothing: the average site represents each."""

    def bounded_messages(self, limits: Bounded, shared: State, ledger: State, sent: SentMessages) -> BoundedMessages:
        """Messages with the sites of the round's clients limited; the average represents the others."""
        prior, count, number = gaussian(shared, "prior_"), len(sent.clients), int(shared["num_clients"])
        average = gaussian(shared).quotient(prior).power(1.0 / number)
        base = prior.product(gaussian(shared, "prior_delta_")).product(average.power(number - count))
        each = type(average)(
            average.precision.expand(count, *average.precision.shape), average.eta.expand(count, *average.eta.shape)
        )
        everyone = torch.arange(count, device=average.eta.device)
        deltas, centre = gaussian(sent.messages), gaussian(shared).mean()
        held, *cut = held_changes(limits, base, each, everyone, deltas, centre, sent.own_rows)
        return BoundedMessages(shared, without_value(sent.messages) | as_state(held), {}, *cut)

    def undone_share(self, taken: float, clients: int, num_clients: int) -> float:
        """The share of q's noise that a round undoes: δ of the noisy average site for each of its clients."""
        return min(1.0, taken * clients / num_clients)


@dataclass(frozen=True)
class ADMMContributions(EPContributions):
    """Contributions to `BayesADMM`, whose average has an unknown noise."""

    def form_for(self, combination: Combination | None) -> Any:
        """The algorithm; a private combination is refused, whose noise would be in q twice, at different times."""
        if combination is not None and combination.private:
            raise SettingError(
                f"{type(self.algorithm).__name__}: what noise leaves in its average is not known: take FedEP or PVI"
            )
        return super().form_for(combination)


def without_value(messages: State) -> State:
    """Messages without the log-likelihood, by which a single client could have a step undone."""
    return {name: value for name, value in messages.items() if name != "value"}
