"""The arithmetic of dealing rows out in given shares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np

from pyro_fed.federation.partition.base import Partition


def check_alpha(partition: Partition, alpha: Any) -> None:
    """Refuse a Dirichlet concentration that is not a finite number > 0 with the partition's SettingError."""
    if isinstance(alpha, bool) or not isinstance(alpha, Real) or not 0 < float(alpha) < math.inf:
        raise partition.error(f"alpha is {alpha!r}, expected a finite number > 0; small means skewed, large means even")


def dirichlet(partition: Partition, alpha: float, num_clients: int, rng: np.random.Generator) -> np.ndarray:
    """Shares of the clients, (num_clients,), summing to 1, ~ Dirichlet(alpha, ..., alpha)."""
    shares = rng.dirichlet(np.full(num_clients, float(alpha)))
    if not np.isclose(shares.sum(), 1.0):  # the gamma variates behind it left the floats
        raise partition.error(f"alpha={alpha} is out of the range of floating point; take 1e-3 to 1e6")
    return shares


def cuts(shares: np.ndarray, num_rows: int) -> np.ndarray:
    """Positions (clients - 1,) at which to cut rows so that parts have the shares (clients,), to the nearest row."""
    positions: np.ndarray = np.rint(np.cumsum(shares)[:-1] * num_rows)
    return positions.astype(np.int64)


def deal(
    rows_by_label: Sequence[np.ndarray], shares: Sequence[np.ndarray], rng: np.random.Generator
) -> list[np.ndarray]:
    """The rows of each client, after each label's shuffled rows are dealt out in that label's shares (clients,)."""
    parts = [
        np.split(rng.permutation(rows), cuts(share, len(rows)))
        for rows, share in zip(rows_by_label, shares, strict=True)
    ]
    return [np.concatenate(client) for client in zip(*parts, strict=True)]


def pack(sizes: np.ndarray, num_clients: int) -> np.ndarray:
    """Client of each group, (groups,): the largest group first, to the client with the fewest rows."""
    owner, load = np.empty(len(sizes), dtype=np.int64), np.zeros(num_clients, dtype=np.int64)
    for group in np.argsort(-sizes, kind="stable"):
        owner[group] = load.argmin()
        load[owner[group]] += sizes[group]
    return owner
