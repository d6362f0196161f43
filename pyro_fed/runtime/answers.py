"""Answers of several algorithms for one posterior: whether two agree, whether one is enough, and which is returned."""

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
from pyro_fed.audit import aim_error, own_aim_findings
from pyro_fed.audit.moments import LONG_TAIL_KURTOSIS, kurtosis
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding, Topic, doubts_among, is_about
from pyro_fed.conventions.limits import STANDARD_ERRORS, Limits
from pyro_fed.density.problem import Problem

#: Two answers count as missing the same mass if they differ by less than about this share: Laplace's approximation, by
#: which it is estimated, is not more exact.
MISSED_MODE_SHARE = 0.2


@dataclass(frozen=True)
class Answer:
    """The answer of one stage of a plan, with its judgement."""

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

    @property
    def doubts(self) -> list[Finding]:
        """The findings that speak against it."""
        return doubts_among(self.findings)

    def has(self, topic: Topic) -> bool:
        """Whether there is a finding about a topic."""
        return is_about(self.findings, topic)

    @property
    def lost(self) -> float:
        """The share of the posterior's mass in modes that have no draws."""
        return max((float(one.figures.get("lost", 0.0)) for one in self.findings), default=0.0)

    @property
    def name(self) -> str:
        """The stage's name, see `stage_label`."""
        return stage_label(self.stage)

    def off(self, aim: Limits) -> float:
        """The largest likely error in units of a finer aim, by the audit or its own estimates; 0 if it keeps to it."""
        algorithm, own = self.stage.algorithm, False
        if self.figures:
            own = bool(own_aim_findings(algorithm.own_errors(self.figures[-1]), aim))
        return max(aim_error(self.measured, aim), float(own))

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
        """Means and SDs (D,) by the audit, which began at these draws; None if it measured none."""
        if not self.measured or self.stage.noncentred:
            return None  # in a non-centred form the audit's numbers are other ones
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
    """A clause on the largest difference of two answers, in the other's SDs; "" if they agree by the plan's limits."""
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
    """Whether numbers (D,) have tails so long, in both answers, that draws do not give SDs to the plan's factor."""
    chance = (
        torch.stack([(answer.tails - 1) / answer.draws[..., 0].numel() for answer in (one, other)]).sum(0).sqrt() / 2
    )
    long = torch.minimum(one.tails, other.tails) > LONG_TAIL_KURTOSIS
    return long & (STANDARD_ERRORS * chance > math.log(plan.sd_factor))


@dataclass(frozen=True)
class Choice:
    """The answer that is returned.

    Args:
        answer: the answer.
        doubts: all remaining doubts.
        settled: whether no other stage is to be tried: there are no doubts, or enough was tried to confirm the answer;
            and it keeps to the plan's aim, or enough was tried to find one that does.
    """

    answer: Answer
    doubts: list[Finding]
    settled: bool


def choose(plan: Plan, problem: Problem, answers: list[Answer], tried: Sequence[int]) -> Choice:
    """Choose the best of some answers, and say whether it is enough.

    **The best** is chosen by these criteria, each of which counts only where the ones before do not decide:

    1. it misses less of the posterior's mass, in steps of `MISSED_MODE_SHARE`;
    2. it has no doubts;
    3. it keeps to the plan's aim, or is nearer to it; a doubted answer that was not measured is the farthest;
    4. it has fewer doubts: one may weigh more than three, so that their number decides only where nothing is measured;
    5. another answer agrees with it;
    6. it has draws, not particles, whose spacing makes them a little too narrow;
    7. it came later: later algorithms of a plan assume less.

    **It is enough** if it has no doubts and keeps to the aim, no other answer without doubts contradicts it, and it is
    the first stage's or another answer agrees with it. Another answer also agrees if its means and SDs, as the audit
    corrects them, do. An answer that is further off the aim than the best, by the audit's measure, contradicts it only
    if none that agrees with the best is as near to the aim.
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

    def rank(one: Answer) -> tuple[int, bool, float, int, bool, bool, int]:
        ordered = confirmed(one), one.stage.algorithm.draws_are != "particles", one.number
        away = math.inf if one.doubts and not one.measured else off[one.number]
        return -round(one.lost / MISSED_MODE_SHARE), not one.doubts, -away, -len(one.doubts), *ordered

    def explained(one: Answer) -> bool:
        """Whether an answer misses the aim and agrees with the best one after the audit's correction."""
        corrected = one.corrected if off[one.number] else None
        return corrected is not None and not disagreement(plan, problem, best, one, corrected)

    def outvoted(one: Answer) -> bool:
        """Whether it is further off the aim than the best answer, and than or as another that agrees with the best."""
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
    why = f"{names} differ from it, and were doubted themselves" if names else "no other was found"
    unconfirmed = sentences.answer_not_confirmed(answer=best.name, why=why)
    return Choice(best, [unconfirmed], settled=more >= plan.confirm and aimed)
