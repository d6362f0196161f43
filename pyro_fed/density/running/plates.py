"""Plates under this layer's control: the partitioned one runs on the present rows, nested ones on theirs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from pyro.poutine.indep_messenger import IndepMessenger
from pyro.poutine.messenger import Messenger
from pyro.poutine.subsample_messenger import SubsampleMessenger
from torch import Tensor

from pyro_fed.density.running.trace_sites import Message, frame_of


@contextmanager
def pinned_plates(
    plate: str, indices: Tensor | None, nested: Mapping[str, int], declared: dict[str, int]
) -> Iterator[None]:
    """Run the partitioned plate on given rows and every other plate on all of its own, without rescaling.

    A plate's `subsample_size` and `subsample` are overruled: minibatching belongs to this layer.

    Args:
        plate: name of the partitioned plate.
        indices: (m,) what `with pyro.plate(...) as i` yields; None for all of the plate's rows.
        nested: number of rows of plates that do not run on all of their own.
        declared: receives the sizes that the model declares for its plates, as it runs.
    """

    def subsample(name: str, size: int | None = None, *_args: Any, **_kwargs: Any) -> tuple[int, int, Tensor | None]:
        if size is None:
            return -1, -1, None
        declared[name] = int(size)
        if name == plate and indices is not None:
            return len(indices), len(indices), indices
        held = nested.get(name, int(size))
        return held, held, torch.arange(held)

    def iterate(self: Any) -> Iterator[int | float]:
        self._indices = range(self.size)  # numbers: a traced tensor has no `.item()`
        return IndepMessenger.__iter__(self)

    patched: Any = SubsampleMessenger
    original = patched.__dict__["_subsample"]
    patched._subsample = staticmethod(subsample)
    patched.__iter__ = iterate
    try:
        yield
    finally:
        patched._subsample = original
        del patched.__iter__


class Subsample(Messenger):
    """`pyro.subsample(data, event_dim)`: the present rows, unless the data have been cut to them before."""

    def __init__(self, plate: str, declared: dict[str, int], indices: Tensor | None) -> None:
        super().__init__()
        self.plate, self.declared, self.indices = plate, declared, indices

    def _pyro_subsample(self, msg: Message) -> None:
        frame = frame_of(msg, self.plate)
        if frame is None or self.indices is None:
            return
        data = msg["args"][0]
        dim = frame.dim - msg["kwargs"]["event_dim"]
        if data.shape[dim] == self.declared[self.plate] != len(self.indices):
            msg["value"], msg["done"] = data.index_select(dim, self.indices), True
