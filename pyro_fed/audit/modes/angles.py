"""Angles whose posterior goes on across the ends of their interval: one mode that is two there.

An angle on (-π, π) near π has mass near -π too, which no Gaussian and no chain on the interval can join: what is said
of missed modes or of moments that are off is right there, but neither the cause nor the cure. The ends of an interval
are one place where each term f of the log density, a row's or the prior's, is the same at both, and so is its slope:

    Σ |f(a) - f(b)| ≪ Σ max f - min f,    Σ |f'(a) - f'(b)| ≪ Σ |f'(a)| + |f'(b)|

over the terms and some draws, which have the other latents; max and min are over the interval. A sum of terms may be
the same at both ends by chance, and is where data say little of a flat prior's latent: terms that are flat say nothing
here, and nor do slopes of zero at both ends, as a bump in the interval's middle has them.

The posterior goes across where the log density there is not more than `ACROSS` below what it is at the draws.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_fed.audit.evidence import Evidence
from pyro_fed.audit.modes.climbs import LARGEST_DIM
from pyro_fed.audit.target import Target
from pyro_fed.density.layout import Site
from pyro_fed.ops.entries import evenly

#: Draws at which the ends are compared, and places within the interval, for what a term's largest and smallest are.
DRAWS, WITHIN = 8, 7
#: Logits of places near the ends: of those that are compared, and of one that is nearer than an interval's can be told.
NEAR, NEARER, END = 8.0, 9.0, 20.0
#: What is left of an interval beyond the latter, at most, as a share of it.
LEFT = 1e-3
#: What terms may differ by at the two ends, as a share of what they do over the interval, and their slopes, as one of
#: those. They are the same but for rounding where there is one place; where not, shares are of the order of one.
SAME, SLOPE = 0.05, 0.1
#: Nats below the draws: an end 3.5 SDs from a Gaussian's mean, beyond which there are 0.02 %, a turn of as many as a
#: hundred SDs away: twice the variance.
ACROSS = 6.0


@dataclass(frozen=True)
class Angle:
    """An entry of a site whose ends are one place that the posterior goes across.

    Args:
        name: of the site.
        label: of the entry.
        lower: end of its interval.
        upper: likewise.
        centre: circular mean of the draws.
    """

    name: str
    label: str
    lower: float
    upper: float
    centre: float

    @property
    def across(self) -> str:
        """A clause that says so."""
        return (
            f"'{self.label}' is an angle, or periodic otherwise, and its posterior goes on across the ends of its "
            f"interval, {self.lower:.3g} and {self.upper:.3g}, which are the same angle"
        )

    @property
    def cure(self) -> str:
        """What to do."""
        return (
            f"Measure it from where its posterior is: sample the difference to {self.centre:.3g} in its place, on the "
            "same interval, or sample two coordinates whose angle it is"
        )


def across_ends(evidence: Evidence) -> list[Angle]:
    """Entries of sites that are such angles.

    Args:
        evidence: the result.
    """
    problem, target = evidence.problem, evidence.target
    if target is None or problem.looped or problem.dim > LARGEST_DIM:
        return []
    z = evidence.flat[evenly(len(evidence.flat), DRAWS)].double()
    ends = {side: _values(evidence, side * torch.full_like(z[:1], NEARER))[0] for side in (-1, 1)}
    last = {side: _values(evidence, side * torch.full_like(z[:1], END))[0] for side in (-1, 1)}
    length = ends[1] - ends[-1]
    bounded = sum((last[side] - ends[side]).abs() for side in (-1, 1)) < LEFT * length.abs()
    found = []
    for site in problem.sites.values():
        for number in range(site.start, site.start + site.size):
            if bool(bounded[number]) and _goes_across(target, z, number, float(length[number].abs())):
                found.append(_angle(evidence, site, number, float(last[-1][number]), float(last[1][number])))
    return found


def _values(evidence: Evidence, z: Tensor) -> Tensor:
    """Values of all entries of the flat vector (S, D) on their sites' own scale; NaN of sites with others."""
    problem = evidence.problem
    values = problem.constrain(z.to(problem.dtype), problem.fewest_rows)
    found = torch.full_like(z, torch.nan)
    for name, site in problem.sites.items():
        own = values[name].reshape(len(z), -1)
        if own.shape[1] == site.size:
            found[:, site.start : site.start + site.size] = own.double()
    return found


def _goes_across(target: Target, z: Tensor, number: int, length: float) -> bool:
    """Whether the ends of an entry's interval are one place, with mass.

    Args:
        target: the posterior.
        z: draws (S, D).
        number: of the entry.
        length: of its interval.
    """
    share = (torch.arange(WITHIN, dtype=torch.float64) + 0.5) / WITHIN
    logits = torch.cat([torch.tensor([-NEARER, -NEAR, NEAR, NEARER], dtype=torch.float64), share.logit()])
    near, nearer = (length / (1 + math.exp(logit)) for logit in (NEAR, NEARER))
    gap, spread, kink, slope, below = 0.0, 0.0, 0.0, 0.0, []
    for draw in z:
        moved = draw.repeat(len(logits) + 1, 1)
        moved[1:, number] = logits
        terms = target.terms(moved)
        stretched = torch.nn.functional.logsigmoid(torch.stack([moved[:, number], -moved[:, number]])).sum(0)
        terms[:, 0] -= stretched  # the prior's, of the angle
        if not bool(terms.isfinite().all()):
            return False
        up = (terms[2] - terms[1]) / (near - nearer)
        down = (terms[4] - terms[3]) / (near - nearer)
        low, high = terms[1] - up * nearer, terms[4] + down * nearer  # at the ends themselves
        gap += float((low - high).abs().sum())
        spread += float((terms[1:].amax(0) - terms[1:].amin(0)).sum())
        kink += float((up - down).abs().sum())
        slope += float((up.abs() + down.abs()).sum())
        below.append(float(terms[0].sum() - torch.maximum(low.sum(), high.sum())))
    return gap < SAME * spread and kink < SLOPE * slope and statistics.median(below) < ACROSS


def _angle(evidence: Evidence, site: Site, number: int, lower: float, upper: float) -> Angle:
    lower, upper = min(lower, upper), max(lower, upper)
    value = _values(evidence, evidence.points)[:, number]
    turned = 2 * math.pi * (value - lower) / (upper - lower)
    mean = math.atan2(float(turned.sin().mean()), float(turned.cos().mean())) % (2 * math.pi)
    label = evidence.problem.entry_of(site, number - site.start)
    return Angle(site.name, label, lower, upper, lower + mean / (2 * math.pi) * (upper - lower))


def explained(evidence: Evidence, said: list[str]) -> list[str]:
    """What speaks against draws, with its cause where that is an angle across the ends of its interval.

    Args:
        evidence: the result.
        said: sentences; none where there is nothing to explain.
    """
    for angle in across_ends(evidence) if said else []:
        its = [f"'{angle.label}'" in sentence or f"'{angle.name}'" in sentence for sentence in said]
        if any(its):
            cause = f"{angle.across}: one mode looks like two there, and the draws do not have both as they should"
            return [f"{cause}. {angle.cure}", *(sentence for sentence, own in zip(said, its, strict=True) if not own)]
    return said


def as_numbers(evidence: Evidence) -> list[str]:
    """A note on right draws of such angles: their means and SDs as numbers say nothing.

    Args:
        evidence: the result, which nothing speaks against.

    Returns:
        One sentence an angle.
    """
    return [
        f"{angle.across}: the mean and SD of its values say nothing, but scipy.stats.circmean and circstd with these "
        f"ends do. {angle.cure}"
        for angle in across_ends(evidence)[:1]
    ]
