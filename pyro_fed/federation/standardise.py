"""Mean and SD of columns over all clients, from sums alone.

Columns that each client standardises by its own rows mean something else at every client, and one coefficient cannot
fit them all. Each client sends count, sum and centred sum of squares; those of all are combined pairwise (Chan, Golub
& LeVeque, 1983), so that no rows travel and nothing cancels.

    clients = [(x1, y1), (x2, y2)]
    mean, sd = pf.pooled_moments([pf.column_sums(x) for x, _ in clients])
    fed = pf.Federation.from_clients(model, [((x - mean) / sd, y) for x, y in clients], plate="data")
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fed.conventions.calls import checked
from pyro_fed.errors import DataError


class ColumnSums(NamedTuple):
    """What a client tells of its columns.

    Attributes:
        number: of rows, ().
        mean: of each column, (P,).
        squares: Σ (x - mean)², (P,).
    """

    number: Tensor
    mean: Tensor
    squares: Tensor


@checked
def column_sums(rows: Tensor) -> ColumnSums:
    """A client's part, in float64.

    Returns:
        sums that say nothing of a single row.

    Args:
        rows: (n, P); n may be zero.

    Raises:
        DataError: a single value.

    Example:
        >>> sums = pf.column_sums(x)                    # at each client
    """
    if rows.dim() == 0:
        raise DataError(f"column_sums: rows must be an array of rows, received a single value ({rows.dtype})")
    x = rows.double()
    mean = x.mean(0) if len(x) else x.new_zeros(x.shape[1:])
    return ColumnSums(x.new_tensor(len(x)), mean, (x - mean).square().sum(0))


@checked
def pooled_moments(parts: Sequence[ColumnSums]) -> tuple[Tensor, Tensor]:
    """Mean and SD of each column over all rows, (P,) each; the SD of a constant column is one.

    Args:
        parts: of every client.

    Raises:
        DataError: there are no rows.

    Example:
        >>> mean, sd = pf.pooled_moments([pf.column_sums(x) for x, _ in clients])
        >>> clients = [((x - mean) / sd, y) for x, y in clients]
    """
    total = reduce(_both, parts) if len(parts) else None
    if total is None or total.number == 0:
        raise DataError("no client has any row: there is nothing to standardise by")
    sd = (total.squares / total.number).sqrt()
    return total.mean, torch.where(sd > 0, sd, 1.0)


def _both(a: ColumnSums, b: ColumnSums) -> ColumnSums:
    number = a.number + b.number
    share = b.number / number.clamp_min(1)
    apart = b.mean - a.mean
    return ColumnSums(number, a.mean + share * apart, a.squares + b.squares + apart.square() * a.number * share)
