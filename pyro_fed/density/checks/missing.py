"""Whether a model handles the values that are missing: data with NaN or infinities, and densities without.

A density that is finite says little of NaN by itself, since a comparison takes NaN for a number: `(x > 0)` is false.
So the model must look at them too: by `torch.isnan(x)` and its like, by a mask over an observed site, or by a
distribution that leaves them out. Or it must not read them, as a column of a data frame that it does not use.
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
from pyro_fed.density.running import nan_masked, observed_values

#: Functions that tell NaN from numbers.
TELLING = frozenset(
    getattr(where, name)
    for name in ("isnan", "isfinite", "isinf", "nan_to_num", "nansum", "nanmean", "nanmedian")
    for where in (torch, Tensor)
)
#: The same where both arguments are one: `x != x`.
COMPARING = frozenset((torch.ne, torch.eq, Tensor.ne, Tensor.eq, Tensor.__ne__, Tensor.__eq__))
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
#: Modules here that look for NaN in the model's place.
LOOKING = frozenset((observed_values.__file__, nan_masked.__file__))
#: What stands in the place of NaN, to see whether the model reads it.
STAND_INS = (-1e4, 0.5, 1e4)
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
        if (func in TELLING or both) and (is_users(code) or code.co_filename in LOOKING):
            self.at += [arg for arg in args[:1] if isinstance(arg, Tensor)]
        return func(*args, **(kwargs or {}))


def unhandled_missing_values(problem: Problem) -> str | None:
    """Why the missing values of the data are none that the model handles; None where it does.

    Args:
        problem: the model's densities, of data with NaN or infinities.
    """
    for z in _points(problem):
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


def _points(problem: Problem) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    normals = [torch.randn(problem.dim, generator=generator, dtype=torch.float64) for _ in SPREADS]
    return [(spread * one).to(problem.dtype) for spread, one in zip(SPREADS, normals, strict=True)]


def _not_looked_at(problem: Problem) -> list[str]:
    """Arguments with NaN in which the model does not look for it."""
    z = torch.zeros(problem.dim, dtype=problem.dtype)
    with _Looks() as looks:
        problem.execute_at(z, problem.all_rows, densities=True)
    leaves = [leaf for leaf in problem.arguments.leaves if isinstance(leaf, Tensor)]
    leaves += [leaf for leaf in pytree.tree_leaves(problem.all_rows) if isinstance(leaf, Tensor)]
    known = {_storage(leaf) for leaf in leaves}
    seen = {_storage(leaf) for leaf in looks.at}
    if seen - known:  # something computed from the data, of which it is not known from which
        return []
    with_nan = [(name, leaf) for name, _, leaf in problem.arguments.columns if _has_nan(leaf)]
    return [name for name, leaf in with_nan if _storage(leaf) not in seen and _is_read(problem, leaf)]


def _is_read(problem: Problem, leaf: Tensor) -> bool:
    """Whether the log densities depend on what stands in the place of the leaf's NaN."""
    z = _points(problem)[-1]
    parts, form = pytree.tree_flatten(problem.all_rows)
    places = [i for i, part in enumerate(parts) if isinstance(part, Tensor) and _storage(part) == _storage(leaf)]
    if not places:
        return True  # the model gets a copy, of which it is not known whose it is
    terms = problem.pointwise_log_lik(z)
    for number in STAND_INS:
        filled = [part.nan_to_num(nan=number) if i in places else part for i, part in enumerate(parts)]
        if not torch.equal(problem.pointwise_log_lik(z, pytree.tree_unflatten(filled, form)), terms):
            return True
    return False


def _has_nan(leaf: Tensor) -> bool:
    return leaf.is_floating_point() and bool(leaf.isnan().any())


def _storage(leaf: Tensor) -> int:
    return leaf.untyped_storage().data_ptr()
