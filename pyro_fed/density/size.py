"""The cost of a model, and the clients and draws that a large one may take at once."""

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

#: Numbers that a client's step holds of each parameter and of each number that a row makes: state, gradient, moments of
#: the gradient and noise. With 10⁵ parameters it is one client at a time, which takes as long as ten at once (0.24 s
#: and 0.23 a round of FedEP); with 10⁴, one at a time takes 1.7 times as long, and it is all ten.
COPIES_IN_STEP = 8


def clients_at_once(problem: Problem, rows: int) -> int:
    """Number of clients whose steps may be computed together, with at most `rows` each; unlimited for a small model."""
    if problem.dim <= LARGE_DIM:
        return sys.maxsize
    return memory.count_in_memory(int(COPIES_IN_STEP * (problem.dim + rows * cost_of(problem).numbers)))


@dataclass(frozen=True)
class Cost:
    """The cost of one run of a model with densities."""

    numbers: float  # made by each row, in all intermediate results
    operations: float  # of all rows, matrix products counted in full


def cost_of(problem: Problem) -> Cost:
    """The cost of a run of the model on all rows, from runs on one row and on two."""
    one, two = (_run_cost(problem, tuple(leaf[:count] for leaf in problem.rows)) for count in (1, 2))
    row = tuple(max(0.0, more - less) for more, less in zip(two, one, strict=True))
    count = problem.evaluations
    return Cost(row[0], sum(less + (count - 1) * more for less, more in zip(one, row, strict=True)))


def _run_cost(problem: Problem, rows: tuple[Tensor, ...]) -> tuple[float, float]:
    """Numbers that a run makes, and operations of its matrix products."""
    z = torch.zeros(problem.dim, dtype=problem.dtype, device=rows[0].device)
    counter = _Numbers()
    with torch.no_grad(), FlopCounterMode(display=False) as flops, counter:
        problem.log_parts(z, rows)
    return float(counter.made), float(flops.get_total_flops())


class _Numbers(TorchDispatchMode):
    """Counts the numbers in the results of operations."""

    def __init__(self) -> None:
        untyped: Any = super()
        untyped.__init__()
        self.made = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.made += sum(leaf.numel() for leaf in pytree.tree_leaves(out) if isinstance(leaf, Tensor))
        return out


def densities_at_once(problem: Problem) -> int:
    """Densities that `in_chunks` counts a draw as: the rows, or for a large model as many as fit into its memory."""
    if problem.dim <= LARGE_DIM:
        return problem.evaluations
    in_step = cost_of(problem).numbers * memory.RESULT_NUMBERS / memory.STEP_NUMBERS
    return int(problem.evaluations * max(1.0, in_step / memory.DENSITY_NUMBERS))
