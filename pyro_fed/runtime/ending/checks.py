"""Every check of a run's result, in the order in which they are made and reported.

A check is a function from the result (`CheckInputs`) to findings. It may look at the findings of the checks before
it, by topic. A new check is a function and an entry in a table.
"""

from __future__ import annotations

from torch import Tensor

from pyro_fed.algorithm.combination import Bounded
from pyro_fed.algorithm.record import Record
from pyro_fed.audit import (
    as_numbers,
    at_limit,
    close_call,
    few_draws_tell,
    found_right,
    missed_aim,
    not_audited,
    of_density,
    of_draws,
    reported_without_variance,
    settings_findings,
)
from pyro_fed.audit.network_inputs import of_no_use, out_of_range
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding, Topic
from pyro_fed.density.problem import Problem
from pyro_fed.runtime.ending.by_sums import judge_by_sums
from pyro_fed.runtime.ending.check_inputs import Check, CheckInputs
from pyro_fed.runtime.ending.collecting import integral_findings
from pyro_fed.runtime.ending.outlying_clients import outlying_client_findings

#: The evidence is not known if the standard error of its logarithm is larger, in nats: a factor of e.
LARGEST_EVIDENCE_ERROR = 1.0
#: A run that has asked as many clients as so many passes over all of them, and never some, has left these out.
ENOUGH_PASSES = 2


def infinite_sds(judged: CheckInputs) -> list[Finding]:
    """SDs of draws that are infinite or NaN."""
    return without_spread(judged.problem, judged.draws)


def without_spread(problem: Problem, draws: Tensor) -> list[Finding]:
    """Sites whose draws (chain, draw, D) have an SD that is infinite or NaN."""
    values = problem.constrain(draws.flatten(0, 1), tuple(leaf[:1] for leaf in problem.rows))
    sds = {name: value.double().std(0, correction=0) for name, value in values.items() if name in problem.sites}
    names = [name for name, sd in sds.items() if not bool(sd.isfinite().all())]
    return [sentences.sds_not_finite(sites=names)] if names else []


def algorithms_own(judged: CheckInputs) -> list[Finding]:
    """The algorithm's own doubts about its answer."""
    return sentences.as_findings(judged.algorithm.warnings(judged.record, judged.problem))


def convergence(judged: CheckInputs) -> list[Finding]:
    """The algorithm has not converged, unless it has said so itself, with its reason; or its time is over."""
    record = judged.record
    own = [one for one in judged.doubts if one.topic is Topic.CONVERGENCE and one.code != sentences.interrupted.code]
    return [] if own and not record.stopped else not_converged(record)


def not_converged(record: Record) -> list[Finding]:
    """The run ended before the algorithm's criterion held."""
    if record.stopped:
        return [sentences.stopped_by_time(stopped=record.stopped)]
    if record.converged is not False or "change" not in record.latest:
        return []
    rounds = len(record.figures)
    if not record.rounds_help:
        return [sentences.not_converged_and_stuck(rounds=rounds)]
    return [sentences.not_converged(rounds=rounds, change=record.latest["change"])]


def integrals(judged: CheckInputs) -> list[Finding]:
    """Integrals over rows' latents that are not accurate at the draws."""
    return integral_findings(judged.problem, judged.draws.flatten(0, 1)) if judged.problem.local_dim else []


def cut_back(judged: CheckInputs) -> list[Finding]:
    """Messages that were shortened to the length of the others'."""
    return judged.record.messages_cut_back()


def small_cohort(judged: CheckInputs) -> list[Finding]:
    """Clients so few that none can be compared with the others."""
    combination = judged.context.combination
    return combination.small_cohort(judged.context.federation.num_clients) if isinstance(combination, Bounded) else []


def absent_clients(judged: CheckInputs) -> list[Finding]:
    """Clients with rows that worked in no round, so that their rows are not in the answer.

    It is not raised for pooled data, for agents, which always use their own rows, for a run that starts from the sites
    of an earlier one, and for a run that was cut short, which has a doubt of its own. Nor is it raised after a few
    rounds, unless the run has settled, or these clients have failed.
    """
    context, record = judged.context, judged.record
    pooled = judged.algorithm.pooled or context.graph is not None or context.start is not None
    if pooled or record.interrupted or record.stopped:
        return []
    took = {client for one in record.rounds for client in one.clients}
    failed = {client for one in record.rounds for client, _ in one.failures}
    rows, names = context.federation.row_counts.tolist(), context.federation.client_names
    left = [k for k in range(len(rows)) if rows[k] and k not in took]
    asked_clients = sum(len(one.clients) for one in record.rounds)
    over = record.converged is True or asked_clients >= ENOUGH_PASSES * len(rows)
    missing = [names[k] for k in left if over or k in failed]
    return [sentences.clients_took_no_part(clients=missing)] if missing else []


def no_cohort(judged: CheckInputs) -> list[Finding]:
    """Clients that differ too much to be compared with each other."""
    return judged.record.clients_are_no_cohort()


def standing_apart(judged: CheckInputs) -> list[Finding]:
    """Clients that move the answer more than others do; a client that has not worked has no site to compare with."""
    absent = any(one.code == sentences.clients_took_no_part.code for one in judged.record.findings)
    return [] if not judged.audit or absent else outlying_client_findings(judged)


def network_inputs(judged: CheckInputs) -> list[Finding]:
    """A network's inputs that are out of range, or without effect."""
    context = judged.context
    if not judged.audit or not context.federation.holds_data:
        return []
    return out_of_range(judged.problem, lambda: judged.evidence.from_prior) or of_no_use(
        judged.problem, judged.draws.flatten(0, 1)
    )


def densities(judged: CheckInputs) -> list[Finding]:
    """Doubts from the model's densities at the draws; if rows are elsewhere, from sums over rows.

    The result of a combination is not meant to be the posterior of all rows, and is not audited.
    """
    record = judged.record
    if not judged.audit or judged.context.combination is not None:
        return []
    if not judged.context.federation.holds_data:
        return judge_by_sums(judged.evidence, judged.context.executor)
    if judged.has(Topic.DENSITY):
        return [sentences.not_audited_by_integrals()]
    if unaudited := not_audited(judged.problem):
        return unaudited
    record.audited = True
    found = of_density(judged.evidence) or of_draws(judged.evidence)
    record.measured = judged.evidence.moment_figures
    return found


#: What is found about a result by itself.
CHECKS: tuple[Check, ...] = (
    infinite_sds,
    algorithms_own,
    convergence,
    integrals,
    cut_back,
    small_cohort,
    absent_clients,
    no_cohort,
    standing_apart,
    network_inputs,
    densities,
)


def refuted_doubts(judged: CheckInputs) -> list[Finding]:
    """An algorithm's own doubts (`Algorithm.provisional`) that no longer count, as the audit finds its answer right."""
    record = judged.record
    by_densities = record.audited and judged.context.federation.holds_data
    if not judged.algorithm.provisional or not by_densities:
        return []
    own, unsettled = algorithms_own(judged), not_converged(record)
    provisional = [one for one in judged.doubts if one.code in judged.algorithm.provisional]
    provisional += [one for one in judged.doubts if one in unsettled and not record.stopped]
    alone = all(one in own or one in unsettled for one in judged.doubts)
    return provisional if provisional and alone and found_right(judged.evidence) else []


def evidence(judged: CheckInputs) -> list[Finding]:
    """Doubts about the evidence, even though the draws may be right."""
    latest = judged.record.latest
    error = latest.get("log_evidence_se", 0.0)
    if judged.doubts or error <= LARGEST_EVIDENCE_ERROR:
        return []
    return [sentences.evidence_not_known(error=error, pareto_k=latest["pareto_k"])]


def settings(judged: CheckInputs) -> list[Finding]:
    """Settings that ask for another posterior, or for too few draws."""
    return settings_findings(judged.algorithm, judged.draws) if judged.audit else []


def sds_at_limit(judged: CheckInputs) -> list[Finding]:
    """An SD that may be too small by more than the limit, in an answer that has just been audited by its densities."""
    seen = bool(judged.shared) and judged.context.federation.holds_data
    return at_limit(judged.evidence) if seen and _audited_and_right(judged) else []


def long_tails(judged: CheckInputs) -> list[Finding]:
    """Numbers whose means and SDs say little, though the draws are right: long tails, and angles."""
    if not _audited_and_right(judged):
        return []
    seen, flat = judged.evidence, judged.draws.flatten(0, 1)
    near, tails = seen.few_rows_target, list[Finding]()
    if near is not None:
        tails = few_draws_tell(near, seen.quantities, flat, lambda: seen.weighted_points)
    return [*tails, *as_numbers(seen), *reported_without_variance(judged.problem, flat)]


def near_limits(judged: CheckInputs) -> list[Finding]:
    """Means and SDs that are near the limits, or miss a plan's aim."""
    if not judged.audit or judged.doubts:
        return []
    measured = judged.record.measured
    return close_call(measured) or (missed_aim(measured, judged.aim) if judged.aim else [])


def _audited_and_right(judged: CheckInputs) -> bool:
    return judged.audit and judged.record.audited and not judged.doubts


#: What is found about an answer that is to be returned: how it was asked for, and how near to the limits it is.
LAST_CHECKS: tuple[Check, ...] = (evidence, settings, sds_at_limit, long_tails, near_limits)
