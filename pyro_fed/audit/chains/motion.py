"""A check of draws: short exact Markov chains that begin at draws of the posterior move no mean and no SD.

**The idea.** A transition K that leaves the posterior p as it is gives E_q[K^t f] = E_p[f] for every f if the draws'
distribution q is p. If q is not p, then E_q[K^t f] comes nearer to E_p[f] with every t. So chains are started at the
draws of a result, and it is seen whether they move its means and SDs.

**The estimate.** S chains (`hmc`) run from S draws. Take a coordinate, or a number that is a function of it, and
standardise it by the result's own mean and SD. Then let

    a    where a chain began             E a = 0, E a² = 1 over all draws of the result
    b_t  the t-th momentum along it      E b = 0, E b² = 1
    y    the place, averaged over the later half of the transitions

y is regressed on a, a² - 1 and the averages of b_t and b_t² - 1 (control variates, whose means are known). The
intercept estimates the mean of the moved draws; the same regression of y² estimates their second moment. What the
controls explain is no noise. For a Gaussian posterior they explain nearly all, since half of a trajectory of length π/2
is the momentum. The slope β on a (γ on a², for y²) says how much the chains remember of their start. The intercepts are
divided by 1 - β (and 1 - γ), which for a Gaussian gives the limit of long chains.

    mean error   E[y] / SD[y],      SD ratio   SD[y],       with standard errors from the regressions' residuals.

Where a latent's scale is itself a latent (a funnel), each transition is two: one in these coordinates, and one with the
effects in units of their scale (`detour`). Without the second, chains that begin outside of the neck do not find it.

**What it sees.** The check needs no density of q and works in any dimension. It finds wrong tails, bent posteriors,
wrong step sizes, collapsed variances, and a prior that was counted twice. Where no chain can move, even by a small part
of the draws' spread, the posterior is far narrower there than the draws, and that is said. The check cannot see a mode
that the chains do not reach.

**How long chains go on.** A result is wrong if a mean is off by more than `MATTERS`, or an SD outside `SD_MATTERS`.

- After `EARLY_LOOK` transitions chains end where the result is wrong by `FAR_BEYOND` and nothing has long tails. Less
  does not suffice then: one place a chain tells how far off a result is worse than its standard error says.
- After `CLEAR_LOOK` transitions they end where the result is clearly wrong, or right to within half of what matters, by
  more than chance. Numbers with long tails are not judged yet, since few chains do not tell their SDs.
- Else they go on until the answer is clear, for `MOST_TRANSITIONS`. Chains that have plainly moved, though by less than
  what matters, may be on their way: they go on until `MOST_TRANSITIONS`, and near the limit until `LONGEST_WALK`.
- Errors of few chains with long tails are themselves poorly known, and so are errors of a skewed posterior after few
  transitions. So a verdict of wrong by less than `FAR_BEYOND` is confirmed by a second look `CONFIRMATION_TRANSITIONS`
  transitions later, where the draws have long tails or this was the first look. A result that is right, but not by much
  at any look, and one that is undecided after `MOST_TRANSITIONS` and looks wrong, go on until `LONGEST_WALK`.
- Where these chains cannot tell, and an error of the size that they see would matter, `MANY_CHAINS` are run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal

import torch
from torch import Tensor

from pyro_fed.audit.chains.detour import Detour
from pyro_fed.audit.chains.hmc import SCORES, Chains
from pyro_fed.audit.quantities import Quantities
from pyro_fed.audit.target import DRAWS_A_DIMENSION, Target
from pyro_fed.conventions.limits import SD_MATTERS, WRONG, Limits
from pyro_fed.density.size import cost_of
from pyro_fed.ops.entries import evenly

#: Chains; fewer where they would compute more than `DENSITIES` densities of rows, about ten seconds, or where each
#: score is a run of the model.
CHAINS, FEWEST_CHAINS, DENSITIES = 128, 32, 1_000_000_000
#: Chains of a second walk, for results whose error may matter but may also be chance: few chains hardly determine the
#: SD of a long tail. There is no second walk if it could have fewer than `SECOND_WALK_FACTOR` times the first one's
#: chains.
MANY_CHAINS, SECOND_WALK_FACTOR = 2048, 4
#: Where rows' own latents are integrated out, a density takes a search for each row's mode and a sum over nodes. Chains
#: then compute at most `NUMBERS` numbers, about twenty seconds; a score costs `NUMBERS_A_SCORE` times a density.
NUMBERS, NUMBERS_A_SCORE = 20_000_000_000, 3
#: Numbers of transitions: before the look for what is wrong beyond doubt, before the look for what is clear, before the
#: first full judgement, between two judgements, and at most.
EARLY_LOOK, CLEAR_LOOK, FIRST_JUDGEMENT, JUDGEMENT_INTERVAL, MOST_TRANSITIONS = 1, 2, 4, 4, 16
#: Part of the limits that lies half-way between an error that is negligible (0.1 SDs, a factor of 1.1) and the limits.
#: It also says how close to a finer aim an estimate may be before chains go on.
MIDDLE = 0.7
#: Transitions at most where a result is still undecided, and some number is farther off than `MIDDLE`.
LONGEST_WALK = 48
#: A result is right, and chains end, if all its errors are within this part of what matters, by more than chance: at
#: the first look, and at later looks before `MOST_TRANSITIONS`.
CLEAR, NEARLY_CLEAR = 0.5, 0.8
#: An error of so many times what matters, by more than chance, is called wrong at one look. A smaller one has to be
#: seen again `CONFIRMATION_TRANSITIONS` transitions later.
FAR_BEYOND, CONFIRMATION_TRANSITIONS = 2.0, 2
#: Part of what matters from which on a plain error, though within the limits, says that chains may be on their way:
#: chains from draws of the posterior would stay where they are.
MOVING = 0.25
#: Chance that a result just at the limit, in all coordinates, is called wrong.
CHANCE = 0.1
#: Memory of the start above which a chain says too little.
MOST_MEMORY = 0.7
#: Standard errors away from right at which an estimate beyond the limit is no chance.
PLAIN = 3.0
#: Mean acceptance below which chains are stuck, though their steps are as short as they get.
STUCK = 0.1
#: Places are clamped to so many SDs of the draws: on a site's own scale a number may overflow.
FARTHEST_PLACE_SDS = 1e6
#: Kurtosis from which on tails are long: that of Student's t with 5 degrees of freedom.
LONG = 9.0
#: Kurtosis of draws from which on the few draws that chains begin at may represent all draws badly.
LONG_TAILED_KURTOSIS = 5.0
#: Smallest variance, in units of the draws', that is distinguished from zero.
LEAST_VARIANCE = 1e-4


@dataclass(frozen=True)
class Moments:
    """Estimates of the posterior's means and SDs of F numbers, relative to the result's.

    Where both standard errors of a number are zero, the number is not judged.

    Args:
        mean: the posterior's mean less the result's, in the posterior's SDs (F,).
        mean_error: standard error of `mean` (F,).
        log_sd: logarithm of the posterior's SD divided by the result's (F,).
        log_sd_error: standard error of `log_sd` (F,).
        accepted: mean acceptance of the chains' last trajectories.
        whole: whether the chains' coordinates are whitened by the full covariance of enough draws.
        by: what the estimates come from, "chains", or "weights" of points spread more widely than the draws.
        places: where the chains have been in the later half of their transitions, in the model's coordinates (N, D);
            None where the estimates come from weights.
    """

    mean: Tensor
    mean_error: Tensor
    log_sd: Tensor
    log_sd_error: Tensor
    accepted: float = 1.0
    whole: bool = True
    by: Literal["chains", "weights"] = "chains"
    places: Tensor | None = None

    @property
    def excess(self) -> Tensor:
        """Errors of the means and SDs (2, F) in units of the limits: 0 is right, 1 is at the limit."""
        return self.against(WRONG)[0]

    @property
    def noise(self) -> Tensor:
        """Standard errors of `excess` (2, F)."""
        return self.against(WRONG)[1]

    def against(self, limits: Limits) -> tuple[Tensor, Tensor]:
        """Errors of the means and SDs (2, F), and their standard errors (2, F), in units of some limits.

        Args:
            limits: an error of 1 is at the limit, and 0 is right.
        """
        units = limits.mean_error, math.log(limits.sd_factor)
        off = torch.stack([self.mean.abs() / units[0], self.log_sd.abs() / units[1]])
        return off, torch.stack([self.mean_error / units[0], self.log_sd_error / units[1]])

    def where_told(self, other: Moments) -> Moments:
        """These estimates, with those of `other` in place of the numbers that are not judged here.

        Args:
            other: estimates of the same numbers.
        """
        told = self.mean_error > 0
        return self._with(other, ~told, ~told)

    def unless_refuted(self, chains: Moments) -> Moments:
        """These estimates, with the chains' in place of numbers that chains have plainly moved further.

        Chains that begin at the result's draws have a memory of these, so that they rather move too little than too
        far.

        Args:
            chains: estimates of the same numbers.
        """

        def refuted(ours: Tensor, our_error: Tensor, theirs: Tensor, their_error: Tensor) -> Tensor:
            further = (theirs - ours) * theirs.sign() > PLAIN * torch.hypot(our_error, their_error)
            return further & (theirs.abs() > PLAIN * their_error)

        mean = refuted(self.mean, self.mean_error, chains.mean, chains.mean_error)
        sd = refuted(self.log_sd, self.log_sd_error, chains.log_sd, chains.log_sd_error)
        return self._with(chains, mean, sd)

    def _with(self, other: Moments, mean: Tensor, sd: Tensor) -> Moments:
        """These estimates, with those of `other` where the masks `mean` and `sd` (F,) say so."""
        return replace(
            self,
            mean=torch.where(mean, other.mean, self.mean),
            mean_error=torch.where(mean, other.mean_error, self.mean_error),
            log_sd=torch.where(sd, other.log_sd, self.log_sd),
            log_sd_error=torch.where(sd, other.log_sd_error, self.log_sd_error),
        )

    @property
    def stuck(self) -> bool:
        """Whether chains could hardly move."""
        return self.accepted < STUCK


def margin(dim: int) -> float:
    """The number of standard errors by which the worst of `dim` estimates is off with probability `CHANCE`.

    An error is beyond a limit by more than chance if it is so many standard errors beyond it.
    """
    return NormalDist().inv_cdf(1 - CHANCE / (2 * dim))


def moments_verdict(found: Moments, within: float = 1.0, beyond: float = 1.0) -> bool | None:
    """Whether the result is wrong by more than chance: True; or right by more than chance: False; else None.

    Args:
        found: the estimates.
        within: right means that all errors are within this part of the limits.
        beyond: wrong means that some error is beyond this multiple of the limits.
    """
    chance = margin(len(found.mean)) * found.noise
    if bool((found.excess - chance > beyond).any()):
        return True
    return False if bool((found.excess + chance < within).all()) else None


def finer_aim_decided(found: Moments, aim: Limits) -> bool:
    """Whether chains need not go on for a finer aim.

    They need not if all estimates are within the part `MIDDLE` of it, or one is plainly beyond it. To go on until all
    are within it by more than chance would make the audit of an easy posterior several times as expensive.

    Args:
        found: the estimates.
        aim: the limits to which an answer should keep.
    """
    off, noise = found.against(aim)
    return bool((off < MIDDLE).all()) or bool(((off > 1) & (off > PLAIN * noise)).any())


def wrong_moments(found: Moments) -> Tensor:
    """Which means and SDs are wrong, a mask (2, F), by the final estimates.

    An error is called wrong if it is beyond the limit by more than chance, or beyond the limit and more than `PLAIN`
    standard errors from zero.

    Args:
        found: the estimates.
    """
    beyond = margin(len(found.mean))
    plain = (found.excess > 1) & (found.excess > PLAIN * found.noise)
    return (found.excess - beyond * found.noise > 1) | plain


def moments_by_chains(
    target: Target,
    quantities: Quantities,
    draws: Tensor,
    generator: torch.Generator,
    aim: Limits | None = None,
    again: bool = False,
) -> Moments:
    """The posterior's moments, from chains that begin at a result's draws.

    Args:
        target: the posterior, whitened by these draws.
        quantities: the numbers whose moments are wanted.
        draws: (S, D), the model's coordinates.
        generator: source of randomness.
        aim: limits finer than `WRONG`, up to which chains should measure errors; None: none.
        again: whether to run many chains at once, since few have not been conclusive.
    """
    z = draws.double()
    detour = Detour.of(target, z, generator)
    afford = _affordable(target)
    wanted = FEWEST_CHAINS if target.problem.looped else min(max(afford // FIRST_JUDGEMENT, FEWEST_CHAINS), CHAINS)
    walk = _Walk(target, detour, quantities, z, generator, aim)
    many = min(MANY_CHAINS, afford // LONGEST_WALK)
    can = not target.problem.looped and many >= SECOND_WALK_FACTOR * wanted
    if again and can:
        return walk(many, LONGEST_WALK)[0]
    found, undecided = walk(wanted, max(afford // wanted, FIRST_JUDGEMENT))
    return walk(many, LONGEST_WALK)[0] if undecided and can else found


@dataclass
class _Walk:
    """Chains that begin at a result's draws and go on until they are judged.

    Args:
        target: the posterior, whitened by these draws.
        detour: non-centred coordinates, or None.
        quantities: the numbers whose moments are wanted.
        draws: (S, D), float64.
        generator: source of randomness.
        aim: finer limits, or None.
    """

    target: Target
    detour: Detour | None
    quantities: Quantities
    draws: Tensor
    generator: torch.Generator
    aim: Limits | None

    def __post_init__(self) -> None:
        z = self.draws
        self.white = self.target.white(z)
        self.reported = self.quantities(z)
        self.centre, scale = self.reported.mean(0), self.reported.std(0)
        # Draws that are all the same have no SD: moves are then counted in what rounding leaves of the numbers.
        least = torch.finfo(z.dtype).eps * self.centre.abs().clamp_min(1.0)
        self.scale = torch.where(scale.isfinite(), torch.maximum(scale, least), torch.nan)
        self.tailed = bool((kurtosis(z) > LONG_TAILED_KURTOSIS).any())

    def __call__(self, wanted: int, most: int) -> tuple[Moments, bool]:
        """The moments, and whether they are inconclusive: an error that may be chance, and would matter if it is not.

        Args:
            wanted: number of chains.
            most: number of transitions that can be afforded.
        """
        z, target, quantities = self.draws, self.target, self.quantities
        at = _starts(len(z), wanted)
        looks = Looks(most=most, tailed=self.tailed, aim=self.aim)
        chains = Chains.begin(target, self.white[at], self.generator)
        detour = None if self.detour is None else replace(self.detour, chains=None)
        begun = (self.reported[at] - self.centre) / self.scale
        places: list[Tensor] = []
        momenta: list[Tensor] = []
        while not looks.over:
            while len(places) < looks.until:
                if places:
                    chains.move()
                else:
                    chains.settle()
                if detour is not None:
                    detour.move(chains)
                places.append(chains.place)
                momenta.append(target.along(chains.momentum)[:, quantities.along])
            later = len(places) // 2
            been = target.model(torch.cat(places[later:]))
            values = quantities(been).unflatten(0, (-1, len(at)))
            found = moments(begun, (values - self.centre) / self.scale, torch.stack(momenta[later:]))
            known = _judgeable_sds(self.reported, values, target.problem.dim)
            found = replace(
                found,
                log_sd=found.log_sd * known,
                log_sd_error=found.log_sd_error * known,
                accepted=chains.accepted,
                whole=target.factor.dim() == 2 and len(z) >= DRAWS_A_DIMENSION * z.shape[1],
                places=been,
            )
            looks.take(found, bool((kurtosis(values.flatten(0, 1)) > LONG).any()))
        undecided = (
            moments_verdict(found) is None
            and not bool(wrong_moments(found).any())
            and bool((found.excess > CLEAR).any())
        )
        return found, undecided


def _affordable(target: Target) -> int:
    """The number of trajectories, of all chains together, that can be afforded."""
    problem, afford = target.problem, DENSITIES // max(1, target.evaluations * SCORES)
    if not problem.local_dim:
        return afford
    numbers = target.share * problem.num_rows * cost_of(problem).numbers * NUMBERS_A_SCORE * SCORES
    return min(afford, int(NUMBERS / max(1.0, numbers)))


@dataclass
class Looks:
    """The looks at which chains are judged, as the module's header says.

    Args:
        most: number of transitions that can be afforded.
        tailed: whether the draws' tails are longer than a Gaussian's.
        aim: finer limits. Chains that find nothing wrong, but an estimate near these limits or beyond, go on until
            `MOST_TRANSITIONS`. None: none.
        until: number of transitions before the next look.
        suspected: whether the last look's verdict was wrong.
        over: whether the last look was the final one.
    """

    most: int
    tailed: bool = True
    aim: Limits | None = None
    until: int = EARLY_LOOK
    suspected: bool = False
    over: bool = False

    def take(self, found: Moments, long: bool) -> None:
        """Judge, and decide when to look again.

        Args:
            found: the estimates at this look.
            long: whether some number has long tails.
        """
        if self.until == EARLY_LOOK:
            self.over = not (self.tailed or long) and moments_verdict(found, beyond=FAR_BEYOND) is True
            self.until = EARLY_LOOK if self.over else CLEAR_LOOK
            return
        if self.until == CLEAR_LOOK and long:
            self._next(FIRST_JUDGEMENT)
            return
        within = CLEAR if self.until == CLEAR_LOOK else NEARLY_CLEAR if self.until < MOST_TRANSITIONS else 1.0
        verdict = moments_verdict(found, within)
        few = self.tailed or self.until == CLEAR_LOOK
        again = verdict is True and few and not self.suspected and not moments_verdict(found, beyond=FAR_BEYOND)
        self.suspected = verdict is True
        if again:
            self._next(self.until + CONFIRMATION_TRANSITIONS)
        elif verdict is False and self._on_their_way(found):
            self._next(FIRST_JUDGEMENT if self.until < FIRST_JUDGEMENT else self.until + JUDGEMENT_INTERVAL)
        elif verdict is not None:
            self.over = True
        elif self.until < MOST_TRANSITIONS or bool((found.excess > MIDDLE).any()):
            self._next(FIRST_JUDGEMENT if self.until < FIRST_JUDGEMENT else self.until + JUDGEMENT_INTERVAL)
        else:
            self.over = True

    def _on_their_way(self, found: Moments) -> bool:
        """Whether chains that find nothing wrong should go on: they have plainly moved, or do not settle the aim."""
        early = self.until < MOST_TRANSITIONS
        plain = found.excess > max(PLAIN, margin(len(found.mean))) * found.noise
        has_moved = bool((plain & (found.excess > (MOVING if early else MIDDLE))).any())
        return has_moved or (early and self.aim is not None and not finer_aim_decided(found, self.aim))

    def _next(self, until: int) -> None:
        self.over = until > min(self.most, LONGEST_WALK)
        self.until = until


def moments(begun: Tensor, places: Tensor, momenta: Tensor) -> Moments:
    """The posterior's moments by regressions with control variates, see the module's header.

    A number that is NaN at a draw or a place, or has no SD over the draws, is not judged: its standard errors are zero.
    This happens on a site's own scale; the site's unconstrained numbers are judged all the same.

    Args:
        begun: a, where each chain began (S, F).
        places: y before it is averaged, at T transitions (T, S, F).
        momenta: b at the same transitions (T, S, F).
    """
    usable = begun.isfinite().all(0) & ~places.isnan().flatten(0, 1).any(0)
    begun, places = (
        torch.where(usable, begun, 0.0),
        torch.where(usable, places.clamp(-FARTHEST_PLACE_SDS, FARTHEST_PLACE_SDS), 0.0),
    )
    ones = torch.ones_like(begun)
    controls = [ones, begun, begun.square() - 1, momenta.mean(0), momenta.square().mean(0) - 1]
    x = torch.stack(controls, -1).transpose(0, 1)  # (F, S, 5)
    inverse = torch.linalg.pinv(x.mT @ x)
    first, error, memory = _intercept(inverse, x, places.mean(0), 1)
    square, square_error, kept = _intercept(inverse, x, (places - first).square().mean(0), 2)
    # If the memory of the start explained all of E[y²], there would be no slope: at most half of it is ascribed to
    # that.
    kept = torch.where(square - kept > LEAST_VARIANCE, kept, torch.minimum(kept, square / 2))
    mean = first / (1 - memory)
    variance = ((square - kept) / (1 - kept)).clamp_min(LEAST_VARIANCE)
    sd = variance.sqrt()
    log_error = square_error / (1 - kept) / (2 * variance)
    # The mean is in SDs of the posterior, whose error is part of its own.
    mean_error = torch.hypot(error / (1 - memory), mean * log_error) / sd
    found = mean / sd, mean_error, sd.log(), log_error
    mean, mean_error, log_sd, log_sd_error = (torch.where(usable, figure, 0.0) for figure in found)
    return Moments(mean, mean_error, log_sd, log_sd_error)


def _judgeable_sds(draws: Tensor, places: Tensor, dim: int) -> Tensor:
    """Which SDs can be judged (F,), from draws (S, F) and places (T, chains, F), see `told_by_tails`."""
    return told_by_tails(kurtosis(draws), kurtosis(places.flatten(0, 1)), dim, places.shape[1])


def told_by_tails(left: Tensor, come: Tensor, dim: int, chains: int = CHAINS) -> Tensor:
    """Which SDs can be judged (F,): not those of draws with tails so long that few chains do not determine the SD.

    With kurtosis k the logarithm of the SD of n draws has the standard error sqrt((k - 1) / n) / 2. If that is more
    than what matters with one draw for each chain, the chains do not determine the SD, even if the draws are right.
    There is an exception: if the places that chains reach have no long tails, the draws' tails are wrong, and the SD is
    judged. The exception does not hold on a site's own scale; there the unconstrained number is judged all the same.

    Args:
        left: kurtosis of the draws (F,).
        come: kurtosis of the posterior, as far as it is known (F,).
        dim: how many of the numbers, the first ones, are unconstrained.
        chains: number of chains.
    """
    own = torch.arange(len(left)) >= dim
    most = 1 + chains * (2 * math.log(SD_MATTERS)) ** 2
    return ~((left > most) & (come > LONG) | own & (torch.maximum(left, come) > most))


def kurtosis(x: Tensor) -> Tensor:
    """Kurtosis of each column of x (n, F): (F,); 3 for a Gaussian."""
    squares = (x - x.mean(0)).square()
    return squares.square().mean(0) / squares.mean(0).square()


def _intercept(inverse: Tensor, x: Tensor, y: Tensor, start: int) -> tuple[Tensor, Tensor, Tensor]:
    """Least squares of y (S, F) on x (F, S, 5): intercept, its standard error, and the memory of the start, (F,) each.

    Args:
        inverse: (x' x)⁻¹ (F, 5, 5).
        x: controls.
        y: what is explained.
        start: the column of x whose coefficient is the memory, β or γ.
    """
    slope = inverse @ (x.mT @ y.T[..., None])
    left = y.T - (x @ slope)[..., 0]
    error = (inverse[:, 0, 0] * left.square().sum(1) / (x.shape[1] - x.shape[2])).sqrt()
    return slope[:, 0, 0], error, slope[:, start, 0].clamp(0, MOST_MEMORY)


def _starts(count: int, wanted: int) -> Tensor:
    """The draws, by number, at which chains begin: `wanted` of them, evenly spaced, or all of fewer, repeatedly."""
    if count >= wanted:
        return evenly(count, wanted)
    return torch.arange(count).repeat(-(-wanted // count))
