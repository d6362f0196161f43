"""Whether a model handles the values that are missing: data with NaN or infinities, and densities without.

A density that is finite says little of NaN by itself, since a comparison takes NaN for a number: `(x > 0)` is false.
So the model must look at them too: by `torch.isnan(x)` and its like, or by a mask over an observed site.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from pyro_fed.density.checks.blame import is_users
from pyro_fed.density.problem import Problem
from pyro_fed.density.running import observed_values

#: Functions that tell NaN from numbers.
TELLING = frozenset(
    getattr(where, name)
    for name in ("isnan", "isfinite", "isinf", "nan_to_num", "nansum", "nanmean", "nanmedian")
    for where in (torch, Tensor)
)
#: The same where both arguments are one: `x != x`.
COMPARING = frozenset((torch.ne, torch.eq, Tensor.ne, Tensor.eq, Tensor.__ne__, Tensor.__eq__))
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
#: Spreads of the points at which densities must be finite.
SPREADS = (0.1, 0.5)


class _Looks(TorchFunctionMode):
    """Notes which tensors the model tells NaN from numbers in."""

    def __init__(self) -> None:
        super().__init__()
        self.at: list[Tensor] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        frame: Any = sys._getframe(1)
        while frame.f_code.co_name == "__torch_function__" or frame.f_code.co_filename.startswith(_TORCH):
            frame = frame.f_back  # other modes
        code = frame.f_code
        both = func in COMPARING and len(args) == 2 and args[0] is args[1]
        if (func in TELLING or both) and (is_users(code) or code.co_filename == observed_values.__file__):
            self.at += [arg for arg in args[:1] if isinstance(arg, Tensor)]
        return func(*args, **(kwargs or {}))


def unhandled(problem: Problem) -> str | None:
    """Why the missing values of the data are none that the model handles; None where it does.

    Args:
        problem: the model's densities, of data with NaN or infinities.
    """
    generator = torch.Generator().manual_seed(2)
    for spread in SPREADS:
        z = spread * torch.randn(problem.dim, generator=generator, dtype=torch.float64).to(problem.dtype)
        terms = problem.pointwise_log_lik(z)
        if not bool(terms.isfinite().all()):
            return f"the log density of {int((~terms.isfinite()).sum())} rows is not finite"
        if not bool(torch.func.grad(problem.log_lik)(z).isfinite().all()):
            return "the gradient of the log density is not finite"
    silent = _not_looked_at(problem)
    if silent:
        asks = ", ".join(f"torch.isnan({name})" for name in silent)
        return f"the model never asks for {asks}, and takes NaN for a number, as a comparison does"
    return None


def _not_looked_at(problem: Problem) -> list[str]:
    """Arguments with NaN in which the model does not look for it."""
    z = torch.zeros(problem.dim, dtype=problem.dtype)
    with _Looks() as looks:
        problem.execute_at(z, problem.all_rows)
    leaves = [leaf for leaf in problem.arguments.leaves if isinstance(leaf, Tensor)]
    leaves += [leaf for leaf in pytree.tree_leaves(problem.all_rows) if isinstance(leaf, Tensor)]
    known = {_storage(leaf) for leaf in leaves}
    seen = {_storage(leaf) for leaf in looks.at}
    if seen - known:  # something computed from the data, of which it is not known from which
        return []
    with_nan = [(name, leaf) for name, _, leaf in problem.arguments.columns if _has_nan(leaf)]
    return [name for name, leaf in with_nan if _storage(leaf) not in seen]


def _has_nan(leaf: Tensor) -> bool:
    return leaf.is_floating_point() and bool(leaf.isnan().any())


def _storage(leaf: Tensor) -> int:
    return leaf.untyped_storage().data_ptr()
