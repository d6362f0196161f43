"""Scores of an answer: its draws are compared with a reference for the posterior.

Let x be draws of the answer and r draws of the reference, with means m_i and SDs σ_i. The index i runs over all entries
of all sites outside the plate, on the model's own scale and on the unconstrained scale::

    mean error            max_i |mean(x)_i - m_i| / σ_i
    SD ratios             min_i and max_i of SD(x)_i / σ_i
    coverage              share of r_i within the central 90 % of x_i: the average and the smallest over i
    sliced Wasserstein    see `judging.distances`; of unconstrained draws, standardised by the reference

An answer is wrong if the mean error is above 0.25 or an SD ratio is outside 0.8 to 1.25. Entries whose reference is
heavy-tailed (kurtosis above 15) are not judged, since 1,000 draws do not determine their SD.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from pyro_fed.analysis.bench.cases.case import Reference
from pyro_fed.analysis.bench.clients import dataset
from pyro_fed.analysis.judging.density import on_unconstrained_scale, transformed_columns
from pyro_fed.analysis.judging.distances import sliced_wasserstein, thin
from pyro_fed.analysis.judging.draws import Draws
from pyro_fed.analysis.judging.moments import SD_RANGE
from pyro_fed.conventions.limits import MATTERS
from pyro_fed.density.problem import Problem
from pyro_fed.errors import DataError
from pyro_fed.ops.arviz_versions import make_result

if TYPE_CHECKING:
    from pyro_fed.results.inference_data import InferenceData

#: Entries of larger kurtosis are not judged: the SD of 1,000 draws errs by sqrt((kurtosis - 1) / 4,000) of itself.
MAX_KURTOSIS = 15.0
#: Probability of the central intervals whose coverage is measured.
INTERVAL_PROBABILITY = 0.9


@dataclass(frozen=True)
class Parameter:
    """The figures of one entry of a site."""

    label: str
    reference_mean: float
    reference_sd: float
    mean: float
    sd: float
    coverage: float
    judged: bool

    @property
    def mean_error(self) -> float:
        """Distance of the means, in SDs of the reference."""
        return abs(self.mean - self.reference_mean) / self.reference_sd

    @property
    def sd_ratio(self) -> float:
        """The answer's SD over the reference's."""
        return self.sd / self.reference_sd

    @property
    def badness(self) -> float:
        """The larger error of mean and SD, as a multiple of its limit: 1 at the limit."""
        low, high = np.log(SD_RANGE)
        spread = np.log(max(self.sd_ratio, 1e-12))
        return float(max(self.mean_error / MATTERS, spread / (low if spread < 0 else high)))


@dataclass(frozen=True)
class Scores:
    """The scores of an answer, see the module's header."""

    mean_error: float
    sd_low: float
    sd_high: float
    coverage: float
    coverage_low: float
    sliced_wasserstein: float
    where: str
    parameters: list[Parameter]

    @property
    def is_wrong(self) -> bool:
        """Whether the largest error of a mean or an SD ratio is beyond its limit."""
        low, high = SD_RANGE
        return not (self.mean_error <= MATTERS and low <= self.sd_low and self.sd_high <= high)


def scores(idata: InferenceData, reference: Reference, problem: Problem, seed: int = 0) -> Scores:
    """The scores of an answer; DataError if a site is missing, has another shape, or has draws that are not finite."""
    known = make_result({"posterior": dataset(reference.values)}, {})
    names = sorted(reference.values)
    check_sites(idata, reference)
    kind = str(idata.attrs.get("draws_are", ""))
    mine, truth = Draws.of(idata, names), Draws.of(known, names)
    if mine.fault:
        raise DataError(mine.fault)
    if set(problem.sites) != set(names):
        raise DataError(
            f"the reference has the sites {names}, the model {sorted(problem.sites)}: make a reference for this model"
        )
    inside, inside_truth = on_unconstrained_scale(idata, problem, kind), on_unconstrained_scale(known, problem, "")
    if inside.fault:
        raise DataError(f"on the unconstrained scale {inside.fault}")
    other, other_truth = transformed_columns(inside, mine), transformed_columns(inside_truth, truth)
    rows = parameters(mine, truth)
    if other is not None and other_truth is not None and other.labels == other_truth.labels:
        rows += parameters(other, other_truth, " (unconstrained)")
    mean, sd = inside_truth.flat.mean(0), inside_truth.flat.std(0)
    distance = sliced_wasserstein((thin(inside.flat) - mean) / sd, (thin(inside_truth.flat) - mean) / sd, seed)
    return summarise_scores(rows, distance)


def summarise_scores(rows: list[Parameter], distance: float) -> Scores:
    """Summarise the figures of all parameters; DataError if none can be judged."""
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
    """The figures of each parameter that varies in the reference; `behind` is put behind the labels."""
    flat, known = mine.flat, truth.flat
    ends = np.quantile(flat, [(1 - INTERVAL_PROBABILITY) / 2, (1 + INTERVAL_PROBABILITY) / 2], axis=0)
    within = ((known >= ends[0]) & (known <= ends[1])).mean(0)
    means, sds, spread = flat.mean(0), flat.std(0), known.std(0)
    return [
        Parameter(
            label=label + behind,
            reference_mean=float(known[:, i].mean()),
            reference_sd=float(spread[i]),
            mean=float(means[i]),
            sd=float(sds[i]),
            coverage=float(within[i]),
            judged=bool(stats.kurtosis(known[:, i], fisher=False) <= MAX_KURTOSIS),
        )
        for i, label in enumerate(truth.labels)
        if np.ptp(known[:, i]) > 0
    ]


def check_sites(idata: Any, reference: Reference) -> None:
    """Check that an answer has the reference's sites, with the same shapes."""
    posterior = idata["posterior"]
    for name, values in reference.values.items():
        if name not in posterior:
            raise DataError(f"the answer has no site '{name}': it has {sorted(map(str, posterior.data_vars))}")
        shape = posterior[name].transpose("chain", "draw", ...).shape[2:]
        if shape != values.shape[2:]:
            raise DataError(f"site '{name}': expected the shape {values.shape[2:]} of a draw, received {shape}")
