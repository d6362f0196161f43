"""Nodes and weights at which the few numbers that a row depends on are integrated over, see `rowwise`."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from pyro_fed.density.latents.quadrature import gauss_hermite
from pyro_fed.ops.points import standardised_sobol

#: Gauss-Hermite nodes a number, by how many numbers a row depends on; beyond, Sobol points of that many dimensions.
ORDERS = {1: 9, 2: 7, 3: 5}
#: The same where there are `MANY_ROWS_A_PARAMETER` rows a parameter: q is so narrow that a row's function is nearly a
#: parabola there.
FEW_ORDERS, MANY_ROWS_A_PARAMETER = {1: 5, 2: 4, 3: 3}, 500
#: Where there are fewer rows a parameter than this, predictors may be known no better than to several times what a
#: row's function varies over (two classes that a plane parts: SDs of 10, and a logistic's 4). On average the curvature
#: of a row times its predictor's variance is no more than parameters a row.
SCARCE = 10
#: There nodes are equally spaced, by how many predictors a row has: how many each, and over how many SDs to each side.
#: Of a logistic's curvature with an SD of 8 they miss 1e-4, 9 Gauss-Hermite nodes 1.1 and 41 of them 0.14.
WIDE = {1: (65, 6.0), 2: (21, 5.0)}
#: Gauss-Hermite nodes a number of more predictors there.
MANY_WIDE = {3: 9}
#: Order of the rule that has q's mean and covariance and no more: a pair of nodes a number, √numbers SDs away. Exact up
#: to cubes; what it misses of a curvature is of fourth order.
PAIRS = 2
#: Rows of which it and the mean alone find curvatures that differ by no more than such a part of q's precision, and
#: scores by no more than `MATTERS` SDs (of all clients together), need no finer rule. What it misses of a curvature is
#: no more than the former, and its square where all rows are alike; of a score the product of the two.
CLOSE = 0.02
#: It is tried where the finer rule has so many times as many nodes as it and the mean together.
WORTH_A_TRY = 3
#: Sobol points for more numbers, and where rows are scarce.
SOBOL, WIDE_SOBOL = 128, 512


def order_of(rows: float, numbers: int) -> int:
    """Gauss-Hermite nodes a number, 0 for Sobol points.

    Args:
        rows: a parameter.
        numbers: that a row depends on.
    """
    return (FEW_ORDERS if rows >= MANY_ROWS_A_PARAMETER else ORDERS).get(numbers, 0)


def may_be_straight(rows: float, numbers: int) -> bool:
    """Whether so many rows a parameter make it likely that `PAIRS` do, at less than the finer rule's cost.

    Args:
        rows: a parameter.
        numbers: that a row depends on.
    """
    finer = FEW_ORDERS[numbers] ** numbers if numbers in FEW_ORDERS else SOBOL
    return rows >= MANY_ROWS_A_PARAMETER and finer >= WORTH_A_TRY * (1 + 2 * numbers)


@lru_cache(maxsize=16)
def rule(order: int, numbers: int, wide: int) -> tuple[Tensor, Tensor]:
    """Nodes (K, numbers) and weights (K,) for N(0, I).

    Args:
        order: Gauss-Hermite nodes a number; 0 takes Sobol points, 1 the mean alone, 2 `PAIRS`.
        numbers: how many.
        wide: of the last so many the nodes are spread wide, as predictors' where rows are scarce.
    """
    if order == 1 or not numbers:
        return torch.zeros(1, numbers, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    if order == PAIRS:
        half = numbers**0.5 * torch.eye(numbers, dtype=torch.float64)
        return torch.cat([half, -half]), torch.full((2 * numbers,), 0.5 / numbers, dtype=torch.float64)
    if wide in WIDE and order:
        return _beside(rule(order, numbers - wide, 0), _equally_spaced(*WIDE[wide], wide))
    if order:
        nodes, weights = gauss_hermite(MANY_WIDE.get(numbers, order) if wide else order, numbers)
        return nodes, weights.exp()
    count = WIDE_SOBOL if wide else SOBOL
    return standardised_sobol(count, numbers), torch.full((count,), 1.0 / count, dtype=torch.float64)


def _equally_spaced(count: int, reach: float, numbers: int) -> tuple[Tensor, Tensor]:
    """The product of rules for N(0, 1); of a smooth function the error falls off faster than any power of the spacing.

    Source: Trefethen & Weideman (2014), the exponentially convergent trapezoidal rule.
    """
    line = torch.linspace(-reach, reach, count, dtype=torch.float64)
    weight = torch.softmax(-line.square() / 2, 0)
    every = torch.cartesian_prod(*[torch.arange(count)] * numbers).reshape(-1, numbers)
    return line[every], weight[every].prod(1)


def _beside(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The product of two rules."""
    nodes = torch.cat([one[0].repeat_interleave(len(other[0]), 0), other[0].repeat(len(one[0]), 1)], 1)
    return nodes, (one[1].unsqueeze(1) * other[1]).flatten()
