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

- After `EARLY` transitions chains end where the result is wrong by `FAR_BEYOND` and nothing has long tails. Less does
  not suffice then: one place a chain tells how far off a result is worse than its standard error says.
- After `LOOK` transitions they end where the result is clearly wrong, or right to within half of what matters, by more
  than chance. Numbers with long tails are not judged yet, since few chains do not tell their SDs.
- Else they go on until the answer is clear, for `MOST` transitions. Chains that have plainly moved, though by less than
  what matters, may be on their way: they go on until `MOST`, and near the limit until `LONGEST`.
- Errors of few chains with long tails are themselves poorly known, and so are errors of a skewed posterior after few
  transitions. So a verdict of wrong by less than `FAR_BEYOND` is confirmed by a second look `AGAIN` transitions later,
  where the draws have long tails or this was the first look. A result that is right, but not by much at any look, and
  one that is undecided after `MOST` and looks wrong, go on until `LONGEST`.
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
from pyro_fed.audit.target import ENOUGH, Target
from pyro_fed.conventions.limits import SD_MATTERS, WRONG, Limits
from pyro_fed.density.size import cost_of
from pyro_fed.ops.entries import evenly

#: Chains; fewer where they would compute more than `DENSITIES` densities of rows, about ten seconds, or where each
#: score is a run of the model.
CHAINS, FEWEST, DENSITIES = 128, 32, 1_000_000_000
#: Chains of a second walk, for results whose error may matter but is not told by the first: few chains hardly tell the
#: SD of a long tail. There is no second walk if it could have fewer than `WORTH` times the first one's chains.
MANY_CHAINS, WORTH = 2048, 4
#: Where rows' own latents are integrated out, a density takes a search for each row's mode and a sum over nodes. Chains
#: then compute at most `NUMBERS` numbers, about twenty seconds; a score costs `NUMBERS_A_SCORE` times a density.
NUMBERS, NUMBERS_A_SCORE = 20_000_000_000, 3
#: Transitions: before the look for what is wrong beyond doubt, before the look for what is clear, before the first full
#: judgement, between two judgements, and at most.
EARLY, LOOK, FIRST, MORE, MOST = 1, 2, 4, 4, 16
#: Part of what matters that is half-way from right (0.1 SDs, a factor of 1.1) to the limit. Of a finer aim: the part of
#: it from which on chains go on.
MIDDLE = 0.7
#: Transitions at most where a result is still undecided, and some number is farther off than `MIDDLE`.
LONGEST = 48
#: A result is right, and chains end, if all its errors are within this part of what matters, by more than chance: at
#: the first look, and at later looks before `MOST`.
CLEAR, NEARLY_CLEAR = 0.5, 0.8
#: An error of so many times what matters, by more than chance, is called wrong at one look. A smaller one has to be
#: seen again `AGAIN` transitions later.
FAR_BEYOND, AGAIN = 2.0, 2
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
#: SDs that a chain is said to have moved at most: on a site's own scale a number may overflow.
FARTHEST = 1e6
#: Kurtosis from which on tails are long: that of Student's t with 5 degrees of freedom.
LONG = 9.0
#: Kurtosis of draws from which on the few draws that chains begin at may represent all draws badly.
TAILED = 5.0
#: Smallest variance that is told from none.
LEAST_VARIANCE = 1e-4


@dataclass(frozen=True)
class Moments:
    """Of the posterior, as far as the chains have come, against the result's.

    Args:
        mean: (F,) the posterior's mean less the result's, in the posterior's SDs.
        mean_error: (F,) its standard error.
        log_sd: (F,) logarithm of the posterior's SD over the result's.
        log_sd_error: (F,) its standard error.
        accepted: mean acceptance of the chains' last trajectories.
        whole: whether the chains' coordinates whiten the draws in full.
        by: "chains", or "weights" of points wider than the draws.
        places: (N, D) where the chains have been in the later half of their transitions, the model's coordinates; None
            of weights.
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
        """(2, F) how far beyond what matters the means and SDs are, in units of it: 0 right, 1 at the limit."""
        return self.against(WRONG)[0]

    @property
    def noise(self) -> Tensor:
        """(2, F) its standard errors."""
        return self.against(WRONG)[1]

    def against(self, limits: Limits) -> tuple[Tensor, Tensor]:
        """How far off the means and SDs are (2, F), in units of other limits, and its standard errors.

        Args:
            limits: 0 is right, 1 at them.
        """
        units = limits.mean_error, math.log(limits.sd_factor)
        off = torch.stack([self.mean.abs() / units[0], self.log_sd.abs() / units[1]])
        return off, torch.stack([self.mean_error / units[0], self.log_sd_error / units[1]])

    def where_told(self, other: Moments) -> Moments:
        """These, of other ones those numbers that these do not tell: their errors are zero.

        Args:
            other: of the same numbers.
        """
        told = self.mean_error > 0
        return self._with(other, ~told, ~told)

    def unless_refuted(self, chains: Moments) -> Moments:
        """These, of chains those numbers that chains have plainly taken further away from the result's.

        Chains that begin at the result's draws remember them, so that they are on their way, and not beyond its end.

        Args:
            chains: of the same numbers.
        """

        def refuted(ours: Tensor, our_error: Tensor, theirs: Tensor, their_error: Tensor) -> Tensor:
            further = (theirs - ours) * theirs.sign() > PLAIN * torch.hypot(our_error, their_error)
            return further & (theirs.abs() > PLAIN * their_error)

        mean = refuted(self.mean, self.mean_error, chains.mean, chains.mean_error)
        sd = refuted(self.log_sd, self.log_sd_error, chains.log_sd, chains.log_sd_error)
        return self._with(chains, mean, sd)

    def _with(self, other: Moments, mean: Tensor, sd: Tensor) -> Moments:
        """These, with those means and SDs of others, and their errors."""
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
    """Standard errors beyond the limit from which on a result of so many numbers is called wrong."""
    return NormalDist().inv_cdf(1 - CHANCE / (2 * dim))


def judged(found: Moments, within: float = 1.0, beyond: float = 1.0) -> bool | None:
    """Whether the result is wrong; None where chance could make it either.

    Args:
        found: so far.
        within: part of what matters within which it has to be to be right.
        beyond: part of what matters beyond which it has to be to be wrong.
    """
    chance = margin(len(found.mean)) * found.noise
    if bool((found.excess - chance > beyond).any()):
        return True
    return False if bool((found.excess + chance < within).all()) else None


def told(found: Moments, aim: Limits) -> bool:
    """Whether chains need not go on for a finer aim: all seem to be within `MIDDLE` of it, or one is plainly not.

    Chains that went on until all are within it by more than chance would cost an easy posterior several times as much.

    Args:
        found: so far.
        aim: what an answer should keep to.
    """
    off, noise = found.against(aim)
    return bool((off < MIDDLE).all()) or bool(((off > 1) & (off > PLAIN * noise)).any())


def wrong(found: Moments) -> Tensor:
    """Which means and SDs (2, F) are wrong, once there are no more transitions.

    Those beyond the limit by more than chance; and those beyond it that are away from right by `PLAIN` standard
    errors.
    """
    beyond = margin(len(found.mean))
    plain = (found.excess > 1) & (found.excess > PLAIN * found.noise)
    return (found.excess - beyond * found.noise > 1) | plain


def moved(
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
        aim: finer limits than those of a wrong answer, which chains should tell too; None: none.
        again: whether many chains are taken at once, as few have not told.
    """
    z = draws.double()
    detour = Detour.of(target, z, generator)
    afford = _affordable(target)
    wanted = FEWEST if target.problem.looped else min(max(afford // FIRST, FEWEST), CHAINS)
    walk = _Walk(target, detour, quantities, z, generator, aim)
    many = min(MANY_CHAINS, afford // LONGEST)
    can = not target.problem.looped and many >= WORTH * wanted
    if again and can:
        return walk(many, LONGEST)[0]
    found, undecided = walk(wanted, max(afford // wanted, FIRST))
    return walk(many, LONGEST)[0] if undecided and can else found


@dataclass
class _Walk:
    """Chains from a result's draws, until they are judged.

    Args:
        target: the posterior, whitened by these draws.
        detour: other coordinates, or None.
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
        self.tailed = bool((kurtosis(z) > TAILED).any())

    def __call__(self, wanted: int, most: int) -> tuple[Moments, bool]:
        """The moments, and whether these many chains could not tell: an error, if they saw it well, would matter.

        Args:
            wanted: chains.
            most: transitions that can be afforded.
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
            known = _told(self.reported, values, target.problem.dim)
            found = replace(
                found,
                log_sd=found.log_sd * known,
                log_sd_error=found.log_sd_error * known,
                accepted=chains.accepted,
                whole=target.factor.dim() == 2 and len(z) >= ENOUGH * z.shape[1],
                places=been,
            )
            looks.take(found, bool((kurtosis(values.flatten(0, 1)) > LONG).any()))
        undecided = judged(found) is None and not bool(wrong(found).any()) and bool((found.excess > CLEAR).any())
        return found, undecided


def _affordable(target: Target) -> int:
    """Trajectories that chains may have, all together."""
    problem, afford = target.problem, DENSITIES // max(1, target.evaluations * SCORES)
    if not problem.local_dim:
        return afford
    numbers = target.share * problem.num_rows * cost_of(problem).numbers * NUMBERS_A_SCORE * SCORES
    return min(afford, int(NUMBERS / max(1.0, numbers)))


@dataclass
class Looks:
    """When the chains are judged, and when that is the last time.

    Args:
        most: transitions that can be afforded.
        tailed: whether the draws' tails are longer than a Gaussian's.
        aim: finer limits; chains that find nothing wrong, but an estimate near these or beyond, go on until `MOST`.
            None: none.
        until: transitions before the next look.
        suspected: whether the last look said wrong.
        over: whether it was the last.
    """

    most: int
    tailed: bool = True
    aim: Limits | None = None
    until: int = EARLY
    suspected: bool = False
    over: bool = False

    def take(self, found: Moments, long: bool) -> None:
        """Judge, and say when to look again.

        Args:
            found: at this look.
            long: whether some number has long tails.
        """
        if self.until == EARLY:
            self.over = not (self.tailed or long) and judged(found, beyond=FAR_BEYOND) is True
            self.until = EARLY if self.over else LOOK
            return
        if self.until == LOOK and long:
            self._next(FIRST)
            return
        within = CLEAR if self.until == LOOK else NEARLY_CLEAR if self.until < MOST else 1.0
        verdict = judged(found, within)
        few = self.tailed or self.until == LOOK
        again = verdict is True and few and not self.suspected and not judged(found, beyond=FAR_BEYOND)
        self.suspected = verdict is True
        if again:
            self._next(self.until + AGAIN)
        elif verdict is False and self._on_their_way(found):
            self._next(FIRST if self.until < FIRST else self.until + MORE)
        elif verdict is not None:
            self.over = True
        elif self.until < MOST or bool((found.excess > MIDDLE).any()):
            self._next(FIRST if self.until < FIRST else self.until + MORE)
        else:
            self.over = True

    def _on_their_way(self, found: Moments) -> bool:
        """Whether chains that find nothing wrong may find more: they have plainly moved, or do not tell the aim yet."""
        early = self.until < MOST
        plain = found.excess > max(PLAIN, margin(len(found.mean))) * found.noise
        has_moved = bool((plain & (found.excess > (MOVING if early else MIDDLE))).any())
        return has_moved or (early and self.aim is not None and not told(found, self.aim))

    def _next(self, until: int) -> None:
        self.over = until > min(self.most, LONGEST)
        self.until = until


def moments(begun: Tensor, places: Tensor, momenta: Tensor) -> Moments:
    """Of the posterior, see the module's header.

    A number that is none at a draw or a place, or has no SD over the draws, is not judged: it is given no error. It is
    one on a site's own scale, whose unconstrained number is judged all the same.

    Args:
        begun: a (S, F).
        places: y (T, S, F).
        momenta: b (T, S, F).
    """
    usable = begun.isfinite().all(0) & ~places.isnan().flatten(0, 1).any(0)
    begun, places = torch.where(usable, begun, 0.0), torch.where(usable, places.clamp(-FARTHEST, FARTHEST), 0.0)
    ones = torch.ones_like(begun)
    controls = [ones, begun, begun.square() - 1, momenta.mean(0), momenta.square().mean(0) - 1]
    x = torch.stack(controls, -1).transpose(0, 1)  # (F, S, 5)
    inverse = torch.linalg.pinv(x.mT @ x)
    first, error, memory = _intercept(inverse, x, places.mean(0), 1)
    square, square_error, kept = _intercept(inverse, x, (places - first).square().mean(0), 2)
    # Where nothing would be left beyond the memory of the start there is no line: half of the squares are taken for it.
    kept = torch.where(square - kept > LEAST_VARIANCE, kept, torch.minimum(kept, square / 2))
    mean = first / (1 - memory)
    variance = ((square - kept) / (1 - kept)).clamp_min(LEAST_VARIANCE)
    sd = variance.sqrt()
    log_error = square_error / (1 - kept) / (2 * variance)
    # The mean is told in SDs of the posterior: it is no better known than these.
    mean_error = torch.hypot(error / (1 - memory), mean * log_error) / sd
    found = mean / sd, mean_error, sd.log(), log_error
    mean, mean_error, log_sd, log_sd_error = (torch.where(usable, figure, 0.0) for figure in found)
    return Moments(mean, mean_error, log_sd, log_sd_error)


def _told(draws: Tensor, places: Tensor, dim: int) -> Tensor:
    """Which SDs (F,) can be told, of draws (S, F) and places (T, chains, F): see `told_by_tails`."""
    return told_by_tails(kurtosis(draws), kurtosis(places.flatten(0, 1)), dim, places.shape[1])


def told_by_tails(left: Tensor, come: Tensor, dim: int, chains: int = CHAINS) -> Tensor:
    """Which SDs (F,) can be told: not those of draws that have long tails, as the posterior has.

    With kurtosis k the logarithm of the SD of n draws has the standard error sqrt((k - 1) / n) / 2. Where that is more
    than what matters, for n as many as there are chains, these do not tell the SD, right as the draws may be. If the
    places that they come to have no long tails then those of the draws are wrong, and are judged. A number on its
    site's own scale is told by neither: the same number without constraint is judged all the same.

    Args:
        left: kurtosis of the draws, (F,).
        come: of the posterior, as far as it is known, (F,).
        dim: how many of the numbers are unconstrained, the first.
        chains: how many there are.
    """
    own = torch.arange(len(left)) >= dim
    most = 1 + chains * (2 * math.log(SD_MATTERS)) ** 2
    return ~((left > most) & (come > LONG) | own & (torch.maximum(left, come) > most))


def kurtosis(x: Tensor) -> Tensor:
    """Of x (n, F), (F,)."""
    squares = (x - x.mean(0)).square()
    return squares.square().mean(0) / squares.mean(0).square()


def _intercept(inverse: Tensor, x: Tensor, y: Tensor, start: int) -> tuple[Tensor, Tensor, Tensor]:
    """Intercept, its standard error, and the memory of the start, each (F,): of y (S, F) on x (F, S, 5)."""
    slope = inverse @ (x.mT @ y.T[..., None])
    left = y.T - (x @ slope)[..., 0]
    error = (inverse[:, 0, 0] * left.square().sum(1) / (x.shape[1] - x.shape[2])).sqrt()
    return slope[:, 0, 0], error, slope[:, start, 0].clamp(0, MOST_MEMORY)


def _starts(count: int, wanted: int) -> Tensor:
    """Which of the draws chains begin at: as many as wanted, evenly spaced, or each of fewer equally often."""
    if count >= wanted:
        return evenly(count, wanted)
    return torch.arange(count).repeat(-(-wanted // count))
