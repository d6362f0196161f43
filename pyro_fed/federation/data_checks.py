"""Checks of the data before anything is run: values that are not finite, and data that are there twice."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pyro_fed.density.layout import name_dims
from pyro_fed.density.rows.arguments import Arguments
from pyro_fed.errors import DataError, SettingError

if TYPE_CHECKING:
    from pyro_fed.density.problem import Problem


def check_finite(
    arguments: Arguments, clients: Sequence[Tensor], names: Sequence[str], local_numbering: bool = False
) -> None:
    """Refuse NaN and infinity in row-sharded data, and NaN in shared arguments.

    Args:
        arguments: pooled arguments.
        clients: each client's row positions.
        names: the clients' names.
        local_numbering: count rows within the client instead of within the pooled data.

    Raises:
        DataError: names client, argument and row, with the number of rows concerned.
    """
    _check_shared(arguments)
    for name, nested, leaf in arguments.columns:
        if not leaf.is_floating_point() or bool(torch.isfinite(leaf).all()):
            continue
        for client, rows in zip(names, clients, strict=True):
            index = arguments.rows_of(nested, rows)
            bad = (~torch.isfinite(leaf[index])).reshape(len(index), -1).any(1)
            if bad.any():
                row = int(bad.nonzero()[0])
                number = row if local_numbering else int(index[row])
                _raise_not_finite(name, leaf[index[row]], client, number, int(bad.sum()), len(index))


def check_labels(problem: Problem, dims: Mapping[str, Sequence[str]], coords: Mapping[str, Sequence[Any]]) -> None:
    """Refuse names of dimensions of no site, and coordinates that do not fit, before the run instead of after it.

    Args:
        problem: the model's densities.
        dims: names for the dimensions of sites.
        coords: values along dimensions.

    Raises:
        SettingError: names what does not fit, and what would.
    """
    latents = {**problem.layout.latents, **problem.layout.local, **problem.layout.reported}
    sites = {**latents, **problem.layout.observed}
    unknown = sorted(set(dims) - set(sites))
    if unknown:
        raise SettingError(f"dims name the sites {unknown}, which the model does not have: it has {list(sites)}")
    sizes: dict[str, tuple[int, str]] = {}
    for name, site in latents.items():
        own = [dim for dim in site.dims if "_dim_" in dim]
        wanted = dims.get(name, ())
        if len(wanted) > len(own):
            raise SettingError(
                f"dims[{name!r}] has {len(wanted)} names, {list(wanted)}, but site '{name}' of shape {site.shape} has "
                f"{len(own)} dimension(s) to be named"
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
                raise SettingError(f"dimension '{dim}' of site '{name}' is called like a site: choose another name")
            if len(coords.get(dim, range(size))) != size:
                raise SettingError(
                    f"coords['{dim}'] has {len(coords[dim])} values, but site '{name}' has {size} along it"
                )


def warn_duplicates(each: Sequence[Arguments], names: Sequence[str]) -> None:
    """Warn of clients whose rows are identical, in the same order.

    Args:
        each: the clients' arguments.
        names: the clients' names.
    """
    seen: dict[tuple[Any, ...], int] = {}
    for k, arguments in enumerate(each):
        if not arguments.num_rows:
            continue
        mine = [leaf for _, _, leaf in arguments.columns]
        fingerprint = tuple((tuple(leaf.shape), float(leaf.double().sum())) for leaf in mine)
        other = seen.setdefault(fingerprint, k)
        same = zip(mine, (leaf for _, _, leaf in each[other].columns), strict=True)
        if other != k and all(torch.equal(a, b) for a, b in same):
            warnings.warn(
                f"clients {names[other]} and {names[k]} have identical data: their rows are counted twice. Leave one "
                "out if it is the same client",
                UserWarning,
                stacklevel=6,
            )


def _check_shared(arguments: Arguments) -> None:
    for i, (name, leaf) in enumerate(zip(arguments.names, arguments.leaves, strict=True)):
        if i in arguments.split or not isinstance(leaf, Tensor) or not leaf.is_floating_point():
            continue
        if bool(leaf.isnan().any()):
            position = leaf.isnan().nonzero()[0].tolist()
            raise DataError(f"argument '{name}'{position or ''}, shared by all clients, is NaN. Nothing was run.")


def _raise_not_finite(name: str, row: Tensor, client: str, number: int, bad: int, total: int) -> None:
    position = torch.nonzero(~torch.isfinite(row), as_tuple=False)[0].tolist()
    value = row[tuple(position)] if position else row
    kind = "NaN" if bool(torch.isnan(value)) else "infinite"
    where = ", ".join(map(str, [number, *position]))
    raise DataError(
        f"client {client}, argument '{name}'[{where}] is {kind} ({bad} of {total} rows). Nothing was run. "
        "Drop or impute these rows, or mark them by `obs_mask` with a finite placeholder."
    )
