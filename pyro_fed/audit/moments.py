"""The posterior's means and SDs compared with a result's: the numbers, their estimates, and which are wrong.

**By chains.** S chains (`hmc`) run from S draws. A coordinate, or a number that is a function of it, is standardised by
the result's own mean and SD. Let

    a    its value where a chain began   E a = 0, E a² = 1 over all draws of the result
    b_t  the t-th momentum along it      E b = 0, E b² = 1
    y    its value, averaged over the later half of the transitions

y is regressed on a, a² - 1 and the averages of b_t and b_t² - 1 (control variates, whose means are known). The
intercept estimates the mean of the moved draws; the same regression of y² estimates their second moment. For a Gaussian
posterior the controls explain nearly all of y, since the end of a trajectory of length π/2 is the momentum. The slope β
on a (γ on a² - 1, for y²) is the chains' memory of their start. The intercepts are divided by 1 - β (and 1 - γ), which
gives the limit of long chains if the posterior is Gaussian. In other posteriors the limit is farther away: where β or γ
is plainly above zero, an error is reported as "at least".

    mean error   E[y] / SD[y],      SD ratio   SD[y]

Their standard errors follow from each chain's influence on all coefficients (the delta method). Residuals are divided
by one minus the chain's leverage, since chains in a long tail vary more (HC3 of MacKinnon and White, *Some
heteroskedasticity-consistent covariance matrix estimators with improved finite sample properties*, J. Econometrics 29,
1985).
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

#: Suffix of the name of an unconstrained number whose site has another scale of its own.
UNCONSTRAINED = " (unconstrained)"
#: Probability that a result exactly at the limit in all coordinates is called wrong. With a smaller one fewer errors
#: are detected.
TEST_LEVEL = 0.1
#: Largest memory of the start: above it a chain carries too little information.
MAX_MEMORY = 0.7
#: Mean acceptance below which chains are stuck, even with the shortest steps.
STUCK_ACCEPTANCE = 0.1
#: Places are clamped to this many SDs of the draws, since a number on a site's own scale may overflow.
MAX_PLACE_SDS = 1 / SAME_SHARE
#: Kurtosis above which tails are long: that of Student's t with 5 degrees of freedom.
LONG_TAIL_KURTOSIS = 9.0
#: Smallest variance, in units of the draws', that is distinguished from zero.
MIN_VARIANCE = 1e-4


@dataclass(frozen=True)
class Quantities:
    """F numbers of a draw: the D unconstrained coordinates, then the values of sites that have another scale."""

    problem: Problem
    own: tuple[str, ...]  # names of the sites whose own scale is not the unconstrained one, in the model's order
    varying: Tensor  # a mask of these sites' entries without constants, such as the zeros of a Cholesky factor
    labels: tuple[str, ...]  # names of the numbers (F,)
    along: Tensor  # the coordinate that moves each number (F,), or the first one of its site

    @classmethod
    def of(cls, problem: Problem, z: Tensor) -> Quantities:
        """The numbers of a model; unconstrained draws z (S, D) show which sites have a scale of their own."""
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
            entry_names = [problem.entry_of(site, i) for i in range(size)]
            labels[part] = [f"{label}{UNCONSTRAINED}" for label in labels[part]]
            moving = list(range(problem.dim)[part]) if size == site.size else [site.start] * size
            labels += [label for label, mask in zip(entry_names, varies, strict=True) if mask]
            along += [entry for entry, mask in zip(moving, varies, strict=True) if mask]
        mask = torch.cat(varying) if varying else torch.empty(0, dtype=torch.bool)
        return cls(problem, tuple(own), mask, tuple(labels), torch.tensor(along))

    def __call__(self, z: Tensor) -> Tensor:
        """The numbers (S, F) of draws z (S, D), float64."""
        if not self.own:
            return z.double()
        rows = self.problem.fewest_rows
        pieces = in_chunks(z.to(self.problem.dtype), len(rows[0]) * self.problem.num_nodes)
        values = [self.problem.constrain(piece, rows) for piece in pieces]
        own_values = torch.cat([torch.cat([part[name] for part in values]).reshape(len(z), -1) for name in self.own], 1)
        return torch.cat([z.double(), own_values[:, self.varying].double()], 1)


@dataclass(frozen=True)
class Moments:
    """Estimates of the posterior's means and SDs of F numbers, relative to the result's.

    A number whose two standard errors are zero is not judged.
    """

    mean: Tensor  # the posterior's mean less the result's, in the posterior's SDs (F,)
    mean_error: Tensor  # its standard error (F,)
    log_sd: Tensor  # logarithm of the posterior's SD divided by the result's (F,)
    log_sd_error: Tensor  # its standard error (F,)
    accepted: float = 1.0  # mean acceptance of the chains' last trajectories
    whole: bool = True  # whether the chains' coordinates are whitened by a full covariance of enough draws
    by: Literal["chains", "weights"] = "chains"
    places: Tensor | None = None  # points that chains visited in the later half of their transitions (N, D)
    remembered: Tensor | None = None  # whether chains plainly remember each mean and SD (2, F) of their start
    undecided: bool = False  # whether chains show the result to be neither right nor wrong

    @property
    def lower_bounds(self) -> Tensor:
        """Which estimated errors (2, F) are lower bounds."""
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
        errors = {"mean_error": self.mean, "mean_error_se": self.mean_error}
        errors |= {"sd_ratio": ratio, "sd_ratio_se": ratio * self.log_sd_error}
        return {"parameter": np.array(labels)} | {name: values.numpy() for name, values in errors.items()}

    @classmethod
    def of_figures(cls, measured: Mapping[str, np.ndarray]) -> Moments:
        """The estimates with these `figures`; of a single, exact number without figures."""
        if not measured:
            none = torch.zeros(1, dtype=torch.float64)
            return cls(none, none, none, none)
        mean, mean_error, ratio, error = (
            torch.from_numpy(np.asarray(measured[name], dtype=float))
            for name in ("mean_error", "mean_error_se", "sd_ratio", "sd_ratio_se")
        )
        ratio = ratio.clamp_min(torch.finfo(ratio.dtype).tiny)
        return cls(mean, mean_error, ratio.log(), error / ratio)

    @classmethod
    def in_turn(cls, parts: Sequence[Moments]) -> Moments:
        """The estimates of several groups of draws by the same means, one after the other."""
        return cls(
            mean=torch.cat([one.mean for one in parts]),
            mean_error=torch.cat([one.mean_error for one in parts]),
            log_sd=torch.cat([one.log_sd for one in parts]),
            log_sd_error=torch.cat([one.log_sd_error for one in parts]),
            accepted=min(one.accepted for one in parts),
            whole=all(one.whole for one in parts),
            by=parts[0].by,
            remembered=torch.cat([one.lower_bounds for one in parts], 1),
        )

    def where(self, judged: Tensor) -> Moments:
        """These estimates of the numbers in the mask (F,); the others are not judged."""
        figures = self.mean, self.mean_error, self.log_sd, self.log_sd_error
        mean, mean_error, log_sd, log_sd_error = (torch.where(judged, figure, 0.0) for figure in figures)
        return replace(self, mean=mean, mean_error=mean_error, log_sd=log_sd, log_sd_error=log_sd_error)

    def completed_by(self, other: Moments) -> Moments:
        """These estimates, with those of `other` in place of the numbers that are not judged here."""
        judged = self.mean_error > 0
        return self._with(other, ~judged, ~judged)

    def corrected_by(self, chains: Moments) -> Moments:
        """These estimates, with the chains' in place of those of numbers that chains have plainly moved further.

        Chains remember the draws at which they begin. So they tend to move too little, not too far.
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
    """The number of standard errors that the worst of F estimates exceeds with probability `chance`."""
    return -NormalDist().inv_cdf(chance / (2 * numbers))


def moments_verdict(moments: Moments, within: float = 1.0, chance: float = TEST_LEVEL) -> bool | None:
    """True if the result is wrong by more than chance, False if all errors are within the limits, else None."""
    off = margin(len(moments.mean), chance) * moments.noise
    if bool((moments.excess - off > 1).any()):
        return True
    return False if bool((moments.excess + off < within).all()) else None


def wrong_moments(moments: Moments) -> Tensor:
    """Which means and SDs (2, F) are wrong: beyond the limits by more than chance, or estimated so and plainly off."""
    plain = (moments.excess > 1) & (moments.excess > STANDARD_ERRORS * moments.noise)
    return (moments.excess - margin(len(moments.mean)) * moments.noise > 1) | plain


class WorstMoment(NamedTuple):
    """The mean or SD with the largest error."""

    number: int  # among the F numbers
    of_mean: bool  # True for a mean, False for an SD
    size: float  # the mean's error in SDs, or the ratio of SDs
    error: float  # standard error of `size`
    bound: bool  # whether the error is a lower bound


def worst_moment(moments: Moments) -> WorstMoment | None:
    """The wrong mean or SD with the largest error; None if none is wrong."""
    wrong = wrong_moments(moments)
    if not bool(wrong.any()):
        return None
    what, number = divmod(int((moments.excess * wrong).argmax()), len(moments.mean))
    bound = bool(moments.lower_bounds[what, number])
    if what == 0:
        return WorstMoment(number, True, float(moments.mean[number].abs()), float(moments.mean_error[number]), bound)
    ratio = float(moments.log_sd[number].exp())
    return WorstMoment(number, False, ratio, ratio * float(moments.log_sd_error[number]), bound)


def moments_of_chains(begun: Tensor, places: Tensor, momenta: Tensor) -> Moments:
    """The posterior's moments by regressions, from a (S, F), y before averaging (T, S, F) and b (T, S, F)."""
    # On a site's own scale a number may be NaN, or have no SD. It is not judged; its unconstrained numbers are.
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
    square, square_memory, by_square, by_square_memory = _regression(solve, x, (places - first).square().mean(0), 2)
    memories = (memory, by_memory), (square_memory, by_square_memory)
    remembered = torch.stack([each > STANDARD_ERRORS * influence.norm(dim=0) for each, influence in memories])
    # If the memory of the start explained all of E[y²], no variance would be left: it explains at most half.
    square_memory = torch.where(
        square - square_memory > MIN_VARIANCE, square_memory, torch.minimum(square_memory, square / 2)
    )
    variance = ((square - square_memory) / (1 - square_memory)).clamp_min(MIN_VARIANCE)
    by_log_sd = (by_square - (1 - variance) * by_square_memory) / (1 - square_memory) / (2 * variance)
    sd = variance.sqrt()
    # The mean is in SDs of the posterior, so that the SD's error is part of the mean's. The two are taken as
    # independent: a far place in a long tail moves both, and their ratio would seem to be well determined.
    log_error = by_log_sd.norm(dim=0)
    figures = mean / sd, torch.hypot(by_mean.norm(dim=0), mean * log_error) / sd, sd.log(), log_error
    return Moments(*figures, remembered=remembered & usable).where(usable)


def _regression(solve: Tensor, x: Tensor, y: Tensor, start: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Regression of y (S, F) on x: intercept and memory of the start (F,), each chain's influence on both (S, F).

    `solve` is (x' x)⁻¹ x' (F, 5, S), `start` the column of the controls x (F, S, 5) whose coefficient is the memory.
    """
    slope = solve @ y.T[..., None]
    free = 1 - (x * solve.mT).sum(-1)  # one minus the leverage; less than one chain's share is rounding
    residual = (y.T - (x @ slope)[..., 0]) / free.clamp_min(1 / x.shape[1])
    memory = slope[:, start, 0].clamp(0, MAX_MEMORY)
    at_bound = memory != slope[:, start, 0]
    return (
        slope[:, 0, 0],
        memory,
        (solve[:, 0] * residual).T,
        torch.where(at_bound, 0.0, (solve[:, start] * residual).T),
    )


def judgeable_sds(draws_kurtosis: Tensor, posterior_kurtosis: Tensor, dim: int, chains: int) -> Tensor:
    """Which SDs (F,) this number of chains can judge, from the kurtosis of the draws and of the posterior (F,).

    With kurtosis k the logarithm of the SD of n draws has the standard error sqrt((k - 1) / n) / 2. If this exceeds
    what matters for n chains, the SD is judged only if the places that chains reach have no long tails: the draws'
    tails are then wrong. A number on a site's own scale (from the `dim`-th on) is not judged in this case.
    """
    own_scale = torch.arange(len(draws_kurtosis)) >= dim
    max_kurtosis = 1 + chains * (2 * math.log(SD_MATTERS)) ** 2
    return ~(
        (draws_kurtosis > max_kurtosis) & (posterior_kurtosis > LONG_TAIL_KURTOSIS)
        | own_scale & (torch.maximum(draws_kurtosis, posterior_kurtosis) > max_kurtosis)
    )


def kurtosis(x: Tensor) -> Tensor:
    """Kurtosis of each column of x (n, F): (F,); 3 for a Gaussian."""
    squares = (x - x.mean(0)).square()
    return squares.square().mean(0) / squares.mean(0).square()
