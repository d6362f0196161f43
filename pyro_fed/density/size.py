"""The cost of a model, and the numbers of clients and draws that a large model processes at once."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from pyro_fed.density.problem import Problem
from pyro_fed.density.traits import LARGE_DIM
from pyro_fed.ops import memory

#: Copies of each parameter and of each intermediate number of a row in a client's step: state, gradient, moments of the
#: gradient and noise. With 10⁵ parameters clients are processed singly, which takes as long as ten at once (0.24 s and
#: 0.23 s for a round of FedEP). With 10⁴ parameters one at a time takes 1.7 times as long, and ten are processed at
#: once.
COPIES_IN_STEP = 8


def clients_at_once(problem: Problem, rows: int) -> int:
    """Number of clients, of at most `rows` rows, whose steps are computed together; unlimited for a small model."""
    if problem.dim <= LARGE_DIM:
        return sys.maxsize
    return memory.count_in_memory(int(COPIES_IN_STEP * (problem.dim + rows * cost_of(problem).numbers)))


@dataclass(frozen=True)
class Cost:
    """The cost of one run of a model with densities."""

    numbers: float  # numbers per row in all intermediate results
    operations: float  # operations on all rows, including all operations of matrix products


def cost_of(problem: Problem) -> Cost:
    """The cost of a run of the model on all rows, from runs on one row and on two rows."""
    one, two = (_run_cost(problem, tuple(leaf[:count] for leaf in problem.rows)) for count in (1, 2))
    row = tuple(max(0.0, increment - base) for increment, base in zip(two, one, strict=True))
    count = problem.evaluations
    return Cost(row[0], sum(base + (count - 1) * increment for base, increment in zip(one, row, strict=True)))


def numbers_of_row(problem: Problem) -> int:
    """Numbers in all results of a run on one row, with those that all rows share, such as a covariance."""
    return int(_run_cost(problem, tuple(leaf[:1] for leaf in problem.rows))[0])


def _run_cost(problem: Problem, rows: tuple[Tensor, ...]) -> tuple[float, float]:
    """Numbers in the results of a run, and operations of its matrix products."""
    z = torch.zeros(problem.dim, dtype=problem.dtype, device=rows[0].device)
    counter = _Numbers()
    with torch.no_grad(), FlopCounterMode(display=False) as flops, counter:
        problem.log_parts(z, rows)
    return float(counter.count), float(flops.get_total_flops())


class _Numbers(TorchDispatchMode):
    """Counts the numbers in the results of operations."""

    def __init__(self) -> None:
        untyped: Any = super()
        untyped.__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.count += sum(leaf.numel() for leaf in pytree.tree_leaves(out) if isinstance(leaf, Tensor))
        return out


def densities_at_once(problem: Problem) -> int:
    """Densities per draw for `in_chunks`: the number of rows, or more for a large model, by its memory."""
    if problem.dim <= LARGE_DIM:
        return problem.evaluations
    in_step = cost_of(problem).numbers * memory.RESULT_NUMBERS / memory.STEP_NUMBERS
    return int(problem.evaluations * max(1.0, in_step / memory.DENSITY_NUMBERS))
