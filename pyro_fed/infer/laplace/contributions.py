"""Contributions of the clients of the federated Laplace approximation: expansions of their log-likelihoods.

The values of clients that are not trusted, at all steps of a line search at once, are held to these (`held_values`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_fed.algorithm.bounding import NORMAL_MEDIAN_DEVIATION, median_of, redescending, relative_rows
from pyro_fed.algorithm.combination import Bounded
from pyro_fed.algorithm.contributions import BoundedMessages, SentMessages
from pyro_fed.algorithm.states import State
from pyro_fed.infer.laplace.laplace_point import Server
from pyro_fed.infer.sites.gaussian_sites import SiteContributions, as_state, gaussian
from pyro_fed.infer.sites.records import entries_as
from pyro_fed.ops.gaussian import Gaussian


def held_values(
    sites: Gaussian, point: Tensor, line: Tensor, values: Tensor, pull: float, rows: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Values on a line (K, L), limited by the clients' sites and the cohort's departures, and their sum at `point`.

    Sites are quadratics, so that honest values depart from them by terms of third order, of similar size row for row.
    Departures beyond `pull` SDs of the cohort's are cut. All levels become the median one, because nothing can check
    them. `line` (L + 1, D) has the points' differences from `point`, then the present point's.
    """
    score, still = sites.score(point.expand_as(sites.eta)), torch.zeros_like(sites.eta)
    turned = torch.stack([type(sites)(sites.precision, still).score(each.expand_as(still)) for each in line], 1)
    expected = score @ line.T + 0.5 * (turned * line).sum(-1)
    here = int((line[:-1] - line[-1]).abs().amax(-1).argmin())
    expected = expected[:, :-1] - expected[:, here : here + 1]
    level = values[:, here : here + 1]
    apart = values - level - expected
    share = relative_rows(values.new_ones(len(values)) if rows is None else rows.to(values))
    known = median_of(apart.abs() / share.unsqueeze(-1), share) / NORMAL_MEDIAN_DEVIATION
    reach = pull * share.clamp_min(1.0).sqrt().unsqueeze(-1) * known
    usual = level.median()
    fits = apart.abs() <= reach
    return usual + expected + torch.where(fits, apart, redescending(apart, reach)), len(values) * usual


@dataclass(frozen=True)
class LaplaceContributions(SiteContributions):
    """Contributions of the clients of `FedLaplace`."""

    def client_sites(self, shared: State, local: State) -> State | None:
        """The expansions of the clients' log-likelihoods at the last point."""
        return as_state(gaussian(local)) if "eta" in local else None

    def client_sites_after(self, sites: State, messages: State, told: State) -> State | None:
        """The sites that were sent: each replaces the one before."""
        return as_state(gaussian(messages))

    def site_changes(self, shared: State, ledger: State, sent: SentMessages) -> Gaussian:
        """The differences from the expansions at the point before, or from flat sites."""
        sites, own = gaussian(sent.messages), self.client_sites(shared, ledger) if ledger else None
        old = sites.power(0.0) if own is None else gaussian({n: v[sent.clients] for n, v in own.items()})
        return sites.quotient(old)

    def bounding_obstacle(self) -> str | None:
        """An empty string: contributions can be bounded."""
        return ""

    def bounded_messages(self, limits: Bounded, shared: State, ledger: State, sent: SentMessages) -> BoundedMessages:
        """Sites within the limits, and values on the line no further apart than these sites and the cohort explain."""
        server = entries_as(Server, shared)
        point = server.line.end
        limited = limits.sites(server.prior, gaussian(sent.messages), point, sent.own_rows)
        values, start = held_values(
            limited.sites, point, self._along(server), sent.messages["values"], limits.pull, sent.own_rows
        )
        usable = sent.messages["usable"]
        usable = torch.full_like(usable, bool(usable.double().mean() > 0.5))  # not as one client says
        # Values go on from where those of the round before have come to: the median level is another at another point,
        # and the posterior's mass there would be compared with that of other levels.
        known = server.value - server.prior_value[self._shortest]
        level = torch.where(known.isfinite(), known - start, 0.0) / len(values)
        return BoundedMessages(
            shared,
            {**sent.messages, **as_state(limited.sites), "values": values + level, "usable": usable},
            {},
            limited.limit_excess,
            limited.widened,
        )

    def substitute_messages(self, shared: State, ledger: State, messages: State, clients: Tensor) -> State | None:
        """Messages of clients without rows: a flat line and no site."""
        flat = {
            name: torch.zeros_like(value[:1]).expand(len(clients), *value.shape[1:]) for name, value in messages.items()
        }
        return {**flat, "usable": torch.ones_like(flat["usable"])}

    @property
    def _shortest(self) -> int:
        """The index of the fraction that is nearest to the point itself."""
        fractions: tuple[float, ...] = self.algorithm.fractions
        return fractions.index(min(fractions))

    def _along(self, server: Server) -> Tensor:
        """The line's points relative to the one aimed at, the nearest to the present point last, (L + 1, D)."""
        fractions = server.point.new_tensor([*self.algorithm.fractions, self.algorithm.fractions[self._shortest]])
        return (fractions - server.aim).unsqueeze(-1) * server.direction
