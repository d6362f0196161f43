"""`torch.func.vmap` without its warnings of operations that have no batching rule.

torch computes such an operation for one slice after another, which is slower and gives the same numbers. It warns of
each one in each pass. For a hidden Markov model, whose in-place clamp has no rule, these are thousands of lines about
torch and none about the model.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Literal

import torch


class _Quiet:
    """A context in which torch does not warn of operations without a batching rule.

    Torch has one switch for all threads, and no way to read it. So the calls inside are counted: the first
    one switches the warnings off, and the last one to end switches them on, which is how torch begins.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.lock = threading.Lock()

    def __enter__(self) -> None:
        with self.lock:
            if not self.calls:
                _warn(False)
            self.calls += 1

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.calls -= 1
            if not self.calls:
                _warn(True)


def _warn(on: bool) -> None:
    """Switch torch's warnings on or off; the text of the warning itself names this function of torch."""
    torch._C._functorch._set_vmap_fallback_warning_enabled(on)  # type: ignore[attr-defined]  # has no stub


#: The one of the process; what else than `vmap` maps, such as `torch.func.jacrev`, is called inside it.
quiet = _Quiet()


def vmap(
    function: Callable[..., Any],
    in_dims: Any = 0,
    out_dims: Any = 0,
    *,
    randomness: Literal["error", "different", "same"] = "error",
) -> Callable[..., Any]:
    """`torch.func.vmap`, whose calls do not warn of operations without a batching rule."""
    mapped = torch.func.vmap(function, in_dims, out_dims, randomness)

    def call(*args: Any, **keywords: Any) -> Any:
        with quiet:
            return mapped(*args, **keywords)

    return call
