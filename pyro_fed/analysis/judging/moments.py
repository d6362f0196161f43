"""Whether a result's means and SDs differ from a reference's by more than matters and by more than chance.

Let m be a parameter's posterior mean, σ its SD, κ its kurtosis, ESS the effective number of draws for the mean and
ESS₂ that for the squared distances from the mean. The Monte Carlo errors are

    SE of m = σ / ESS^½,      SE of log σ = ((κ - 1) / (4 ESS₂))^½

κ is the larger of the result's and the reference's kurtoses, since few draws show too small a kurtosis. Particles have
no Monte Carlo error. The reference has Monte Carlo errors of its own.

A warning is given if both hold:

1. A mean is more than `MATTERS` reference SDs off, or an SD is outside `SD_RANGE` times the reference's SD.
2. The distance is more than chance allows, at the level `FALSE_ALARM_CHANCE` for all parameters together (Bonferroni).
   The test is Student's, with the degrees of freedom of the result or reference with the smaller ESS.

A reference is doubted if its chains disagree, if trajectories diverged, or if its draws are too few to tell 1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import special

from pyro_fed.analysis.judging.draws import MIN_CHAIN_DRAWS, Draws, effective_draws
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.limits import FALSE_ALARM_CHANCE, MATTERS, SD_MATTERS
from pyro_fed.ops.arviz_versions import rhat
from pyro_fed.results.inference_data import InferenceData

#: An SD is wrong if its ratio to the reference's is outside this range.
SD_RANGE = (1 / SD_MATTERS, SD_MATTERS)


class Moments(NamedTuple):
    """Moments of D parameters, each (D,), and the effective numbers of draws of their means and of their SDs.

    Args:
        mean: means.
        sd: SDs.
        kurtosis: fourth central moments over squared variances; 3 for a Gaussian.
        worth: effective number of draws for the means.
        worth_of_sd: effective number of draws for the squared distances from the means.
    """

    mean: np.ndarray
    sd: np.ndarray
    kurtosis: np.ndarray
    worth: np.ndarray
    worth_of_sd: np.ndarray

    @property
    def mean_error(self) -> np.ndarray:
        """Standard errors of the means."""
        error: np.ndarray = self.sd / np.sqrt(self.worth)
        return error

    @property
    def log_sd_error(self) -> np.ndarray:
        """Standard errors of the logarithms of the SDs."""
        error: np.ndarray = np.sqrt(np.maximum(self.kurtosis - 1, 0) / (4 * self.worth_of_sd))
        return error


class Gaps(NamedTuple):
    """Distances of a result's moments from the reference's, for the parameters that the reference varies, (D,) each.

    Args:
        labels: names of the parameters.
        mean: distance of the means, in SDs of the reference.
        mean_error: standard error of that distance.
        ratio: SD over the reference's SD.
        log_ratio_error: standard error of the logarithm of the ratio.
        freedom: degrees of freedom of both standard errors.
    """

    labels: list[str]
    mean: np.ndarray
    mean_error: np.ndarray
    ratio: np.ndarray
    log_ratio_error: np.ndarray
    freedom: np.ndarray


def moments(draws: Draws) -> Moments:
    """Means and SDs of finite draws, with the effective numbers of draws that give their Monte Carlo errors."""
    flat = draws.flat
    mean = flat.mean(0)
    offsets = draws.values - mean
    squares = np.square(offsets)
    variance = squares.mean((0, 1))
    kurtosis = np.square(squares).mean((0, 1)) / np.where(variance > 0, np.square(variance), 1.0)
    sd = np.where(np.ptp(flat, axis=0) > 0, np.sqrt(variance), 0.0)
    kind = "point" if draws.all_equal else draws.kind
    return Moments(mean, sd, kurtosis, effective_draws(draws.values, kind), effective_draws(squares, kind))


def gaps(draws: Draws, reference: Draws) -> Gaps:
    """Distances of means and SDs from a reference's, without parameters that are constant in the reference."""
    varies = np.ptp(reference.flat, axis=0) > 0
    mine, truth = (Moments(*(part[varies] for part in moments(one))) for one in (draws, reference))
    kurtosis = np.maximum(mine.kurtosis, truth.kurtosis)
    mine, truth = mine._replace(kurtosis=kurtosis), truth._replace(kurtosis=kurtosis)
    return Gaps(
        [label for label, kept in zip(draws.labels, varies, strict=True) if kept],
        np.abs(mine.mean - truth.mean) / truth.sd,
        np.hypot(mine.mean_error, truth.mean_error) / truth.sd,
        mine.sd / truth.sd,
        np.hypot(mine.log_sd_error, truth.log_sd_error),
        np.maximum(np.minimum.reduce([mine.worth, truth.worth, mine.worth_of_sd, truth.worth_of_sd]) - 1, 1.0),
    )


def gap_warnings(found: Gaps, *, spread: bool = True, where: str = "") -> list[Finding]:
    """Up to three findings: the farthest mean, and, with `spread`, the smallest and largest SD ratio beyond chance."""
    chance = -special.stdtrit(
        found.freedom, FALSE_ALARM_CHANCE / (4 * len(found.labels))
    )  # two sides, and means and SDs
    with np.errstate(divide="ignore"):
        log_ratio = np.log(found.ratio)
    sure = np.abs(log_ratio) > chance * found.log_ratio_error
    low, high = SD_RANGE
    wrong = {
        "mean": (found.mean > np.maximum(MATTERS, chance * found.mean_error), found.mean),
        "small": ((found.ratio < low) & sure, -log_ratio),
        "large": ((found.ratio > high) & sure, log_ratio),
    }
    findings = list[Finding]()
    for what, (flagged, size) in wrong.items():
        if not flagged.any() or not (spread or what == "mean"):
            continue
        i, more = int(np.where(flagged, size, -np.inf).argmax()), int(flagged.sum()) - 1
        name, ratio = found.labels[i], float(found.ratio[i])
        if what == "mean":
            sds, error = float(found.mean[i]), float(found.mean_error[i])
            findings.append(sentences.mean_differs(parameter=name, sds=sds, error=error, scale=where, more=more))
        else:
            differs = sentences.sd_too_small if what == "small" else sentences.sd_too_large
            findings.append(differs(parameter=name, ratio=ratio, scale=where, more=more))
    return findings


#: R-hat of chains whose means scatter with an SD of `MATTERS` times the SD within chains.
MAX_RHAT = (1 + MATTERS**2) ** 0.5


def reference_doubts(idata: InferenceData, draws: Draws) -> list[Finding]:
    """One finding against a result as the reference: disagreeing, diverged or too few draws; or none."""
    if draws.fault or draws.spreadless:
        return [sentences.no_reference()]
    found = list[str]()
    chains, each, dim = draws.values.shape
    markov = draws.kind in ("chains", "")
    if markov and chains > 1 and each >= MIN_CHAIN_DRAWS:
        varies = np.ptp(draws.flat, axis=0) > 0
        worst = np.nan_to_num(rhat(draws.values[:, :, varies]), nan=np.inf)  # NaN: constant chains at different points
        if worst.max() > MAX_RHAT:
            where = np.array(draws.labels)[varies][int(worst.argmax())]
            found.append(f"its {chains} chains disagree: R-hat is {worst.max():.3g} in '{where}'")
    effective = effective_draws(draws.values, draws.kind)
    least = int(effective.argmin())
    needed = (special.ndtri(FALSE_ALARM_CHANCE / (4 * dim)) / MATTERS) ** 2
    if effective[least] < needed:
        found.append(
            f"its draws are worth only {effective[least]:.0f} independent ones in '{draws.labels[least]}', so that "
            f"its own mean is known to {effective[least] ** -0.5:.2g} SDs (at least {needed:.0f} detect a mean that is "
            f"{MATTERS} SDs off)"
        )
    diverged = int(idata["sample_stats"]["diverging"].sum()) if _has(idata, "sample_stats", "diverging") else 0
    if diverged:
        found.append(f"{diverged} of its {chains * each} trajectories diverged")
    return [sentences.reference_doubtful(reasons=found)] if found else []


def _has(idata: InferenceData, group: str, name: str) -> bool:
    return group in idata and name in idata[group]
