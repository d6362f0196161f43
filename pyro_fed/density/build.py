"""Construction of the `Problem` of a model and its arguments, with all checks of the model.

A plain model is run three times. The first run is validated, on all rows, and lists the sites. A run on all rows and a
run on pairs of rows, both mapped and in float64, show that the likelihood factorises and that the model can be mapped.
For another dtype there is a fourth run, on two rows, in that dtype.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value
from torch.utils import _pytree as pytree

from pyro_fed.density.bound import BoundModel
from pyro_fed.density.checks.factorisation import check_splits, extreme_rows, where_different
from pyro_fed.density.checks.first_run import FirstRun, check_modules, first_run, refusing_writes
from pyro_fed.density.checks.lookups import NegativeLookups
from pyro_fed.density.checks.points import ROWS_TOGETHER, points_near_zero
from pyro_fed.density.checks.sites import describe
from pyro_fed.density.checks.source import line_of
from pyro_fed.density.compiling.compiler import FAILURES, Compiler, reason_of
from pyro_fed.density.compiling.process import run_trial
from pyro_fed.density.latents.latent_checks import check_held
from pyro_fed.density.latents.quadrature import Quadrature
from pyro_fed.density.layout import Layout
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.arguments import Arguments
from pyro_fed.density.rows.files import row_blocks
from pyro_fed.density.running.log_probs import asks_for_double
from pyro_fed.density.running.model_calls import is_shared
from pyro_fed.density.traits_search import ModelTraits
from pyro_fed.errors import DataError, ModelError, PyroFedError, listed, warn_user

#: Ways to map a model, the fastest first: the compiler's level, and whether the model writes into its own new tensors
#: (`torch_modes.Writable`). The last one works for every model that runs.
MAPPINGS = (("off", False), ("off", True), ("loop", False))


def build(
    model: Callable[..., Any],
    arguments: Arguments,
    plate: str,
    num_rows: int,
    dtype: torch.dtype,
    *,
    quadrature: Quadrature | None = None,
    constants: Mapping[str, Any] | None = None,
    initial_run: FirstRun | None = None,
    whole: Mapping[str, int] | None = None,
    free: bool = False,
) -> Problem:
    """A model's densities, after a check that they can be split over the rows.

    Args:
        model: the ordinary Pyro model.
        arguments: its arguments in `dtype`, with the row-sharded leaves marked.
        plate: name of the partitioned plate.
        num_rows: rows of the arguments, or of the model's own data.
        dtype: floating dtype of the unconstrained vector.
        quadrature: rule that integrates out latent sites inside the plate; its open settings are chosen here.
        constants: values of `pyro.param` statements; others are read from the model.
        initial_run: a validated run of the model on all of these rows, if there is one.
        whole: sizes of the split plates over all rows, if these rows are a part of rows that were checked together.
        free: whether float64 may replace float32, since the user has not chosen a dtype.

    Raises:
        ModelError: the model cannot be split over the plate; names the site, the expected property and the cure.
        DataError: data outside a likelihood's support, or rows that do not fit the plate.
    """
    check_modules(model)
    if initial_run is None and arguments.has_many_rows:
        settings = {"quadrature": quadrature, "constants": constants, "free": free}
        if few_rows_problem := _from_few_rows(
            model, arguments, plate, num_rows, dtype, whole or {plate: num_rows}, settings
        ):
            return few_rows_problem
    bound = BoundModel(model, arguments, plate, num_rows, dtype, {**(constants or {})})
    if initial_run is None:
        with refusing_writes(arguments.names, arguments.leaves):
            initial_run = first_run(lambda source: bound.execute(source, bound.all_rows, validate=True), dtype)
    times = (whole or {}).get(plate, num_rows) / max(num_rows, 1)
    if free and dtype == torch.float32 and asks_for_double(initial_run.execution.trace, times):
        wide = partial(build, model, arguments.to(torch.float64), plate, num_rows, torch.float64)
        return wide(quadrature=quadrature, constants=constants, whole=whole)
    bound.constants.update(initial_run.execution.filler.constants)
    layout = describe(bound, initial_run, whole)
    problem = _with_fastest_mapping(
        Problem(bound, layout, num_rows, quadrature or Quadrature(), describe=ModelTraits.of),
        lambda candidate: _check_mapping(candidate, initial_run),
    )
    if problem.local_dim:
        if problem.looped:
            raise _unmappable_error(problem)
        check_held(problem, initial_run.execution.trace)
        problem = replace(problem, quadrature=problem.quadrature.fitted(problem.doubled()))
        one_step = replace(problem.quadrature, mode_steps=1)  # all Newton steps run the same operations
        problem = _with_fastest_mapping(problem, lambda one: run_trial(replace(one, quadrature=one_step)))
    _warn_of_constants(bound, layout)
    return problem


def _from_few_rows(
    model: Callable[..., Any],
    arguments: Arguments,
    plate: str,
    num_rows: int,
    dtype: torch.dtype,
    whole: Mapping[str, int],
    settings: Mapping[str, Any],
) -> Problem | None:
    """A problem whose checks run on a sample of many rows; None if the model has to be checked on all rows."""
    if arguments.incomplete or settings["constants"]:
        return None
    generator = torch.Generator().manual_seed(0)
    at_random = torch.randint(num_rows, (ROWS_TOGETHER,), generator=generator).tolist()
    sample = torch.tensor([*at_random, *extreme_rows(arguments.rows)]).unique()  # a derivative may be NaN at one zero
    try:
        with warnings.catch_warnings(record=True) as records:
            warnings.simplefilter("always")
            problem = build(model, arguments.alone(sample), plate, len(sample), dtype, whole=whole, **settings)
    except Exception:  # of any kind: the checks on all rows report the error
        return None
    layout = problem.layout
    if (
        problem.looped
        or problem.local_dim
        or layout.discrete
        or problem.bound.constants
        or problem.bound.without_curvature  # with the numbers of rows of the sample
        or problem.bound.partly_undefined
        or layout.has_length(len(sample))
    ):
        return None
    bound = replace(problem.bound, arguments=arguments.to(problem.dtype), num_rows=num_rows)
    full_problem = replace(problem, bound=bound, layout=layout.over(num_rows), num_rows=num_rows)
    if not _all_are_regular(full_problem):
        return None
    for record in records:
        warnings.warn_explicit(record.message, record.category, record.filename, record.lineno)
    return full_problem


def _all_are_regular(problem: Problem) -> bool:
    """Whether all rows are valid and finite near zero, and each block's densities are those of its halves."""
    z, exact = points_near_zero(1, problem.dim)[0], problem.doubled()

    def total(point: Tensor, rows: tuple[Tensor, ...]) -> tuple[Tensor, list[Tensor]]:
        outside, inside = exact.log_terms(point, rows, validate=True)
        terms = [*outside.values(), *inside.values()]
        return sum((one.sum() for one in terms), point.new_zeros(())), terms

    try:
        with NegativeLookups() as lookups:
            for rows in row_blocks(problem.rows):
                slope, (value, terms) = grad_and_value(total, has_aux=True)(z, rows)
                if not bool(slope.isfinite().all() & value.isfinite()):
                    return False
                for half in (slice(None, None, 2), slice(1, None, 2)) if len(rows[0]) > 1 else ():
                    half_terms = total(z, tuple(leaf[half] for leaf in rows))[1]
                    expected = (one[half] if one.dim() else one for one in terms)
                    if any(bool(where_different(a, b).any()) for a, b in zip(expected, half_terms, strict=True)):
                        return False
    except Exception:  # of any kind: a row is outside the support, or an index beyond its table
        return False
    return not lookups.found


def _unmappable_error(problem: Problem) -> ModelError:
    """The error for latents of rows in a model that cannot be mapped over their values."""
    why, line = "", ""
    try:
        run_trial(replace(problem, compiler=Compiler("off")))
    except (*FAILURES, IndexError) as error:
        why = "" if "control flow" in str(error) else f" ({reason_of(error)})"
        line = line_of(error)
    return ModelError(
        f"latents of rows, {listed(map(repr, problem.layout.local))}, are integrated out at many points, but the model "
        f"cannot be mapped over these points, and one run for each takes hours. It fails{line or ' under vmap'}{why}. "
        "Write that line without reading a latent's value: torch.where(...) or clamp in place of `if`, no assert, "
        "no .item(). Pyro's SymmetricStableReparam reads values; StableReparam() does not"
    )


def rebuild(problem: Problem, arguments: Arguments, quadrature: Quadrature | None) -> Problem:
    """The densities of the same model on other data of the same shapes; compiled steps are reused if possible.

    There is one validated run, since the likelihood is known to be a sum over rows. `quadrature` is the user's, before
    its open settings are chosen.
    """
    constants = {name: value for name, value in problem.bound.constants.items() if not is_shared(name)}
    bound = replace(problem.bound, arguments=arguments, constants=constants)
    initial_run = first_run(lambda source: bound.execute(source, bound.all_rows, validate=True), bound.dtype)
    if describe(bound, initial_run) != problem.layout:
        raise DataError(
            "with the new data the model has other sites, or sites of other shapes: make a new Federation for them"
        )
    new_problem = replace(problem, bound=bound)
    if not problem.arguments.shares_with(arguments) or not _equal_constants(problem.bound.constants, bound.constants):
        new_problem = replace(new_problem, compiler=Compiler(problem.compiler.level))
    if problem.local_dim:
        check_held(new_problem, initial_run.execution.trace)
        new_quadrature = (quadrature or Quadrature()).fitted(new_problem.doubled())
        if new_quadrature != problem.quadrature:
            new_problem = replace(new_problem, quadrature=new_quadrature, compiler=Compiler(problem.compiler.level))
    return new_problem


def _equal_constants(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two sets of constants, including shared values, are equal."""
    a, b = (pytree.tree_leaves(dict(sorted(constants.items()))) for constants in (one, other))
    return len(a) == len(b) and all(
        torch.equal(x, y) if isinstance(x, Tensor) and isinstance(y, Tensor) else x is y or bool(x == y)
        for x, y in zip(a, b, strict=True)
    )


def _check_mapping(problem: Problem, initial_run: FirstRun) -> None:
    """Refuse a model that does not split in float64, and try the mapping in the problem's dtype."""
    check_splits(problem, initial_run)
    if problem.dtype != torch.float64 and not problem.local_dim:
        run_trial(problem)


def _with_fastest_mapping(problem: Problem, attempt: Callable[[Problem], None]) -> Problem:
    """The problem with the first of `MAPPINGS` for which the attempt succeeds; an error is raised by the last one."""
    *faster, slowest = (replace(problem, compiler=Compiler(level), writes=writes) for level, writes in MAPPINGS)
    for candidate in faster:
        try:
            attempt(candidate)
        except PyroFedError:  # a refusal of the model, not a failure of the mapping
            raise
        except (*FAILURES, IndexError):
            continue
        return candidate
    attempt(slowest)
    return slowest


def _warn_of_constants(bound: BoundModel, layout: Layout) -> None:
    names = sorted(name for name in bound.constants if not _is_centring(name, layout) and not is_shared(name))
    if names:
        warn_user(
            f"pyro.param statements {names} are held constant at their present values: give them priors to infer them"
        )


def _is_centring(name: str, layout: Layout) -> bool:
    """Whether a `pyro.param` is the degree of centring of a `LocScaleReparam`, which does not change the model."""
    decentred = name.removesuffix("_centered") + "_decentered"
    return name.endswith("_centered") and decentred in {**layout.latents, **layout.local}
