"""Plans: algorithms run one after the other, each judged on its own, until a result has no doubts."""

from __future__ import annotations

import json
import logging
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace

from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]  # it is there

from pyro_fed.algorithm.contract import Algorithm, Plan, Stage
from pyro_fed.algorithm.record import NONCENTRED, BySums
from pyro_fed.audit import possibly_wrong_findings
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding, Topic, texts
from pyro_fed.conventions import progress
from pyro_fed.conventions.nested_settings import all_settings
from pyro_fed.conventions.resources import TimeIsUp
from pyro_fed.density.forms import NonCentred
from pyro_fed.density.problem import Problem
from pyro_fed.density.symmetry import Symmetry
from pyro_fed.errors import DivergenceError, InterruptedRun, PyroFedError, QuorumError, SettingError
from pyro_fed.ops.gaussian import ImproperGaussianError
from pyro_fed.policy import Setup, begins_at_another_mode, chain_of, resolve_for_run, why_not_from
from pyro_fed.policy.explanation import outlook
from pyro_fed.results.inference_data import InferenceData
from pyro_fed.runtime.answers import Answer, Choice, choose, stage_label
from pyro_fed.runtime.checks import CheckInputs, own_aim_missed
from pyro_fed.runtime.context import Context
from pyro_fed.runtime.finish import Finish, said_of
from pyro_fed.runtime.rounds import Finished, run_phases

logger = logging.getLogger(__name__)

#: Numerical errors, after which another stage may succeed. Any other error of the first stage concerns the input, and
#: ends the plan.
NUMERICAL = (DivergenceError, ImproperGaussianError, LinAlgError)

#: No further stage is tried after this many successive stages with doubts about the densities, which all stages share.
#: It is more than one, since an integral or a rounding error may be worse at one answer's draws than at another's.
MAX_DENSITY_DOUBTS = 2


@dataclass
class Step:
    """The work and cost of a stage, as in `attrs["steps"]` of the result."""

    algorithm: str
    rounds: int = 0
    bytes: int = 0
    seconds: float = 0.0
    doubts: list[str] | None = None
    codes: list[str] = field(default_factory=list)
    end: str = ""
    chosen: bool = False


def run_stages(plan: Plan, stages: list[Stage], finish: Finish) -> InferenceData:
    """Try the stages of a plan in turn, and return the chosen answer with the record of all stages."""
    record, budget, problem = finish.context.record, finish.context.budget, finish.context.problem
    forms = {NONCENTRED} if any(stage.noncentred for stage in stages) else set()
    record.planned = frozenset({type(stage.algorithm).__name__ for stage in stages} | forms)
    trial = _Trial(replace(finish, aim=plan.aim))
    choice: Choice | None = None
    shown = finish.context.progress
    with suppress(TimeIsUp), budget.of_all():  # the first stage says what there was no time for
        if message := outlook(problem.traits, len(stages)):
            progress.say(f"{type(plan).__name__}: {message}", shown=shown)
    for number, stage in enumerate(stages):
        trial.run(number, stage, f"stage {number + 1} of at most {len(stages)}, {stage_label(stage)}" if number else "")
        if trial.begins_at_another_mode(stage):
            stages.insert(number + 1, replace(stage, title=f"{stage_label(stage)}, from another mode"))
        choice = choose(plan, problem, trial.answers, trial.tried) if trial.answers else None
        settled = (
            choice is not None
            and choice.settled
            and not _next_weights_particles(stages[number + 1 :], choice.answer, problem)
        )
        if settled or record.interrupted or budget.ended or trial.deserted or trial.hopeless:
            break
    if choice is None:
        raise trial.errors[0]
    if not record.rounds and budget.ended:
        raise SettingError(
            f"{type(plan).__name__}: {budget.ended} is less than the first round of {trial.steps[0].algorithm} needs: "
            "raise it"
        )
    if not choice.settled and budget.ended:
        untried = ", ".join(stage_label(stage) for stage in stages[len(trial.steps) :])
        choice.doubts.append(sentences.search_ended_by_budget(budget=budget.ended, untried=untried))
    return _result(plan, choice, trial, finish)


def _next_weights_particles(next_stages: list[Stage], answer: Answer, problem: Problem) -> bool:
    """Whether the next stage starts from this answer's particles and weights them, which corrects their spread."""
    algorithm = answer.stage.algorithm
    return (
        algorithm.draws_are == "particles"
        and bool(next_stages)
        and algorithm in chain_of(next_stages[0].algorithm, problem)[-2:-1]
    )


class _Trial:
    """The stages tried so far."""

    def __init__(self, finish: Finish) -> None:
        self.finish = finish
        self.steps: list[Step] = []
        self.answers: list[Answer] = []
        self.errors: list[Exception] = []
        self.tried: list[int] = []
        self.earlier: list[Finding] = []
        self.deserted = False
        self._last = Step("")  # the step of the last stage tried
        self._finished: dict[bool, Finished] = {False: [], True: []}  # by whether the form is non-centred
        self._failed: dict[bool, list[Algorithm]] = {False: [], True: []}
        self._modes: dict[bool, list[Tensor]] = {False: [], True: []}
        self._begin: dict[bool, Tensor] = {}  # where searches for a mode begin
        self._starts: dict[bool, list[Answer]] = {False: [], True: []}  # the answers that later stages may start from
        self._symmetries: dict[bool, list[Symmetry]] = {False: [], True: []}
        self.points: dict[bool, list[tuple[Tensor, Tensor]]] = {False: [], True: []}

    @property
    def hopeless(self) -> bool:
        """Whether the last stages' doubts concern the densities, which the next stage would share."""
        last = self.answers[-MAX_DENSITY_DOUBTS:]
        return len(last) == MAX_DENSITY_DOUBTS and all(answer.has(Topic.DENSITY) for answer in last)

    @property
    def why(self) -> str:
        """The reason for a further stage, as a clause."""
        last = self._last
        if last.doubts:
            return f"as {last.algorithm} is doubted: {last.doubts[0].split('. ')[0]}"
        return f"as {last.algorithm} has no answer" if last.doubts is None else "to confirm or refine what was found"

    def notes_of(self, answer: Answer) -> list[Finding]:
        """The distinct notes on all stages and on the returned answer; notes on clients only of this answer."""
        every = [*self.earlier, *self.finish.context.record.findings]
        shared = [one for one in every if one.code != sentences.clients_stand_apart.code]
        notes = [one for one in [*shared, *answer.findings] if not one.is_doubt]
        return [one for number, one in enumerate(notes) if one not in notes[:number]]

    def begins_at_another_mode(self, stage: Stage) -> bool:
        """Whether the last answer misses nearly all mass, and later stages of its form begin at a mode there: once."""
        form, last = stage.noncentred, self.answers[-1] if self.answers else None
        if form in self._begin or last is None or last.number != len(self.steps) - 1 or not self._modes[form]:
            return False
        if not begins_at_another_mode(chain_of(last.stage.algorithm, self.finish.context.problem), last.findings):
            return False
        self._begin[form] = self._modes[form][0]
        self._finished[form].clear()
        self._starts[form].clear()
        return True

    def run(self, number: int, stage: Stage, label: str) -> None:
        """Run one stage, and add its step and its answer or error; `label` begins its line of progress."""
        record, shown = self.finish.context.record, self.finish.context.progress
        began, before, step = time.perf_counter(), len(record.rounds), Step(stage_label(stage))
        self.steps.append(step)
        if stage.noncentred and not self.finish.context.federation.holds_data:
            step.end = "not tried: clients elsewhere have the model in its own form"
            return
        failed_algorithms = self._failed[stage.noncentred]
        try:
            with self.finish.context.budget.of_preparation(f"the settings of {stage_label(stage)} were chosen"):
                context = self._on_form(stage)
                resolved = resolve_for_run(stage.algorithm, context.problem, Setup(context.graph))
            stage = replace(stage, algorithm=resolved.algorithm, title=stage_label(stage))
            chain = chain_of(stage.algorithm, context.problem)
            excluded = [f"{type(part).__name__}, which failed" for part in chain if part in failed_algorithms]
            excluded += [
                f"{type(one.stage.algorithm).__name__}, {why}"
                for one in self._starts[stage.noncentred]
                if one.stage.algorithm in chain[:-1]
                if (why := why_not_from(stage.algorithm, one.findings))
            ]
            if excluded:
                step.end = f"not tried: it starts from {excluded[0]}"
                progress.say(f"{label}, {step.end}", shown=shown)
                return
            if label:
                progress.say(f"{label}, {self.why}", shown=shown)
            self._last = step
            answer = self._answer(number, stage, context)
            context.choices.append((resolved.algorithm, resolved.choices))
        except InterruptedRun:
            if not self.answers:
                raise
            step.end = self._cut()
        except Exception as error:  # stored in `step.end`, since an earlier answer must survive it
            if not self.steps[:-1] and not isinstance(error, NUMERICAL):
                raise
            step.end = " ".join(str(error).split())
            if not isinstance(error, PyroFedError):
                step.end = f"{type(error).__name__}: {step.end}"
            if not isinstance(error, (PyroFedError, *NUMERICAL)):  # an error in the code, not a numerical one
                logger.exception("stage %s of a plan has failed", step.algorithm)
                step.end += " (the log has the traceback)"
            self.errors.append(error)
            failed_algorithms.append(getattr(error, "algorithm", None) or stage.algorithm)
            self.deserted = isinstance(error, QuorumError)
        else:
            step.doubts = texts(answer.doubts) if answer else None
            step.codes = [one.code for one in answer.findings] if answer else []
            step.end = "" if answer else self._cut()
            self.answers += [answer] if answer else []
            self._starts[stage.noncentred] += [answer] if answer else []
        step.rounds = len(record.rounds) - before
        if step.rounds or step.doubts is not None:
            self.tried.append(number)
        step.bytes = sum(one.bytes for one in record.rounds[before:])
        step.seconds = time.perf_counter() - began

    def _answer(self, number: int, stage: Stage, context: Context) -> Answer | None:
        """The stage's answer; None if it was cut short and there is an earlier answer."""
        record, algorithm = self.finish.context.record, stage.algorithm
        self.earlier += record.findings
        record.findings, record.measured, record.by_sums, record.audited = [], {}, BySums(), False
        if (begin := self._begin.get(stage.noncentred)) is not None:
            context = replace(context, problem=replace(context.problem, begin=begin))
        record.modes, record.symmetries = self._modes[stage.noncentred], self._symmetries[stage.noncentred]
        record.posterior_points = self.points[stage.noncentred]
        record.sites, record.sites_of, record.stands_apart = {}, "", ""
        rounds = algorithm.default_rounds(context.federation.num_clients)
        shared = run_phases(algorithm, context, rounds, None, self._finished[stage.noncentred])
        cut_by = self._cut()
        if cut_by and self.answers:
            return None
        finish = replace(self.finish, algorithm=algorithm, context=context)
        judged = finish.judged_draws(shared)
        draws = judged.draws
        if isinstance(context.problem, NonCentred):
            draws = context.problem.centred(draws.flatten(0, 1)).unflatten(0, draws.shape[:2])
        if cut_by and not record.stopped:  # a stop by the time limit is already a doubt
            record.findings.append(sentences.stage_cut_short(stage=stage_label(stage), by=cut_by))
        return Answer(
            stage=stage,
            number=number,
            shared=shared,
            draws=draws,
            findings=record.findings,
            figures=list(record.figures),
            until=len(record.rounds),
            converged=record.converged,
            measured=record.measured,
            sites={} if stage.noncentred else record.sites,  # sites in non-centred coordinates do not fit the model's
            sites_of=record.sites_of,
            stands_apart=record.stands_apart,
            by_sums=record.by_sums,
            audited=record.audited,
            own_aim_missed=bool(own_aim_missed(judged)),
        )

    def _on_form(self, stage: Stage) -> Context:
        """The context with the stage's form of the model: the user's, or the non-centred one."""
        context = self.finish.context
        if not stage.noncentred:
            return context
        federation, own = context.federation.noncentred, context.problem
        compiler = replace(
            federation.problem.compiler,
            level=own.compiler.level,
            auto=own.compiler.auto,
            rounds=own.compiler.rounds,
            seconds=own.compiler.seconds,
        )
        problem = replace(federation.problem, compiler=compiler, progress=own.progress)
        return replace(context, federation=federation, problem=problem)

    def _cut(self) -> str:
        """The event that cut the stage short, as a clause; "" without one."""
        context = self.finish.context
        if context.record.interrupted:
            return "interrupted"
        return f"ended by the budget, {context.budget.ended}" if context.budget.ended else ""


def _result(plan: Plan, choice: Choice, trial: _Trial, finish: Finish) -> InferenceData:
    """The chosen answer as InferenceData, with the record of all stages."""
    record, answer = finish.context.record, choice.answer
    record.figures, record.until, record.converged = answer.figures, answer.until, answer.converged
    record.measured = answer.measured
    doubts = choice.doubts or possibly_wrong_findings(answer.measured, plan.aim)
    record.findings = [*trial.notes_of(answer), *record.clients_failed(), *doubts]
    record.sites, record.sites_of = answer.sites, answer.sites_of
    record.stands_apart = answer.stands_apart
    record.by_sums, record.audited = answer.by_sums, answer.audited
    record.posterior_points = trial.points[False]  # the last stage's may be of the other form
    last = replace(finish, algorithm=answer.stage.algorithm, aim=plan.aim)
    last.weigh(CheckInputs(last.algorithm, last.context, {}, answer.draws, last.audit, last.aim))
    trial.steps[answer.number].chosen = True
    result = last.result(answer.shared, answer.draws)
    attributes = {
        "plan": type(plan).__name__,
        "settings": repr(all_settings(plan)),
        "chosen": answer.name,
        "steps": json.dumps([asdict(step) for step in trial.steps]),
    }
    result.attrs.update(attributes)
    result["posterior"].attrs.update(attributes)
    return said_of(result, record)
