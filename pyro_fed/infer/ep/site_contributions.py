"""What each client has put into q, its site: for limits on messages, noise of privacy, unlearning and influence."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from pyro_fed.algorithm.capabilities import Bounding, Held, Moving, NoiseTracking, NoisyRound, Sent, Sites
from pyro_fed.algorithm.combination import Bounded
from pyro_fed.algorithm.states import State
from pyro_fed.density.problem import Problem
from pyro_fed.errors import SettingError
from pyro_fed.infer.ep.states import CHANGE
from pyro_fed.infer.sites.gaussian_sites import as_state, gaussian, kept_where, sds_moved, where
from pyro_fed.ops.gaussian import Gaussian

if TYPE_CHECKING:
    pass


class SiteContributions(Sites, Bounding, Moving, NoiseTracking):
    """The part of `EP` that knows each client's contribution."""

    def regroup(self, problem: Problem, shared: State, local: State, origin: Tensor) -> tuple[State, State]:
        """q = t_0 Π t_k of the clients that are there, each with the site that it had.

        Raises:
            SettingError: the clients keep no sites, or those that are left make no distribution.
        """
        kept = gaussian({name: value[origin] for name, value in local.items()})
        prior, sites = gaussian(shared, "prior_"), kept_where(origin >= 0, kept)
        q = prior.product(sites.product_over(0))
        if not bool(q.is_proper()):
            raise SettingError(
                f"{type(self).__name__}: the prior and the sites of the clients that are left are no distribution: run "
                "it afresh on them"
            )
        return self.first_states(problem, q, prior, sites)

    def evenly(self) -> Self:
        """Without acceleration, which would follow the noise.

        Raises:
            SettingError: an optimiser decides on the steps.
        """
        if self.is_optimised:
            raise SettingError(
                f"{type(self).__name__}: an optimiser takes a part of each round's noise that changes with the round, "
                "and the result's SDs could not have it: leave it out"
            )
        return self.controlled_by(self.control.evenly())

    def noise_kept(self, rounds: list[NoisyRound], num_clients: int) -> tuple[Self, float]:
        """All that was taken: each client measures its change from its own site, which has no noise."""
        return self.noise_left(rounds, lambda taken, clients: 0.0)

    def noise_left(self, rounds: list[NoisyRound], undone: Callable[[float, int], float]) -> tuple[Self, float]:
        """By v ← (1 - u)² v + δ² over rounds, the square root of v over the δ that is taken where nothing is held back.

        Args:
            rounds: those in which somebody worked.
            undone: u of the fraction δ that a round took and its clients.
        """
        variance, taken = 0.0, 1.0
        for one in rounds:
            taken = one.figures["fraction"]
            variance = (1 - undone(taken, one.clients)) ** 2 * variance + taken**2
        return self.controlled_by(self.control.free()), variance**0.5 / self.damping_for(rounds[-1].clients)

    def sites(self, shared: State, local: State) -> State | None:
        """What the clients keep, unless an optimiser moves q and the sites by different amounts."""
        if self.is_optimised or "eta" not in local:
            return None
        return as_state(gaussian(local))

    def followed(self, sites: State, messages: State, told: State) -> State | None:
        """As the clients themselves settle them, by the messages that came."""
        told = {name: value for name, value in told.items() if not name.startswith("correction_")}  # in them already
        return self.settle(told, {**sites, **as_state(self.changes_of(messages), CHANGE)})

    def alone(self, messages: State) -> State:
        """Without the clients' log-likelihoods, by which steps are taken back."""
        return without_value(messages)

    def hold(self, limits: Bounded, shared: State, kept: State, sent: Sent) -> Held:
        """Changes to sites within the limits; the clients are told what was cut, so that they keep these.

        Clients that have not sent anything yet are no cohort.

        Raises:
            SettingError: the server does not know the clients' sites, or fewer than three have one.
        """
        if not kept:
            raise SettingError(
                f"{type(self).__name__}: the clients' sites have too many numbers for the server to hold each to the "
                "others': take covariance='diag', or FedAvg with combination.Median()"
            )
        base = gaussian(shared, "prior_").product(gaussian(shared, "prior_delta_"))
        changes = self.changes_of(sent.messages)
        centre = gaussian(shared).mean()
        held, *cut = held_changes(limits, base, gaussian(kept), sent.clients, changes, centre, sent.rows)
        told = as_state(held.quotient(changes), "correction_")
        return Held(shared, without_value(sent.messages) | as_state(held), told, *cut)

    def moved(self, shared: State, kept: State, sent: Sent) -> Tensor:
        """By the changes of the sites."""
        return sds_moved(gaussian(shared), self.changes_of(sent.messages))

    def cannot_bound(self) -> str:
        """An optimiser moves q and the sites by different amounts; networks have another scale of sites."""
        if self.is_optimised:
            return "an optimiser moves q and the sites by different amounts; leave it out"
        return ""


def held_changes(
    limits: Bounded,
    base: Gaussian,
    sites: Gaussian,
    clients: Tensor,
    deltas: Gaussian,
    centre: Tensor,
    rows: Tensor | None = None,
) -> tuple[Gaussian, Tensor, Tensor]:
    """Changes of sites after which no client's site is beyond the cohort's, (C,), by how much each was, and `widened`.

    Args:
        limits: the combination.
        base: all of q that is no client's.
        sites: of all clients before the round, (K,); those of clients that have not sent anything yet are one.
        clients: (C,) whose changes these are.
        deltas: as sent, (C,).
        centre: a point near q's mean, (D,).
        rows: of all clients, (K,); None: as many each.
    """
    precision, eta = sites.precision.clone(), sites.eta.clone()
    precision[clients] += deltas.precision
    eta[clients] += deltas.eta
    spoken = (eta != 0).any(-1) | (precision.flatten(1) != 0).any(-1)
    found = limits.sites(
        base, type(sites)(precision[spoken], eta[spoken]), centre, None if rows is None else rows[spoken]
    )
    precision[spoken], eta[spoken] = found.sites.precision, found.sites.eta
    beyond = torch.zeros(len(eta), dtype=torch.float64, device=eta.device)
    beyond[spoken] = found.beyond
    widened = torch.ones_like(beyond)
    widened[spoken] = found.widened
    cut = beyond[clients]
    held = type(sites)(precision[clients] - sites.precision[clients], eta[clients] - sites.eta[clients])
    return where(cut > 0, held, deltas), cut, widened[clients]


def without_value(messages: State) -> State:
    """Messages without what would let one client have a step taken back: its log-likelihood."""
    return {name: value for name, value in messages.items() if name != "value"}
