"""The posterior's means and SDs against a result's: the numbers, their estimates, and which are wrong.

**By chains.** S chains (`hmc`) run from S draws. Take a coordinate, or a number that is a function of it, and
standardise it by the result's own mean and SD. Then let

    a    where a chain began             E a = 0, E a² = 1 over all draws of the result
    b_t  the t-th momentum along it      E b = 0, E b² = 1
    y    the place, averaged over the later half of the transitions

y is regressed on a, a² - 1 and the averages of b_t and b_t² - 1 (control variates, whose means are known). The
intercept estimates the mean of the moved draws; the same regression of y² estimates their second moment. For a Gaussian
posterior the controls explain nearly all, since half of a trajectory of length π/2 is the momentum. The slope β on a
(γ on a², for y²) is the chains' memory of their start. The intercepts are divided by 1 - β (and 1 - γ), which for a
Gaussian gives the limit of long chains. Else the limit is farther: where β or γ is plainly above zero, an error is
reported as "at least".

    mean error   E[y] / SD[y],      SD ratio   SD[y]

Their standard errors follow from each chain's influence on all coefficients (the delta method), with residuals divided
by one minus the chain's leverage (HC3 of MacKinnon and White, *Some heteroskedasticity-consistent covariance matrix
estimators with improved finite sample properties*, J. Econometrics 29, 1985): chains in a long tail vary more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_fed.conventions.limits import SAME_SHARE, SD_MATTERS, STANDARD_ERRORS, WRONG, Limits
from pyro_fed.density.checks.points import NUM_DRAWS
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import in_chunks
from pyro_fed.ops.entries import evenly

#: Added to the name of a number on the unconstrained scale, if the site's own scale is another one.
UNCONSTRAINED = " (unconstrained)"
#: Chance that a result just at the limit, in all coordinates, is called wrong: a smaller one would find less.
TEST_LEVEL = 0.1
#: Memory of the start above which a chain carries too little information.
MAX_MEMORY = 0.7
#: Mean acceptance below which chains are stuck, even with the shortest steps.
STUCK_ACCEPTANCE = 0.1
#: Places are clamped to this many SDs of the draws, whose square has no digits of one left: on a site's own scale a
#: number may overflow.
MAX_PLACE_SDS = 1 / SAME_SHARE
#: Kurtosis above which tails are long: that of Student's t with 5 degrees of freedom.
LONG_TAIL_KURTOSIS = 9.0
#: Smallest variance, in units of the draws', that is distinguished from zero.
MIN_VARIANCE = 1e-4


@dataclass(frozen=True)
class Quantities:
    """F numbers of a draw: the D of the flat vector, then the values of the sites whose own scale is another one."""

    problem: Problem
    own: tuple[str, ...]  # names of the sites whose own scale is another one, in the model's order
    varying: Tensor  # a mask of these sites' entries without constants, such as the zeros of a Cholesky factor
    labels: tuple[str, ...]  # names of the numbers (F,)
    along: Tensor  # the entry of the flat vector that moves each number (F,), or its site's first entry

    @classmethod
    def of(cls, problem: Problem, z: Tensor) -> Quantities:
        """The numbers of a model, whose scales are compared at unconstrained draws z (S, D)."""
        some = z[evenly(len(z), NUM_DRAWS)].to(problem.dtype)
        values = problem.constrain(some, problem.fewest_rows)
        own: list[str] = []
        varying: list[Tensor] = []
        labels = [problem.name_of(number) for number in range(problem.dim)]
        along = list(range(problem.dim))
        for name, site in problem.sites.items():
            value, part = values[name].reshape(len(some), -1), slice(site.start, site.start + site.size)
            if value.shape[1] == site.size and torch.equal(value.to(some), some[:, part]):
                continue
            own.append(name)
            rounding = torch.finfo(value.dtype).eps ** 0.5 * value.abs().amax(0)
            varies = value.amax(0) - value.amin(0) > rounding
            varying.append(varies)
            size = value.shape[1]
            named = [problem.entry_of(site, i) for i in range(size)]
            labels[part] = [f"{label}{UNCONSTRAINED}" for label in labels[part]]
            moving = list(range(problem.dim)[part]) if size == site.size else [site.start] * size
            labels += [label for label, kept in zip(named, varies, strict=True) if kept]
            along += [entry for entry, kept in zip(moving, varies, strict=True) if kept]
        kept = torch.cat(varying) if varying else torch.empty(0, dtype=torch.bool)
        return cls(problem, tuple(own), kept, tuple(labels), torch.tensor(along))

    def __call__(self, z: Tensor) -> Tensor:
        """The numbers (S, F) of draws z (S, D), float64."""
        if not self.own:
            return z.double()
        rows = self.problem.fewest_rows
        pieces = in_chunks(z.to(self.problem.dtype), len(rows[0]) * self.problem.num_nodes)
        found = [self.problem.constrain(piece, rows) for piece in pieces]
        own = torch.cat([torch.cat([part[name] for part in found]).reshape(len(z), -1) for name in self.own], 1)
        return torch.cat([z.double(), own[:, self.varying].double()], 1)


@dataclass(frozen=True)
class Moments:
    """Estimates of the posterior's means and SDs of F numbers, relative to the result's.

    Where both standard errors of a number are zero, the number is not judged.
    """

    mean: Tensor  # the posterior's mean less the result's, in the posterior's SDs (F,)
    mean_error: Tensor  # its standard error (F,)
    log_sd: Tensor  # logarithm of the posterior's SD divided by the result's (F,)
    log_sd_error: Tensor  # its standard error (F,)
    accepted: float = 1.0  # mean acceptance of the chains' last trajectories
    whole: bool = True  # whether the full covariance of enough draws whitens the chains' coordinates
    by: Literal["chains", "weights"] = "chains"
    places: Tensor | None = None  # where chains have been in the later half of their transitions (N, D)
    remembered: Tensor | None = None  # which means and SDs (2, F) chains plainly remember from where they began
    undecided: bool = False  # whether chains have found neither that the result is right nor that it is wrong

    @property
    def lower_bounds(self) -> Tensor:
        """Which errors (2, F) are at least as large as their estimates."""
        none = torch.zeros(2, len(self.mean), dtype=torch.bool)
        return none if self.remembered is None else self.remembered

    @property
    def excess(self) -> Tensor:
        """Errors of the means and SDs (2, F) in units of the limits: 0 is right, 1 is at the limit."""
        return self.against(WRONG)[0]

    @property
    def noise(self) -> Tensor:
        """Standard errors of `excess` (2, F)."""
        return self.against(WRONG)[1]

    def against(self, limits: Limits) -> tuple[Tensor, Tensor]:
        """Errors of the means and SDs (2, F), and their standard errors (2, F), in units of `limits`."""
        units = limits.mean_error, math.log(limits.sd_factor)
        off = torch.stack([self.mean.abs() / units[0], self.log_sd.abs() / units[1]])
        return off, torch.stack([self.mean_error / units[0], self.log_sd_error / units[1]])

    def figures(self, labels: Sequence[str]) -> dict[str, np.ndarray]:
        """Errors of means, ratios of SDs and their standard errors, (F,) each, by name, with the numbers' names."""
        ratio = self.log_sd.exp()
        found = {"mean_error": self.mean, "mean_error_se": self.mean_error}
        found |= {"sd_ratio": ratio, "sd_ratio_se": ratio * self.log_sd_error}
        return {"parameter": np.array(labels)} | {name: values.numpy() for name, values in found.items()}

    @classmethod
    def of_figures(cls, measured: Mapping[str, np.ndarray]) -> Moments:
        """The estimates from their `figures`; without figures, those of a single number that is right."""
        if not measured:
            none = torch.zeros(1, dtype=torch.float64)
            return cls(none, none, none, none)
        mean, mean_error, ratio, error = (
            torch.from_numpy(np.asarray(measured[name], dtype=float))
            for name in ("mean_error", "mean_error_se", "sd_ratio", "sd_ratio_se")
        )
        ratio = ratio.clamp_min(torch.finfo(ratio.dtype).tiny)
        return cls(mean, mean_error, ratio.log(), error / ratio)

    def completed_by(self, other: Moments) -> Moments:
        """These estimates, with those of `other` in place of the numbers that are not judged here."""
        told = self.mean_error > 0
        return self._with(other, ~told, ~told)

    def corrected_by(self, chains: Moments) -> Moments:
        """These estimates, with the chains' in place of numbers that chains have plainly moved further.

        Chains that begin at the result's draws have a memory of these, so that they rather move too little than too
        far.
        """

        def refuted(ours: Tensor, our_error: Tensor, theirs: Tensor, their_error: Tensor) -> Tensor:
            further = (theirs - ours) * theirs.sign() > STANDARD_ERRORS * torch.hypot(our_error, their_error)
            return further & (theirs.abs() > STANDARD_ERRORS * their_error)

        mean = refuted(self.mean, self.mean_error, chains.mean, chains.mean_error)
        sd = refuted(self.log_sd, self.log_sd_error, chains.log_sd, chains.log_sd_error)
        return self._with(chains, mean, sd)

    def _with(self, other: Moments, mean: Tensor, sd: Tensor) -> Moments:
        """These estimates, with those of `other` where the masks `mean` and `sd` (F,) are True."""
        return replace(
            self,
            mean=torch.where(mean, other.mean, self.mean),
            mean_error=torch.where(mean, other.mean_error, self.mean_error),
            log_sd=torch.where(sd, other.log_sd, self.log_sd),
            log_sd_error=torch.where(sd, other.log_sd_error, self.log_sd_error),
            remembered=torch.where(torch.stack([mean, sd]), other.lower_bounds, self.lower_bounds),
        )

    @property
    def stuck(self) -> bool:
        """Whether chains could hardly move."""
        return self.accepted < STUCK_ACCEPTANCE


def margin(numbers: int, chance: float = TEST_LEVEL) -> float:
    """The number of standard errors by which the worst of F means and SDs is off with the probability `chance`."""
    return -NormalDist().inv_cdf(chance / (2 * numbers))


def moments_verdict(found: Moments, within: float = 1.0, chance: float = TEST_LEVEL) -> bool | None:
    """True if the result is wrong by more than chance, False if all errors are within the limits, else None."""
    off = margin(len(found.mean), chance) * found.noise
    if bool((found.excess - off > 1).any()):
        return True
    return False if bool((found.excess + off < within).all()) else None


def wrong_moments(found: Moments) -> Tensor:
    """Which means and SDs (2, F) are beyond the limits by more than chance, or as estimated and plainly not zero."""
    plain = (found.excess > 1) & (found.excess > STANDARD_ERRORS * found.noise)
    return (found.excess - margin(len(found.mean)) * found.noise > 1) | plain


class WorstMoment(NamedTuple):
    """The mean or SD that is wrong by most."""

    number: int  # among the F numbers
    of_mean: bool  # or of the SD
    size: float  # the mean's error in SDs, or the ratio of SDs
    error: float  # standard error of `size`
    bound: bool  # whether the error is at least as large as its estimate


def worst_moment(found: Moments) -> WorstMoment | None:
    """The mean or SD that is wrong by most; None if none is wrong."""
    wrong = wrong_moments(found)
    if not bool(wrong.any()):
        return None
    what, number = divmod(int((found.excess * wrong).argmax()), len(found.mean))
    bound = bool(found.lower_bounds[what, number])
    if what == 0:
        return WorstMoment(number, True, float(found.mean[number].abs()), float(found.mean_error[number]), bound)
    ratio = float(found.log_sd[number].exp())
    return WorstMoment(number, False, ratio, ratio * float(found.log_sd_error[number]), bound)


def moments_of_chains(begun: Tensor, places: Tensor, momenta: Tensor) -> Moments:
    """The posterior's moments by regressions, of a (S, F), y before it is averaged and b (T, S, F)."""
    # On a site's own scale a number may be NaN, or have no SD: it is not judged, its unconstrained numbers are.
    usable = begun.isfinite().all(0) & ~places.isnan().flatten(0, 1).any(0)
    begun, places = (
        torch.where(usable, begun, 0.0),
        torch.where(usable, places.clamp(-MAX_PLACE_SDS, MAX_PLACE_SDS), 0.0),
    )
    ones = torch.ones_like(begun)
    controls = [ones, begun, begun.square() - 1, momenta.mean(0), momenta.square().mean(0) - 1]
    x = torch.stack(controls, -1).transpose(0, 1)  # (F, S, 5)
    solve = torch.linalg.pinv(x.mT @ x) @ x.mT
    first, memory, by_first, by_memory = _regression(solve, x, places.mean(0), 1)
    mean, by_mean = first / (1 - memory), (by_first + first / (1 - memory) * by_memory) / (1 - memory)
    square, kept, by_square, by_kept = _regression(solve, x, (places - first).square().mean(0), 2)
    memories = (memory, by_memory), (kept, by_kept)
    remembered = torch.stack([each > STANDARD_ERRORS * influence.norm(dim=0) for each, influence in memories])
    # If the memory of the start explained all of E[y²], there would be no slope: at most half of it is ascribed to
    # the memory.
    kept = torch.where(square - kept > MIN_VARIANCE, kept, torch.minimum(kept, square / 2))
    variance = ((square - kept) / (1 - kept)).clamp_min(MIN_VARIANCE)
    by_log_sd = (by_square - (1 - variance) * by_kept) / (1 - kept) / (2 * variance)
    sd = variance.sqrt()
    # The mean is in SDs of the posterior, whose error is part of its own. Both are taken as independent: a far place in
    # a long tail moves both, and their ratio would seem to be well determined.
    log_error = by_log_sd.norm(dim=0)
    found = mean / sd, torch.hypot(by_mean.norm(dim=0), mean * log_error) / sd, sd.log(), log_error
    mean, mean_error, log_sd, log_sd_error = (torch.where(usable, figure, 0.0) for figure in found)
    return Moments(mean, mean_error, log_sd, log_sd_error, remembered=remembered & usable)


def _regression(solve: Tensor, x: Tensor, y: Tensor, start: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Least squares of y (S, F) on x: intercept and memory of the start (F,), each chain's influence on both (S, F).

    `solve` is (x' x)⁻¹ x' (F, 5, S), `start` the column of the controls x (F, S, 5) whose coefficient is the memory.
    """
    slope = solve @ y.T[..., None]
    free = 1 - (x * solve.mT).sum(-1)  # less than one chain's share of a coefficient is rounding
    left = (y.T - (x @ slope)[..., 0]) / free.clamp_min(1 / x.shape[1])
    memory = slope[:, start, 0].clamp(0, MAX_MEMORY)
    at_bound = memory != slope[:, start, 0]
    return slope[:, 0, 0], memory, (solve[:, 0] * left).T, torch.where(at_bound, 0.0, (solve[:, start] * left).T)


def judgeable_sds(left: Tensor, come: Tensor, dim: int, chains: int) -> Tensor:
    """Which SDs (F,) can be judged by so many chains, from the kurtosis of the draws and of the posterior (F,).

    With kurtosis k the logarithm of the SD of n draws has the standard error sqrt((k - 1) / n) / 2. If that is more
    than what matters with one draw for each chain, the SD is judged only if the places that chains reach have no long
    tails: the draws' tails are then wrong. A number on a site's own scale (from the `dim`-th on) is not judged then.
    """
    own = torch.arange(len(left)) >= dim
    most = 1 + chains * (2 * math.log(SD_MATTERS)) ** 2
    return ~((left > most) & (come > LONG_TAIL_KURTOSIS) | own & (torch.maximum(left, come) > most))


def kurtosis(x: Tensor) -> Tensor:
    """Kurtosis of each column of x (n, F): (F,); 3 for a Gaussian."""
    squares = (x - x.mean(0)).square()
    return squares.square().mean(0) / squares.mean(0).square()
