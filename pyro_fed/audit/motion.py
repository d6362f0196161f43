"""A check of draws: short exact Markov chains that begin at draws of the posterior move no mean and no SD.

    E_q[K^t f] = E_p[f]  for every f and t,  if q = p;      else it approaches E_p[f] as t grows

K is a transition that leaves the posterior p invariant, and q the distribution of the draws. The check is whether
chains that begin at the draws move means and SDs (`moments`). It needs no density of q and works in any dimension. If
no chain can move, the posterior is far narrower there than the draws, and this is the finding. The check misses modes
that chains do not reach.

If a latent's scale is itself a latent (a funnel), a transition has two parts: one in these coordinates, and one with
the effects in units of their scale (`hmc.Detour`). Without the second, chains that begin outside the neck do not find
it.

**When chains end.** A group-sequential test looks at them after 2, 4, 8, 16, 24 and 48 transitions. Let θ_i be the
errors of the F means and SDs, in units of the limits. At look k each estimate has an interval θ_i ± c_k SE_i, with

    c_k = Φ⁻¹(1 - α_k / 2F),      Σ_{j ≤ k} α_j = 2 - 2 Φ(Φ⁻¹(1 - α/2) / √t_k),      t_k = k-th look / last look

This is the spending function of O'Brien and Fleming's boundaries (Lan and DeMets, *Discrete sequential boundaries for
clinical trials*, Biometrika 70, 1983). It spends nearly nothing early, when standard errors are poorly known, and α in
all. Chains end

- as wrong, once an interval is beyond 1;
- as right, once all intervals are within 1 and no estimate is still moving, that is, plainly not zero, above
  `MIN_MOVING_ERROR`, and larger than at the look before by more than its standard error;
- after the last look. Then an estimate beyond 1 that is plainly not zero is called wrong (`wrong_moments`). If the
  chains do not decide, `Evidence.chains` uses weighted points, and then many chains.
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
#: Share of the limits above which a plain, growing error means that chains are still moving.
MIN_MOVING_ERROR = 0.25


def spent_chance(share: float) -> float:
    """The part of `TEST_LEVEL` that is spent by a look after this share of all transitions."""
    quantile = -NormalDist().inv_cdf(TEST_LEVEL / 2)
    return math.erfc(quantile / (2 * share) ** 0.5) if share > 0 else 0.0


@dataclass
class SequentialTest:
    """The looks at chains of at most `max_transitions` transitions, which continue until a finer `aim` is decided."""

    max_transitions: int
    aim: Limits | None = None

    def __post_init__(self) -> None:
        self.looks = [until for until in LOOKS if until <= self.max_transitions]  # still to come
        self.last = self.looks[-1]
        self.share = 0.0  # the latest look's share of all transitions
        self.verdict: bool | None = None  # of the latest look: True for wrong, False for right, None for undecided
        self.errors_before = torch.zeros(())  # errors (2, F) at the look before, in units of the limits

    @property
    def until(self) -> int:
        """The number of transitions before the next look; 0 once the test has ended."""
        return self.looks[0] if self.looks else 0

    def look(self, moments: Moments) -> None:
        """Judge the estimates at this look, and decide whether to look again."""
        until = self.looks.pop(0)
        chance = spent_chance(until / self.last) - spent_chance(self.share)
        self.share, self.verdict = until / self.last, moments_verdict(moments, chance=chance)
        if self.verdict or (self.verdict is False and not self._on_their_way(moments)):
            self.looks.clear()
        self.errors_before = moments.excess

    def _on_their_way(self, moments: Moments) -> bool:
        """Whether chains that find no error should continue: estimates still move, or leave the aim undecided."""
        plain = moments.excess > max(STANDARD_ERRORS, margin(len(moments.mean))) * moments.noise
        moving = plain & (moments.excess > MIN_MOVING_ERROR) & (moments.excess - self.errors_before > moments.noise)
        if self.aim is None or bool(moving.any()):
            return bool(moving.any())
        off, noise = moments.against(self.aim)
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
    """The posterior's moments by chains from draws (S, D), by the `planned` walks in turn until one decides.

    By default the policy plans the walks: few chains, then many.
    """
    z, problem = draws.double(), target.problem
    white, numbers = target.white(z), quantities(z)
    centre, scale = numbers.mean(0), numbers.std(0)
    # Draws that are all equal have no SD: the unit is then the rounding error of the numbers.
    min_scale = torch.finfo(z.dtype).eps * centre.abs().clamp_min(1.0)
    scale = torch.where(scale.isfinite(), torch.maximum(scale, min_scale), torch.nan)
    whole = target.factor.dim() == 2 and len(z) >= DRAWS_A_DIMENSION * z.shape[1]
    non_centred = Detour.of(target, z, generator)

    def walk(count: int, max_transitions: int) -> Moments:
        """The moments by `count` chains of at most `max_transitions` transitions."""
        starts, test = _starts(len(z), count), SequentialTest(max_transitions, aim)
        chains = Chains.begin(target, white[starts], generator)
        detour = None if non_centred is None else replace(non_centred, chains=None)
        start_numbers = (numbers[starts] - centre) / scale
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
            visited = target.model(torch.cat(places[later:]))
            values = quantities(visited).unflatten(0, (-1, len(starts)))
            moments = moments_of_chains(start_numbers, (values - centre) / scale, torch.stack(momenta[later:]))
            judgeable = judgeable_sds(kurtosis(numbers), kurtosis(values.flatten(0, 1)), problem.dim, len(starts))
            moments = replace(
                moments,
                log_sd=moments.log_sd * judgeable,
                log_sd_error=moments.log_sd_error * judgeable,
                accepted=chains.accepted,
                whole=whole,
                places=visited,
            )
            test.look(moments)
        return replace(moments, undecided=test.verdict is None and not bool(wrong_moments(moments).any()))

    for count, transitions in planned_walks(target) if planned is None else planned:
        moments = walk(count, transitions)
        if not moments.undecided:
            break
    return moments


def planned_walks(target: Target) -> list[Walk]:
    """The walks that the policy plans for a posterior: few chains, and many in case these do not decide."""
    return walks(target.problem.traits, target.evaluations, SCORES, LOOKS)


def _starts(count: int, wanted: int) -> Tensor:
    """Numbers of the draws at which chains begin: `wanted` evenly spaced draws, or all draws repeated if too few."""
    if count >= wanted:
        return evenly(count, wanted)
    return torch.arange(count).repeat(-(-wanted // count))
