"""The audit of a result whose rows are elsewhere: the server sends draws, each client answers with a number for each.

This takes one more exchange, of S × D numbers down and S up: log p_k(z_s), summed over the client's rows. The log
density of the draws follows from it; and where the density of the approximation is known, so do importance weights
(`audit.weights`). The rest of the audit is not made: its chains would need the gradients of all rows at hundreds of
points, each of which depends on the one before.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_fed.algorithm.record import BySums
from pyro_fed.algorithm.states import State
from pyro_fed.audit import Evidence
from pyro_fed.audit.weights import judged_by_weights
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.density.rows.batches import in_chunks
from pyro_fed.density.traits import LARGE_DIM
from pyro_fed.errors import StoppedError
from pyro_fed.ops.entries import evenly
from pyro_fed.runtime.executors import Executor, Work
from pyro_fed.runtime.executors.base import LOG_LIK, MOST_DRAWS


def judge_by_sums(evidence: Evidence, executor: Executor) -> list[Finding]:
    """Judge a result by the clients' log-likelihoods at its draws; a note says why if that is not possible.

    Figures are added to its record.
    """
    record, problem, flat = evidence.record, evidence.problem, evidence.draws.flatten(0, 1)
    if problem.dim > LARGE_DIM:
        return [sentences.not_audited_by_sums(why=f"importance weights of {problem.dim:,} parameters say nothing")]
    points = flat[evenly(len(flat), MOST_DRAWS)]
    try:
        log_lik = _pooled_log_lik(executor, points, evidence)
    except StoppedError as error:
        return [sentences.not_audited_by_sums(why=str(error))]
    if not bool(log_lik.isfinite().all()):
        return [sentences.not_audited_by_sums(why="a client's log-likelihood is not a number at one of the draws")]
    log_prior = torch.cat([problem.log_prior(piece).double() for piece in in_chunks(points, 1)])
    if len(points) == len(flat):
        record.by_sums = BySums({"lp": (log_prior + log_lik).reshape(evidence.draws.shape[:2])})
    return judged_by_weights(evidence, points, log_prior + log_lik / evidence.temperature)


def _pooled_log_lik(executor: Executor, points: Tensor, evidence: Evidence) -> Tensor:
    """Σ_k log p_k at points (S, D): (S,), float64."""
    clients = list(range(evidence.federation.num_clients))
    draws = points.expand(len(clients), *points.shape)
    received: State = {"draws": draws}
    work = Work(len(evidence.record.rounds), evidence.seed, clients, received)
    return executor.ask(LOG_LIK, work)[LOG_LIK].double().sum(0)
