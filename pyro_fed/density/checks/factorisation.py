"""Whether a model's likelihood can be split over the partitioned plate: numerical checks in place of trust.

Each row's log-likelihood must be the same whichever rows stand beside it, and what is outside the plate must not depend
on the rows. Some rows are taken out, put in a random order, and cut into three overlapping parts of half of them; the
model is run on all parts at two points in one mapped run, which is also the trial of that mapping. Latents inside the
plate go with their rows.

At the first point the parts are compared with the model's first run, on all rows: other neighbours, another order and
another number of rows. At the second the third part is compared with the first two, which hold its rows in halves.

A second run of the whole is needed only where the first one does not have these densities: with discrete latents, which
it does not sum out, and where Pyro's validation refused its point. Models with imputed entries are run once more, with
another value for them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fed.density.bound import RowDensities
from pyro_fed.density.checks.first_run import SPREAD, FirstRun
from pyro_fed.density.checks.plate_tree import plate_tree
from pyro_fed.density.running.trace_sites import is_imputed
from pyro_fed.errors import ModelError, PyroFedError

#: Rows used for the checks.
CHECK_ROWS = 64
#: Relative difference that the checks take for rounding, per floating dtype.
CHECK_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-8}

Terms = dict[str, Tensor]
#: What every row that does not factorise is told.
_CURE = (
    "Each row's term may depend on that row, its own latents and the latents outside the plate alone; standardise or "
    "summarise the data before the model, or partition over an outer plate"
)


class _Picked(NamedTuple):
    """The rows that are looked at, and where: `at` (n,) row numbers, z (2, D) and local (2, n, d) two points."""

    at: Tensor
    rows: tuple[Tensor, ...]
    z: Tensor
    local: Tensor


class _Seen(NamedTuple):
    """What a run on `together` rows says of the picked ones: densities outside the plate (), and inside it (n,)."""

    outside: Terms
    inside: Terms
    together: int


def check_splits(problem: RowDensities, seen: FirstRun) -> None:
    """Refuse a model that does not split, mapping it as the problem does.

    Args:
        problem: the model's densities.
        seen: its first run, on all rows.

    Raises:
        ModelError: names the site and the plate, and the cure, and draws the plates where there are several.
        Exception: what the model raises where it cannot be mapped in this way.
    """
    try:
        picked = _pick(problem, seen)
        whole = _whole(problem, seen, picked)
        order = _parts(len(picked.at))
        outside, inside = _run_parts(problem, picked, order)
        _check_outside(problem, whole, outside, order.shape[1])
        _check_rows(problem, picked, whole, inside, order)
        _check_neighbours(problem, picked, inside, order)
        _check_imputed(problem, seen, picked, whole)
    except ModelError as error:
        raise ModelError(f"{error}{plate_tree(problem.bound)}") from error


def _pick(problem: RowDensities, seen: FirstRun) -> _Picked:
    """Some rows; the first point is that of the model's first run, as far as that is any."""
    bound, layout = problem.bound, problem.layout
    generator = torch.Generator().manual_seed(0)
    at = torch.randperm(bound.num_rows, generator=generator)[:CHECK_ROWS].sort().values
    z = SPREAD * torch.randn(2, problem.dim, generator=generator, dtype=bound.dtype)
    local = SPREAD * torch.randn(2, len(at), problem.local_dim, generator=generator, dtype=bound.dtype)
    if seen.spread:
        z[0] = torch.cat([seen.point[name].flatten() for name in layout.latents])
        local[0] = torch.cat([local[0, :, :0], *(s.by_rows(seen.point[n])[at] for n, s in layout.local.items())], -1)
    return _Picked(at, tuple(leaf[at] for leaf in problem.rows), z, local)


def _parts(count: int) -> Tensor:
    """Places of three parts' rows (3, m), m half of `count`: two parts that hold all, and one of halves of these."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1))
    half = (count + 1) // 2
    return torch.stack([order[:half], order[count - half :], order[::2]])


def _whole(problem: RowDensities, seen: FirstRun, picked: _Picked) -> _Seen:
    """All rows at once, from the first run; else the picked ones."""
    if not seen.spread or problem.layout.discrete:
        outside, inside = problem.log_terms(picked.z[0], picked.rows, picked.local[0])
        return _Seen(outside, inside, len(picked.at))
    bound = problem.bound
    outside, inside = problem.terms_of(bound.with_densities(seen.execution), bound.all_rows)
    return _Seen(outside, {name: terms[picked.at] for name, terms in inside.items()}, bound.num_rows)


def _run_parts(problem: RowDensities, picked: _Picked, order: Tensor) -> tuple[Terms, Terms]:
    """Densities of the parts at both points: outside the plate (3, 2), inside it (3, 2, m)."""
    rows = tuple(leaf[order] for leaf in picked.rows)
    at_points = problem.vmap(problem.log_terms, (0, None, 0))
    over_parts = problem.vmap(lambda part, local: at_points(picked.z, part, local), (0, 0))
    try:
        outside, inside = over_parts(rows, picked.local[:, order].movedim(1, 0))
    except PyroFedError:
        raise
    except (RuntimeError, IndexError, ValueError) as error:
        if not problem.looped:
            raise
        bound = problem.bound
        raise ModelError(
            f"the model runs on all {bound.num_rows} rows but not on some of them: the arguments split by rows are "
            f"{[name for name, _, _ in bound.arguments.columns]}, and plate '{bound.plate}' and every latent must "
            "take their sizes from them or be independent of them. Say which arguments are split with shard=(...). "
            f"{_nested_cure(problem)}The model said: {str(error).splitlines()[0]}"
        ) from error
    return outside, inside


def _check_outside(problem: RowDensities, whole: _Seen, parts: Terms, few: int) -> None:
    plate = problem.bound.plate
    for name, value in whole.outside.items():
        known = parts.get(name)
        if known is not None and _close(known[:, 0], value) and _close(known[1:, 1], known[:1, 1]):
            continue
        figures = f"{float(value):.6g} with {whole.together} rows"
        if known is None:
            figures += f", none with {few}"
        elif not _close(known[:, 0], value):
            figures += f", {float(_furthest(known[:, 0], value)):.6g} with {few}"
        else:
            low, high = float(known[:, 1].min()), float(known[:, 1].max())
            figures = f"{low:.6g} with {few} rows, {high:.6g} with {few} others"
        if name and name not in problem.layout.latents:
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


def _check_rows(problem: RowDensities, picked: _Picked, whole: _Seen, parts: Terms, order: Tensor) -> None:
    """Each row among all others against itself in a part, at the first point."""
    half = order.shape[1]
    for name, terms in whole.inside.items():
        if name not in parts:
            raise _not_split(problem, name, int(picked.at[0]), float(terms[0]), f"{whole.together} rows")
        expected, found = terms[order], parts[name][:, 0]
        if not _close(found, expected):
            part, place = divmod(int((found - expected).abs().nan_to_num(torch.inf).argmax()), half)
            figures = f"{whole.together} rows and {float(found[part, place]):.6g} beside {half} in another order"
            row = int(picked.at[order[part, place]])
            raise _not_split(problem, name, row, float(expected[part, place]), figures)


def _check_neighbours(problem: RowDensities, picked: _Picked, parts: Terms, order: Tensor) -> None:
    """The third part's rows against themselves in the first two, at the second point."""
    half = order.shape[1]
    for name, terms in parts.items():
        both = terms.new_zeros(len(picked.at)).index_copy(0, order[0], terms[0, 1]).index_copy(0, order[1], terms[1, 1])
        expected, found = both[order[2]], terms[2, 1]
        if not _close(found, expected):
            place = int((found - expected).abs().nan_to_num(torch.inf).argmax())
            figures = f"{half} rows and {float(found[place]):.6g} beside {half} others"
            raise _not_split(problem, name, int(picked.at[order[2, place]]), float(expected[place]), figures)


def _check_imputed(problem: RowDensities, seen: FirstRun, picked: _Picked, whole: _Seen) -> None:
    """Imputed entries are used nowhere else: another value for them changes nothing."""
    trace, plates = seen.execution.trace, seen.execution.filler.plates
    if not any(msg["type"] == "sample" and is_imputed(msg, plates) for msg in trace.nodes.values()):
        return
    _, imputed = problem.log_terms(picked.z[0], picked.rows, picked.local[0], placeholder=1.0)
    for name, terms in whole.inside.items():
        if not _close(imputed[name], terms):
            raise ModelError(
                f"imputed entries (obs_mask) in plate '{problem.bound.plate}' are used again by site '{name}', so "
                "they are latents inside the plate: mask the likelihood instead, or impute outside the model"
            )


def _not_split(problem: RowDensities, name: str, row: int, value: float, figures: str) -> ModelError:
    if name:
        site = f"{'latent' if name in problem.layout.local else 'observed'} site '{name}'"
    else:
        site = "the support of a latent site"
    return ModelError(
        f"{site} in plate '{problem.bound.plate}' does not factorise over rows: row {row} has log density "
        f"{value:.6g} beside {figures}. {_CURE}"
    )


def _nested_cure(problem: RowDensities) -> str:
    nested = ", ".join(f"'{name}'" for name in problem.bound.arguments.nested_plates)
    if not nested:
        return ""
    plate = problem.bound.plate
    return f"A row of {nested} may belong to one element of '{plate}' alone, by the argument that rows= names. "


def _furthest(found: Tensor, expected: Tensor) -> Tensor:
    return found[(found - expected).abs().nan_to_num(torch.inf).argmax()]


def _close(a: Tensor, b: Tensor) -> bool:
    tolerance = CHECK_TOLERANCE[torch.promote_types(a.dtype, torch.float32)]
    scale = 1 + torch.maximum(a.abs(), b.abs())
    same = (a == b) | (a.isnan() & b.isnan())
    return bool(((a - b).abs() <= tolerance * scale).logical_or(same).all())
