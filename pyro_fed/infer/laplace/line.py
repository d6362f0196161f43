"""Log-likelihoods along a line: at all steps of a line search at once, over as many rows at a time as memory allows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import BATCHES, CHUNK, Batch, ClientData
from pyro_fed.density.rows.nested import NestedRows
from pyro_fed.infer.sites.rowwise import pieces


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


def _values(problem: Problem, line: Tensor, batch: Batch) -> Tensor:
    values: Tensor = problem.vmap(lambda z: problem.log_lik(z, batch))(line)
    return values


def _add(
    problem: Problem, total: Tensor, const: tuple[Any, Tensor], piece: tuple[Tensor, Tensor]
) -> tuple[Tensor, Any]:
    rows, line = const
    index, weight = piece
    return total + _values(problem, line, Batch(tuple(leaf[index] for leaf in rows), weight)).double(), ()
