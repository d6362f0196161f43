"""Draws with importance weights: the state of `FedAIS` at the server, diagnostics of the weights, and warnings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from pyro_fed.algorithm.bounding import (
    ACCEPTED_SHIFT_SDS,
    NORMAL_MEDIAN_DEVIATION,
    cohort_reach,
    redescending,
    relative_rows,
    within_cohort,
)
from pyro_fed.algorithm.combination import Bounded
from pyro_fed.algorithm.contributions import BoundedMessages, Contributions, SentMessages
from pyro_fed.algorithm.message_limits import LARGEST_RATIO
from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.states import State
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.limits import MATTERS
from pyro_fed.infer.sites.gaussian_sites import gaussian
from pyro_fed.infer.surrogates.proposals import Proposals
from pyro_fed.ops.importance import (
    LARGEST_PARETO_K,
    MIN_SMOOTHED_DRAWS,
    SAMPLE_PARTS,
    TRUSTED_SHARE,
    log_mean,
    smoothed,
    systematic,
    weighted_errors,
)


class WeightedDraws(NamedTuple):
    """The server's state of importance sampling."""

    draws: Tensor  # z_s, (S, D)
    log_weights: Tensor  # log w_s from the clients that have answered, (S,)
    accepted: Tensor  # share of the annealing's transitions that were accepted, ()
    answered: Tensor  # number of clients that have answered, ()
    num_clients: Tensor  # K, ()
    proper: Tensor  # whether no prior is improper, ()

    @classmethod
    def begin(cls, proposals: Proposals, num_clients: int, proper: bool) -> WeightedDraws:
        """The state before any client has answered."""
        draws, log_weights, accepted = proposals
        number, is_proper = accepted.new_tensor(float(num_clients)), accepted.new_tensor(float(proper))
        return cls(draws, log_weights, accepted, accepted.new_zeros(()), number, is_proper)

    def with_answers(self, log_lik: Tensor, answered: Tensor) -> WeightedDraws:
        """The state with further clients' log-likelihoods (C, S); `answered` (C,) is 0 for clients already included."""
        return self._replace(log_weights=self.log_weights + log_lik.sum(0), answered=self.answered + answered.sum())

    def figures(self) -> dict[str, float]:
        """The tail shape, effective number, errors and mean of the weights, once all clients have answered."""
        work = {"answered": float(self.answered / self.num_clients), "accepted": float(self.accepted)}
        if work["answered"] < 1:
            return work
        smoothed_weights = smoothed(self.log_weights)
        figures = {"pareto_k": smoothed_weights.pareto_k, "effective_draws": smoothed_weights.effective}
        if len(self.draws) >= SAMPLE_PARTS * MIN_SMOOTHED_DRAWS:
            figures["mean_error"], figures["sd_error"] = weighted_errors(self.draws, self.log_weights)
        if bool(self.proper):
            figures["log_evidence"], figures["log_evidence_se"] = log_mean(self.log_weights)
        return figures | work

    def sample(self, num_draws: int, generator: torch.Generator) -> Tensor:
        """Draws resampled by their smoothed weights, (num_draws, D), with repetitions."""
        weights = smoothed(self.log_weights).weights
        return self.draws[systematic(weights, num_draws, generator)]


def weight_findings(record: Record, num_proposals: int, min_effective: int) -> list[Finding]:
    """Warnings about clients that have not replied, long-tailed weights, and too few effective draws."""
    latest, answered = record.latest, record.latest.get("answered", 0.0)
    if answered < 1:
        return [sentences.clients_have_not_answered(share=answered)]
    k, effective = latest["pareto_k"], latest["effective_draws"]
    error = max(latest.get(name, math.inf) for name in ("mean_error", "sd_error"))
    long_tail = k > LARGEST_PARETO_K and effective < TRUSTED_SHARE * num_proposals
    if error > MATTERS and (long_tail or effective >= min_effective):
        samplers = record.untried("FSGLD", "DSVGD", "NUTS")
        return [sentences.sites_do_not_fit(pareto_k=k, error=error, samplers=samplers)]
    if effective < min_effective:
        return [sentences.weights_are_few(effective=effective)]
    return []


#: Prefix of the clients' sites in their states.
HELD = "held_"


@dataclass(frozen=True)
class LogLikContributions(Contributions):
    """Contributions to `FedAIS`: log-likelihoods at its draws, compared with the logs of the clients' sites."""

    messages_alike: ClassVar[bool] = False

    sites_known: bool

    def account_for_bounds(self, shared: State, local: State) -> State:
        return {name: value for name, value in local.items() if name.startswith(HELD)}

    def bounding_obstacle(self) -> str | None:
        """Why log-likelihoods cannot be compared with the clients' sites; "" if they can."""
        if self.sites_known:
            return ""
        return "particles, chains and draws have no sites to compare log-likelihoods with: use surrogates='auto'"

    def bounded_messages(self, limits: Bounded, shared: State, ledger: State, sent: SentMessages) -> BoundedMessages:
        """Log-likelihoods whose distances from the clients' sites are limited by the cohort's, draw by draw."""
        values = sent.messages["log_lik"]
        expected = _of_sites(shared, ledger, sent.clients)
        row_ratio = relative_rows(sent.own_rows, values)
        level = (values - expected).quantile(0.5, 1, keepdim=True)
        departure = values - expected - level
        reach = cohort_reach(departure.abs(), limits.pull / NORMAL_MEDIAN_DEVIATION, row_ratio, row_ratio.sqrt())
        reach = reach.clamp_min(ACCEPTED_SHIFT_SDS)  # so many nats at all draws move a mean by at most as many SDs
        limited = expected + redescending(departure, reach)  # without the level
        limited_level = within_cohort(level / row_ratio.unsqueeze(-1), limits.pull)[0] * row_ratio.unsqueeze(-1)
        excess = (departure.abs() - reach).clamp_min(0).square().mean(1).sqrt().clamp_max(LARGEST_RATIO)
        answered = (sent.messages["answered"] != 0).to(values)
        message = {"log_lik": answered.unsqueeze(-1) * (limited + limited_level), "answered": answered}
        return BoundedMessages(shared, message, {}, excess)

    def substitute_messages(self, shared: State, ledger: State, messages: State, clients: Tensor) -> State | None:
        """The clients' sites at the draws, from the previous phase."""
        values = _of_sites(shared, ledger, clients)
        return {"log_lik": values, "answered": values.new_ones(len(clients))}

    def client_shift_sds(self, shared: State, ledger: State, sent: SentMessages) -> Tensor:
        """How far the mean moves if a client's site replaces its values, in SDs; NaN if no site is known."""
        values, draws = sent.messages["log_lik"], shared["draws"].double()
        if not ledger:
            return values.new_full((len(values),), torch.nan)
        total_log_weights = shared["log_weights"] + values.sum(0)
        mean = total_log_weights.softmax(0) @ draws
        weights_without = (total_log_weights - values + _of_sites(shared, ledger, sent.clients)).softmax(1)
        mean_without = weights_without @ draws
        spread = (
            (weights_without @ draws.square() - mean_without.square()).clamp_min(torch.finfo(torch.float64).tiny).sqrt()
        )
        return ((mean - mean_without).abs() / spread).amax(-1)


def _of_sites(shared: State, ledger: State, clients: Tensor) -> Tensor:
    """The logs of some clients' sites at the draws, (C, S)."""
    sites = gaussian({name: value[clients] for name, value in ledger.items()}, HELD)
    draws, each = shared["draws"].double(), zip(sites.precision, sites.eta, strict=True)
    return torch.stack([type(sites)(*one).log_factor(draws) for one in each])
