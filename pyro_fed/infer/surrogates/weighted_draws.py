"""Draws with importance weights: the state of `FedAIS` at the server, diagnostics of the weights, and warnings."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fed.algorithm.record import Record
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.limits import MATTERS
from pyro_fed.infer.surrogates.proposals import Proposals
from pyro_fed.ops.importance import (
    LARGEST_PARETO_K,
    PARTS,
    TRUSTED_SHARE,
    log_mean,
    smoothed,
    systematic,
    weighted_errors,
)

#: Smallest number of draws of a part for its own weights to be smoothed.
FEWEST_A_PART = 50


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
        """The state with the log-likelihoods of more clients: log w_s + Σ_k log p_k(z_s).

        `log_lik` (C, S) is zero for clients that have answered before; `answered` (C,) is 1 for those that answer now,
        else 0.
        """
        return self._replace(log_weights=self.log_weights + log_lik.sum(0), answered=self.answered + answered.sum())

    def figures(self) -> dict[str, float]:
        """The tail shape, effective number, errors and mean of the weights, once all clients have answered.

        If draws are few the errors are not known, and an improper prior has no evidence.
        """
        work = {"answered": float(self.answered / self.num_clients), "accepted": float(self.accepted)}
        if work["answered"] < 1:
            return work
        found = smoothed(self.log_weights)
        figures = {"pareto_k": found.pareto_k, "effective_draws": found.effective}
        if len(self.draws) >= PARTS * FEWEST_A_PART:
            figures["mean_error"], figures["sd_error"] = weighted_errors(self.draws, self.log_weights)
        if bool(self.proper):
            figures["log_evidence"], figures["log_evidence_se"] = log_mean(self.log_weights)
        return figures | work

    def sample(self, num_draws: int, generator: torch.Generator) -> Tensor:
        """Draws by their smoothed weights, (num_draws, D); those with large weights occur several times."""
        weights = smoothed(self.log_weights).weights
        return self.draws[systematic(weights, num_draws, generator)]


def weight_findings(record: Record, num_proposals: int, min_effective: int) -> list[Finding]:
    """Warnings about clients that have not answered, and weights with too long a tail or too few effective draws.

    A long tail is reported only if parts of the draws also disagree about a mean or an SD, because it may belong to a
    quantity that no mean depends on.
    """
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
