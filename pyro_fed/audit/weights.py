"""The check of draws by importance weights, which needs only the clients' log-likelihoods and no rows.

    w_s = p_0(z_s) Π_k p_k(z_s) / q(z_s),      E_p[f] = E_q[w f] / E_q[w]

p_0 is the prior, p_k the likelihood of client k, and q the density of the draws z_s. Pareto-smoothed weights (Vehtari
et al. 2024) give the posterior's means and SDs if q covers the posterior's tails; Pareto's k shows whether it does.
Standard errors come from parts of the draws. The limits are those of the chains (`moments`).

The check finds less than chains do: it misses modes far from the draws, and tails without draws.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from pyro_fed.audit.evidence import Evidence
from pyro_fed.audit.moment_findings import cure
from pyro_fed.audit.moments import Moments, worst_moment
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.limits import MIN_EFFECTIVE_DRAWS
from pyro_fed.ops.importance import LARGEST_PARETO_K, TRUSTED_SHARE, in_parts, smoothed, weighted_moments

#: What sums over rows do not show.
UNCHECKED = (
    "judged by importance weights of the clients' sums alone; not checked: modes and tails away from the draws, "
    "whether the clients' likelihoods add up to the pooled model's, and what rounding costs"
)


def weight_findings(evidence: Evidence, points: Tensor, log_density: Tensor) -> list[Finding]:
    """Findings by importance weights from the log density (S,) at points (S, D), or a note on why there are none."""
    record, algorithm = evidence.record, evidence.algorithm
    name = type(algorithm).__name__
    if (
        "pareto_k" in record.latest
    ):  # the algorithm has weighted its draws by the same sums, and reports Pareto's k itself
        record.audited, record.by_sums = True, replace(record.by_sums, unchecked=UNCHECKED)
        return []
    log_q = algorithm.log_density(evidence.shared, points[None])
    if log_q is None:
        return [sentences.not_audited_without_density(algorithm=name)]
    if len(points) < MIN_EFFECTIVE_DRAWS:
        return [sentences.not_audited_by_few_draws(draws=len(points), needed=MIN_EFFECTIVE_DRAWS)]
    log_weights = log_density - log_q[0].double()
    smooth_weights = smoothed(log_weights)
    k = smooth_weights.pareto_k
    record.audited = True
    record.by_sums = replace(record.by_sums, unchecked=UNCHECKED, pareto_k=k, effective=smooth_weights.effective)
    if k > LARGEST_PARETO_K and smooth_weights.effective < TRUSTED_SHARE * len(points):
        return [
            sentences.weights_have_long_tails(
                pareto_k=k,
                limit=LARGEST_PARETO_K,
                draws=len(points),
                effective=smooth_weights.effective,
                cures=[cure(evidence)],
            )
        ]
    moments = moments_of_weighted_draws(evidence.quantities(points), log_weights)
    record.measured = moments.figures(evidence.quantities.labels)
    worst = worst_moment(moments)
    if worst is None:
        return []
    parameter = evidence.quantities.labels[worst.number]
    if worst.of_mean:
        return [
            sentences.mean_is_off_by_sums(
                parameter=parameter, size=worst.size, error=worst.error, cures=[cure(evidence)]
            )
        ]
    return [
        sentences.sd_is_off_by_sums(parameter=parameter, ratio=worst.size, error=worst.error, cures=[cure(evidence)])
    ]


def moments_of_weighted_draws(numbers: Tensor, log_weights: Tensor) -> Moments:
    """The weighted draws' means and SDs, relative to the draws' own; numbers (S, F) float64, raw log weights (S,)."""
    mean, log_sd = _against_plain(numbers, log_weights)
    parts = [_against_plain(*part) for part in in_parts(numbers, log_weights)]
    errors = [torch.stack(one).std(0) / len(parts) ** 0.5 for one in zip(*parts, strict=True)]
    return Moments(mean, errors[0], log_sd, errors[1])


def _against_plain(numbers: Tensor, log_weights: Tensor) -> tuple[Tensor, Tensor]:
    """(F,) each: weighted minus plain mean, in weighted SDs, and the log ratio of weighted and plain SD."""
    mean, sd = weighted_moments(numbers, log_weights)
    plain = numbers.std(0, correction=0)
    tiny = torch.finfo(sd.dtype).tiny
    return (mean - numbers.mean(0)) / sd.clamp_min(tiny), (sd.clamp_min(tiny) / plain.clamp_min(tiny)).log()
