"""The end of a run: draws of the result, its checks, and its conversion to InferenceData."""

from __future__ import annotations

import logging
import traceback
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm, overrides
from pyro_fed.algorithm.privacy import Private
from pyro_fed.algorithm.record import Record, Released
from pyro_fed.algorithm.states import State
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Topic
from pyro_fed.conventions import seeding
from pyro_fed.conventions.calls import cast_checked
from pyro_fed.conventions.limits import Limits
from pyro_fed.conventions.resources import TimeIsUp, is_time
from pyro_fed.density.forms import with_hint
from pyro_fed.density.symmetry import group_of, spread
from pyro_fed.errors import DivergenceError, InterruptedRun, PyroFedError, TimeLimitError, warn_user
from pyro_fed.ops.gaussian import ImproperGaussianError
from pyro_fed.policy.audit import may_round
from pyro_fed.policy.results import integrates_latents
from pyro_fed.results.inference_data import InferenceData
from pyro_fed.results.to_arviz import joint_result, released_alone, to_inference_data
from pyro_fed.runtime.checks import CHECKS, LAST_CHECKS, CheckInputs, not_converged, refuted_doubts, without_spread
from pyro_fed.runtime.context import Context
from pyro_fed.runtime.privacy_noise import Noisy, still_shortened, with_noise
from pyro_fed.runtime.run_errors import no_posterior

logger = logging.getLogger(__name__)

#: Default cure for a state without draws, if the algorithm has no `advice`.
OTHERWISE = "Smaller steps (step size) may help, or a common scale of parameters whose scales are very different. "


@dataclass
class Finish:
    """Conversion of a run's last state to its result."""

    algorithm: Algorithm
    context: Context
    num_draws: int
    log_likelihood: bool
    collect_local: bool
    audit: bool
    aim: Limits | None = None

    def __call__(self, shared: State) -> InferenceData:
        """The checked result; doubts and notes are issued as warnings."""
        shared = self.algorithm.conclude(self.context.problem, shared)
        if self.context.hides_clients:
            draws = self.noisy(shared, self.drawn(shared))
        else:
            judged = self.judged_draws(shared)
            self.weigh(judged)
            draws = judged.draws
        self.context.record.findings += self.context.record.clients_failed()
        return said_of(self.result(shared, draws), self.context.record)

    def drawn(self, shared: State) -> Tensor:
        """Draws (chain, draw, D), unconstrained, all finite; the error for a state without draws has the state."""
        generator = seeding.torch_generator(self.context.seed, seeding.DRAWS)
        try:
            draws = self.algorithm.sample(shared, self.num_draws, generator).to(self.context.problem.dtype)
        except ImproperGaussianError as error:
            raise self._undrawn(shared, f"is no distribution ({str(error).partition(';')[0]})") from error
        if not draws.numel():
            raise self._undrawn(shared, "has no draws yet")
        if not bool(torch.isfinite(draws).all()):
            raise self._undrawn(shared, "has draws that are not finite, far beyond the range of its numbers")
        if self._cut and self.algorithm.draws_are == "chains" and draws.shape[1] == 1:  # a chain's start
            raise self._without(shared)
        return draws

    @property
    def _cut(self) -> bool:
        """Whether Ctrl-C or the time limit ended the rounds."""
        return self.context.record.interrupted or bool(self.context.record.stopped)

    def _without(self, shared: State) -> InterruptedRun | TimeLimitError:
        done = f"{type(self.algorithm).__name__}, after {len(self.context.record.rounds)} rounds"
        return no_posterior(done, self.context, self.algorithm, shared)

    def _undrawn(self, shared: State, why: str) -> DivergenceError | InterruptedRun | TimeLimitError:
        """The error for a last state without draws."""
        if self._cut:
            return self._without(shared)
        rounds, unlike = len(self.context.record.rounds), self.context.record.unlike()
        failed = "".join(f"{one.text}. " for one in self.context.record.clients_failed())
        own = OTHERWISE
        if overrides(self.algorithm, "advice"):
            own = f"It may be that {self.algorithm.advice(self.context.problem, shared)}. "
        said = (
            f"{type(self.algorithm).__name__}: the state after {rounds} round(s) {why}. "
            f"{unlike + '. ' if unlike else ''}{own}{failed}{self._perhaps()}The state is kept in this error's `state`"
        )
        text, last = with_hint(said, self.context.problem), rounds - 1 if rounds else None
        return DivergenceError(text, round=last, algorithm=self.algorithm, state=shared)

    def _perhaps(self) -> str:
        """Applicable remedies for an improper state, one sentence each."""
        problem, record = self.context.problem, self.context.record
        improper = ", ".join(f"'{name}'" for name in sorted(problem.layout.improper))
        cures = [
            "" if record.clients_failed() or record.unlike() else "more rounds",
            f"a proper prior for {improper}" if improper else "",
            "dtype=torch.float64, where columns nearly depend on each other" if may_round(problem.traits) else "",
        ]
        given = "; ".join(filter(None, cures))
        return f"What else may help: {given}. " if given else ""

    def noisy(self, shared: State, draws: Tensor) -> Tensor:
        """The draws of a private run, whose spread includes the noise. Other checks would use rows."""
        context, record = self.context, self.context.record
        if self.algorithm.contributions().noise_in_draws:
            own = sentences.as_findings(self.algorithm.warnings(record, context.problem))
            found = Noisy(draws, own, 0.0)
        else:
            found = with_noise(self.algorithm, context, shared, draws, self.num_draws)
        spread = without_spread(context.problem, found.draws)
        record.findings += [*spread, *found.findings, *still_shortened(context), *not_converged(record)]
        private = cast_checked(context.combination, Private)
        releases = sum(bool(one.clients) for one in record.rounds)
        epsilon = private.epsilon(releases) if releases else 0.0
        record.private = Released(found.noise, epsilon, private.delta)
        return found.draws

    def judged_draws(self, shared: State) -> CheckInputs:
        """The checked draws. If they miss symmetric images of a mode, they are spread over all images."""
        record, draws, before = self.context.record, self.drawn(shared), self.context.record.findings
        record.spread, record.findings, known = False, list(before), -1
        result = self.judge_in_time(shared, draws)
        while len(record.symmetries) > max(known, 0) and result.has(Topic.MODES):
            known, group = len(record.symmetries), group_of(record.symmetries)
            if group is None:
                break
            record.spread, record.findings = True, [*before, sentences.draws_at_all_images(images=len(group))]
            everywhere = spread(self.context.problem, record.symmetries, draws, self.context.seed)
            result = self.judge_in_time(shared, everywhere)
        return result

    def judge_in_time(self, shared: State, draws: Tensor) -> CheckInputs:
        """The result, checked in the remaining time; if checks are interrupted, or one fails, a doubt reports it."""
        record, budget = self.context.record, self.context.budget
        result = CheckInputs(self.algorithm, self.context, shared, draws, self.audit, self.aim)
        try:
            with budget.of_checks():
                self.judge(result)
            return result
        except PyroFedError:
            raise
        except KeyboardInterrupt as stop:
            if is_time(stop):
                why = f"they did not end within {budget.limit_of_time}"
                budget.ended = budget.ended or budget.limit_of_time
            else:
                record.interrupted, why = True, "they were interrupted"
            left = "as the rounds left it"
        except Exception as error:  # any error: the result of a run is returned, with a doubt about the failure
            logger.exception("a check of a run's result has failed")
            where = traceback.extract_tb(error.__traceback__)[-1]
            line, place = str(error).partition("\n")[0][:200], f"{Path(where.filename).name}, line {where.lineno}"
            why = f"one ended in {type(error).__name__} ({line}; {place})"
            left = "as the rounds left it, and unjudged; the log has the traceback"
        record.audited = False
        record.findings += [one for one in not_converged(record) if one not in record.findings]
        record.findings.append(sentences.checks_cut_short(why=why, left=left))
        return result

    def judge(self, result: CheckInputs) -> None:
        """Make all checks of a result, in their order, and add their findings to the record."""
        record = self.context.record
        for check in CHECKS:
            record.findings += check(result)
        gone = refuted_doubts(result)
        record.findings = [one for one in record.findings if one not in gone]

    def weigh(self, result: CheckInputs) -> None:
        """Make the last checks of a result that will be returned: its settings, and its distance from the limits."""
        for check in LAST_CHECKS:
            self.context.record.findings += check(result)

    def result(self, shared: State, draws: Tensor) -> InferenceData:
        """The draws and the record as InferenceData."""
        context = self.context
        federation, problem = context.federation, context.problem
        stats = self.algorithm.sample_stats(shared, draws)
        stats = context.record.by_sums.log_density | stats
        if context.record.private is not None:
            return released_alone(self.algorithm, federation, problem, draws, context.record, context.seed)
        if integrates_latents(problem.traits) and self.collect_local and federation.holds_data:
            with context.budget.of_all():
                try:
                    federation, problem, draws, left_out = joint_result(federation, problem, draws, context.seed)
                except TimeIsUp:
                    left_out = [sentences.not_in_time(what="draws of the clients' own latents")]
            context.record.findings += left_out
        options = self.log_likelihood, self.collect_local
        with context.budget.of_all():
            return to_inference_data(
                self.algorithm, federation, problem, draws, stats, context.record, context.seed, *options
            )


def said_of(result: InferenceData, record: Record) -> InferenceData:
    """Issue the doubts and notes of a result as warnings that point at the user's call of `run`, and return it."""
    try:
        for sentence in record.warning_texts():
            warn_user(sentence)
    except UserWarning as error:
        error.result = result  # type: ignore[attr-defined]  # of this one warning
        raise
    return result
