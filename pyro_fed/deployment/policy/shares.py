"""The largest share of one row in what leaves: the dominance rule of statistical disclosure control.

A number Σ_i c_i to which row i contributes c_i discloses row i if |c_i| / Σ_j |c_j| is large (the (1, k) rule;
Hundepool et al. 2012, Statistical Disclosure Control). For log-likelihoods at draws c_i is the row's own one. A
recipe's message is a sum over rows for some algorithms only, and for others a function of such sums. For all of them
c_i is the row's score, the gradient of its log-likelihood at the origin of the unconstrained parameters, parameter by
parameter: there a label that one row alone has, or a covariate far larger than all others, has a large share.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from pyro_fed.algorithm.states import State
from pyro_fed.analysis.predicting.one_round import OneRound
from pyro_fed.analysis.predicting.row_sums import RowSums, RowValues
from pyro_fed.density.compiling.compiler import Compiler
from pyro_fed.density.derivatives.scores import clients_likelihood_scores, clients_log_likelihoods
from pyro_fed.density.fingerprint import label_digests
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.ops.entries import evenly

#: The most draws at which shares of log-likelihoods are computed.
MAX_DRAWS = 64


def largest_share(contributions: Tensor) -> float | None:
    """The largest share of one row in any of P sums over n rows.

    Args:
        contributions: each row's part of each sum, (n, P).

    Returns:
        The share, from 1/n to 1; None if a part is not finite, or all are zero.

    Example:
        >>> largest_share(torch.tensor([[1.0, 0.0], [1.0, 5.0], [2.0, 5.0]]))
        0.5
    """
    parts = contributions.double().abs()
    total = parts.sum(0)
    if not bool(total.isfinite().all()) or not bool((total > 0).any()):
        return None
    return float((parts[:, total > 0] / total[total > 0]).max())


def rows_share(problem: Problem, data: ClientData, draws: Tensor | None = None) -> float | None:
    """The largest share of a row of one client in its scores at the origin, or in log-likelihoods at draws (S, D)."""
    index = data.row_index[0, : int(data.num_rows[0])]
    if not len(index):
        return None
    each = ClientData(data.rows, index[:, None], torch.ones(len(index), dtype=torch.int64))
    eager = replace(problem, compiler=Compiler("loop" if problem.looped else "off"))
    if draws is not None:
        some = draws[evenly(len(draws), MAX_DRAWS)].to(problem.dtype)
        return largest_share(clients_log_likelihoods(eager, some.expand(len(index), *some.shape), each))
    origin = torch.zeros(len(index), 1, problem.dim, dtype=problem.dtype)
    return largest_share(clients_likelihood_scores(eager, origin, each)[:, 0])


def estimand_share(found: RowValues | None) -> float | None:
    """The largest share of a row in an estimand's sums over its group of rows."""
    if found is None:
        return None
    some = found.values[evenly(len(found.values), MAX_DRAWS)]
    shares = []
    for group in set(found.groups):
        own = torch.tensor([one == group for one in found.groups])
        shares.append(largest_share(some[:, :, own].flatten(0, 1).T))
    return None if None in shares else max(filter(None, shares))


def answer_share(question: OneRound, problem: Problem, shared: State, data: ClientData) -> float | None:
    """The largest share of a row of one client in its answer to a question, at the draws that it has received."""
    if isinstance(question, RowSums):
        return estimand_share(question.values_of(problem, shared, data, 0))
    return rows_share(problem, data, shared["draws"][0])


def level_counts(problem: Problem) -> dict[str, int]:
    """The number of rows of each label of the text columns whose labels' hash leaves, by column and label's number."""
    arguments = problem.arguments
    leaves = dict(zip(arguments.names, arguments.leaves, strict=True))
    counts: dict[str, int] = {}
    for name in label_digests(problem):
        codes = torch.as_tensor(leaves[name]).long().flatten()
        each = torch.bincount(codes, minlength=len(arguments.labels[name]))
        counts |= {f"{name} {number}": int(count) for number, count in enumerate(each)}
    return counts
