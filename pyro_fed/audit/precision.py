"""Whether float32 was enough, where the result is.

At draws of the result the log density and the score are computed in float32, as in the run, and in float64. With e(z)
the error of the log density and d(z) that of the score in coordinates that whiten the draws, the mean there is off by
at most E|d| SDs (a Newton step divides by the unit matrix), and an SD by the same share: |E d u| ≤ (E d²)^½. An error e
of the log density that does not change with z does nothing; one that does is noise in importance ratios and in
acceptance rates.

Algorithms whose answer is a Gaussian invert its precision. A relative error of eps in the entries of a matrix of
condition number c is one of eps·c in its smallest eigenvalue: the precision of what is known least.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_fed.algorithm.capabilities import KnownDensity
from pyro_fed.audit.evidence import Evidence
from pyro_fed.audit.target import Tempered, for_checks, scores_at
from pyro_fed.ops.entries import evenly

#: Draws at which both are computed, fewer where rows are many: at most `MOST_DENSITIES` of them, and `FEWEST` draws.
DRAWS, FEWEST, MOST_DENSITIES = 32, 4, 2_000_000
#: Errors that move a mean by so many SDs; of the log density, in nats.
LARGEST_SCORE_ERROR, LARGEST_ERROR = 0.1, 0.1
#: Relative error of the smallest variance, half of which is that of the SD.
LARGEST_VARIANCE_ERROR = 0.2


def precision(evidence: Evidence) -> list[str]:
    """What float32 has cost.

    Args:
        evidence: the result.

    Returns:
        One sentence, which names float64; none where float32 was enough, or was not used.
    """
    if evidence.draws.shape[1] > 1 and bool((evidence.draws.std(1) == 0).any()):
        return []  # chains that stand still are no draws of the posterior, whose scores there mean nothing
    problem, draws = evidence.problem, evidence.draws.flatten(0, 1)
    finite = draws[draws.isfinite().all(1)]
    if problem.dtype != torch.float32 or len(finite) < 2:
        return []
    number = max(FEWEST, min(DRAWS, MOST_DENSITIES // problem.evaluations))
    z = finite[evenly(len(finite), number)]
    score, value = scores_at(for_checks(problem), z)
    single = score.double(), value.double()
    double = Tempered().score_and_value(problem.doubled(), z.double(), problem.doubled().all_rows)
    factor = _factor(finite.double())
    found = _errors(single, double, factor)
    if found is None and isinstance(evidence.algorithm, KnownDensity):
        found = _inversion(finite.double())
    if found is None:
        return []
    return [
        f"float32 is not enough for this posterior: {found}. Compute in float64, by Federation(..., "
        "dtype=torch.float64). Columns that are centred and scaled may be enough too"
    ]


def _factor(draws: Tensor) -> Tensor:
    """L (D, D) with L L' the draws' covariance; their SDs where the draws are too few for that."""
    sd = draws.std(0)
    factor: Tensor
    if len(draws) > 2 * draws.shape[1]:
        factor, info = torch.linalg.cholesky_ex(draws.T.cov().reshape(len(sd), len(sd)))
        if int(info) == 0:
            return factor
    return torch.diag(sd)


def _errors(single: tuple[Tensor, Tensor], double: tuple[Tensor, Tensor], factor: Tensor) -> str | None:
    usable = double[1].isfinite() & double[0].isfinite().all(1)
    if not bool(usable.any()):
        return None
    broken = usable & ~(single[1].isfinite() & single[0].isfinite().all(1))
    if bool(broken.any()):
        return f"{int(broken.sum())} of {int(usable.sum())} draws have a density in float64 and none in float32"
    score = float((((single[0] - double[0])[usable] @ factor).square().mean(0).sqrt()).max())
    if score > LARGEST_SCORE_ERROR:
        return f"rounding errors of the scores at its draws are worth {score:.2g} SDs of a parameter"
    off = (single[1] - double[1])[usable]
    spread = float(off.std()) if len(off) > 1 else 0.0
    return (
        f"rounding errors of the log density vary by {spread:.2g} nats over its draws"
        if spread > LARGEST_ERROR
        else None
    )


def _inversion(draws: Tensor) -> str | None:
    """The error of the smallest variance, once the draws are enough to tell and each has its own scale."""
    if len(draws) <= 2 * draws.shape[1] or draws.shape[1] < 2:
        return None
    values = torch.linalg.eigvalsh(draws.T.corrcoef().nan_to_num(0.0))
    condition = float(values[-1] / values[0].clamp(min=1e-300))
    error = torch.finfo(torch.float32).eps * condition
    if error <= LARGEST_VARIANCE_ERROR:
        return None
    return (
        f"its draws are so correlated (condition number {condition:.1g}) that a covariance inverted in float32 has a "
        f"relative error of {error:.2g} in its smallest variance"
    )
