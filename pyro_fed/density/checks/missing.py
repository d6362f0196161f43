"""Whether a model handles missing values: data with NaN or infinities, and finite densities.

A finite density alone proves little, since a comparison treats NaN as a number: `(x > 0)` is false. So the model must
also test for NaN: by `torch.isnan(x)` and similar functions, by a mask over an observed site, or by a distribution that
leaves them out. Or it must not read them, like a column of a data frame that it does not use.
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
from pyro_fed.density.running import log_probs, site_values

#: Functions that distinguish NaN from numbers.
TELLING = frozenset(
    getattr(where, name)
    for name in ("isnan", "isfinite", "isinf", "nan_to_num", "nansum", "nanmean", "nanmedian")
    for where in (torch, Tensor)
)
#: Functions that do so if both arguments are the same: `x != x`.
COMPARING = frozenset((torch.ne, torch.eq, Tensor.ne, Tensor.eq, Tensor.__ne__, Tensor.__eq__))
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
#: Modules of this package that test for NaN in the model's place.
LOOKING = frozenset((site_values.__file__, log_probs.__file__))
#: Values in place of NaN, which show whether the model reads them.
STAND_INS = (-1e4, 0.5, 1e4)
#: Spreads of the points at which densities must be finite.
SPREADS = (0.1, 0.5)


class _Looks(TorchFunctionMode):
    """Records the tensors in which the model distinguishes NaN from numbers."""

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
    """Why the model does not handle the missing values of its data; None if it does."""
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
    """Arguments with NaN in which the model does not test for it."""
    z = torch.zeros(problem.dim, dtype=problem.dtype)
    with _Looks() as looks:
        problem.execute_at(z, problem.all_rows, densities=True)
    leaves = [leaf for leaf in problem.arguments.leaves if isinstance(leaf, Tensor)]
    leaves += [leaf for leaf in pytree.tree_leaves(problem.all_rows) if isinstance(leaf, Tensor)]
    known = {_storage(leaf) for leaf in leaves}
    seen = {_storage(leaf) for leaf in looks.at}
    if seen - known:  # computed from data, but it is unknown which
        return []
    with_nan = [(name, leaf) for name, _, leaf in problem.arguments.columns if _has_nan(leaf)]
    return [name for name, leaf in with_nan if _storage(leaf) not in seen and _is_read(problem, leaf)]


def _is_read(problem: Problem, leaf: Tensor) -> bool:
    """Whether the log densities depend on the values in the place of the leaf's NaN."""
    z = _points(problem)[-1]
    parts, form = pytree.tree_flatten(problem.all_rows)
    places = [i for i, part in enumerate(parts) if isinstance(part, Tensor) and _storage(part) == _storage(leaf)]
    if not places:
        return True  # the model gets a copy, and it is unknown of which argument
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
