"""Data before and after they are pooled: the sizes of plates, and one set of arguments from the clients'."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pyro_fed.arguments import Arguments, flatten
from pyro_fed.checks import warn_duplicates
from pyro_fed.errors import DataError, ModelError
from pyro_fed.groups import check_rows
from pyro_fed.handlers import FillLatents, run_model
from pyro_fed.shards import choose_shards

Shard = Collection[int | str] | str | int | None


def plate_sizes(
    model: Callable[..., Any], arguments: Arguments, plate: str, rows: Mapping[str, Any] | None = None
) -> dict[str, int]:
    """Sizes that the model declares for its plates when it is run on all of its data.

    With `rows`, as in `Federation`, a model that fails because of these says so.

    Raises:
        ModelError: the model has no such plate; see `groups.check_rows`.
        DataError: see `groups.check_rows`.
    """
    dtype = arguments.floating_dtype()

    def zeros(msg: Any, transform: Any) -> Tensor:
        return torch.zeros(transform.inverse_shape(msg["fn"].shape()), dtype=dtype)

    filler = FillLatents(zeros, plate, {})
    args, kwargs = arguments.to(dtype).whole()
    declared: dict[str, int] = {}
    try:
        run_model(model, args, kwargs, filler, indices=None, dtype=dtype, declared=declared)
    except (RuntimeError, IndexError):
        if plate in declared:  # an index out of range or of another length says more than where the model stumbled
            check_rows(arguments, plate, declared, rows or {})
        raise
    if plate not in declared:
        raise ModelError(f"the model has no plate '{plate}'; its plates are {sorted(declared)}. Pass plate=...")
    return declared


def pool_clients(
    model: Callable[..., Any],
    clients: Sequence[Any],
    names: Sequence[str],
    kwargs: Mapping[str, Any] | None,
    plate: str,
    shard: Shard,
) -> tuple[Arguments, list[Tensor]]:
    """One set of arguments out of the clients', and each client's rows in it.

    Args:
        model: the Pyro model.
        clients: each client's positional arguments.
        names: the clients' names, for messages.
        kwargs: keyword arguments shared by all clients.
        plate: name of the partitioned plate.
        shard: names of the arguments split by rows; None guesses from the first client that has rows.

    Raises:
        DataError: no clients, structures or shapes that differ, shared arguments that are not equal.
    """
    if not clients:
        raise DataError("from_clients needs at least one client, received none")
    each = [flatten(model, args, kwargs) for args in clients]
    for arguments, name in zip(each, names, strict=True):
        _check_structure(arguments, name, each[0], names[0])
    sharded = _sharded_leaves(model, each, plate, shard)
    row_names = [each[0].names[i] for i in sharded]
    for k, name in enumerate(names):
        _check_has_rows(each[k], sharded, name)
        each[k] = choose_shards(each[k], None, row_names, where=f" at client {name}")
        _check_like_first(each[k], name, each[0], names[0])
    warn_duplicates(each, names)
    counts = [arguments.num_rows or 0 for arguments in each]
    leaves = [_pool_leaf(i, each, counts, names) for i in range(len(each[0].leaves))]
    ends = torch.tensor(counts).cumsum(0).tolist()
    index = [torch.arange(end - count, end) for end, count in zip(ends, counts, strict=True)]
    return replace(each[0], leaves=tuple(leaves)), index


def _sharded_leaves(model: Callable[..., Any], each: list[Arguments], plate: str, shard: Shard) -> tuple[int, ...]:
    """Positions of the leaves split by rows, guessed from the first client that has rows."""
    if shard is not None:
        return choose_shards(each[0], None, shard).sharded
    for arguments in each:
        sizes = [len(leaf) for leaf in arguments.leaves if isinstance(leaf, Tensor) and leaf.dim()]
        if sizes and min(sizes) > 0:
            chosen = choose_shards(arguments, plate_sizes(model, arguments, plate)[plate], None).sharded
            if not chosen:
                raise DataError(f"no argument of the first client with rows has as many rows as plate '{plate}'")
            return chosen
    raise DataError("no client has any row")


def _check_structure(arguments: Arguments, name: str, first: Arguments, first_name: str) -> None:
    if arguments.spec != first.spec:
        raise DataError(
            f"clients {first_name} and {name} have arguments of different structure: {list(first.names)} and "
            f"{list(arguments.names)}"
        )


def _check_has_rows(arguments: Arguments, sharded: tuple[int, ...], name: str) -> None:
    for i in sharded:
        leaf = arguments.leaves[i]
        if not isinstance(leaf, Tensor) or leaf.dim() == 0:
            received = "a scalar" if isinstance(leaf, Tensor) else type(leaf).__name__
            raise DataError(
                f"argument '{arguments.names[i]}' of client {name} is split by rows: expected an array of "
                f"rows, received {received}"
            )


def _check_like_first(arguments: Arguments, name: str, first: Arguments, first_name: str) -> None:
    for i, (mine, theirs) in enumerate(zip(arguments.leaves, first.leaves, strict=True)):
        if not isinstance(mine, Tensor) or not isinstance(theirs, Tensor):
            continue
        skip = 1 if i in arguments.sharded else 0
        if mine.shape[skip:] != theirs.shape[skip:]:
            raise DataError(
                f"argument '{arguments.names[i]}' has shape {tuple(theirs.shape)} at client {first_name} and "
                f"{tuple(mine.shape)} at client {name}: they may differ in the number of rows alone"
            )


def _pool_leaf(i: int, each: list[Arguments], counts: list[int], names: Sequence[str]) -> Any:
    leaves = [arguments.leaves[i] for arguments in each]
    if i in each[0].sharded:
        return torch.cat(leaves)
    if all(isinstance(leaf, int) for leaf in leaves) and leaves == counts:
        return sum(counts)
    unequal = [k for k, leaf in enumerate(leaves) if not _equal(leaf, leaves[0])]
    if unequal:
        raise DataError(
            f"argument '{each[0].names[i]}' is not split by rows, so it is shared and must be "
            "equal at all clients, "
            f"but clients {names[0]} and {names[unequal[0]]} differ"
        )
    return leaves[0]


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return isinstance(a, Tensor) and isinstance(b, Tensor) and torch.equal(a, b)
    return bool(a == b)
