"""Angles whose posterior extends across the ends of their interval, so that one mode looks like two.

An angle on (-π, π) whose posterior is near π also has mass near -π. No Gaussian and no chain on the interval joins the
two parts. Other checks would report a missed mode, or a wrong mean or SD, but neither the cause nor the cure. This
module recognises such a site.

**Are the ends a and b of the interval the same point for the model?** They are if each term f of the log density, one
for the prior and one for each row, has the same value and the same slope at both ends:

    Σ |f(a) - f(b)| ≪ Σ (max f - min f),    Σ |f'(a) - f'(b)| ≪ Σ (|f'(a)| + |f'(b)|)

The sums are over the terms and over some draws, which supply the other latents; max and min are over the interval. The
terms are compared one by one, since their total may agree at both ends by chance. Flat terms contribute to neither
side.

**Does the posterior reach the ends?** It does if the log density at an end is at most `MAX_NATS_AT_ENDS` nats below
that at the draws.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_fed.audit.evidence import Evidence
from pyro_fed.audit.target import Target
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.limits import NEGLIGIBLE
from pyro_fed.density.checks.points import FEW_DRAWS
from pyro_fed.density.layout import Site
from pyro_fed.ops.entries import evenly
from pyro_fed.policy.audit import affords

#: Points inside the interval over which max f and min f are taken.
INTERIOR_POINTS = 7
#: Logits at which terms are computed, two near each end: value and slope at the end itself follow by extrapolation.
NEAR_LOGIT = 8.0
NEARER_LOGIT = NEAR_LOGIT + 1
LOGITS = -NEARER_LOGIT, -NEAR_LOGIT, NEAR_LOGIT, NEARER_LOGIT
#: A site is bounded if less than this share of the distance between the outer `LOGITS` lies beyond the inner ones.
BOUNDED_SHARE = 2 * math.exp(-NEAR_LOGIT)
#: In nats: the end lies 3.5 SDs from a Gaussian's mean, with 0.02 % of the mass beyond it. If the interval is a hundred
#: SDs long, this mass appears a hundred SDs away, and adds 0.0002 · 100² = 2 to a variance of one.
MAX_NATS_AT_ENDS = 6.0


@dataclass(frozen=True)
class Angle:
    """An entry of a site that is an angle, and whose posterior extends across the ends of its interval."""

    name: str  # of the site
    label: str  # of the entry
    lower: float
    upper: float
    centre: float  # circular mean of the draws

    @property
    def cure(self) -> str:
        """A sentence on what the user can do."""
        return (
            f"Measure the angle from the centre of its posterior: sample its difference to {self.centre:.3g} on the "
            "same interval, or sample two coordinates and take their angle"
        )

    def is_in(self, finding: Finding) -> bool:
        """Whether a finding is about this angle, or another entry of its site."""
        parameter = str(finding.where.get("parameter", "")).partition(" (")[0]
        return parameter in (self.label, self.name) or finding.where.get("site") == self.name


def angles_across_ends(evidence: Evidence) -> list[Angle]:
    """The angles whose posterior extends across the ends of their interval."""
    problem, target = evidence.problem, evidence.target
    if target is None or not affords(problem.traits):
        return []
    z = evidence.flat[evenly(len(evidence.flat), FEW_DRAWS)].double()
    sides = torch.tensor(LOGITS, dtype=z.dtype)
    nearer, near, above, upper = _values(evidence, sides.unsqueeze(1).expand(-1, z.shape[1]))
    length, beyond = upper - nearer, math.expm1(NEARER_LOGIT - NEAR_LOGIT)
    bounded = (nearer - near).abs() + (upper - above).abs() < BOUNDED_SHARE * length.abs()
    lowest, highest = nearer + (nearer - near) / beyond, upper + (upper - above) / beyond
    angles = []
    for site in problem.sites.values():
        for number in range(site.start, site.start + site.size):
            if bool(bounded[number]) and _goes_across(target, z, number, float(length[number].abs())):
                angles.append(_angle(evidence, site, number, float(lowest[number]), float(highest[number])))
    return angles


def _values(evidence: Evidence, z: Tensor) -> Tensor:
    """Entries of flat vectors (S, D) on their sites' own scale; NaN for a site of another size on that scale."""
    problem = evidence.problem
    values = problem.constrain(z.to(problem.dtype), problem.fewest_rows)
    entries = torch.full_like(z, torch.nan)
    for name, site in problem.sites.items():
        site_values = values[name].reshape(len(z), -1)
        if site_values.shape[1] == site.size:
            entries[:, site.start : site.start + site.size] = site_values.double()
    return entries


def _goes_across(target: Target, z: Tensor, number: int, length: float) -> bool:
    """Whether the ends of an entry's interval, of this length, are the same point, and draws (S, D) reach them."""
    share = (torch.arange(INTERIOR_POINTS, dtype=torch.float64) + 0.5) / INTERIOR_POINTS
    logits = torch.cat([torch.tensor(LOGITS, dtype=torch.float64), share.logit()])
    near, nearer = (length / (1 + math.exp(logit)) for logit in (NEAR_LOGIT, NEARER_LOGIT))
    gap, spread, kink, slope, below = 0.0, 0.0, 0.0, 0.0, []
    for draw in z:
        moved = draw.repeat(len(logits) + 1, 1)
        moved[1:, number] = logits
        terms = target.terms(moved)
        stretched = torch.nn.functional.logsigmoid(torch.stack([moved[:, number], -moved[:, number]])).sum(0)
        terms[:, 0] -= stretched  # the prior's term becomes the density of the angle, not of its logit
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
    # Both ratios are rounding errors if the ends are the same point, and near one otherwise.
    same = gap < NEGLIGIBLE * spread and kink < NEGLIGIBLE * slope
    return same and statistics.median(below) < MAX_NATS_AT_ENDS


def _angle(evidence: Evidence, site: Site, number: int, lower: float, upper: float) -> Angle:
    """The angle that an entry of the flat vector is, with the circular mean of its draws."""
    lower, upper = min(lower, upper), max(lower, upper)
    value = _values(evidence, evidence.points)[:, number]
    turned = 2 * math.pi * (value - lower) / (upper - lower)
    mean = math.atan2(float(turned.sin().mean()), float(turned.cos().mean())) % (2 * math.pi)
    label = evidence.problem.entry_of(site, number - site.start)
    return Angle(site.name, label, lower, upper, lower + mean / (2 * math.pi) * (upper - lower))


def findings_with_causes(evidence: Evidence, findings: list[Finding]) -> list[Finding]:
    """The findings, with an angle across its ends as the cause in place of findings on its consequences."""
    for angle in angles_across_ends(evidence) if findings else []:
        about_angle = [finding for finding in findings if angle.is_in(finding)]
        if about_angle:
            lost = max(float(finding.figures.get("lost", 0.0)) for finding in about_angle)
            cause = sentences.angle_across_its_ends(
                parameter=angle.label, lower=angle.lower, upper=angle.upper, lost=lost, cures=[angle.cure]
            )
            return [cause, *(finding for finding in findings if finding not in about_angle)]
    return findings


def angle_notes(evidence: Evidence) -> list[Finding]:
    """A note on the first such angle of correct draws, whose mean and SD mean nothing; or none."""
    return [
        sentences.angle_has_no_mean(parameter=angle.label, lower=angle.lower, upper=angle.upper, cures=[angle.cure])
        for angle in angles_across_ends(evidence)[:1]
    ]
