"""Results of several algorithms for one posterior: agreement, sufficiency, and the choice of the returned result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Plan, Stage
from pyro_fed.algorithm.record import BySums
from pyro_fed.algorithm.states import State
from pyro_fed.audit import aim_error
from pyro_fed.audit.moments import LONG_TAIL_KURTOSIS, kurtosis
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding, Topic, doubts_among, is_about
from pyro_fed.conventions.limits import STANDARD_ERRORS, Limits
from pyro_fed.density.problem import Problem

#: Difference of missed mass below which two results count as equal, since missed mass is estimated by a Laplace
#: approximation.
MISSED_MODE_SHARE = 0.2


@dataclass(frozen=True)
class Answer:
    """The result of one stage of a plan, with its findings."""

    stage: Stage
    number: int
    shared: State
    draws: Tensor
    findings: list[Finding]
    figures: list[dict[str, float]]  # of its rounds
    until: int  # the number of the round after the last of these
    converged: bool | None
    measured: dict[str, np.ndarray]  # by the audit, as `Evidence.moment_figures`
    sites: State = field(default_factory=dict)
    sites_of: str = ""
    stands_apart: str = ""
    by_sums: BySums = field(default_factory=BySums)
    audited: bool = False
    own_aim_missed: bool = False  # whether the algorithm's own estimates of its errors miss the plan's target

    @property
    def doubts(self) -> list[Finding]:
        """The findings that are reasons not to trust it."""
        return doubts_among(self.findings)

    def has(self, topic: Topic) -> bool:
        """Whether there is a finding about a topic."""
        return is_about(self.findings, topic)

    @property
    def lost(self) -> float:
        """The share of the posterior's mass in modes without draws."""
        return max((float(one.figures.get("lost", 0.0)) for one in self.findings), default=0.0)

    @property
    def name(self) -> str:
        """The stage's name, see `stage_label`."""
        return stage_label(self.stage)

    def off(self, aim: Limits) -> float:
        """The largest likely error in units of the target, by the audit or the algorithm's estimates; 0 within it."""
        return max(aim_error(self.measured, aim), float(self.own_aim_missed))

    @cached_property
    def moments(self) -> tuple[Tensor, Tensor]:
        """Means and SDs of the draws (D,)."""
        flat = self.draws.flatten(0, 1).double()
        return flat.mean(0), flat.std(0)

    @cached_property
    def middles(self) -> tuple[Tensor, Tensor]:
        """Medians (D,), and half the distance (D,) between the 16 % and 84 % quantiles, which is a Gaussian's SD."""
        ordered = self.draws.flatten(0, 1).double().sort(0).values
        low, middle, high = (ordered[round(share * (len(ordered) - 1))] for share in (0.16, 0.5, 0.84))
        return middle, (high - low) / 2

    @cached_property
    def tails(self) -> Tensor:
        """Kurtosis of the draws (D,)."""
        return kurtosis(self.draws.flatten(0, 1).double())

    @cached_property
    def corrected(self) -> tuple[Tensor, Tensor] | None:
        """Means and SDs (D,) by the audit, which started at these draws; None if it measured none."""
        if not self.measured or self.stage.noncentred:
            return None  # the audit's parameters differ in a non-centred form
        mean, sd = self.moments
        found = {name: torch.from_numpy(self.measured[name][: len(mean)]) for name in ("mean_error", "sd_ratio")}
        posterior = sd * found["sd_ratio"]
        return mean + found["mean_error"] * posterior, posterior


def stage_label(stage: Stage) -> str:
    """A stage's name in steps and sentences: `FedEP`, `FedAIS(surrogates=DSVGD())`, `FedEP, non-centred`."""
    own = repr(stage.algorithm).removesuffix("()") + (", non-centred" if stage.noncentred else "")
    return stage.title or own


def disagreement(
    plan: Plan, problem: Problem, one: Answer, other: Answer, moments: tuple[Tensor, Tensor] | None = None
) -> str:
    """A clause on the largest difference of two results, in the other's SDs; "" if they agree."""
    (mean, sd), (other_mean, other_sd) = one.moments, moments or other.moments
    what = "mean", "SD"
    away = ((mean - other_mean) / other_sd).abs().nan_to_num(nan=math.inf, posinf=math.inf)
    ratio = sd / other_sd
    if moments is None and bool((undetermined := _undetermined_sds(plan, one, other)).any()):
        (middle, width), (other_middle, other_width) = one.middles, other.middles
        away = torch.where(undetermined, (middle - other_middle).abs() / other_width, away)
        ratio = torch.where(undetermined, width / other_width, ratio)
        if bool(undetermined[int(away.argmax())]):
            what = "median", what[1]
        if bool(undetermined[int(ratio.log().abs().argmax())]):
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


def _undetermined_sds(plan: Plan, one: Answer, other: Answer) -> Tensor:
    """Whether parameters (D,) have tails so long in both results that draws do not determine their SDs."""
    chance = (
        torch.stack([(answer.tails - 1) / answer.draws[..., 0].numel() for answer in (one, other)]).sum(0).sqrt() / 2
    )
    long = torch.minimum(one.tails, other.tails) > LONG_TAIL_KURTOSIS
    return long & (STANDARD_ERRORS * chance > math.log(plan.sd_factor))


@dataclass(frozen=True)
class Choice:
    """The result that is returned, with all remaining doubts.

    It is settled if no further stage is needed: there are no doubts, or enough stages were tried to confirm the result;
    and it meets the plan's target, or enough stages were tried to meet it.
    """

    answer: Answer
    doubts: list[Finding]
    settled: bool


def choose(plan: Plan, problem: Problem, answers: list[Answer], tried: Sequence[int]) -> Choice:
    """Choose the best result, and determine whether it suffices.

    **The best result** is chosen by these criteria, in order:

    1. it misses less of the posterior's mass, in steps of `MISSED_MODE_SHARE`;
    2. it has no doubts;
    3. it meets the plan's target, or is closer to it; doubted results without measured errors come last;
    4. it has fewer doubts, which matters only if no errors are measured, since one doubt may outweigh three;
    5. another result agrees with it;
    6. it consists of draws and not of particles, which are slightly too narrow;
    7. it is later, since later algorithms of a plan make fewer assumptions.

    **It suffices** if it has no doubts and meets the target, no other result without doubts contradicts it, and it is
    that of the first stage or another result agrees with it. Another result also agrees if its means and SDs agree
    after the audit's correction. A result that is further from the target than the best one, as measured by the audit,
    contradicts it only if no result that agrees with the best one is as close to the target. Draws whose moments the
    audit has refuted confirm nothing but its correction: a later stage that starts from them may make the same error
    without its audit's noticing.
    """
    apart = {
        (one.number, other.number): disagreement(plan, problem, one, other)
        for one in answers
        for other in answers
        if one is not other
    }

    def confirms(other: Answer, one: Answer) -> bool:
        if not apart[one.number, other.number] and not is_about(other.doubts, Topic.MOMENTS):
            return True
        return other.corrected is not None and not disagreement(plan, problem, one, other, other.corrected)

    def confirmed(one: Answer) -> bool:
        return any(confirms(other, one) for other in answers if other is not one)

    off = {one.number: one.off(plan.aim) for one in answers}

    def rank(one: Answer) -> tuple[int, bool, float, int, bool, bool, int]:
        ordered = confirmed(one), one.stage.algorithm.draws_are != "particles", one.number
        away = math.inf if one.doubts and not one.measured else off[one.number]
        return -round(one.lost / MISSED_MODE_SHARE), not one.doubts, -away, -len(one.doubts), *ordered

    def explained(one: Answer) -> bool:
        """Whether a result misses the target and agrees with the best one after the audit's correction."""
        corrected = one.corrected if off[one.number] else None
        return corrected is not None and not disagreement(plan, problem, best, one, corrected)

    def outvoted(one: Answer) -> bool:
        """Whether it is further from the target than the best result and another one that agrees with the best."""
        near = [other for other in answers if not other.doubts and off[other.number] <= off[one.number]]
        agree = any(not apart.get((best.number, other.number), "itself") for other in near)
        return off[one.number] > off[best.number] and agree

    best = max(answers, key=rank)
    others = [one for one in answers if one is not best]
    against = [
        sentences.answers_disagree(answer=best.name, other=one.name, how=clause)
        for one in others
        if not one.doubts and not explained(one) and not outvoted(one) and (clause := apart[best.number, one.number])
    ]
    undoubted = [one.number for one in answers if not one.doubts]
    more = sum(number > min(undoubted) for number in tried) if undoubted else 0
    aimed = not off[best.number] or (bool(undoubted) and more >= plan.refine)
    if best.doubts or against or best.number == 0 or not plan.confirm or confirmed(best):
        doubts = best.doubts + against
        return Choice(best, doubts, settled=not doubts and aimed)
    names = ", ".join(one.name for one in others)
    why = f"{names} differ from it, and have doubts themselves" if names else "no other was found"
    unconfirmed = sentences.answer_not_confirmed(answer=best.name, why=why)
    return Choice(best, [unconfirmed], settled=more >= plan.confirm and aimed)
