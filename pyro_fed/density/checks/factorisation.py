"""Whether a model's likelihood can be split over the partitioned plate: numerical checks in place of trust.

Each row's log-likelihood must be the same whichever rows stand beside it, and what is outside the plate
must not depend on the rows. The model is run on some rows, on the first half of them, and on all but one in another
order, at one point; latents inside the plate go with their rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pyro_fed.density.checks.plate_tree import plate_tree
from pyro_fed.errors import ModelError

if TYPE_CHECKING:
    from pyro_fed.density.problem import Problem

#: Rows used for the checks.
CHECK_ROWS = 64
#: Relative difference that the checks take for rounding, per floating dtype.
CHECK_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-8}
#: Spread of the unconstrained point at which the checks are made.
CHECK_SCALE = 0.1

Terms = dict[str, Tensor]
#: What every row that does not factorise is told.
_CURE = (
    "Each row's term may depend on that row, its own latents and the latents outside the plate alone; standardise or "
    "summarise the data before the model, or partition over an outer plate"
)


def check_splits(problem: Problem) -> None:
    """Refuse a model that does not split.

    Raises:
        ModelError: names the site and the plate, and the cure, and draws the plates where there are several.
    """
    try:
        _check(problem)
    except ModelError as error:
        raise ModelError(f"{error}{plate_tree(problem)}") from error


def _check(problem: Problem) -> None:
    generator = torch.Generator().manual_seed(0)
    z = CHECK_SCALE * torch.randn(problem.dim, generator=generator, dtype=problem.dtype)
    picks = torch.randperm(problem.num_rows, generator=generator)[:CHECK_ROWS].sort().values
    half = max(len(picks) // 2, 1)
    rows = tuple(leaf[picks] for leaf in problem.rows)
    local = CHECK_SCALE * torch.randn(len(picks), problem.local_dim, generator=generator, dtype=problem.dtype)
    order = torch.randperm(len(picks), generator=generator)[: max(len(picks) - 1, 1)]
    try:
        outside, together = problem.log_terms(z, rows, local)
        part_outside, apart = problem.log_terms(z, tuple(leaf[:half] for leaf in rows), local[:half])
        imputed = problem.log_terms(z, rows, local, placeholder=1.0)[1]
        shuffled = problem.log_terms(z, tuple(leaf[order] for leaf in rows), local[order])[1]
    except ModelError:
        raise
    except (RuntimeError, IndexError, ValueError) as error:
        raise ModelError(
            f"the model runs on all {problem.num_rows} rows but not on some of them: the arguments split by rows are "
            f"{[name for name, _, _ in problem.arguments.columns]}, and plate '{problem.plate}' and every latent must "
            "take their sizes from them or be independent of them. Say which arguments are split with shard=(...). "
            f"{_nested_cure(problem)}The model said: {str(error).splitlines()[0]}"
        ) from error
    _check_outside(problem, outside, part_outside, len(picks), half)
    _check_rows(problem, together, apart, picks, half)
    _check_order(problem, together, shuffled, picks, order)
    _check_imputed(problem, together, imputed)


def _check_outside(problem: Problem, whole: Terms, part: Terms, many: int, few: int) -> None:
    plate = problem.plate
    for name in [name for name in whole if name not in part or not _close(part[name], whole[name])]:
        figures = f"{float(whole[name]):.6g} with {many} rows"
        figures += f", {float(part[name]):.6g} with {few}" if name in part else f", none with {few}"
        if name and name not in problem.sites:
            raise ModelError(
                f"observed site '{name}' is outside plate '{plate}', but its density changes with the rows of data "
                f"({figures}): it cannot be split over the clients. Move it inside `with pyro.plate('{plate}', ...)`, "
                "or say with shard=(...) which arguments are split by rows"
            )
        what = f"the prior of site '{name}'" if name else "the support of a latent site"
        raise ModelError(
            f"{what}, outside plate '{plate}', changes with the rows of data ({figures}). Compute summaries of the "
            "data once, before the model, and pass them as shared arguments; or exclude an argument that is not "
            "split by rows with shard=(...)"
        )


def _check_rows(problem: Problem, together: Terms, apart: Terms, picks: Tensor, half: int) -> None:
    for name in together:
        if name in apart and _close(apart[name], together[name][:half]):
            continue
        row, figures = 0, ""
        if name in apart:
            row = int((apart[name] - together[name][:half]).abs().argmax())
            figures = f" and {float(apart[name][row]):.6g} beside {half}"
        raise ModelError(
            f"{_kind(problem, name)} in plate '{problem.plate}' does not factorise over rows: row {int(picks[row])} "
            f"has log density {float(together[name][row]):.6g} beside {len(picks)} rows{figures}. {_CURE}"
        )


def _check_order(problem: Problem, together: Terms, shuffled: Terms, picks: Tensor, order: Tensor) -> None:
    for name in together:
        if not _close(shuffled[name], together[name][order]):
            row = int((shuffled[name] - together[name][order]).abs().argmax())
            raise ModelError(
                f"{_kind(problem, name)} in plate '{problem.plate}' does not factorise over rows: row "
                f"{int(picks[order[row]])} has log density {float(together[name][order[row]]):.6g}, and "
                f"{float(shuffled[name][row]):.6g} beside other neighbours. {_CURE}"
            )


def _nested_cure(problem: Problem) -> str:
    nested = ", ".join(f"'{name}'" for name in problem.arguments.nested_plates)
    if not nested:
        return ""
    return f"A row of {nested} may belong to one element of '{problem.plate}' alone, by the argument that rows= names. "


def _kind(problem: Problem, name: str) -> str:
    if name == "":
        return "the support of a latent site"
    return f"{'latent' if name in problem.layout.local else 'observed'} site '{name}'"


def _check_imputed(problem: Problem, together: Terms, imputed: Terms) -> None:
    for name in together:
        if not _close(imputed[name], together[name]):
            raise ModelError(
                f"imputed entries (obs_mask) in plate '{problem.plate}' are used again by site '{name}', so they are "
                "latents inside the plate: mask the likelihood instead, or impute outside the model"
            )


def _close(a: Tensor, b: Tensor) -> bool:
    tolerance = CHECK_TOLERANCE[torch.promote_types(a.dtype, torch.float32)]
    scale = 1 + torch.maximum(a.abs(), b.abs())
    same = (a == b) | (a.isnan() & b.isnan())
    return bool(((a - b).abs() <= tolerance * scale).logical_or(same).all())
