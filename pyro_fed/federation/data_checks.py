"""Checks of the data before a run: values that are not finite, clients with identical data, columns beyond float32.

The information about a regression's weights is X'X, with a column of ones for the level. Let its columns have unit
length, and let κ² be its condition number. A relative rounding error of eps in its entries is then one of eps·κ² in its
smallest eigenvalue: the precision of the direction about which the data hold least information.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_fed.density.checks.not_finite import unhandled_missing_values
from pyro_fed.density.checks.points import ROWS_TOGETHER
from pyro_fed.density.layout import name_dims
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.arguments import Arguments
from pyro_fed.density.rows.files import blocks, picked
from pyro_fed.density.running.trace_sites import is_deterministic
from pyro_fed.errors import DataError, SettingError, warn_user
from pyro_fed.ops.entries import all_finite, evenly

#: Largest relative error of the smallest precision that is accepted in float32; an SD has half of it.
MAX_PRECISION_ERROR = 0.05
#: The most columns that are examined.
MAX_COLUMNS = 256
#: Singular values below this many units of rounding, relative to the largest, are zero. That is few: Julian dates over
#: a season, whose mean is 80,000 times their SD, are no constant.
DEPENDENT_UNITS = 32


def not_finite(
    arguments: Arguments, clients: Sequence[Tensor], names: Sequence[str], local_numbering: bool = False
) -> DataError | None:
    """An error on the first NaN or infinity in row-sharded data of clients with rows (N_k,); None without any."""
    _check_shared(arguments)
    if not arguments.incomplete:
        return None
    for name, nested, leaf in arguments.columns:
        if not leaf.is_floating_point() or all(map(all_finite, blocks(leaf))):
            continue
        for client, rows in zip(names, clients, strict=True):
            index = arguments.rows_of(nested, rows)
            bad = (~torch.isfinite(leaf[index])).reshape(len(index), -1).any(1)
            if bad.any():
                row = int(bad.nonzero()[0])
                number = row if local_numbering else int(index[row])
                position = torch.nonzero(~torch.isfinite(leaf[index[row]]))[0].tolist()
                value = leaf[index[row]][tuple(position)]
                masked = name in arguments.masked
                kind = ("masked" if masked else "NaN") if bool(value.isnan()) else "infinite"
                # isfinite alone is enough to find NaN at one row and an infinity at another.
                there = f"torch.isfinite({name})" if bool(leaf.isinf().any()) else f"~torch.isnan({name})"
                masks = f" ({name} is NaN where it is masked.)" if masked else ""
                return DataError(
                    f"client {client}, argument '{name}'[{', '.join(map(str, [number, *position]))}] is {kind} "
                    f"({int(bad.sum())} of {len(index)} rows). Nothing was run. Drop or impute these rows, or let the "
                    f"model handle them: `obs={name}, obs_mask={there}` for a target, `torch.where({there}, {name}, "
                    f"latent)` with a latent in the plate for a covariate.{masks}"
                )
    return None


def check_handled(problem: Problem, missing: DataError | None) -> None:
    """Refuse data with missing values unless the model handles them."""
    reason = None if missing is None else unhandled_missing_values(problem)
    if reason is not None:
        raise DataError(f"{missing} As the model is, {reason}.")


def check_labels(problem: Problem, dims: Mapping[str, Sequence[str]], coords: Mapping[str, Sequence[Any]]) -> None:
    """Refuse dimension names of unknown sites, and coordinates that do not fit."""
    latents = {**problem.layout.latents, **problem.layout.local, **problem.layout.reported}
    sites = {**latents, **problem.layout.observed}
    unknown = sorted(set(dims) - set(sites))
    if unknown:
        raise SettingError(f"dims name the sites {unknown}, which the model does not have; its sites are {list(sites)}")
    sizes: dict[str, tuple[int, str]] = {}
    for name, site in latents.items():
        own = [dim for dim in site.dims if "_dim_" in dim]
        wanted = dims.get(name, ())
        if len(wanted) > len(own):
            plates = [dim for dim in site.dims if dim not in own]
            others = f": the others have the names of their plates, {plates}" if plates else ""
            raise SettingError(
                f"dims[{name!r}] has {len(wanted)} names, {list(wanted)}, but site '{name}' of shape {site.shape} has "
                f"{len(own)} dimension(s) to be named{others}"
            )
        named = name_dims(site.dims, wanted)
        taken = [dim for dim in named if dim in ("chain", "draw") or named.count(dim) > 1]
        taken += [dim for dim in wanted if dim == problem.plate and dim not in site.dims]
        if taken:
            raise SettingError(f"dims[{name!r}] = {list(wanted)}: the name {taken[0]!r} is taken; choose another one")
        for dim, size in zip(named, site.shape, strict=True):
            known, first = sizes.setdefault(dim, (size, name))
            if known != size:
                raise SettingError(
                    f"dims name one dimension '{dim}' of site '{first}', which has {known} entries along it, and of "
                    f"site '{name}', which has {size}: choose another name for one of them"
                )
            if dim in sites:
                raise SettingError(f"dimension '{dim}' of site '{name}' has the name of a site: choose another name")
            if len(coords.get(dim, range(size))) != size:
                raise SettingError(
                    f"coords['{dim}'] has {len(coords[dim])} values, but site '{name}' has {size} along it"
                )


def warn_unsplit(problem: Problem, said: bool) -> None:
    """Warn of data that every client holds in full; `said`: the user has named the arguments that are split."""
    arguments = problem.arguments
    if not [leaf for i, leaf in enumerate(arguments.leaves) if i not in arguments.split and isinstance(leaf, Tensor)]:
        return
    z = torch.zeros(problem.dim, dtype=problem.dtype)
    trace = problem.execute_at(z, problem.fewest_rows).trace
    plates = {} if said or arguments.declared else {problem.plate: (problem.num_rows, None)}
    split = {problem.plate, *arguments.nested_plates}
    for name, msg in trace.nodes.items():
        frames = msg.get("cond_indep_stack", ())
        observed = msg["type"] == "sample" and msg["is_observed"] and not is_deterministic(msg)
        if observed and not any(frame.name in split for frame in frames):
            plates |= {frame.name: (frame.size, name) for frame in frames}
    for plate, (size, site) in plates.items():
        for i, (name, leaf) in enumerate(zip(arguments.names, arguments.leaves, strict=True)):
            if i in arguments.split or not isinstance(leaf, Tensor) or size < 2 or size not in leaf.shape:
                continue
            holds = f"plate '{plate}' ({size} rows{f', observed site {site!r}' if site else ''})"
            both = (*arguments.nested_plates, plate) if arguments.declared else (problem.plate, plate)
            cure = f"plate={both}" if site else f"shard={{'{name}': {list(leaf.shape).index(size)}}}"
            warn_user(
                f"argument '{name}' of shape {tuple(leaf.shape)} is as long as {holds}, but it is not split: every "
                f"client holds all of it. Where these are somebody's data, split them too, by {cure}"
            )


def warn_duplicates(each: Sequence[Arguments], names: Sequence[str]) -> None:
    """Warn of clients whose rows are identical, in the same order."""
    seen: dict[tuple[Any, ...], int] = {}
    for k, arguments in enumerate(each):
        if not arguments.num_rows:
            continue
        mine = [leaf for _, _, leaf in arguments.columns]
        fingerprint = tuple(
            (tuple(leaf.shape), float(picked(leaf, evenly(len(leaf), ROWS_TOGETHER)).double().sum())) for leaf in mine
        )
        other = seen.setdefault(fingerprint, k)
        same = zip(mine, (leaf for _, _, leaf in each[other].columns), strict=True)
        if other != k and all(torch.equal(a, b) for a, b in same):
            warn_user(
                f"clients {names[other]} and {names[k]} have identical data: their rows are counted twice. Leave one "
                "of them out if they are the same client"
            )


def _check_shared(arguments: Arguments) -> None:
    for i, (name, leaf) in enumerate(zip(arguments.names, arguments.leaves, strict=True)):
        if i in arguments.split or not isinstance(leaf, Tensor) or not leaf.is_floating_point():
            continue
        if bool(leaf.isnan().any()):
            position = leaf.isnan().nonzero()[0].tolist()
            raise DataError(f"argument '{name}'{position or ''}, shared by all clients, is NaN. Nothing was run.")


def wide_enough(arguments: Arguments, dtype: torch.dtype) -> torch.dtype:
    """float64 in place of float32 if the columns of the row-sharded leaves need it, with a warning that names them."""
    if dtype != torch.float32:
        return dtype
    for name, _, leaf in arguments.columns:
        if not isinstance(leaf, Tensor) or not leaf.is_floating_point() or leaf.dim() not in (1, 2):
            continue
        error, column = _error(leaf)
        if error > MAX_PRECISION_ERROR:
            of = f"column {column} of argument '{name}'" if leaf.dim() == 2 else f"argument '{name}'"
            warn_user(
                f"computed in float64: {of} is so nearly a combination of the others and a constant that float32 "
                f"would give the precision of its weight to {error:.1g} only. Centre and scale columns before the "
                "model, or pass dtype=torch.float32 to compute in float32 all the same"
            )
            return torch.float64
    return dtype


def _error(leaf: Tensor) -> tuple[float, int]:
    """eps·κ² of the columns and a constant, and the column with the largest part in the least informed direction."""
    eps = torch.finfo(torch.float32).eps
    step = -(-len(leaf) // ROWS_TOGETHER)
    columns = leaf[::step].reshape(len(leaf[::step]), -1)[:, :MAX_COLUMNS].double()
    if not bool(columns.isfinite().all()) or len(columns) <= columns.shape[1] + 1:
        return 0.0, 0
    varying = (columns != columns[0]).any(0)
    kept = varying.nonzero().flatten()
    if not len(kept):
        return 0.0, 0
    design = torch.cat([columns[:, kept], columns.new_ones(len(columns), 1)], 1)
    design = design / design.norm(dim=0)
    _, values, directions = torch.linalg.svd(design, full_matrices=False)
    # Columns that are dependent up to rounding, as those of a factor's levels, are informed by the prior alone.
    told = values > DEPENDENT_UNITS * eps * values[0]
    last = int(told.nonzero().max())
    condition = float(values[0] / values[last])
    return eps * condition**2, int(kept[int(directions[last, :-1].abs().argmax())])
