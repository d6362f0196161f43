"""Missing values that a model does not handle, and densities that are NaN.

A finite density does not prove that missing values are handled, since a comparison treats NaN as a number: `(x > 0)` is
false. The model must also test for NaN: by `torch.isnan(x)` and similar functions, by a mask over an observed site, or
by a distribution that leaves missing values out. Otherwise it must not read them, as in an unused column.

The first run may miss a density that is NaN within the support of its latents, such as that of a factor log(b - a) of
two Normals, or a derivative that is NaN in a few rows, since `check_splits` examines a sample of rows.
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
from pyro_fed.density.checks.undefined import UndefinedError, partly_undefined, refuse_undefined
from pyro_fed.density.compiling.compiler import FAILURES
from pyro_fed.density.problem import Problem
from pyro_fed.density.running import log_probs, model_calls, site_values
from pyro_fed.errors import ModelError

#: Functions that distinguish NaN from numbers.
NAN_TESTS = frozenset(
    getattr(where, name)
    for name in ("isnan", "isfinite", "isinf", "nan_to_num", "nansum", "nanmean", "nanmedian")
    for where in (torch, Tensor)
)
#: Functions that distinguish NaN if both arguments are the same: `x != x`.
COMPARING = frozenset((torch.ne, torch.eq, Tensor.ne, Tensor.eq, Tensor.__ne__, Tensor.__eq__))
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
#: Modules of this package that test for NaN on behalf of the model.
NAN_TESTING_MODULES = frozenset(module.__file__ for module in (site_values, log_probs, model_calls))


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
        if (function in NAN_TESTS or same_twice) and (is_users(code) or code.co_filename in NAN_TESTING_MODULES):
            self.at += [arg for arg in args[:1] if isinstance(arg, Tensor)]


def unhandled_missing_values(problem: Problem) -> str | None:
    """The reason why the model does not handle the missing values of its data; None if it does."""
    for z in _points(problem):
        terms = problem.pointwise_log_lik(z)
        if not bool(terms.isfinite().all()):
            return f"the log density of {int((~terms.isfinite()).sum())} rows is not finite"
        if not bool(torch.func.grad(problem.log_lik)(z).isfinite().all()):
            return "the gradient of the log density is not finite"
    untested = _untested_arguments(problem)
    if untested:
        tests = ", ".join(f"torch.isnan({name})" for name in untested)
        return f"the model never tests {tests}, and treats NaN as a number, as a comparison does"
    return None


def _points(problem: Problem) -> list[Tensor]:
    """Two points (D,) near zero at which densities must be finite."""
    generator = torch.Generator().manual_seed(2)
    normals = [torch.randn(problem.dim, generator=generator, dtype=torch.float64) for _ in range(2)]
    return [(spread * one).to(problem.dtype) for spread, one in zip((0.1, 0.5), normals, strict=True)]


def _untested_arguments(problem: Problem) -> list[str]:
    """Arguments with NaN that the model reads without a test for NaN."""
    z = torch.zeros(problem.dim, dtype=problem.dtype)
    with _NaNTests() as nan_tests:
        problem.execute_at(z, problem.all_rows, densities=True)
    leaves = [leaf for leaf in problem.arguments.leaves if isinstance(leaf, Tensor)]
    leaves += [leaf for leaf in pytree.tree_leaves(problem.all_rows) if isinstance(leaf, Tensor)]
    arguments = {_storage(leaf) for leaf in leaves}
    tested = {_storage(leaf) for leaf in nan_tests.at}
    if tested - arguments:  # a test of a value computed from unknown arguments
        return []
    columns = problem.arguments.columns
    with_nan = [(name, leaf) for name, _, leaf in columns if leaf.is_floating_point() and bool(leaf.isnan().any())]
    return [name for name, leaf in with_nan if _storage(leaf) not in tested and _is_read(problem, leaf)]


def _is_read(problem: Problem, leaf: Tensor) -> bool:
    """Whether the log densities depend on the values in place of the leaf's NaN."""
    z = _points(problem)[-1]
    parts, spec = pytree.tree_flatten(problem.all_rows)
    places = [i for i, part in enumerate(parts) if isinstance(part, Tensor) and _storage(part) == _storage(leaf)]
    if not places:
        return True  # the model receives a copy of an unknown argument
    terms = problem.pointwise_log_lik(z)
    for filler in (-1e4, 0.5, 1e4):
        filled = [part.nan_to_num(nan=filler) if i in places else part for i, part in enumerate(parts)]
        if not torch.equal(problem.pointwise_log_lik(z, pytree.tree_unflatten(filled, spec)), terms):
            return True
    return False


def _storage(leaf: Tensor) -> int:
    return leaf.untyped_storage().data_ptr()


def nan_density_notes(problem: Problem) -> list[str]:
    """A sentence on a site without a finite density or derivative at draws of the prior or at zero; or none."""
    points = torch.zeros(1, problem.dim, dtype=problem.dtype)
    if not problem.layout.improper:
        with suppress(ModelError, *FAILURES):
            points = torch.cat([points, problem.init(NUM_DRAWS, torch.Generator().manual_seed(0), checked=False)])
    points = points[points.isfinite().all(1)]
    return _derivative_notes(problem, points[1 : 1 + FEW_DRAWS].double()) or _density_notes(problem, points)


def _derivative_notes(problem: Problem, points: torch.Tensor) -> list[str]:
    """A sentence on rows whose density or derivative is finite at none of the points, or a derivative not at many."""
    double_problem, generator = problem.doubled(), torch.Generator().manual_seed(0)
    try:
        for block in torch.arange(problem.num_rows).split(ROWS_TOGETHER) if len(points) else ():
            local = torch.randn(len(points), len(block), problem.local_dim, generator=generator, dtype=torch.float64)
            examined = double_problem, points, tuple(leaf[block] for leaf in double_problem.rows), local, block
            refuse_undefined(*examined)
            if found := partly_undefined(*examined):
                return [str(found[0])]
    except UndefinedError as error:
        return [str(error)]
    except FAILURES:  # if torch has no second derivative
        pass
    return []


def _density_notes(problem: Problem, points: torch.Tensor) -> list[str]:
    """A sentence on the site whose density is finite at the fewest of the points."""
    if problem.local_dim or problem.layout.discrete:
        return []
    rows, num_missed = tuple(leaf[:FEW_ROWS] for leaf in problem.rows), dict[str, int]()
    with suppress(*FAILURES):
        for z in points:
            for terms in problem.log_terms(z, rows):
                for name, value in terms.items():
                    num_missed[name] = num_missed.get(name, 0) + int(not bool(value.isfinite().all()))
    name = max(num_missed, key=lambda one: num_missed[one], default="")
    if not name or not num_missed[name]:
        return []
    return [
        f"the density of '{name}' is not finite at {num_missed[name]} of {len(points)} points that the latents' "
        "priors allow (zero, unconstrained, and draws of the prior): give the latents a support on which it is finite, "
        "such as a HalfNormal's in place of a Normal's, or OrderedTransform's of a vector"
    ]
