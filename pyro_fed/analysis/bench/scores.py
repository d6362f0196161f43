"""How good an answer is, beside what is known of the posterior.

With draws x of the answer and r of the reference, m_i and σ_i the reference's means and SDs, over all entries i of all
sites outside the plate, on the model's own scale and on the unconstrained one::

    mean error            max_i |mean(x)_i - m_i| / σ_i
    SD ratios             min_i and max_i of SD(x)_i / σ_i
    coverage              share of r within the central 90 % of x, entry by entry: the average and the least over i
    sliced Wasserstein    `judging.distances`, of unconstrained draws standardised by the reference

An answer is wrong where the mean error is above 0.25 or an SD ratio outside 0.8 to 1.25. On the model's own scale only
entries count whose reference is not heavy-tailed (kurtosis up to 15): of others 1,000 draws do not tell an SD.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pyro_fed.analysis.bench.cases.case import Reference
from pyro_fed.analysis.bench.clients import dataset
from pyro_fed.analysis.judging.density import transformed, unconstrained
from pyro_fed.analysis.judging.distances import sliced_wasserstein, thin
from pyro_fed.analysis.judging.draws import Draws
from pyro_fed.analysis.judging.moments import LARGEST_MEAN_ERROR, SD_RANGE
from pyro_fed.density.problem import Problem
from pyro_fed.errors import DataError
from pyro_fed.ops.arviz_versions import make_result

if TYPE_CHECKING:
    from pyro_fed.results.inference_data import InferenceData

#: Heavier tails than this are judged on the unconstrained scale alone.
LARGEST_KURTOSIS = 15.0
#: The intervals whose coverage is measured.
INTERVAL = 0.9


@dataclass(frozen=True)
class Parameter:
    """One entry of a site.

    Attributes:
        label: such as `w[0]`, "(unconstrained)" behind it on that scale.
        reference_mean: m.
        reference_sd: σ.
        mean: of the answer.
        sd: of the answer.
        coverage: share of the reference in the answer's central 90 %.
        judged: whether it counts; heavy tails do not.
    """

    label: str
    reference_mean: float
    reference_sd: float
    mean: float
    sd: float
    coverage: float
    judged: bool

    @property
    def mean_error(self) -> float:
        """In SDs of the reference."""
        return abs(self.mean - self.reference_mean) / self.reference_sd

    @property
    def sd_ratio(self) -> float:
        """Over the reference's."""
        return self.sd / self.reference_sd

    @property
    def badness(self) -> float:
        """How many times over the limits it is; 1 at a limit."""
        low, high = np.log(SD_RANGE)
        spread = np.log(max(self.sd_ratio, 1e-12))
        return float(max(self.mean_error / LARGEST_MEAN_ERROR, spread / (low if spread < 0 else high)))


@dataclass(frozen=True)
class Scores:
    """Of one answer.

    Attributes:
        mean_error: largest, in SDs of the reference.
        sd_low: least SD over the reference's.
        sd_high: largest.
        coverage: of 90 % intervals, averaged over the parameters.
        coverage_low: the least.
        sliced_wasserstein: distance, in SDs of the reference.
        where: the parameter that is worst.
        parameters: each, the worst first.
    """

    mean_error: float
    sd_low: float
    sd_high: float
    coverage: float
    coverage_low: float
    sliced_wasserstein: float
    where: str
    parameters: list[Parameter]

    @property
    def wrong(self) -> bool:
        """Whether a mean or an SD is further off than is said to matter."""
        low, high = SD_RANGE
        return not (self.mean_error <= LARGEST_MEAN_ERROR and low <= self.sd_low and self.sd_high <= high)


def scores(idata: InferenceData, reference: Reference, problem: Problem, seed: int = 0) -> Scores:
    """Scores of an answer.

    Args:
        idata: the answer.
        reference: what is known.
        problem: the posterior.
        seed: of the random directions.

    Raises:
        DataError: a site is missing or has another shape; draws that are not finite.

    Example:
        >>> scores(pf.run(pf.FedEP(), fed), reference, fed.problem).mean_error
    """
    known = make_result({"posterior": dataset(reference.values)}, {})
    names = sorted(reference.values)
    check_sites(idata, reference)
    kind = str(idata.attrs.get("draws_are", ""))
    mine, truth = Draws.of(idata, names), Draws.of(known, names)
    if mine.fault:
        raise DataError(mine.fault)
    if set(problem.sites) != set(names):
        raise DataError(f"the reference has the sites {names}, the model {sorted(problem.sites)}")
    inside, inside_truth = unconstrained(idata, problem, kind), unconstrained(known, problem, "")
    if inside.fault:
        raise DataError(f"on the unconstrained scale {inside.fault}")
    other, other_truth = transformed(inside, mine), transformed(inside_truth, truth)
    rows = parameters(mine, truth)
    if other is not None and other_truth is not None and other.labels == other_truth.labels:
        rows += parameters(other, other_truth, " (unconstrained)")
    mean, sd = inside_truth.flat.mean(0), inside_truth.flat.std(0)
    distance = sliced_wasserstein((thin(inside.flat) - mean) / sd, (thin(inside_truth.flat) - mean) / sd, seed)
    return scored(rows, distance)


def scored(rows: list[Parameter], distance: float) -> Scores:
    """The scores of parameters.

    Args:
        rows: of `parameters`.
        distance: sliced Wasserstein.

    Raises:
        DataError: none of them can be judged.
    """
    judged = [row for row in rows if row.judged]
    if not judged:
        raise DataError("every parameter's reference is heavy-tailed or does not vary: nothing can be judged")
    ordered = sorted(rows, key=lambda row: (-row.judged, -row.badness))
    return Scores(
        max(row.mean_error for row in judged),
        min(row.sd_ratio for row in judged),
        max(row.sd_ratio for row in judged),
        float(np.mean([row.coverage for row in rows])),
        min(row.coverage for row in rows),
        distance,
        ordered[0].label,
        ordered,
    )


def parameters(mine: Draws, truth: Draws, behind: str = "") -> list[Parameter]:
    """Each column beside the reference's, those aside that the reference does not vary.

    Args:
        mine: finite draws.
        truth: of the same columns.
        behind: put behind their labels.
    """
    flat, known = mine.flat, truth.flat
    ends = np.quantile(flat, [(1 - INTERVAL) / 2, (1 + INTERVAL) / 2], axis=0)
    within = ((known >= ends[0]) & (known <= ends[1])).mean(0)
    away = known - known.mean(0)
    variance = np.square(away).mean(0)
    kurtosis = np.power(away, 4).mean(0) / np.where(variance > 0, np.square(variance), 1.0)
    means, sds, spread = flat.mean(0), flat.std(0), np.sqrt(variance)
    return [
        Parameter(
            label=label + behind,
            reference_mean=float(known[:, i].mean()),
            reference_sd=float(spread[i]),
            mean=float(means[i]),
            sd=float(sds[i]),
            coverage=float(within[i]),
            judged=bool(kurtosis[i] <= LARGEST_KURTOSIS),
        )
        for i, label in enumerate(truth.labels)
        if np.ptp(known[:, i]) > 0
    ]


def check_sites(idata: Any, reference: Reference) -> None:
    """Require the reference's sites with their shapes.

    Args:
        idata: the answer.
        reference: what is known.

    Raises:
        DataError: a site is missing or has another shape.
    """
    posterior = idata["posterior"]
    for name, values in reference.values.items():
        if name not in posterior:
            raise DataError(f"the answer has no site '{name}': it has {sorted(map(str, posterior.data_vars))}")
        shape = posterior[name].transpose("chain", "draw", ...).shape[2:]
        if shape != values.shape[2:]:
            raise DataError(f"site '{name}': expected the shape {values.shape[2:]} a draw, received {shape}")
