"""How large a model is, and what it may take at once: the thresholds at which defaults for networks begin.

Up to `LARGE_DIM` parameters, algorithms compute curvatures of single rows and expectations at many points, which is
exact and costs rows × parameters × points. Beyond, that costs more than a whole run of stochastic gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import CHUNK

#: Models with more parameters than this are large.
LARGE_DIM = 1000
#: So are those whose curvature is diagonal, and of which a round takes more than so many numbers: rows × parameters ×
#: points, about ten seconds a round.
LARGE_WORK = 2_000_000_000
#: Numbers that all draws of a large model may have together: 160 MB in double precision.
DRAWN_NUMBERS = 20_000_000
#: Numbers that a run of a large model on several draws may make at once.
WORKED_NUMBERS = 50_000_000
#: Draws that a result has at least.
FEWEST_DRAWS = 10


def is_large(problem: Problem, points: int = 1, exact_dim: int = LARGE_DIM) -> bool:
    """Whether a model is too large for curvatures row by row.

    Args:
        problem: the model's densities.
        points: at which an algorithm takes expectations.
        exact_dim: parameters up to which the algorithm was told to be exact.
    """
    if problem.dim > LARGE_DIM:
        return True
    return problem.dim > exact_dim and problem.dim * problem.evaluations * points > LARGE_WORK


def affordable_draws(problem: Problem, wanted: int, chains: int) -> int:
    """So many draws, or as many as `DRAWN_NUMBERS` has room for where the model is large.

    Args:
        problem: the model's densities.
        wanted: draws of a chain.
        chains: of the result.
    """
    if problem.dim <= LARGE_DIM:
        return wanted
    return max(1, min(-(-wanted // chains), max(FEWEST_DRAWS, DRAWN_NUMBERS // problem.dim // chains)))


def affordable_points(problem: Problem, rows: int, wanted: int) -> int:
    """So many points, or of a large model as many, an even number, as are worked on at once.

    Args:
        problem: the model's densities.
        rows: of all clients at each point.
        wanted: points, an even number.
    """
    if problem.dim <= LARGE_DIM:
        return wanted
    room = WORKED_NUMBERS / max(1.0, rows * cost_of(problem).numbers)
    return min(wanted, max(2, int(room) // 2 * 2))


@dataclass(frozen=True)
class Cost:
    """What one run of a model with densities takes, as numbers that it makes and operations of its matrix products.

    Args:
        numbers: that each row makes, in all intermediate results.
        operations: of all rows, matrix products counted in full.
    """

    numbers: float
    operations: float


def cost_of(problem: Problem) -> Cost:
    """What a run of the model on all rows costs, from runs on one row and on two.

    Args:
        problem: the model's densities.
    """
    one, two = (_measured(problem, tuple(leaf[:count] for leaf in problem.rows)) for count in (1, 2))
    row = tuple(max(0.0, more - less) for more, less in zip(two, one, strict=True))
    count = problem.evaluations
    return Cost(row[0], sum(less + (count - 1) * more for less, more in zip(one, row, strict=True)))


def _measured(problem: Problem, rows: tuple[Tensor, ...]) -> tuple[float, float]:
    """Numbers that a run makes, and operations of its matrix products."""
    z = torch.zeros(problem.dim, dtype=problem.dtype, device=rows[0].device)
    counter = _Numbers()
    with torch.no_grad(), FlopCounterMode(display=False) as flops, counter:
        problem.log_parts(z, rows)
    return float(counter.made), float(flops.get_total_flops())


class _Numbers(TorchDispatchMode):
    """Counts the numbers in what operations return."""

    def __init__(self) -> None:
        untyped: Any = super()
        untyped.__init__()
        self.made = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.made += sum(leaf.numel() for leaf in pytree.tree_leaves(out) if isinstance(leaf, Tensor))
        return out


def densities_at_once(problem: Problem) -> int:
    """What `in_chunks` should take a draw to cost: the rows, or for a large model as many as its draws have room for.

    Args:
        problem: the model's densities.
    """
    if problem.dim <= LARGE_DIM:
        return problem.evaluations
    return int(max(problem.evaluations, CHUNK * problem.evaluations * cost_of(problem).numbers / WORKED_NUMBERS))
