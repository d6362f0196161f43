"""`torch.func.vmap` by a Python loop, for models that cannot be vectorised."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from pyro_fed.errors import ModelError


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
        _check_alike(outs)
        return pytree.tree_map(lambda *parts: torch.stack(parts), *outs)

    return looped


def _check_alike(outs: list[Any]) -> None:
    """Require every slice to return the same names."""
    names = [{pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(out)[0]} for out in outs]
    other = next((one for one in names if one != names[0]), None)
    if other is None:
        return
    sites = sorted({re.findall(r"'([^']*)'", path)[-1] for path in other ^ names[0] if "'" in path})
    raise ModelError(
        f"the model has sites {sites or '(of other shapes)'} at some values of its latents and not at others, such as "
        "by an `if` on a value: its sites must always be the same. Write the condition into the density, as by "
        "torch.where(s > 1, -torch.inf, 0.0) in a factor, or give the latent's prior that support"
    )


#: What torch says where one of its operations cannot be mapped, as `torch.nn.LSTM` of packed sequences.
NO_RULE = "Batching rule not implemented"


def or_looped(mapped: Callable[..., Any], function: Callable[..., Any], in_dims: Any) -> Callable[..., Any]:
    """`mapped`, or slice after slice if an operation cannot be mapped: the same numbers."""

    def call(*args: Any) -> Any:
        try:
            return mapped(*args)
        except RuntimeError as error:
            if NO_RULE not in str(error):
                raise
        return loop_map(function, in_dims)(*args)

    return call


def leaf_dims(in_dims: Any, args: Any) -> list[int | None]:
    """The axis of each leaf of the arguments, of which `in_dims` is a prefix as a pytree."""
    return pytree.tree_leaves(_broadcast_dims(in_dims, args), is_leaf=lambda d: d is None)


def _broadcast_dims(in_dims: Any, args: Any) -> Any:
    """`in_dims` as a pytree of the same structure as `args` (an int or None stands for a whole subtree)."""
    if in_dims is None or isinstance(in_dims, int):
        return pytree.tree_map(lambda _: in_dims, args)
    if isinstance(args, dict):
        return {key: _broadcast_dims(in_dims[key], args[key]) for key in args}
    parts = [_broadcast_dims(d, a) for d, a in zip(in_dims, args, strict=True)]
    return type(args)(*parts) if hasattr(args, "_fields") else type(args)(parts)
