"""Whether a model uses a value far from all others as a number, or as a code: no bound, a row to be left out.

The log density of the value's row is computed at points θ, with the value v, with 2v, and with a value next to v:

    it is the same with v and 2v                   v means only that it is large, or is not used
    its differences between points jump from v     the model tests for v itself, `x == -999`
      to the value next to it
    else                                           v is used as a number
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_fed.conventions.limits import ROUNDING_UNITS
from pyro_fed.density.checks.points import FEW_ROWS, NUM_DRAWS, RADIUS
from pyro_fed.density.problem import Problem

#: Relative step to the next value; if differences change by more than the second number, they jump there.
RELATIVE_STEP, LARGEST_SLOPE_CHANGE = 1e-6, 0.1


def taken_as_a_number(problem: Problem, number: int, column: int, rows: Tensor) -> bool:
    """Whether the densities of rows follow their value in one column; True if they cannot be computed.

    Args:
        problem: the model's densities.
        number: the argument's number among those that are split by rows.
        column: the column's number in the argument (N, C), from 0.
        rows: numbers of rows with this value.
    """
    generator = torch.Generator().manual_seed(0)
    z = RADIUS * (2 * torch.rand(NUM_DRAWS, problem.dim, generator=generator, dtype=torch.float64) - 1)
    double = problem.doubled()
    some = tuple(leaf[rows[:FEW_ROWS]] for leaf in double.rows)

    def densities(factor: float) -> Tensor:
        whole = not some[number].is_floating_point()
        changed = some[number].double() if whole and factor % 1 else some[number].clone()
        changed.view(len(changed), -1)[:, column] *= factor
        return double.pointwise_log_lik(z, (*some[:number], changed, *some[number + 1 :]))

    try:
        here, twice, near = (densities(factor) for factor in (1, 2, 1 + RELATIVE_STEP))
    except (RuntimeError, ValueError, IndexError, TypeError):  # the value is an index that the table does not have
        return True
    if not all(bool(found.isfinite().all()) for found in (here, twice, near)):
        return True
    if bool(((twice - here).abs() <= ROUNDING_UNITS * torch.finfo(here.dtype).eps * here.abs()).all()):
        return False
    size = torch.maximum(_differences(here).abs().amax(), _differences(near).abs().amax())
    return bool((_differences(near) - _differences(here)).abs().amax() <= LARGEST_SLOPE_CHANGE * size)


def _differences(densities: Tensor) -> Tensor:
    """Differences (S - 1, m) of log densities (S, m) between each point and the first one."""
    return densities[1:] - densities[:1]
