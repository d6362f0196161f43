"""Values that are not finite: missing values that a model does not handle, and densities that are NaN.

A finite density alone does not prove that missing values are handled, since a comparison treats NaN as a number:
`(x > 0)` is false. So the model must also test for NaN: by `torch.isnan(x)` and similar functions, by a mask over an
observed site, or by a distribution that leaves them out. Or it must not read them, like a column that it does not use.

A density that is NaN within the support of its latents, such as that of a factor log(b - a) of two Normals, does not
show at the draws of a model's first run, nor does a derivative of few of many rows: `check_splits` examines some rows.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pyro_fed.density.checks.points import FEW_DRAWS, FEW_ROWS, NUM_DRAWS, ROWS_TOGETHER
from pyro_fed.density.checks.source import CallWatcher, is_users
from pyro_fed.density.checks.undefined import UndefinedError, refuse_undefined
from pyro_fed.density.compiling.compiler import FAILURES
from pyro_fed.density.problem import Problem
from pyro_fed.density.running import log_probs, model_calls, site_values
from pyro_fed.errors import ModelError

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
LOOKING = frozenset(module.__file__ for module in (site_values, log_probs, model_calls))


class _NaNTests(CallWatcher):
    """Records the tensors in which the model distinguishes NaN from numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.at: list[Tensor] = []

    def note(self, function: Any, args: Sequence[Any], value: Any) -> None:
        frame: Any = sys._getframe(1)
        while frame.f_code.co_name == "__torch_function__" or frame.f_code.co_filename.startswith(_TORCH):
            frame = frame.f_back  # other modes
        code = frame.f_code
        same_twice = function in COMPARING and len(args) == 2 and args[0] is args[1]
        if (function in TELLING or same_twice) and (is_users(code) or code.co_filename in LOOKING):
            self.at += [arg for arg in args[:1] if isinstance(arg, Tensor)]


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
    """Two points (D,) near zero at which densities must be finite."""
    generator = torch.Generator().manual_seed(2)
    normals = [torch.randn(problem.dim, generator=generator, dtype=torch.float64) for _ in range(2)]
    return [(spread * one).to(problem.dtype) for spread, one in zip((0.1, 0.5), normals, strict=True)]


def _not_looked_at(problem: Problem) -> list[str]:
    """Arguments with NaN in which the model does not test for it."""
    z = torch.zeros(problem.dim, dtype=problem.dtype)
    with _NaNTests() as looks:
        problem.execute_at(z, problem.all_rows, densities=True)
    leaves = [leaf for leaf in problem.arguments.leaves if isinstance(leaf, Tensor)]
    leaves += [leaf for leaf in pytree.tree_leaves(problem.all_rows) if isinstance(leaf, Tensor)]
    known = {_storage(leaf) for leaf in leaves}
    seen = {_storage(leaf) for leaf in looks.at}
    if seen - known:  # computed from data, but it is unknown which
        return []
    columns = problem.arguments.columns
    with_nan = [(name, leaf) for name, _, leaf in columns if leaf.is_floating_point() and bool(leaf.isnan().any())]
    return [name for name, leaf in with_nan if _storage(leaf) not in seen and _is_read(problem, leaf)]


def _is_read(problem: Problem, leaf: Tensor) -> bool:
    """Whether the log densities depend on the values in the place of the leaf's NaN."""
    z = _points(problem)[-1]
    parts, form = pytree.tree_flatten(problem.all_rows)
    places = [i for i, part in enumerate(parts) if isinstance(part, Tensor) and _storage(part) == _storage(leaf)]
    if not places:
        return True  # the model gets a copy, and it is unknown of which argument
    terms = problem.pointwise_log_lik(z)
    for number in (-1e4, 0.5, 1e4):
        filled = [part.nan_to_num(nan=number) if i in places else part for i, part in enumerate(parts)]
        if not torch.equal(problem.pointwise_log_lik(z, pytree.tree_unflatten(filled, form)), terms):
            return True
    return False


def _storage(leaf: Tensor) -> int:
    return leaf.untyped_storage().data_ptr()


def nan_density_notes(problem: Problem) -> list[str]:
    """A sentence on a site without a finite density or derivative at draws of the prior, or at zero; or none."""
    points = torch.zeros(1, problem.dim, dtype=problem.dtype)
    if not problem.layout.improper:
        with suppress(ModelError, *FAILURES):
            points = torch.cat([points, problem.init(NUM_DRAWS, torch.Generator().manual_seed(0), checked=False)])
    points = points[points.isfinite().all(1)]
    return _of_derivatives(problem, points[1 : 1 + FEW_DRAWS].double()) or _of_densities(problem, points)


def _of_derivatives(problem: Problem, points: torch.Tensor) -> list[str]:
    """A sentence on rows whose density or derivative is finite at none of the points."""
    judged, generator = problem.doubled(), torch.Generator().manual_seed(0)
    try:
        for some in torch.arange(problem.num_rows).split(ROWS_TOGETHER) if len(points) else ():
            local = torch.randn(len(points), len(some), problem.local_dim, generator=generator, dtype=torch.float64)
            refuse_undefined(judged, points, tuple(leaf[some] for leaf in judged.rows), local, some)
    except UndefinedError as error:
        return [str(error)]
    except FAILURES:  # if torch has no second derivative
        pass
    return []


def _of_densities(problem: Problem, points: torch.Tensor) -> list[str]:
    """A sentence on the site whose density is finite at the fewest of the points."""
    if problem.local_dim or problem.layout.discrete:
        return []
    rows, missed = tuple(leaf[:FEW_ROWS] for leaf in problem.rows), dict[str, int]()
    with suppress(*FAILURES):
        for z in points:
            for terms in problem.log_terms(z, rows):
                for name, value in terms.items():
                    missed[name] = missed.get(name, 0) + int(not bool(value.isfinite().all()))
    name = max(missed, key=lambda one: missed[one], default="")
    if not name or not missed[name]:
        return []
    return [
        f"the density of '{name}' is no finite number at {missed[name]} of {len(points)} points that the latents' "
        "priors allow (zero, unconstrained, and draws of the prior): give the latents a support in which it is one, "
        "such as a HalfNormal's in place of a Normal's, or OrderedTransform's of a vector"
    ]
