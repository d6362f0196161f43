"""Warnings about draws of `FedAIS`: weights with too long a tail, or with few effective draws."""

from __future__ import annotations

import math

from pyro_fed.algorithm.record import Record
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.limits import MATTERS
from pyro_fed.ops.importance import LARGEST_PARETO_K, TRUSTED_SHARE


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
