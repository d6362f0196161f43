"""The group-sequential test by which chains end: looks after 2, 4, 8, 16, 24 and 48 transitions.

Let θ_i be the errors of the means and SDs, in units of the limits. The question is whether one of them is beyond 1. At
look k each estimate has an interval θ_i ± c_k SE_i, with

    c_k = Φ⁻¹(1 - α_k / 2F),      Σ_{j ≤ k} α_j = 2 - 2 Φ(Φ⁻¹(1 - α/2) / √t_k),      t_k = k-th look / last look

The error that is spent is that of O'Brien and Fleming's boundaries (Lan and DeMets, *Discrete sequential boundaries for
clinical trials*, Biometrika 70, 1983): nearly nothing early, when standard errors are themselves poorly known, and α in
all. The 2F errors share it equally, so that no correlation among them or among looks is assumed. Chains end

- as wrong, once an interval is beyond 1;
- as right, once all intervals are within 1 and no chains are on their way: none has an estimate that is plainly not
  zero, above `MOVING`, and larger than at the look before by more than its standard error. Chains from draws of the
  posterior stay where they are; those that have to come into a tail arrive late;
- after the last look. Then an estimate beyond 1 that is plainly not zero is called wrong (`wrong_moments`), so that a
  result just beyond a limit is called wrong about half of the time. If that is undecided, more chains are run.

By simulation with known errors (`tests/audit/test_sequential.py`) results of four fifths of the limits or less are
called wrong with probability α or less, and results of one and a half times the limits are called wrong nearly always.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import torch

from pyro_fed.audit.chains.moments import ALPHA, Moments, margin, moments_verdict
from pyro_fed.conventions.limits import STANDARD_ERRORS, Limits

#: Numbers of transitions before each look.
LOOKS = 2, 4, 8, 16, 24, 48
#: Part of the limits above which a plain error means that chains may be on their way.
MOVING = 0.25


def spent(share: float) -> float:
    """The probability, of `ALPHA` in all, of a wrong end by a look after this share of all transitions."""
    normal = NormalDist()
    return 2 * normal.cdf(normal.inv_cdf(ALPHA / 2) / share**0.5) if share > 0 else 0.0


@dataclass
class SequentialTest:
    """The looks at one walk of chains.

    Args:
        most: number of transitions that can be afforded, at least the first look's.
        aim: limits finer than `WRONG`: chains that find nothing wrong go on while an estimate beyond these may be
            chance. None: none.

    Attributes:
        looks: transitions before each look that is left.
        last: transitions before the last look.
        share: transitions before the look that was made, as a part of these.
        verdict: of that look: wrong, right, or None for undecided.
        before: errors (2, F) at that look, in units of the limits; zero at first.
    """

    most: int
    aim: Limits | None = None

    def __post_init__(self) -> None:
        self.looks = [until for until in LOOKS if until <= self.most]
        self.last = self.looks[-1]
        self.share = 0.0
        self.verdict: bool | None = None
        self.before = torch.zeros(())

    @property
    def until(self) -> int:
        """The number of transitions before the next look; 0 once the test has ended."""
        return self.looks[0] if self.looks else 0

    def look(self, found: Moments) -> None:
        """Judge the estimates at this look, and decide whether to look again."""
        until = self.looks.pop(0)
        chance = spent(until / self.last) - spent(self.share)
        self.share, self.verdict = until / self.last, moments_verdict(found, chance=chance)
        if self.verdict or (self.verdict is False and not self._on_their_way(found)):
            self.looks.clear()
        self.before = found.excess

    def _on_their_way(self, found: Moments) -> bool:
        """Whether chains that find nothing wrong should go on: they still move, or do not decide about the aim."""
        plain = found.excess > max(STANDARD_ERRORS, margin(len(found.mean))) * found.noise
        moving = plain & (found.excess > MOVING) & (found.excess - self.before > found.noise)
        return bool(moving.any()) or (self.aim is not None and not _aim_decided(found, self.aim))


def _aim_decided(found: Moments, aim: Limits) -> bool:
    """Whether no estimate is beyond a finer aim, or one is plainly."""
    off, noise = found.against(aim)
    beyond = off > 1
    return not bool(beyond.any()) or bool((beyond & (off > STANDARD_ERRORS * noise)).any())
