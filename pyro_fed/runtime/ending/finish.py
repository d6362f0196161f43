"""The end of a run: draws of the result, their judgement, and the result as InferenceData."""

from __future__ import annotations

import logging
import math
import traceback
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from pyro_fed.algorithm.capabilities import Advice, DrawStats, NoiseWithin, Pooled, Provisional
from pyro_fed.algorithm.combination import Bounded
from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.privacy import Private
from pyro_fed.algorithm.record import Record, Released
from pyro_fed.algorithm.states import State
from pyro_fed.audit import (
    Evidence,
    as_numbers,
    asked,
    at_limit,
    close_call,
    few_draws_tell,
    found_right,
    missed_aim,
    not_audited,
    of_density,
    of_draws,
    reported_without_variance,
)
from pyro_fed.audit.clients.dealt import by_the_outcome
from pyro_fed.audit.clients.influence import FEWEST, who_stands_apart
from pyro_fed.audit.clients.mirrored import mirrored
from pyro_fed.audit.clients.say import answer_and_sites, log_likelihoods_of
from pyro_fed.audit.inputs.range import out_of_range
from pyro_fed.audit.inputs.use import of_no_use
from pyro_fed.conventions import seeding
from pyro_fed.conventions.kinds import narrowed
from pyro_fed.conventions.limits import Limits
from pyro_fed.conventions.time_limit import is_time
from pyro_fed.density.checks.funnels import with_hint
from pyro_fed.density.problem import Problem
from pyro_fed.density.size import is_large
from pyro_fed.errors import DivergenceError, InterruptedRun, PyroFedError, TimeLimitError, listed, warn_user
from pyro_fed.infer.sites.gaussian_sites import gaussian
from pyro_fed.ops.gaussian import ImproperGaussianError
from pyro_fed.results.inference_data import InferenceData
from pyro_fed.results.to_arviz import released_alone, to_inference_data
from pyro_fed.runtime.context import Context
from pyro_fed.runtime.ending.by_sums import judge_by_sums
from pyro_fed.runtime.ending.collecting import INACCURATE, collected, integration_notes
from pyro_fed.runtime.ending.privacy_noise import Noisy, still_shortened, with_noise
from pyro_fed.runtime.interruption.outcome import FEWEST_DRAWS, no_posterior
from pyro_fed.runtime.replies import hidden

logger = logging.getLogger(__name__)

#: The evidence is not known if the standard error of its logarithm is larger, in nats: a factor of e.
UNTOLD = 1.0
#: A run that has asked as many clients as so many passes over all of them, and never some, has left these out.
ENOUGH_PASSES = 2
#: The cure for a state without draws, of an algorithm that has no `advice` of its own.
OTHERWISE = "Smaller steps (step size) may help, or a common scale of parameters whose scales are very different. "
#: Why even an honest client may move the answer more than others do.
WHY_APART = (
    "Its rows may be of another kind than the others' (the one event, the largest value, a split by the outcome), or "
    "of another population; or units, labels or counts may be wrong"
)


@dataclass
class Finish:
    """Turns a run's last state into its result.

    Args:
        algorithm: the algorithm that was run.
        context: the run.
        num_draws: number of draws, where the result is a density.
        log_likelihood: whether to compute the pointwise log-likelihood.
        collect_local: whether to collect the rows' latents.
        audit: whether to judge the result by the model's densities.
        aim: limits finer than `WRONG`, up to which the audit should measure errors; None: none.

    Attributes:
        evidence: what the audit worked on; None where there was no audit yet.
    """

    algorithm: Algorithm
    context: Context
    num_draws: int
    log_likelihood: bool
    collect_local: bool
    audit: bool
    aim: Limits | None = None
    evidence: Evidence | None = field(default=None, init=False)

    def __call__(self, shared: State) -> InferenceData:
        """The judged result; doubts and notes are given as warnings."""
        draws = self.drawn(shared)
        if hidden(self.context):
            draws = self.noisy(shared, draws)
        else:
            self.judged(shared, draws)
            self.weigh(draws)
        self.context.record.notes += self.context.record.failed()
        return said_of(self.result(shared, draws), self.context.record)

    def drawn(self, shared: State) -> Tensor:
        """Draws (chain, draw, D), unconstrained.

        Raises:
            InterruptedRun: the run was interrupted before there was a posterior.
            TimeLimitError: its time was over before there was a posterior.
            DivergenceError: the state is no distribution, or its draws are not finite. The error keeps the state.
        """
        generator = seeding.torch_generator(self.context.seed, seeding.DRAWS)
        try:
            draws = self.algorithm.sample(shared, self.num_draws, generator).to(self.context.problem.dtype)
        except ImproperGaussianError as error:
            raise self._undrawn(shared, f"is no distribution ({str(error).partition(';')[0]})") from error
        if not draws.numel():
            raise self._undrawn(shared, "has no draws yet")
        if not bool(torch.isfinite(draws).all()):
            raise self._undrawn(shared, "has draws that are not finite, far beyond the range of its numbers")
        if self._cut and self.algorithm.draws_are == "chains" and draws.shape[1] < FEWEST_DRAWS:
            raise self._without(shared)
        return draws

    @property
    def _cut(self) -> bool:
        """Whether the rounds were ended by Ctrl-C or by the limit of time."""
        return self.context.record.interrupted or bool(self.context.record.stopped)

    def _without(self, shared: State) -> InterruptedRun | TimeLimitError:
        done = f"{type(self.algorithm).__name__}, after {len(self.context.record.rounds)} rounds"
        return no_posterior(done, self.context, self.algorithm, shared)

    def _undrawn(self, shared: State, why: str) -> DivergenceError | InterruptedRun | TimeLimitError:
        """The error for a last state without draws, or, where the run was cut short, the error that says so."""
        if self._cut:
            return self._without(shared)
        rounds, unlike = len(self.context.record.rounds), self.context.record.unlike()
        failed = "".join(f"{sentence}. " for sentence in self.context.record.failed())
        own = OTHERWISE
        if isinstance(self.algorithm, Advice):
            own = f"It may be that {self.algorithm.advice(self.context.problem, shared)}. "
        said = (
            f"{type(self.algorithm).__name__}: the state after {rounds} round(s) {why}. "
            f"{unlike + '. ' if unlike else ''}{own}{failed}{self._perhaps()}The state is kept in this error's `state`"
        )
        error = DivergenceError(with_hint(said, self.context.problem), round=rounds - 1 if rounds else None)
        error.algorithm, error.state = self.algorithm, shared
        return error

    def _perhaps(self) -> str:
        """What may help a state that is no distribution, of what applies: each as a sentence."""
        problem, record = self.context.problem, self.context.record
        improper = ", ".join(f"'{name}'" for name in sorted(problem.layout.improper))
        cures = [
            "" if record.failed() or record.unlike() else "more rounds",
            f"a proper prior for {improper}" if improper else "",
            "dtype=torch.float64, where columns nearly depend on each other" if problem.dtype == torch.float32 else "",
        ]
        given = "; ".join(filter(None, cures))
        return f"What else may help: {given}. " if given else ""

    def noisy(self, shared: State, draws: Tensor) -> Tensor:
        """The draws of a private run, whose spread includes the noise. Other judgements would look at rows."""
        context, record = self.context, self.context.record
        if isinstance(self.algorithm, NoiseWithin):
            found = Noisy(draws, self.algorithm.warnings(record, context.problem), 0.0)
        else:
            found = with_noise(self.algorithm, context, shared, draws, self.num_draws)
        record.doubts += (
            without_spread(context.problem, found.draws) + found.doubts + still_shortened(context) + self.unsettled()
        )
        private = narrowed(context.combination, Private)
        releases = sum(bool(one.clients) for one in record.rounds)
        epsilon = private.epsilon(releases) if releases else 0.0
        record.private = Released(found.noise, epsilon, private.delta)
        return found.draws

    def unsettled(self) -> list[str]:
        """A doubt if the algorithm has not converged, or if its time was over; else none."""
        record = self.context.record
        if record.stopped:
            return [f"not converged: {record.stopped}"]
        if record.converged is not False or "change" not in record.latest:
            return []
        if record.blocked:
            return [f"not converged after {len(record.figures)} rounds, and more rounds do not help"]  # why: the others
        last = f"the last change was {record.latest['change']:.3g}"
        return [f"not converged after {len(record.figures)} rounds: {last}; run more rounds"]

    def absent(self) -> list[str]:
        """A doubt if clients with rows worked in no round, so that their rows are not in the answer; else none.

        It is not raised for pooled data, for agents, which always use their own rows, for a run that starts from
        the sites of an earlier one, and for a run that was cut short, which has a doubt of its own. Nor is it raised
        after a few rounds, unless the run has come to rest.
        """
        context, record = self.context, self.context.record
        if isinstance(self.algorithm, Pooled) or context.graph is not None or context.start is not None or self._cut:
            return []
        took = {client for one in record.rounds for client in one.clients}
        failed = {client for one in record.rounds for client, _ in one.failures}  # the record reports these
        rows = context.federation.row_counts.tolist()
        left = [name for k, name in enumerate(context.federation.client_names) if rows[k] and k not in took | failed]
        asked = sum(len(one.clients) for one in record.rounds)
        if not left or (record.converged is not True and asked < ENOUGH_PASSES * len(rows)):
            return []
        return [
            f"clients {listed(left)} took part in no round: this is the posterior without their rows. Take more "
            "rounds, or a schedule that reaches all clients"
        ]

    def judged(self, shared: State, draws: Tensor) -> None:
        """Judge the result, within the time that is left, and unless the user interrupts.

        If the checks are cut short, or one of them fails, the result of the rounds is kept, and a doubt says so.
        """
        record, budget = self.context.record, self.context.budget
        try:
            with budget.of_checks():
                self.judge(shared, draws)
            return
        except PyroFedError:
            raise
        except KeyboardInterrupt as stop:
            if is_time(stop):
                why = f"they took longer than the run's rounds were given, max_seconds={budget.max_seconds:g}"
                budget.ended = budget.ended or f"max_seconds={budget.max_seconds:g}"
            else:
                record.interrupted, why = True, "they were interrupted"
            left = "as the rounds left it"
        except Exception as error:  # of any kind: an answer that has cost a run is returned, with what failed said
            logger.exception("a check of a run's result has failed")
            where = traceback.extract_tb(error.__traceback__)[-1]
            line, place = str(error).partition("\n")[0][:200], f"{Path(where.filename).name}, line {where.lineno}"
            why = f"one ended in {type(error).__name__} ({line}; {place})"
            left = "as the rounds left it, and unjudged; the log has the traceback"
        record.audited = False
        record.doubts.append(f"not all checks were made: {why}. The result is {left}")

    def judge(self, shared: State, draws: Tensor) -> None:
        """Add doubts and notes about the result to the record.

        They come from the algorithm, from the integrals over rows' latents, from the messages, and, with `audit`, from
        the clients' sites, the network's inputs and the model's densities at the draws.
        """
        context, record = self.context, self.context.record
        own = self.algorithm.warnings(record, context.problem)
        said = any(sentence.startswith("not converged") for sentence in own)  # by the algorithm, with its reason
        unsettled = self.unsettled() if not said or record.stopped else []
        inaccurate = integration_notes(context.problem, draws.flatten(0, 1)) if context.problem.local_dim else []
        record.doubts += [*without_spread(context.problem, draws), *own, *unsettled, *inaccurate]
        record.of_density = bool(inaccurate)
        record.notes += record.bounded()
        if isinstance(context.combination, Bounded):
            few = context.combination.doubt(context.federation.num_clients)
            record.notes += [few] if few else []
        absent = self.absent()
        record.doubts += absent
        if unlike := record.unlike():
            record.doubts.append(f"{unlike}. This is not the posterior of all rows")
        if not self.audit:
            return
        if not absent:  # a client that has not worked has no site for the others to be compared with
            self._say_who_stands_apart(draws)
        if context.federation.holds_data:
            far = out_of_range(context.problem, context.seed)
            record.notes += far or of_no_use(context.problem, draws.flatten(0, 1))
        if context.combination is not None:
            return  # the result of a combination is not meant to be the posterior of all rows
        if not context.federation.holds_data:
            evidence = Evidence(
                self.algorithm, context.federation, context.problem, shared, draws, record, context.seed
            )
            record.notes += judge_by_sums(evidence, context.executor)
        elif unaudited := INACCURATE if inaccurate else not_audited(context.problem):
            record.notes.append(unaudited)
        else:
            self._judge_by_densities(shared, draws, own, unsettled)

    def _judge_by_densities(self, shared: State, draws: Tensor, own: list[str], unsettled: list[str]) -> None:
        """The audit: add the doubts that the model's densities at the draws raise.

        Args:
            shared: the server's last state.
            draws: (chain, draw, D).
            own: the algorithm's own doubts, which the record has already.
            unsettled: doubts about convergence, which the record has already. Those of a `Provisional` algorithm are
                taken back if the audit finds the result right.
        """
        context, record = self.context, self.context.record
        record.audited = True
        self.evidence = evidence = Evidence(
            self.algorithm, context.federation, context.problem, shared, draws, record, context.seed, self.aim
        )
        computed = of_density(evidence)
        record.doubts += computed or of_draws(evidence)
        record.of_density = record.of_density or bool(computed)
        if isinstance(self.algorithm, Provisional):
            against = {self.algorithm.provisional(record), *([] if record.stopped else unsettled)} - {""}
            if against and record.doubts == [*own, *unsettled] and found_right(evidence):
                record.doubts = [other for other in record.doubts if other not in against]
        record.measured = evidence.measured

    def weigh(self, draws: Tensor) -> None:
        """Add what follows from how a judged result was asked for, and notes on errors that are near their limits."""
        record = self.context.record
        record.notes += [] if record.doubts else _untold_evidence(record)
        if not self.audit:
            return
        record.doubts = [*record.doubts, *asked(self.algorithm, draws)]
        if record.audited and not record.doubts and self.evidence:
            record.doubts = at_limit(self.evidence)
        if record.audited and not record.doubts:
            evidence = self._evidence_of(draws)
            record.notes += _untold(evidence) + as_numbers(evidence)
            record.notes += reported_without_variance(evidence.problem, draws.flatten(0, 1))
        if not record.doubts:
            record.notes += close_call(record.measured) or (missed_aim(record.measured, self.aim) if self.aim else [])

    def _evidence_of(self, draws: Tensor) -> Evidence:
        """The evidence of the audit; of an answer of a plan, which was audited elsewhere, evidence made anew."""
        context, record = self.context, self.context.record
        return self.evidence or Evidence(
            self.algorithm, context.federation, context.problem, {}, draws, record, context.seed
        )

    def _say_who_stands_apart(self, draws: Tensor) -> None:
        """Add a note on clients that move the answer more than others do; the user decides what it means."""
        record, problem = self.context.record, self.context.problem
        record.notes += record.apart_from_cohort()
        labels = [problem.name_of(number) for number in range(problem.dim)]
        sites = record.sites or self._asked_of_clients(draws)
        record.stands_apart = who_stands_apart(sites, record.client_names, labels)
        rows = self.context.federation.row_counts
        odd = who_stands_apart(sites, record.client_names, labels, rows) if record.stands_apart else ""
        for name, said in self._say_the_opposite(sites).items():
            odd, record.stands_apart = (_with_client(text, name, said) for text in (odd, record.stands_apart))
        own = record.sites_of == type(self.algorithm).__name__
        silent = record.restless() and not record.stands_apart
        if self.context.combination is None and (silent or not own):
            record.notes += record.movers()
        if odd and self.context.federation.holds_data and by_the_outcome(self.context.federation, problem):
            odd = ""  # whoever dealt out the rows by their outcome knows that clients differ: `stands_apart` has it
        record.odd_clients = f"{odd}: see pf.influence. {WHY_APART}" if odd else ""

    def _say_the_opposite(self, sites: State) -> dict[str, str]:
        """Clients whose rows say the opposite of the others', by name, with a clause on each."""
        context, problem = self.context, self.context.problem
        tempered = getattr(self.algorithm, "temperature", 1.0) != 1  # sites are then not those of the likelihoods
        whole = sites and context.federation.holds_data and context.combination is None and not tempered
        if not whole or is_large(problem) or not_audited(problem):
            return {}

        def log_lik(client: int, points: Tensor) -> Tensor:
            return log_likelihoods_of(context.federation, client, points.to(problem.dtype))

        generator = seeding.torch_generator(context.seed, seeding.AUDIT, 8)
        found = mirrored(gaussian(sites, "q_"), gaussian(sites), context.federation.row_counts, log_lik, generator)
        names = {k: context.record.client_names[k] for k in found}
        return {
            names[k]: f"the rows of client {names[k]} are e^{ratio:.1f} times as likely under the opposite of what the "
            "others say"
            for k, ratio in found.items()
        }

    def _asked_of_clients(self, draws: Tensor) -> State:
        """The clients' sites at the draws, for algorithms that keep none; empty where they cannot be computed."""
        federation, problem = self.context.federation, self.context.problem
        several = not isinstance(self.algorithm, Pooled) and federation.num_clients >= FEWEST
        if not several or not federation.holds_data or self.context.combination is not None or not_audited(problem):
            return {}
        if is_large(problem):  # sites would take each row's curvature, which is too expensive
            return {}
        return answer_and_sites(federation, draws.flatten(0, 1))

    def result(self, shared: State, draws: Tensor) -> InferenceData:
        """The draws and the record as InferenceData."""
        context = self.context
        federation, problem = context.federation, context.problem
        stats = self.algorithm.sample_stats(shared, draws) if isinstance(self.algorithm, DrawStats) else {}
        stats = context.record.by_sums.log_density | stats
        if context.record.private is not None:
            return released_alone(self.algorithm, federation, problem, draws, context.record, context.seed)
        if problem.local_dim and self.collect_local and federation.holds_data:
            federation, problem, draws = collected(federation, problem, draws, context.seed, context.record.notes)
        return to_inference_data(
            self.algorithm,
            federation,
            problem,
            draws,
            stats,
            context.record,
            context.seed,
            self.log_likelihood,
            self.collect_local,
        )


def _untold(evidence: Evidence) -> list[str]:
    """A note on numbers with tails so long that the draws do not determine their SDs."""
    if evidence.near is None:
        return []
    return few_draws_tell(evidence.near, evidence.quantities, evidence.draws.flatten(0, 1), lambda: evidence.census)


def _untold_evidence(record: Record) -> list[str]:
    """A note if the evidence is not known, even though the draws may be right."""
    error = record.latest.get("log_evidence_se", 0.0)
    if error <= UNTOLD:
        return []
    many = f"its standard error is {error:.2g} nats" if math.isfinite(error) else "its weights have no mean"
    return [
        f"log_evidence is not known ({many}, by their tail, whose Pareto k is {record.latest['pareto_k']:.2f}): compare"
        " no models by it. More num_proposals or other surrogates may tell it; means and SDs do not depend on that tail"
    ]


def _with_client(text: str, name: str, said: str) -> str:
    """Clauses on clients, with one more on a client unless there is one on it already."""
    return text if f"client {name} " in text else "; ".join(filter(None, [text, said]))


def said_of(result: InferenceData, record: Record) -> InferenceData:
    """The result, after its doubts and notes were given as warnings that point at the user's call of `run`.

    Args:
        result: what the run returns.
        record: its record.

    Raises:
        UserWarning: where the caller has turned warnings into errors. Its attribute `result` keeps the result.
    """
    try:
        for sentence in record.said():
            warn_user(sentence)
    except UserWarning as error:
        error.result = result  # type: ignore[attr-defined]  # of this one warning
        raise
    return result


def without_spread(problem: Problem, draws: Tensor) -> list[str]:
    """A doubt if the draws of a site have an SD that is no finite number; else none.

    Args:
        problem: the model's densities.
        draws: (chain, draw, D), unconstrained.
    """
    few = tuple(leaf[:1] for leaf in problem.rows)
    values = problem.constrain(draws.flatten(0, 1), few)
    names = [
        name
        for name, value in values.items()
        if name in problem.sites and not bool(value.double().std(0, correction=0).isfinite().all())
    ]
    if not names:
        return []
    return [
        f"the SD of {listed(map(repr, names))} is no finite number: draws lie beyond the range of its numbers. Divide "
        "the data by their scale before the model, or narrow the priors"
    ]
