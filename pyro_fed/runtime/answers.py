"""Answers of several algorithms to one question: whether two agree, whether one is enough, and which is given."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from pyro_fed.algorithm.capabilities import OwnErrors
from pyro_fed.algorithm.plan import Plan, Stage
from pyro_fed.algorithm.record import BySums
from pyro_fed.algorithm.states import State
from pyro_fed.audit import off_aim
from pyro_fed.audit.chains.motion import LONG, kurtosis
from pyro_fed.audit.tails import SIGMAS
from pyro_fed.conventions.limits import Limits
from pyro_fed.density.problem import Problem

#: Mass without draws is compared in steps of this share: it is known by Laplace's approximation.
LOST = 0.2


@dataclass(frozen=True)
class Answer:
    """What one stage of a plan found.

    Args:
        stage: what was run.
        number: its place among the stages.
        shared: the server's last state.
        draws: (chain, draw, D), unconstrained.
        doubts: what speaks against it.
        of_density: whether that is about the densities as they are computed.
        figures: of its rounds.
        until: the round after the last of these.
        converged: whether it stopped by its own criterion; None where it has none.
        measured: what the audit measured of it.
        sites: the clients' Gaussian sites, as in `Record.sites`; empty where there are none on the model's own form.
        sites_of: the algorithm that left them.
        stands_apart: what is to be said of clients that move the answer more than others do.
        by_sums: what the clients' sums have told of it.
        audited: whether it was judged at its draws.
        lost: the share of the posterior's mass in modes that it has no draws of.
    """

    stage: Stage
    number: int
    shared: State
    draws: Tensor
    doubts: list[str]
    figures: list[dict[str, float]]
    until: int
    converged: bool | None
    measured: dict[str, np.ndarray]
    sites: State = field(default_factory=dict)
    sites_of: str = ""
    stands_apart: str = ""
    by_sums: BySums = field(default_factory=BySums)
    audited: bool = False
    of_density: bool = False
    lost: float = 0.0

    @property
    def name(self) -> str:
        """The algorithm's, with what it starts from where that has been set."""
        return named(self.stage)

    def off(self, aim: Limits) -> float:
        """How far off a finer aim it is likely to be, in units of that, or 1 where its own figures say so; 0 if not.

        Args:
            aim: of the plan.
        """
        algorithm, own = self.stage.algorithm, False
        if isinstance(algorithm, OwnErrors) and self.figures:
            mean, log_sd = algorithm.own_errors(self.figures[-1])
            own = mean > aim.mean_error or log_sd > math.log(aim.sd_factor)
        return max(off_aim(self.measured, aim), float(own))

    @cached_property
    def moments(self) -> tuple[Tensor, Tensor]:
        """Means and SDs (D,)."""
        flat = self.draws.flatten(0, 1).double()
        return flat.mean(0), flat.std(0)

    @cached_property
    def middles(self) -> tuple[Tensor, Tensor]:
        """Medians, and half of the distances between the quantiles of 16 and 84 %, a Gaussian's SDs: (D,)."""
        ordered = self.draws.flatten(0, 1).double().sort(0).values
        low, middle, high = (ordered[round(share * (len(ordered) - 1))] for share in (0.16, 0.5, 0.84))
        return middle, (high - low) / 2

    @cached_property
    def tails(self) -> Tensor:
        """Kurtosis (D,)."""
        return kurtosis(self.draws.flatten(0, 1).double())

    @cached_property
    def corrected(self) -> tuple[Tensor, Tensor] | None:
        """Means and SDs (D,) that the audit's chains came to from these draws; None where there were none."""
        if not self.measured or self.stage.noncentred:
            return None  # of a non-centred form the audit's numbers are other ones
        mean, sd = self.moments
        found = {name: torch.from_numpy(self.measured[name][: len(mean)]) for name in ("mean_error", "sd_ratio")}
        posterior = sd * found["sd_ratio"]
        return mean + found["mean_error"] * posterior, posterior


def named(stage: Stage) -> str:
    """A stage as its steps are told: `FedEP`, `FedAIS(surrogates=DSVGD())`, `FedEP, non-centred`."""
    return repr(stage.algorithm).removesuffix("()") + (", non-centred" if stage.noncentred else "")


def disagreement(
    plan: Plan, problem: Problem, one: Answer, other: Answer, moments: tuple[Tensor, Tensor] | None = None
) -> str:
    """Where two answers are farthest apart, as a clause; "" where they agree.

    Args:
        plan: its limits.
        problem: the posterior.
        one: an answer.
        other: another one.
        moments: means and SDs to compare with, in place of the other answer's own.
    """
    (mean, sd), (other_mean, other_sd) = one.moments, moments or other.moments
    what = "mean", "SD"
    away = ((mean - other_mean) / other_sd).abs().nan_to_num(nan=math.inf, posinf=math.inf)
    ratio = sd / other_sd
    if moments is None and bool((untold := _untold(plan, one, other)).any()):
        (middle, width), (other_middle, other_width) = one.middles, other.middles
        away = torch.where(untold, (middle - other_middle).abs() / other_width, away)
        ratio = torch.where(untold, width / other_width, ratio)
        if bool(untold[int(away.argmax())]):
            what = "median", what[1]
        if bool(untold[int(ratio.log().abs().argmax())]):
            what = what[0], "distance between its quantiles of 16 and 84 %"
    factor = ratio.log().abs().exp().nan_to_num(nan=math.inf, posinf=math.inf)
    if float(away.max()) > plan.mean_error:
        at = int(away.argmax())
        name = problem.site_of(at).name
        return f"its {what[0]} of '{name}' is {float(away[at]):.2g} SDs away from that of {other.name}"
    if float(factor.max()) > plan.sd_factor:
        at = int(factor.argmax())
        return f"its {what[1]} of '{problem.site_of(at).name}' is {float(ratio[at]):.2g} times that of {other.name}"
    return ""


def _untold(plan: Plan, one: Answer, other: Answer) -> Tensor:
    """Which numbers (D,) have tails, in both answers, so long that these draws do not tell SDs to the plan's factor.

    There may be no SD at all, as of a Cauchy's; two answers agree in what there is, the middle and its width.
    """
    chance = (
        torch.stack([(answer.tails - 1) / answer.draws[..., 0].numel() for answer in (one, other)]).sum(0).sqrt() / 2
    )
    long = torch.minimum(one.tails, other.tails) > LONG
    return long & (SIGMAS * chance > math.log(plan.sd_factor))


@dataclass(frozen=True)
class Choice:
    """The answer that is given.

    Args:
        answer: it.
        doubts: all that is left to doubt, one sentence each.
        settled: whether no other answer is asked for: nothing is left to doubt, or enough was tried to confirm it; and
            it keeps to the plan's aim, or enough was tried for one that does.
    """

    answer: Answer
    doubts: list[str]
    settled: bool


def choose(plan: Plan, problem: Problem, answers: list[Answer], tried: int) -> Choice:
    """The best of some answers.

    One without doubts goes before others, then one with draws of more of the posterior's mass, by `LOST` at least, then
    one with fewer doubts, then one that keeps to the plan's aim, or is nearer to it, then one
    with which another agrees, then draws before particles, which have a spacing, then the later one, whose algorithm
    assumes less. It is settled where it has no doubts, keeps to the aim and either was the first of the plan, or
    another answer agrees with it and none without doubts contradicts it. An answer that is doubted, or misses the aim,
    agrees also where the audit's chains, which began at its draws, came to this one.

    Args:
        plan: what is being tried.
        problem: the posterior.
        answers: in the order in which they were found; at least one.
        tried: how many stages have been, those without an answer too.
    """
    apart = {
        (one.number, other.number): disagreement(plan, problem, one, other)
        for one in answers
        for other in answers
        if one is not other
    }

    def confirmed(one: Answer) -> bool:
        agrees = any(number == one.number and not clause for (number, _), clause in apart.items())
        return agrees or any(
            other.corrected is not None and not disagreement(plan, problem, one, other, other.corrected)
            for other in answers
            if other is not one
        )

    off = {one.number: one.off(plan.aim) for one in answers}

    def rank(one: Answer) -> tuple[int, int, float, bool, bool, int]:
        ordered = confirmed(one), one.stage.algorithm.draws_are != "particles", one.number
        return -round(one.lost / LOST), -len(one.doubts), -off[one.number], *ordered

    def explained(one: Answer) -> bool:
        """Whether its chains, as they found it off the aim, came to the best answer."""
        came = one.corrected if off[one.number] else None
        return came is not None and not disagreement(plan, problem, best, one, came)

    best = max(answers, key=rank)
    others = [one for one in answers if one is not best]
    against = [
        f"{best.name} and {one.name} disagree: {clause}"
        for one in others
        if not one.doubts and not explained(one) and (clause := apart[best.number, one.number])
    ]
    undoubted = [one.number for one in answers if not one.doubts]
    aimed = not off[best.number] or (bool(undoubted) and tried >= plan.refine + 1 + min(undoubted))
    if best.doubts or against or best.number == 0 or not plan.confirm or confirmed(best):
        doubts = best.doubts + against
        return Choice(best, doubts, settled=not doubts and aimed)
    names = ", ".join(one.name for one in others)
    why = f"{names} differ from it, and were doubted themselves" if names else "no other was found"
    enough = tried >= plan.confirm + 1 + min(undoubted)
    return Choice(best, [f"no second answer confirms that of {best.name}: {why}"], settled=enough and aimed)
