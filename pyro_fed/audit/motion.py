"""A check of draws: short exact Markov chains that begin at draws of the posterior move no mean and no SD.

A transition K that leaves the posterior p as it is gives E_q[K^t f] = E_p[f] for every f if the draws' distribution q
is p, and comes nearer to E_p[f] with every t if it is not. So chains begin at the draws, and the check is whether they
move its means and SDs (`moments`). It needs no density of q and works in any dimension. If no chain can move, the
posterior is far narrower there than the draws, and that is the finding. Modes that chains do not reach are not found.

If a latent's scale is itself a latent (a funnel), each transition is two: one in these coordinates, and one with the
effects in units of their scale (`hmc.Detour`). Without the second, chains from outside of the neck do not find it.

**When chains end.** A group-sequential test looks at them after 2, 4, 8, 16, 24 and 48 transitions. Let θ_i be the
errors of the F means and SDs, in units of the limits. At look k each estimate has an interval θ_i ± c_k SE_i, with

    c_k = Φ⁻¹(1 - α_k / 2F),      Σ_{j ≤ k} α_j = 2 - 2 Φ(Φ⁻¹(1 - α/2) / √t_k),      t_k = k-th look / last look

the spending of O'Brien and Fleming's boundaries (Lan and DeMets, *Discrete sequential boundaries for clinical trials*,
Biometrika 70, 1983): nearly nothing early, when standard errors are poorly known, and α in all. Chains end

- as wrong, once an interval is beyond 1;
- as right, once all intervals are within 1 and no chains are on their way: none has an estimate that is plainly not
  zero, above `MIN_MOVING_ERROR`, and larger than at the look before by more than its standard error;
- after the last look. Then an estimate beyond 1 that is plainly not zero is called wrong (`wrong_moments`). Where that
  is undecided, `Evidence.moments` asks the weighted points, and then many chains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import torch
from torch import Tensor

from pyro_fed.audit.hmc import SCORES, Chains, Detour
from pyro_fed.audit.moments import (
    TEST_LEVEL,
    Moments,
    Quantities,
    judgeable_sds,
    kurtosis,
    margin,
    moments_of_chains,
    moments_verdict,
    wrong_moments,
)
from pyro_fed.audit.target import DRAWS_A_DIMENSION, Target
from pyro_fed.conventions.limits import STANDARD_ERRORS, Limits
from pyro_fed.ops.entries import evenly
from pyro_fed.policy.audit import Walk, walks

#: Numbers of transitions before each look.
LOOKS = 2, 4, 8, 16, 24, 48
#: Part of the limits above which a plain error means that chains may be on their way.
MIN_MOVING_ERROR = 0.25


def spent_chance(share: float) -> float:
    """The probability, of `TEST_LEVEL` in all, of a wrong end by a look after this share of all transitions."""
    quantile = -NormalDist().inv_cdf(TEST_LEVEL / 2)
    return math.erfc(quantile / (2 * share) ** 0.5) if share > 0 else 0.0


@dataclass
class SequentialTest:
    """The looks at one walk of chains of at most `most` transitions, which go on until a finer `aim` is decided."""

    most: int
    aim: Limits | None = None

    def __post_init__(self) -> None:
        self.looks = [until for until in LOOKS if until <= self.most]  # that are left
        self.last = self.looks[-1]
        self.share = 0.0  # of the last look's transitions, before the look that was made
        self.verdict: bool | None = None  # of that look: wrong, right, or undecided
        self.before = torch.zeros(())  # errors (2, F) at that look, in units of the limits

    @property
    def until(self) -> int:
        """The number of transitions before the next look; 0 once the test has ended."""
        return self.looks[0] if self.looks else 0

    def look(self, found: Moments) -> None:
        """Judge the estimates at this look, and decide whether to look again."""
        until = self.looks.pop(0)
        chance = spent_chance(until / self.last) - spent_chance(self.share)
        self.share, self.verdict = until / self.last, moments_verdict(found, chance=chance)
        if self.verdict or (self.verdict is False and not self._on_their_way(found)):
            self.looks.clear()
        self.before = found.excess

    def _on_their_way(self, found: Moments) -> bool:
        """Whether chains that find nothing wrong should go on: they still move, or do not decide about the aim."""
        plain = found.excess > max(STANDARD_ERRORS, margin(len(found.mean))) * found.noise
        moving = plain & (found.excess > MIN_MOVING_ERROR) & (found.excess - self.before > found.noise)
        if self.aim is None or bool(moving.any()):
            return bool(moving.any())
        off, noise = found.against(self.aim)
        beyond = off > 1
        return bool(beyond.any()) and not bool((beyond & (off > STANDARD_ERRORS * noise)).any())


def moments_by_chains(
    target: Target,
    quantities: Quantities,
    draws: Tensor,
    generator: torch.Generator,
    aim: Limits | None = None,
    planned: Sequence[Walk] | None = None,
) -> Moments:
    """The posterior's moments by chains from draws (S, D): by one walk after another of `planned`, until one decides.

    None plans those of the policy: few chains, then many.
    """
    z, problem = draws.double(), target.problem
    white, reported = target.white(z), quantities(z)
    centre, scale = reported.mean(0), reported.std(0)
    # Draws that are all the same have no SD: moves are then counted in rounding errors of the numbers.
    least = torch.finfo(z.dtype).eps * centre.abs().clamp_min(1.0)
    scale = torch.where(scale.isfinite(), torch.maximum(scale, least), torch.nan)
    whole = target.factor.dim() == 2 and len(z) >= DRAWS_A_DIMENSION * z.shape[1]
    non_centred = Detour.of(target, z, generator)

    def walk(count: int, most: int) -> Moments:
        """The moments by `count` chains of at most `most` transitions."""
        at, test = _starts(len(z), count), SequentialTest(most, aim)
        chains = Chains.begin(target, white[at], generator)
        detour = None if non_centred is None else replace(non_centred, chains=None)
        begun = (reported[at] - centre) / scale
        places: list[Tensor] = []
        momenta: list[Tensor] = []
        while test.until:
            while len(places) < test.until:
                if places:
                    chains.move()
                else:
                    chains.shorten_steps()
                if detour is not None:
                    detour.move(chains)
                places.append(chains.place)
                momenta.append(target.along(chains.momentum)[:, quantities.along])
            later = len(places) // 2
            been = target.model(torch.cat(places[later:]))
            values = quantities(been).unflatten(0, (-1, len(at)))
            found = moments_of_chains(begun, (values - centre) / scale, torch.stack(momenta[later:]))
            known = judgeable_sds(kurtosis(reported), kurtosis(values.flatten(0, 1)), problem.dim, len(at))
            found = replace(
                found,
                log_sd=found.log_sd * known,
                log_sd_error=found.log_sd_error * known,
                accepted=chains.accepted,
                whole=whole,
                places=been,
            )
            test.look(found)
        return replace(found, undecided=test.verdict is None and not bool(wrong_moments(found).any()))

    for count, transitions in planned_walks(target) if planned is None else planned:
        found = walk(count, transitions)
        if not found.undecided:
            break
    return found


def planned_walks(target: Target) -> list[Walk]:
    """The walks of the policy for a posterior: by few chains, and by many for where these do not decide."""
    return walks(target.problem.traits, target.evaluations, SCORES, LOOKS)


def _starts(count: int, wanted: int) -> Tensor:
    """Numbers of the draws at which chains begin: `wanted` of them, evenly spaced, or all of fewer, repeatedly."""
    if count >= wanted:
        return evenly(count, wanted)
    return torch.arange(count).repeat(-(-wanted // count))
