"""Rows in files: passes over rows in blocks, so that a pass needs memory for one block, wherever the rows lie."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from pyro_fed.density.rows.batches import BLOCK


def blocks(leaf: Tensor) -> Iterator[Tensor]:
    """The rows (N, ...) in blocks (m, ...), one after the other; a scalar is one."""
    if not leaf.dim():
        yield leaf
        return
    yield from leaf.split(max(1, BLOCK * max(1, len(leaf)) // max(1, leaf.numel())))
