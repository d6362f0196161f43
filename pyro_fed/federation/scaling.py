"""Columns for which float32 is not precise enough: a year beside a rate, an offset a thousand times its spread.

The information about a regression's weights is X'X, with a column of ones for the level. Let its columns have unit
length, and let κ² be its condition number. A relative rounding error of eps in its entries is then one of eps·κ² in its
smallest eigenvalue: the precision of the direction about which the data hold least information. Columns that are
dependent up to the data's own rounding, such as those of a factor's levels, are exactly dependent: only the prior
informs that direction, and rounding adds no error.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_fed.density.checks.points import ROWS_TOGETHER
from pyro_fed.density.rows.arguments import Arguments
from pyro_fed.errors import warn_user

#: Largest relative error of the smallest precision that is accepted in float32; an SD has half of it.
LARGEST_ERROR = 0.05
#: The most columns that are examined.
MOST_COLUMNS = 256
#: Singular values below this many units of rounding, relative to the largest, are zero.
DEPENDENT = 32


def wide_enough(arguments: Arguments, dtype: torch.dtype) -> torch.dtype:
    """float64 in place of float32 if the columns of the row-sharded leaves need it, with a warning that names them."""
    if dtype != torch.float32:
        return dtype
    for name, _, leaf in arguments.columns:
        if not isinstance(leaf, Tensor) or not leaf.is_floating_point() or leaf.dim() not in (1, 2):
            continue
        error, column = _error(leaf)
        if error > LARGEST_ERROR:
            of = f"column {column} of argument '{name}'" if leaf.dim() == 2 else f"argument '{name}'"
            warn_user(
                f"computed in float64: {of} is so nearly a combination of the others and a constant that float32 would "
                f"know the precision of its weight to {error:.1g} only. Centre and scale columns before the model, or "
                "say dtype=torch.float32 to have it all the same"
            )
            return torch.float64
    return dtype


def _error(leaf: Tensor) -> tuple[float, int]:
    """eps·κ² of the columns and a constant, and the column with the largest part in the least informed direction."""
    eps = torch.finfo(torch.float32).eps
    step = -(-len(leaf) // ROWS_TOGETHER)
    columns = leaf[::step].reshape(len(leaf[::step]), -1)[:, :MOST_COLUMNS].double()
    if not bool(columns.isfinite().all()) or len(columns) <= columns.shape[1] + 1:
        return 0.0, 0
    varying = (columns != columns[0]).any(0)
    kept = varying.nonzero().flatten()
    if not len(kept):
        return 0.0, 0
    design = torch.cat([columns[:, kept], columns.new_ones(len(columns), 1)], 1)
    design = design / design.norm(dim=0)
    _, values, directions = torch.linalg.svd(design, full_matrices=False)
    told = values > DEPENDENT * eps * values[0]
    last = int(told.nonzero().max())
    condition = float(values[0] / values[last])
    return eps * condition**2, int(kept[int(directions[last, :-1].abs().argmax())])
