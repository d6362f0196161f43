"""Log-likelihoods along a line: at all steps of a line search at once, over as many rows at a time as memory allows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_fed.algorithm.bounding import HALF, descending, median_of, relative_rows
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import BATCHES, CHUNK, Batch, ClientData
from pyro_fed.density.rows.nested import NestedRows
from pyro_fed.infer.sites.rowwise import pieces
from pyro_fed.ops.gaussian import Gaussian


def line_values(problem: Problem, line: Tensor, data: ClientData) -> Tensor:
    """Log-likelihoods (C, L), float64, of C clients at L points each.

    Args:
        problem: the model's densities.
        line: (C, L, D), in the problem's dtype.
        data: the clients' rows.
    """
    clients, length = line.shape[:2]
    longest = data.row_index.shape[-1]
    at_once = max(1, CHUNK // (clients * length * problem.num_nodes))
    if longest <= at_once or any(isinstance(leaf, NestedRows) for leaf in data.rows):
        whole: Tensor = problem.mapped(_values, (0, BATCHES))(line, data.full_batch()).double()
        return whole
    start = torch.zeros(clients, length, dtype=torch.float64, device=line.device)
    index, weight = pieces(data, at_once)
    total, _ = problem.scan(_add, start, (data.rows, line), (index, weight), len(index), (None, 0))
    found: Tensor = total
    return found


def held_values(
    sites: Gaussian, point: Tensor, line: Tensor, values: Tensor, pull: float, rows: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Values on a line, (K, L), held to what the clients' sites say of them and the cohort's own departures from that.

    Sites are quadratics, so that honest values depart from them by terms of third order, which are alike in size, row
    for row. No client's level counts, which nothing could check: all are put at the median one.

    Args:
        sites: within their limits, (K,).
        point: where they were taken, (D,).
        line: the points' differences from it, (L, D), followed by that of the present point, (L + 1, D).
        values: as sent, of the points, (K, L); the one nearest to the present point is the last in `line` again.
        pull: departures beyond so many SDs of the cohort's are cut.
        rows: of each client, (K,); None: as many.

    Returns:
        values (K, L), and their sum at the present point.
    """
    score, still = sites.score(point.expand_as(sites.eta)), torch.zeros_like(sites.eta)
    turned = torch.stack([type(sites)(sites.precision, still).score(each.expand_as(still)) for each in line], 1)
    expected = score @ line.T + 0.5 * (turned * line).sum(-1)
    here = int((line[:-1] - line[-1]).abs().amax(-1).argmin())
    expected = expected[:, :-1] - expected[:, here : here + 1]
    level = values[:, here : here + 1]
    apart = values - level - expected
    share = relative_rows(values.new_ones(len(values)) if rows is None else rows.to(values))
    known = median_of(apart.abs() / share.unsqueeze(-1), share) / HALF
    reach = pull * share.clamp_min(1.0).sqrt().unsqueeze(-1) * known
    usual = level.median()
    fits = apart.abs() <= reach
    return usual + expected + torch.where(fits, apart, descending(apart, reach)), len(values) * usual


def _values(problem: Problem, line: Tensor, batch: Batch) -> Tensor:
    values: Tensor = problem.vmap(lambda z: problem.log_lik(z, batch))(line)
    return values


def _add(
    problem: Problem, total: Tensor, const: tuple[Any, Tensor], piece: tuple[Tensor, Tensor]
) -> tuple[Tensor, Any]:
    rows, line = const
    index, weight = piece
    return total + _values(problem, line, Batch(tuple(leaf[index] for leaf in rows), weight)).double(), ()
