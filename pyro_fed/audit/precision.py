"""Whether float32 was precise enough for the densities at the result's draws.

At draws of the result the log density and the score are computed in float32, as in the run, and in float64. Let e(z) be
the error of the log density, and d(z) the error of the score in coordinates that whiten the draws. There the posterior
has about unit covariance, so that a Newton step is the score itself:

- the mean is off by at most E|d| SDs, and an SD by at most the share (E d²)^½, since |E d u| ≤ (E d²)^½ for E u² = 1;
- an error e that is the same at all z changes nothing; one that varies is noise in importance ratios and in acceptance
  rates.

Algorithms whose answer is a Gaussian also invert its precision. Relative errors of eps in the entries of a matrix with
the condition number c cause a relative error of eps·c in its smallest eigenvalue.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import overrides
from pyro_fed.audit.evidence import Evidence
from pyro_fed.audit.target import TemperedDensity, density_cost, for_checks, scores_at, whitening_factor
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.limits import NEGLIGIBLE
from pyro_fed.ops.entries import evenly
from pyro_fed.policy.audit import compared_draws, may_round

#: Largest relative error of the smallest variance that is accepted: 10 % of an SD.
LARGEST_VARIANCE_ERROR = 0.2


def precision(evidence: Evidence) -> list[Finding]:
    """One finding on rounding errors of float32 that matter at the result's draws, or none."""
    if evidence.draws.shape[1] > 1 and bool((evidence.draws.std(1) == 0).any()):
        return []  # chains that never moved are not at the posterior: scores and their errors mean nothing there
    problem, draws = evidence.problem, evidence.draws.flatten(0, 1)
    finite = draws[draws.isfinite().all(1)]
    if not may_round(problem.traits) or len(finite) < 2:
        return []
    z = finite[evenly(len(finite), compared_draws(problem.traits, density_cost(problem)))]
    score, value = scores_at(for_checks(problem), z)
    single = score.double(), value.double()
    double = TemperedDensity().score_and_value(problem.doubled(), z.double(), (problem.doubled().all_rows, ()))
    factor = whitening_factor(finite.double())
    found = _errors(single, double, factor)
    if found is None and overrides(evidence.algorithm, "log_density"):
        found = _inversion(finite.double())
    if found is None:
        return []
    return [sentences.float32_is_not_enough(off=found)]


def _errors(single: tuple[Tensor, Tensor], double: tuple[Tensor, Tensor], factor: Tensor) -> str | None:
    """What is wrong with scores (S, D) and log densities (S,) in single precision against double; None if nothing is.

    `factor` is the L (D, D), or (D,), that whitens.
    """
    usable = double[1].isfinite() & double[0].isfinite().all(1)
    if not bool(usable.any()):
        return None
    broken = usable & ~(single[1].isfinite() & single[0].isfinite().all(1))
    if bool(broken.any()):
        return f"{int(broken.sum())} of {int(usable.sum())} draws have a density in float64 and none in float32"
    away = (single[0] - double[0])[usable]
    away = away * factor if factor.dim() == 1 else away @ factor
    score = float(away.square().mean(0).sqrt().max())
    if score > NEGLIGIBLE:
        return f"rounding errors of the scores at its draws are worth {score:.2g} SDs of a parameter"
    off = (single[1] - double[1])[usable]
    spread = float(off.std()) if len(off) > 1 else 0.0
    return (
        f"rounding errors of the log density vary by {spread:.2g} nats over its draws" if spread > NEGLIGIBLE else None
    )


def _inversion(draws: Tensor) -> str | None:
    """The cost of inverting the draws' correlation matrix in float32; None if it is small, or the draws are too few."""
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
