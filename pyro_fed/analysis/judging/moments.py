"""Means and SDs of a result against those of a reference, and whether they are further apart than chance allows.

With ESS the number of independent draws that a result is worth, m its means, σ its SDs and κ its kurtoses::

    SE of m = σ / ESS^½,      SE of log σ = ((κ - 1) / (4 ESS₂))^½

ESS₂ that of the squared distances from m, and κ the larger one of result and reference, as few draws show a small one.
Particles have no such errors, a reference has its own. A result is wrong
where a mean is more than `LARGEST_MEAN_ERROR` reference SDs off or an SD is outside `SD_RANGE` times the reference's.
It is doubted where the draws put it there *and* the distance from the reference is more than chance, at the level
`FALSE_ALARMS` over all parameters together (Bonferroni; Student's t with the degrees of freedom of the fewer draws).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import special

from pyro_fed.analysis.judging.draws import Draws, worth
from pyro_fed.conventions.limits import MATTERS, SD_MATTERS

#: A mean further away than this, in reference SDs, is wrong...
LARGEST_MEAN_ERROR = MATTERS
#: ...and so is an SD outside this multiple of the reference's.
SD_RANGE = (1 / SD_MATTERS, SD_MATTERS)
#: How often a result that is the reference's own distribution is doubted.
FALSE_ALARMS = 0.01


class Moments(NamedTuple):
    """Means, SDs and kurtoses, and how many independent draws the first two are worth, each (D,)."""

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
    """How far a result's moments are from the reference's, (D,) each.

    Args:
        labels: of the parameters.
        mean: distance of the means in reference SDs.
        mean_error: its standard error.
        ratio: SDs over the reference's.
        log_ratio_error: standard error of its logarithm.
        freedom: degrees of freedom of both errors.
    """

    labels: list[str]
    mean: np.ndarray
    mean_error: np.ndarray
    ratio: np.ndarray
    log_ratio_error: np.ndarray
    freedom: np.ndarray


def moments(draws: Draws) -> Moments:
    """Means and SDs with their Monte Carlo errors.

    Args:
        draws: finite ones.

    Example:
        >>> moments(Draws.of(idata, ["w"])).mean_error
    """
    flat = draws.flat
    mean = flat.mean(0)
    offsets = draws.values - mean
    squares = np.square(offsets)
    variance = squares.mean((0, 1))
    kurtosis = np.square(squares).mean((0, 1)) / np.where(variance > 0, np.square(variance), 1.0)
    sd = np.where(np.ptp(flat, axis=0) > 0, np.sqrt(variance), 0.0)
    kind = "point" if draws.alike else draws.kind
    return Moments(mean, sd, kurtosis, worth(draws.values, kind), worth(squares, kind))


def gaps(draws: Draws, reference: Draws) -> Gaps:
    """How far a result is from a reference, parameters aside that the reference does not vary.

    Args:
        draws: of the result, finite.
        reference: of the same parameters, finite.

    Example:
        >>> gaps(Draws.of(idata, ["w"]), Draws.of(reference, ["w"])).ratio
    """
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


def gap_warnings(found: Gaps, *, spread: bool = True, where: str = "") -> list[str]:
    """What speaks against the result.

    Args:
        found: of `gaps`.
        spread: whether there is a spread that could be right.
        where: on which scale, to be said at the end.

    Returns:
        A sentence on the mean that is farthest off, one on the smallest SD and one on the largest, of those that are
        too far off by more than chance.
    """
    chance = -special.stdtrit(found.freedom, FALSE_ALARMS / (4 * len(found.labels)))  # two sides, and means and SDs
    with np.errstate(divide="ignore"):
        log_ratio = np.log(found.ratio)
    sure = np.abs(log_ratio) > chance * found.log_ratio_error
    low, high = SD_RANGE
    wrong = {
        "mean": (found.mean > np.maximum(LARGEST_MEAN_ERROR, chance * found.mean_error), found.mean),
        "small": ((found.ratio < low) & sure, -log_ratio),
        "large": ((found.ratio > high) & sure, log_ratio),
    }
    said = []
    for what, (flagged, size) in wrong.items():
        if flagged.any() and (spread or what == "mean"):
            i = int(np.where(flagged, size, -np.inf).argmax())
            value = f"{found.mean[i]:.2g} ± {found.mean_error[i]:.1g}" if what == "mean" else f"{found.ratio[i]:.2g}"
            text = {
                "mean": f"the mean of '{found.labels[i]}' is {value} reference SDs off",
                "small": f"the SD of '{found.labels[i]}' is {value} of the reference's",
                "large": f"the SD of '{found.labels[i]}' is {value} times the reference's",
            }
            more = int(flagged.sum()) - 1
            said.append(text[what] + where + (f" (and {more} more)" if more else ""))
    return said
