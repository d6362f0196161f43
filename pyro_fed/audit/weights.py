"""The check of draws by importance weights, for rows that are elsewhere: it needs only the clients' log-likelihoods.

    w_s = p_0(z_s) Π_k p_k(z_s) / q(z_s),      E_p[f] = E_q[w f] / E_q[w]

Pareto-smoothed weights (Vehtari et al. 2024) give the posterior's means and SDs where q covers the posterior's tails;
Pareto's k says whether it does. Standard errors come from parts of the draws. The limits are those of the chains
(`motion`).

The check sees less than chains do: no modes far from the draws, and no tails where q has no draws.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from pyro_fed.algorithm.capabilities import KnownDensity
from pyro_fed.audit.advice import cure
from pyro_fed.audit.chains.motion import Moments, wrong
from pyro_fed.audit.evidence import Evidence, measured
from pyro_fed.ops.importance import LARGEST_PARETO_K, PARTS, smoothed

#: The fewest draws of which each of `PARTS` parts has a tail whose shape can be estimated.
FEWEST = 400
#: If the weights are worth at least this share of the draws, a large k does not matter: hardly any weight is in a tail.
TRUSTED_SHARE = 0.95
#: What sums over rows do not show.
UNCHECKED = (
    "judged by importance weights of the clients' sums alone; not checked: modes and tails away from the draws, "
    "whether the clients' likelihoods add up to the pooled model's, and what rounding costs"
)


def judged_by_weights(evidence: Evidence, points: Tensor, log_density: Tensor) -> list[str]:
    """Judge a result by importance weights; figures and doubts are added to its record.

    Args:
        evidence: the result; its rows are elsewhere.
        points: draws of the result (S, D), all or some.
        log_density: log density of the posterior at these draws (S,), float64, up to a constant.

    Returns:
        A sentence that says why the result was not judged; none where it was.
    """
    record, algorithm = evidence.record, evidence.algorithm
    name = type(algorithm).__name__
    if "pareto_k" in record.latest:  # the algorithm has weighted its draws by the same sums, and reports on that itself
        record.audited, record.by_sums = True, replace(record.by_sums, unchecked=UNCHECKED)
        return []
    log_q = algorithm.log_density(evidence.shared, points[None]) if isinstance(algorithm, KnownDensity) else None
    if log_q is None:
        return [
            f"not audited: {name} draws from no density that is known, so that the clients' sums give no weights for "
            "its draws, and chains would need the clients' gradients. FedAIS, started from it, weighs draws by sums"
        ]
    if len(points) < FEWEST:
        return [f"not audited: {len(points)} draws are too few for weights, which take {FEWEST} (num_draws)"]
    log_weights = log_density - log_q[0].double()
    found = smoothed(log_weights)
    k = found.pareto_k
    record.audited = True
    record.by_sums = replace(record.by_sums, unchecked=UNCHECKED, pareto_k=k, effective=found.effective)
    if k > LARGEST_PARETO_K and found.effective < TRUSTED_SHARE * len(points):
        record.doubts.append(
            f"these draws are not the posterior's, as far as importance weights by all clients' likelihoods can tell: "
            f"the weights' Pareto k is {k:.2f}, above {LARGEST_PARETO_K}, so that means and SDs cannot be corrected by "
            f"them, and {len(points)} draws are worth {found.effective:.0f}. {cure(evidence)}"
        )
        return []
    moments = weighted_moments(evidence.quantities(points), log_weights)
    record.measured = measured(moments, evidence.quantities.labels)
    record.doubts += _said(evidence, moments)
    return []


def weighted_moments(numbers: Tensor, log_weights: Tensor) -> Moments:
    """The weighted draws' means and SDs, relative to the draws' own.

    Args:
        numbers: the numbers at the draws (S, F), float64.
        log_weights: log weights (S,), not smoothed.
    """
    size = len(numbers) // PARTS
    mean, log_sd = _against(numbers, log_weights)
    parts = [_against(numbers[i : size * PARTS : PARTS], log_weights[i : size * PARTS : PARTS]) for i in range(PARTS)]
    errors = [torch.stack(one).std(0) / PARTS**0.5 for one in zip(*parts, strict=True)]
    return Moments(mean, errors[0], log_sd, errors[1])


def _against(numbers: Tensor, log_weights: Tensor) -> tuple[Tensor, Tensor]:
    """The weighted less the plain mean, in weighted SDs, and the logarithm of the weighted over the plain SD, (F,)."""
    weights = smoothed(log_weights).weights
    mean = weights @ numbers
    sd = (weights @ (numbers - mean).square()).sqrt()
    plain = numbers.std(0, correction=0)
    tiny = torch.finfo(sd.dtype).tiny
    return (mean - numbers.mean(0)) / sd.clamp_min(tiny), (sd.clamp_min(tiny) / plain.clamp_min(tiny)).log()


def _said(evidence: Evidence, found: Moments) -> list[str]:
    """A sentence on the worst mean or SD, or none where all are within the limits."""
    bad = wrong(found)
    if not bool(bad.any()):
        return []
    what, number = divmod(int((found.excess * bad).argmax()), len(found.mean))
    name = evidence.quantities.labels[number]
    if what == 0:
        said = f"move the mean of '{name}' by {float(found.mean[number].abs()):.2f}"
        said += f" ± {float(found.mean_error[number]):.2f} SDs"
    else:
        ratio = math.exp(float(found.log_sd[number]))
        said = f"multiply the SD of '{name}' by {ratio:.2f} ± {ratio * float(found.log_sd_error[number]):.2f}"
    return [
        f"these draws are not the posterior's: importance weights by all clients' likelihoods {said}. {cure(evidence)}"
    ]
