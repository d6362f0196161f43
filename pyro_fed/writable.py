"""Models that write into tensors they have made, as `p = torch.zeros(n); p[0] = z`, under `torch.func.vmap`.

A tensor out of `torch.zeros` is one tensor for all particles and clients, so that none of them can write its own value
into it. Here it becomes one a particle and a client, by adding a zero that is. Pyro's `OrderedLogistic` writes so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

MAKERS = frozenset(
    (
        *(torch.zeros, torch.ones, torch.empty, torch.full),
        *(torch.zeros_like, torch.ones_like, torch.empty_like, torch.full_like),
        *(Tensor.new_zeros, Tensor.new_ones, Tensor.new_empty, Tensor.new_full),
    )
)


class Writable(TorchFunctionMode):
    """While it is entered, floating tensors that are made can be written into under `vmap`.

    Args:
        mapped: what is mapped over particles or clients; only its tensors matter.
    """

    def __init__(self, mapped: Iterable[Any]) -> None:
        super().__init__()
        entries = [leaf.flatten()[0] for leaf in mapped if isinstance(leaf, Tensor) and leaf.numel()]
        self.zero = sum((torch.zeros_like(entry, dtype=torch.float64) for entry in entries), torch.zeros(()))

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        return made + self.zero.to(made.dtype) if func in MAKERS and made.is_floating_point() else made
