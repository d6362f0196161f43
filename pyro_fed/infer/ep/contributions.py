"""Contributions of the clients of expectation propagation: the sites that they keep, and the changes that they send.

The server limits each site by the other clients' sites, and sends the client what it cut from the change, so that the
client's site equals the one in q (see `algorithm.bounding`).

A private round takes the fraction δ of its messages and replaces a share u of the earlier contribution to q. The noise
in q has the variance v, in units of one round's messages:

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
from pyro_fed.infer.sites.gaussian_sites import SiteContributions, as_state, gaussian, limited_changes
from pyro_fed.ops.gaussian import Gaussian


@dataclass(frozen=True)
class EPContributions(SiteContributions):
    """Contributions to `FedEP` and related algorithms."""

    # -- sites ----------------------------------------------------------------------------------------------
    def client_sites(self, shared: State, local: State) -> State | None:
        """The clients' sites; None if an optimiser moves q and the sites by different amounts."""
        if not self.algorithm.is_product or "eta" not in local:
            return None
        return as_state(gaussian(local))

    def client_sites_after(self, sites: State, messages: State, feedback: State) -> State | None:
        """The sites after a round, computed from the messages as the clients compute them."""
        # the messages already include the corrections
        feedback = {name: value for name, value in feedback.items() if not name.startswith("correction_")}
        changes = self.algorithm.changes_of(messages)
        new_sites: State = self.algorithm.settle(feedback, {**sites, **as_state(changes, CHANGE)})
        return new_sites

    def site_changes(self, shared: State, ledger: State, sent: SentMessages) -> Gaussian:
        """The changes that clients send."""
        changes: Gaussian = self.algorithm.changes_of(sent.messages)
        return changes

    # -- faulty clients -------------------------------------------------------------------------------------
    def bounding_obstacle(self) -> str | None:
        """Why sites cannot be bounded, if an optimiser moves q and the sites differently; otherwise ""."""
        if not self.algorithm.is_product:
            return "an optimiser moves q and the sites by different amounts; remove `optimisers`"
        return ""

    def bounded_messages(self, limits: Bounded, shared: State, ledger: State, sent: SentMessages) -> BoundedMessages:
        """Messages with each change limited by the other clients' sites, and the part cut from each change."""
        if not ledger:
            raise SettingError(
                f"{type(self.algorithm).__name__}: the clients' sites are too large for the server to compare with "
                "each other: use covariance='diag', or FedAvg with combination.Median()"
            )
        base = gaussian(shared, "prior_").product(gaussian(shared, "prior_delta_"))
        changes, centre = self.site_changes(shared, ledger, sent), gaussian(shared).mean()
        limited, *limit_excess = limited_changes(
            limits, base, gaussian(ledger), sent.clients, changes, centre, sent.rows
        )
        corrections = as_state(limited.quotient(changes), "correction_")
        return BoundedMessages(shared, without_value(sent.messages) | as_state(limited), corrections, *limit_excess)

    # -- privacy --------------------------------------------------------------------------------------------
    def form_for(self, combination: Combination | None) -> Any:
        """The algorithm; for private rounds without acceleration, which would amplify noise, and without optimisers."""
        if combination is None or not combination.private:
            return self.algorithm
        if not self.algorithm.is_product:
            raise SettingError(
                f"{type(self.algorithm).__name__}: with an optimiser, the share of each round's noise in the result "
                "is unknown, so that the SDs cannot account for it: remove `optimisers`"
            )
        return self.algorithm.controlled_by(self.algorithm.control.without_acceleration())

    def noise_left(self, rounds: list[NoisyRound], num_clients: int) -> tuple[Any, float]:
        """√v, the SD of the accumulated noise, in units of the unrestricted step δ."""
        variance, fraction = 0.0, 1.0
        for one in rounds:
            fraction = one.figures["fraction"]
            variance = (1 - self.replaced_share(fraction, one.clients, num_clients)) ** 2 * variance + fraction**2
        free = self.algorithm.controlled_by(self.algorithm.control.without_limits())
        return free, variance**0.5 / self.algorithm.damping_for(rounds[-1].clients)

    def replaced_share(self, taken: float, clients: int, num_clients: int) -> float:
        """u, the share of the noise in q that a round replaces: 0, since changes refer to sites without noise."""
        return 0.0


@dataclass(frozen=True)
class AverageSiteContributions(EPContributions):
    """Contributions to `FedSEP`, whose clients keep no site: the average site stands for each of them."""

    def bounded_messages(self, limits: Bounded, shared: State, ledger: State, sent: SentMessages) -> BoundedMessages:
        """Messages with the sites of the round's clients limited; the average site stands for the others."""
        prior, count, number = gaussian(shared, "prior_"), len(sent.clients), int(shared["num_clients"])
        average = gaussian(shared).quotient(prior).power(1.0 / number)
        base = prior.product(gaussian(shared, "prior_delta_")).product(average.power(number - count))
        repeated_average = type(average)(
            average.precision.expand(count, *average.precision.shape), average.eta.expand(count, *average.eta.shape)
        )
        everyone = torch.arange(count, device=average.eta.device)
        deltas, centre = gaussian(sent.messages), gaussian(shared).mean()
        limited, *limit_excess = limited_changes(
            limits, base, repeated_average, everyone, deltas, centre, sent.own_rows
        )
        return BoundedMessages(shared, without_value(sent.messages) | as_state(limited), {}, *limit_excess)

    def replaced_share(self, taken: float, clients: int, num_clients: int) -> float:
        """The share of the noise in q that a round replaces: δ of the noisy average site for each of its clients."""
        return min(1.0, taken * clients / num_clients)


@dataclass(frozen=True)
class ADMMContributions(EPContributions):
    """Contributions to `BayesADMM`, for which the noise in the average is unknown."""

    def form_for(self, combination: Combination | None) -> Any:
        """The algorithm; refuses private combinations, whose noise would enter q in two different rounds."""
        if combination is not None and combination.private:
            raise SettingError(
                f"{type(self.algorithm).__name__}: the privacy noise left in its average is unknown: use FedEP or PVI"
            )
        return super().form_for(combination)


def without_value(messages: State) -> State:
    """Messages without the log-likelihood, which would let a single client reject a step."""
    return {name: value for name, value in messages.items() if name != "value"}
