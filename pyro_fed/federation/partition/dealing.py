"""The arithmetic of dealing rows out in given shares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np

from pyro_fed.federation.partition.base import Partition


def check_alpha(partition: Partition, alpha: Any) -> None:
    """A Dirichlet concentration is a finite number > 0.

    Args:
        partition: whose setting it is.
        alpha: the setting.

    Raises:
        SettingError: any other value.
    """
    if isinstance(alpha, bool) or not isinstance(alpha, Real) or not 0 < float(alpha) < math.inf:
        raise partition.error(f"alpha is {alpha!r}, expected a finite number > 0; small means skewed, large means even")


def dirichlet(partition: Partition, alpha: float, num_clients: int, rng: np.random.Generator) -> np.ndarray:
    """Shares of the clients, (num_clients,), summing to 1, ~ Dirichlet(alpha, ..., alpha).

    Args:
        partition: whose setting it is.
        alpha: concentration.
        num_clients: number of shares.
        rng: source of all randomness.
    """
    shares = rng.dirichlet(np.full(num_clients, float(alpha)))
    if not np.isclose(shares.sum(), 1.0):  # the gamma variates behind it left the floats
        raise partition.error(f"alpha={alpha} is out of the range of floating point; take 1e-3 to 1e6")
    return shares


def cuts(shares: np.ndarray, num_rows: int) -> np.ndarray:
    """Where to cut num_rows rows so that the parts have these shares, to the nearest row: (clients - 1,).

    Args:
        shares: (num_clients,), summing to 1.
        num_rows: rows to cut.
    """
    positions: np.ndarray = np.rint(np.cumsum(shares)[:-1] * num_rows)
    return positions.astype(np.int64)


def deal(
    rows_by_label: Sequence[np.ndarray], shares: Sequence[np.ndarray], rng: np.random.Generator
) -> list[np.ndarray]:
    """Deal each label's rows, shuffled, to the clients in that label's shares.

    Args:
        rows_by_label: rows of each label.
        shares: for each label, the shares of the clients, (clients,).
        rng: shuffles the rows.

    Returns:
        The rows of each client.
    """
    parts = [
        np.split(rng.permutation(rows), cuts(share, len(rows)))
        for rows, share in zip(rows_by_label, shares, strict=True)
    ]
    return [np.concatenate(client) for client in zip(*parts, strict=True)]


def pack(sizes: np.ndarray, num_clients: int) -> np.ndarray:
    """Client of each group, (groups,): the largest group first, to the client with the fewest rows.

    Args:
        sizes: (groups,) rows of each group.
        num_clients: number of clients.
    """
    owner, load = np.empty(len(sizes), dtype=np.int64), np.zeros(num_clients, dtype=np.int64)
    for group in np.argsort(-sizes, kind="stable"):
        owner[group] = load.argmin()
        load[owner[group]] += sizes[group]
    return owner
