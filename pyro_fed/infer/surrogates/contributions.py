"""Contributions of clients at given points, limited by the clients' surrogates there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pyro_fed.algorithm.bounding import (
    ACCEPTED_SHIFT_SDS,
    LARGEST_DISTANCE,
    NORMAL_MEDIAN_DEVIATION,
    median_of,
    redescending,
    relative_rows,
    within_cohort,
)
from pyro_fed.algorithm.combination import Bounded
from pyro_fed.algorithm.contributions import BoundedMessages, Contributions, SentMessages
from pyro_fed.algorithm.states import State
from pyro_fed.infer.sites.gaussian_sites import gaussian

#: Prefix of the clients' sites in their states.
HELD = "held_"


@dataclass(frozen=True)
class LogLikContributions(Contributions):
    """Contributions to `FedAIS`: log-likelihoods at its draws, beside the logarithms of the clients' sites.

    `sites_known` says whether clients have sites to compare with.
    """

    messages_alike: ClassVar[bool] = False

    sites_known: bool

    def account_for_bounds(self, shared: State, local: State) -> State:
        """The clients' sites."""
        return {name: value for name, value in local.items() if name.startswith(HELD)}

    def bounding_obstacle(self) -> str | None:
        """The reason why log-likelihoods cannot be compared with those of the clients' sites; "" if they can."""
        if self.sites_known:
            return ""
        return "particles, chains and draws have no sites to compare log-likelihoods with: surrogates='auto'"

    def bounded_messages(self, limits: Bounded, shared: State, ledger: State, sent: SentMessages) -> BoundedMessages:
        """Log-likelihoods no further from the clients' sites, draw by draw, than the cohort's are.

        A client's level, the median difference over draws, moves only the evidence; it is limited by the cohort's too.
        """
        values = sent.messages["log_lik"]
        expected = _of_sites(shared, ledger, sent.clients)
        rows = sent.own_rows
        share = relative_rows(values.new_ones(len(values)) if rows is None else rows.to(values))
        level = (values - expected).quantile(0.5, 1, keepdim=True)
        apart = values - expected - level
        usual = median_of(apart.abs() / share.sqrt().unsqueeze(-1), share)
        reach = (limits.pull * share.clamp_min(1.0).sqrt().unsqueeze(-1) * usual / NORMAL_MEDIAN_DEVIATION).clamp_min(
            ACCEPTED_SHIFT_SDS  # a departure of as many nats over all draws moves a mean by at most as much
        )
        fits = apart.abs() <= reach
        held = expected + torch.where(fits, apart, redescending(apart, reach))  # without the level
        known = within_cohort(level / share.unsqueeze(-1), limits.pull)[0] * share.unsqueeze(-1)
        cut = torch.where(fits, 0.0, apart.abs() - reach).square().mean(1).sqrt().clamp_max(LARGEST_DISTANCE)
        answered = (sent.messages["answered"] != 0).to(values)
        message = {"log_lik": answered.unsqueeze(-1) * (held + known), "answered": answered}
        return BoundedMessages(shared, message, {}, cut)

    def substitute_messages(self, shared: State, ledger: State, messages: State, clients: Tensor) -> State | None:
        """The clients' sites at the draws, from the phase before."""
        values = _of_sites(shared, ledger, clients)
        return {"log_lik": values, "answered": values.new_ones(len(clients))}

    def client_shift_sds(self, shared: State, ledger: State, sent: SentMessages) -> Tensor:
        """Shifts by the client's log-likelihoods in place of its site; NaN if no site is known.

        Without both, the weights are those of another posterior, however honest the client, so that a comparison would
        show nothing.
        """
        values, draws = sent.messages["log_lik"], shared["draws"].double()
        if not ledger:
            return values.new_full((len(values),), torch.nan)
        whole = shared["log_weights"] + values.sum(0)
        mean = whole.softmax(0) @ draws
        others = (whole - values + _of_sites(shared, ledger, sent.clients)).softmax(1)
        other = others @ draws
        spread = (others @ draws.square() - other.square()).clamp_min(torch.finfo(torch.float64).tiny).sqrt()
        return ((mean - other).abs() / spread).amax(-1)


def _of_sites(shared: State, ledger: State, clients: Tensor) -> Tensor:
    """The logarithms of some clients' sites at the draws, (C, S)."""
    sites = gaussian({name: value[clients] for name, value in ledger.items()}, HELD)
    draws, each = shared["draws"].double(), zip(sites.precision, sites.eta, strict=True)
    return torch.stack([type(sites)(*one).log_factor(draws) for one in each])


@dataclass(frozen=True)
class MeasuredContributions(Contributions):
    """Contributions to `Measuring`: each client's measurement of its surrogate."""

    def bounding_obstacle(self) -> str | None:
        """An empty string: contributions can be bounded."""
        return ""

    def bounded_messages(self, limits: Bounded, shared: State, ledger: State, sent: SentMessages) -> BoundedMessages:
        """Measurements within the cohort's range."""
        held = {name: within_cohort(value, limits.pull)[0] for name, value in sent.messages.items()}
        return BoundedMessages(shared, held, {}, torch.zeros(len(sent.clients), dtype=torch.float64))

    def substitute_messages(self, shared: State, ledger: State, messages: State, clients: Tensor) -> State | None:
        """The median client's measurement."""
        return {name: value.quantile(0.5, 0).expand(len(clients), *value.shape[1:]) for name, value in messages.items()}


@dataclass(frozen=True)
class SquareContributions(MeasuredContributions):
    """Contributions to `Mismatch`: squares and curvatures, which are not negative."""

    def bounded_messages(self, limits: Bounded, shared: State, ledger: State, sent: SentMessages) -> BoundedMessages:
        """Squares and curvatures within the cohort's range."""
        held = super().bounded_messages(limits, shared, ledger, sent)
        return held._replace(messages={name: value.clamp_min(0) for name, value in held.messages.items()})
