"""Functions mapped over a batch, by `torch.func.vmap` or slice by slice, and the moments that mapped scores return.

For an operation without a batching rule torch also computes slice by slice, with a warning in each pass. A hidden
Markov model, whose in-place clamp has no rule, would print thousands of warnings. They are switched off.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pyro_fed.errors import ModelError

#: Part of torch's message if an operation cannot be mapped, such as `torch.nn.LSTM` of packed sequences.
NO_RULE = "Batching rule not implemented"


class ForProcess:
    """A context in which something is changed for the whole process: from the first thread's entry to the last's exit.

    `switch` is called with True at the first entry, and with False at the last exit.
    """

    def __init__(self, switch: Callable[[bool], None]) -> None:
        self.switch = switch
        self.calls = 0
        self.lock = threading.Lock()

    def __enter__(self) -> None:
        with self.lock:
            if not self.calls:
                self.switch(True)
            self.calls += 1

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.calls -= 1
            if not self.calls:
                self.switch(False)


def _keep_quiet(on: bool) -> None:
    """Switch torch's warnings of operations without a batching rule off, by the function that their text names."""
    torch._C._functorch._set_vmap_fallback_warning_enabled(not on)  # type: ignore[attr-defined]  # has no stub


#: A context without these warnings. Other mapping functions, such as `torch.func.jacrev`, are called inside it.
quiet = ForProcess(_keep_quiet)


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


class Moments(NamedTuple):
    """Value (...), score (..., D) and curvature -∇² (..., D[, D]) of log densities, or means of these over points."""

    value: Tensor
    score: Tensor
    curvature: Tensor

    def finite(self) -> Tensor:
        """Whether all parts are finite, (...)."""
        value = self.value.isfinite()
        return value & self.score.isfinite().all(-1) & self.curvature.isfinite().flatten(value.dim()).all(-1)


def second_order(
    log_density: Callable[[Tensor], Tensor], z: Tensor, vmap: Callable[..., Any], forward: bool = False
) -> Moments:
    """Value (), score (D,) and negative Hessian (D, D) of a log density at z (D,), by `vmap` over directions."""
    value, score, product = hessian_product(log_density, z, forward)
    return Moments(value, score, -vmap(product)(torch.eye(len(z), dtype=z.dtype, device=z.device)))


def hessian_product(
    log_density: Callable[[Tensor], Tensor], z: Tensor, forward: bool = False
) -> tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]:
    """Value (), score (D,) and the product of the Hessian with a vector, by reverse mode or `forward` over reverse.

    Reverse mode multiplies the infinite derivatives of a branch that torch.where does not select by zero, as in that of
    0 ** k, and returns NaN; forward mode selects.
    """
    both: Any = torch.func.grad_and_value(log_density)
    if forward:
        score, value = both(z)
        return value, score, lambda v: torch.func.jvp(torch.func.grad(log_density), (z,), (v,))[1]
    (score, value), pull = torch.func.vjp(both, z)[:2]
    return value, score, lambda v: pull((v, torch.zeros_like(value)))[0]


class FiniteSums(NamedTuple):
    """Sums over the points at which all parts are finite, and the number of these points."""

    sums: Moments
    finite: Tensor

    def add(self, parts: Moments) -> FiniteSums:
        """These sums with a block of s points added, each part (s, ...)."""
        finite = parts.finite()

        def summed(part: Tensor) -> Tensor:
            return torch.where(finite.reshape(-1, *[1] * (part.dim() - 1)), part.double(), 0.0).sum(0)

        sums = Moments(*(before + summed(part) for before, part in zip(self.sums, parts, strict=True)))
        return FiniteSums(sums, self.finite + finite.double().sum())


def loop_map(function: Callable[..., Any], in_dims: Any) -> Callable[..., Any]:
    """`torch.func.vmap(function, in_dims)` one slice after another; axes are 0, None, or a pytree of these."""

    def looped(*args: Any) -> Any:
        dims = leaf_dims(in_dims, args)
        leaves, spec = pytree.tree_flatten(args)
        size = next(leaf.shape[0] for leaf, d in zip(leaves, dims, strict=True) if d is not None)
        outs = [
            function(
                *pytree.tree_unflatten(
                    [leaf if d is None else leaf[i] for leaf, d in zip(leaves, dims, strict=True)], spec
                )
            )
            for i in range(size)
        ]
        _check_same_sites(outs)
        return pytree.tree_map(lambda *parts: torch.stack(parts), *outs)

    return looped


def _check_same_sites(outs: list[Any]) -> None:
    """Raise a `ModelError` unless every slice returns the same names."""
    names = [{pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(out)[0]} for out in outs]
    differing = next((one for one in names if one != names[0]), None)
    if differing is None:
        return
    sites = sorted({re.findall(r"'([^']*)'", path)[-1] for path in differing ^ names[0] if "'" in path})
    raise ModelError(
        f"the model has sites {sites or '(of other shapes)'} at some values of its latents and not at others, such as "
        "by an `if` on a value: its sites must always be the same. Write the condition into the density, as by "
        "torch.where(s > 1, -torch.inf, 0.0) in a factor, or give the latent's prior that support"
    )


def or_looped(mapped: Callable[..., Any], function: Callable[..., Any], in_dims: Any) -> Callable[..., Any]:
    """`mapped`, or the same numbers slice by slice if an operation cannot be mapped."""

    def call(*args: Any) -> Any:
        try:
            return mapped(*args)
        except RuntimeError as error:
            if NO_RULE not in str(error):
                raise
        return loop_map(function, in_dims)(*args)

    return call


def leaf_dims(in_dims: Any, args: Any) -> list[int | None]:
    """The axis of each leaf of the arguments, where `in_dims` is a pytree prefix of these."""
    return pytree.tree_leaves(_broadcast_dims(in_dims, args), is_leaf=lambda d: d is None)


def _broadcast_dims(in_dims: Any, args: Any) -> Any:
    """`in_dims` as a pytree of the same structure as `args` (an int or None stands for a whole subtree)."""
    if in_dims is None or isinstance(in_dims, int):
        return pytree.tree_map(lambda _: in_dims, args)
    if isinstance(args, dict):
        return {key: _broadcast_dims(in_dims[key], args[key]) for key in args}
    parts = [_broadcast_dims(d, a) for d, a in zip(in_dims, args, strict=True)]
    return type(args)(*parts) if hasattr(args, "_fields") else type(args)(parts)
