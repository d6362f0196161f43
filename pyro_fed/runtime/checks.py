"""All checks of a run's result, in the order in which they are made and reported.

A check is a function from the result (`CheckInputs`) to findings. It may use the findings of earlier checks, by topic.
A new check is a function and an entry in a table.

If the rows are on other machines, the server sends S draws, and each client replies with log p_k(z_s), summed over its
rows. These sums give the log density of the draws, and importance weights if the approximation's density is known.
Chains would need the gradients of all rows at hundreds of points in sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pyro_fed.algorithm.combination import MIN_COHORT, Bounded
from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.record import BySums, Record
from pyro_fed.algorithm.states import State
from pyro_fed.audit import (
    Evidence,
    angle_notes,
    density_findings,
    draw_findings,
    infinite_variance_findings,
    is_confirmed_right,
    missed_aim_findings,
    near_limit_findings,
    not_audited,
    own_aim_findings,
    sd_at_limit_findings,
    settings_findings,
    undetermined_sd_findings,
)
from pyro_fed.audit.client_sites import answer_and_sites, log_likelihoods_of
from pyro_fed.audit.influence import StandingApart, follows_outcome, who_stands_apart
from pyro_fed.audit.mirrored_clients import mirrored_clients
from pyro_fed.audit.network_inputs import range_findings, useless_input_findings
from pyro_fed.audit.weights import weight_findings
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding, Topic, doubts_among, is_about
from pyro_fed.conventions import seeding
from pyro_fed.conventions.limits import Limits
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import in_chunks
from pyro_fed.errors import StoppedError
from pyro_fed.infer.sites.gaussian_sites import gaussian
from pyro_fed.ops.entries import evenly
from pyro_fed.runtime.context import Context
from pyro_fed.runtime.executors import Executor, Work
from pyro_fed.runtime.executors.base import LOG_LIK, MAX_ASKED_DRAWS
from pyro_fed.runtime.integral_checks import integral_findings

#: Largest standard error of the log evidence for which it counts as known, in nats: a factor of e.
LARGEST_EVIDENCE_ERROR = 1.0
#: Codes of notes on parameters without an SD.
WITHOUT_SD = frozenset((sentences.no_variance.code, sentences.no_variance_of_draws.code))
#: Number of passes over all clients after which clients that were never asked count as left out.
PASSES_WITHOUT_A_CLIENT = 2


@dataclass(frozen=True)
class CheckInputs:
    """The inputs of the checks of a result."""

    algorithm: Algorithm
    context: Context
    shared: State
    draws: Tensor
    audit: bool
    aim: Limits | None = None

    @property
    def record(self) -> Record:
        """The run's record."""
        return self.context.record

    @property
    def problem(self) -> Problem:
        """The model's densities."""
        return self.context.problem

    @cached_property
    def evidence(self) -> Evidence:
        """The input of the audit."""
        context = self.context
        return Evidence(
            self.algorithm,
            context.federation,
            context.problem,
            self.shared,
            self.draws,
            context.record,
            context.seed,
            self.aim,
        )

    @property
    def doubts(self) -> list[Finding]:
        """The findings so far that are reasons not to trust the result."""
        return doubts_among(self.record.findings)

    def has(self, topic: Topic) -> bool:
        """Whether there is a finding about a topic."""
        return is_about(self.record.findings, topic)


#: A function from a result to its findings, which may be empty.
Check = Callable[[CheckInputs], list[Finding]]


def infinite_sds(judged: CheckInputs) -> list[Finding]:
    """Doubts about infinite or NaN SDs of the draws."""
    return without_spread(judged.problem, judged.draws)


def without_spread(problem: Problem, draws: Tensor) -> list[Finding]:
    """Sites whose draws (chain, draw, D) have an SD that is infinite or NaN."""
    values = problem.constrain(draws.flatten(0, 1), tuple(leaf[:1] for leaf in problem.rows))
    sds = {name: value.double().std(0, correction=0) for name, value in values.items() if name in problem.sites}
    names = [name for name, sd in sds.items() if not bool(sd.isfinite().all())]
    return [sentences.sds_not_finite(sites=names)] if names else []


def algorithms_own(judged: CheckInputs) -> list[Finding]:
    """The algorithm's own doubts about its result."""
    return sentences.as_findings(judged.algorithm.warnings(judged.record, judged.problem))


def convergence(judged: CheckInputs) -> list[Finding]:
    """Doubts about convergence, unless the algorithm has reported them itself, or about the time limit."""
    record = judged.record
    own = [one for one in judged.doubts if one.topic is Topic.CONVERGENCE and one.code != sentences.interrupted.code]
    return [] if own and not record.stopped else not_converged(record)


def not_converged(record: Record) -> list[Finding]:
    """A doubt if the run ended before the algorithm's criterion was met."""
    if record.stopped:
        return [sentences.stopped_by_time(stopped=record.stopped)]
    if record.converged is not False or "change" not in record.latest:
        return []
    rounds = len(record.figures)
    if not record.rounds_help:
        return [sentences.not_converged_and_stuck(rounds=rounds)]
    return [sentences.not_converged(rounds=rounds, change=record.latest["change"])]


def integrals(judged: CheckInputs) -> list[Finding]:
    """Doubts about the accuracy of integrals over rows' latents at the draws."""
    return integral_findings(judged.problem, judged.draws.flatten(0, 1))


def cut_back(judged: CheckInputs) -> list[Finding]:
    """Notes on messages that were limited relative to the others'."""
    return judged.record.messages_cut_back()


def small_cohort(judged: CheckInputs) -> list[Finding]:
    """A note that there are too few clients for a comparison."""
    combination = judged.context.combination
    return combination.small_cohort(judged.context.federation.num_clients) if isinstance(combination, Bounded) else []


def absent_clients(judged: CheckInputs) -> list[Finding]:
    """Clients with rows that worked in no round, though the run has settled, had enough rounds, or they have failed."""
    context, record = judged.context, judged.record
    # Agents use their own rows, clients of an earlier run have sites, and a run that was cut short has its own doubt.
    pooled = judged.algorithm.pooled or context.graph is not None or context.start is not None
    if pooled or record.interrupted or record.stopped:
        return []
    took = {client for one in record.rounds for client in one.clients}
    failed = {client for one in record.rounds for client, _ in one.failures}
    rows, names = context.federation.row_counts.tolist(), context.federation.client_names
    left = [k for k in range(len(rows)) if rows[k] and k not in took]
    asked_clients = sum(len(one.clients) for one in record.rounds)
    over = record.converged is True or asked_clients >= PASSES_WITHOUT_A_CLIENT * len(rows)
    missing = [names[k] for k in left if over or k in failed]
    return [sentences.clients_took_no_part(clients=missing)] if missing else []


def no_cohort(judged: CheckInputs) -> list[Finding]:
    """Doubts about clients that differ too much for limits relative to each other."""
    return judged.record.clients_are_no_cohort()


def outlying_clients(judged: CheckInputs) -> list[Finding]:
    """Doubts about clients that move the result more than others do; the record gets a sentence on all of them."""
    record, context, problem = judged.record, judged.context, judged.problem
    absent = any(one.code == sentences.clients_took_no_part.code for one in record.findings)
    if not judged.audit or absent:  # a client that has not worked has no site to compare
        return []
    labels = [problem.name_of(number) for number in range(problem.dim)]
    sites = record.sites or _sites_at_draws(judged)
    every = who_stands_apart(sites, record.client_names, labels)
    odd = who_stands_apart(sites, record.client_names, labels, context.federation.row_counts) if every.text else every
    for name, clause in _contradicting_clients(judged, sites).items():
        odd, every = (one.with_client(name, clause) for one in (odd, every))
    record.stands_apart = every.text
    found = record.messages_stand_apart()
    own = record.sites_of == type(judged.algorithm).__name__
    if context.combination is None and ((record.restless() and not every.text) or not own):
        found += record.clients_move_the_answer()
    if context.federation.holds_data and follows_outcome(context.federation, problem):
        odd = StandingApart()  # clients differ as expected if rows were partitioned by their outcome
    return [*found, *([sentences.clients_stand_apart(clients=list(odd.clauses), said=odd.text)] if odd.text else [])]


def _contradicting_clients(judged: CheckInputs, sites: State) -> dict[str, str]:
    """Clients whose rows contradict the others', by name, with a clause for each."""
    context, problem = judged.context, judged.problem
    tempered = getattr(judged.algorithm, "temperature", 1.0) != 1  # sites are then not those of the likelihoods
    whole = sites and context.federation.holds_data and context.combination is None and not tempered
    if not whole or problem.traits.large():  # sites need the curvature of each row
        return {}

    def log_lik(client: int, points: Tensor) -> Tensor:
        return log_likelihoods_of(context.federation, client, points.to(problem.dtype))

    generator = seeding.torch_generator(context.seed, seeding.AUDIT, 8)
    found = mirrored_clients(gaussian(sites, "q_"), gaussian(sites), context.federation.row_counts, log_lik, generator)
    names = {k: context.record.client_names[k] for k in found}
    return {
        names[k]: f"the rows of client {names[k]} are e^{ratio:.1f} times as likely under the opposite of what the "
        "others say"
        for k, ratio in found.items()
    }


def _sites_at_draws(judged: CheckInputs) -> State:
    """The clients' sites at the draws, for algorithms without sites; empty if they cannot be computed."""
    context, federation, problem = judged.context, judged.context.federation, judged.problem
    several = not judged.algorithm.pooled and federation.num_clients >= MIN_COHORT
    if not several or not federation.holds_data or context.combination is not None or problem.traits.large():
        return {}
    return answer_and_sites(federation, judged.draws.flatten(0, 1))


def network_inputs(judged: CheckInputs) -> list[Finding]:
    """Doubts about a network's inputs that are out of range or without effect."""
    context = judged.context
    if not judged.audit or not context.federation.holds_data:
        return []
    return range_findings(judged.problem, lambda: judged.evidence.from_prior) or useless_input_findings(
        judged.problem, judged.draws.flatten(0, 1)
    )


def judge_by_sums(evidence: Evidence, executor: Executor) -> list[Finding]:
    """Doubts from the clients' log-likelihoods at the draws, or a note why these cannot be requested."""
    record, problem, flat = evidence.record, evidence.problem, evidence.draws.flatten(0, 1)
    if problem.traits.many_parameters:
        return [sentences.not_audited_by_sums(why=f"importance weights of {problem.dim:,} parameters say nothing")]
    points = flat[evenly(len(flat), MAX_ASKED_DRAWS)]
    try:
        everyone = list(range(evidence.federation.num_clients))
        work = Work(len(record.rounds), evidence.seed, everyone, {"draws": points.expand(len(everyone), *points.shape)})
        log_lik = executor.ask(LOG_LIK, work)[LOG_LIK].double().sum(0)
    except StoppedError as error:
        return [sentences.not_audited_by_sums(why=str(error))]
    if not bool(log_lik.isfinite().all()):
        return [sentences.not_audited_by_sums(why="a client's log-likelihood is not a number at one of the draws")]
    log_prior = torch.cat([problem.log_prior(piece).double() for piece in in_chunks(points, 1)])
    if len(points) == len(flat):
        record.by_sums = BySums({"lp": (log_prior + log_lik).reshape(evidence.draws.shape[:2])})
    return weight_findings(evidence, points, log_prior + log_lik / evidence.temperature)


def densities(judged: CheckInputs) -> list[Finding]:
    """Doubts from the model's densities at the draws; if rows are elsewhere, from sums over rows."""
    record = judged.record
    if not judged.audit or judged.context.combination is not None:  # the result is not the posterior of all rows
        return []
    if not judged.context.federation.holds_data:
        return judge_by_sums(judged.evidence, judged.context.executor)
    if judged.has(Topic.DENSITY):
        return [sentences.not_audited_by_integrals()]
    unaudited = not_audited(judged.problem)
    if unaudited:
        return unaudited
    record.audited = True
    found = density_findings(judged.evidence) or draw_findings(judged.evidence)
    record.measured = judged.evidence.moment_figures
    return found


#: Checks of every result.
CHECKS: tuple[Check, ...] = (
    infinite_sds,
    algorithms_own,
    convergence,
    integrals,
    cut_back,
    small_cohort,
    absent_clients,
    no_cohort,
    outlying_clients,
    network_inputs,
    densities,
)


def refuted_doubts(judged: CheckInputs) -> list[Finding]:
    """An algorithm's own doubts (`Algorithm.provisional`) that are withdrawn, because the audit confirms the result."""
    record = judged.record
    by_densities = record.audited and judged.context.federation.holds_data
    if not judged.algorithm.provisional or not by_densities:
        return []
    own, unsettled = algorithms_own(judged), not_converged(record)
    provisional = [one for one in judged.doubts if one.code in judged.algorithm.provisional]
    provisional += [one for one in judged.doubts if one in unsettled and not record.stopped]
    alone = all(one in own or one in unsettled for one in judged.doubts)
    return provisional if provisional and alone and is_confirmed_right(judged.evidence) else []


def evidence(judged: CheckInputs) -> list[Finding]:
    """Doubts about the evidence; the draws may be accurate nevertheless."""
    latest = judged.record.latest
    error = latest.get("log_evidence_se", 0.0)
    if judged.doubts or error <= LARGEST_EVIDENCE_ERROR:
        return []
    return [sentences.evidence_not_known(error=error, pareto_k=latest["pareto_k"])]


def settings(judged: CheckInputs) -> list[Finding]:
    """Notes on settings that change the posterior, or request too few draws."""
    return settings_findings(judged.algorithm, judged.draws) if judged.audit else []


def sds_at_limit(judged: CheckInputs) -> list[Finding]:
    """Doubts about an SD that may be too small by more than the limit, in a result that was audited."""
    seen = bool(judged.shared) and judged.context.federation.holds_data
    return sd_at_limit_findings(judged.evidence) if seen and _audited_and_right(judged) else []


def long_tails(judged: CheckInputs) -> list[Finding]:
    """Notes on parameters whose means and SDs are poor summaries: long tails, and angles."""
    if not _audited_and_right(judged):
        return []
    seen, flat = judged.evidence, judged.draws.flatten(0, 1)
    near, tails = seen.few_rows_target, list[Finding]()
    if near is not None:
        tails = undetermined_sd_findings(near, seen.quantities, flat, lambda: seen.weighted_points, judged.aim)
    return [*tails, *angle_notes(seen), *infinite_variance_findings(judged.problem, flat)]


def near_limits(judged: CheckInputs) -> list[Finding]:
    """Notes on means and SDs that are near the limits, or miss a plan's target."""
    if not judged.audit or judged.doubts:
        return []
    measured, aim = judged.record.measured, judged.aim
    if aim is None:
        return near_limit_findings(measured)
    return near_limit_findings(measured) or missed_aim_findings(measured, aim) or own_aim_missed(judged)


def own_aim_missed(judged: CheckInputs) -> list[Finding]:
    """A note that the algorithm's own estimates of its errors miss the plan's target."""
    if judged.aim is None:
        return []
    found = own_aim_findings(judged.algorithm.own_errors(judged.record.latest), judged.aim)
    # The estimates cover all parameters, of which one may have no SD.
    return [] if found and any(one.code in WITHOUT_SD for one in long_tails(judged)) else found


def _audited_and_right(judged: CheckInputs) -> bool:
    return judged.audit and judged.record.audited and not judged.doubts


#: Checks of a result that will be returned: its settings, and its distance from the limits.
LAST_CHECKS: tuple[Check, ...] = (evidence, settings, sds_at_limit, long_tails, near_limits)
