"""The plates nested in the partitioned one by `Federation(..., rows=)`, checked against the model's arguments."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from pyro_fed.density.rows.arguments import Arguments
from pyro_fed.errors import DataError, ModelError, listed
from pyro_fed.federation.groups.arguments import GroupedArguments, NestedPlate
from pyro_fed.federation.split_arguments import Shard, choose_shards


def group_arguments(
    arguments: Arguments,
    plate: str,
    sizes: Mapping[str, int],
    rows: Mapping[str, str | Sequence[str]],
    shard: Shard,
    where: str = "",
) -> GroupedArguments:
    """Arguments whose nested plates follow the groups of the partitioned plate.

    Args:
        arguments: the flattened arguments.
        plate: name of the partitioned plate.
        sizes: the model's plates and their sizes.
        rows: nested plate → the argument with the group of each row; or that argument and the plate's others, if their
            length is ambiguous.
        shard: the arguments with one entry a group; guessed by their length.
        where: the client's place in messages, such as " at client 2".

    Raises:
        ModelError: as `check_rows`, or a guess that is ambiguous.
        DataError: as `check_rows`.
    """
    given = check_rows(arguments, plate, sizes, rows, where)
    index = {name: arguments.names.index(parts[0]) for name, parts in given.items()}
    if shard is None:
        _check_lengths(given, plate, sizes)
    chosen = () if shard in ((), []) else choose_shards(arguments, sizes[plate], shard, where).sharded
    nested: list[NestedPlate] = []
    for name, parts in given.items():
        taken = {*index.values(), *(chosen if shard is not None else ())}
        named = [arguments.names.index(part) for part in parts[1:]]
        nested.append(NestedPlate(name, index[name], tuple(named or _of_length(arguments, sizes[name], taken))))
    inside = {i for part in nested for i in (part.index, *part.leaves)}
    return GroupedArguments(
        arguments.leaves,
        arguments.names,
        arguments.spec,
        tuple(i for i in chosen if i not in inside),
        num_groups=sizes[plate],
        labels=arguments.labels,
        masked=arguments.masked,
        nested=tuple(nested),
        capacities=tuple(sizes[part.plate] for part in nested),
    )


def with_column_names(
    arguments: Arguments, rows: Mapping[str, str | Sequence[str]] | None
) -> dict[str, list[str]] | None:
    """`rows` with columns of a frame, or keys of a dictionary, as arguments: "hospital" for "df['hospital']".

    A name that is not a column, or is one of several arguments, stays unchanged.
    """
    if rows is None:
        return None

    def argument_of(name: str) -> str:
        held = [argument for argument in arguments.names if argument.endswith(f"[{name!r}]")]
        return held[0] if name not in arguments.names and len(held) == 1 else name

    return {
        plate: [argument_of(name) for name in ([parts] if isinstance(parts, str) else parts)]
        for plate, parts in rows.items()
    }


def check_rows(
    arguments: Arguments,
    plate: str,
    sizes: Mapping[str, int],
    rows: Mapping[str, str | Sequence[str]],
    where: str = "",
) -> dict[str, list[str]]:
    """The arguments that `rows` names for each nested plate, once checked; arguments as for `group_arguments`.

    Raises:
        ModelError: a plate or argument does not exist.
        DataError: an index is not whole, has another length, or is out of range.
    """
    given = {name: [parts] if isinstance(parts, str) else list(parts) for name, parts in rows.items()}
    for name, parts in given.items():
        _check_names(arguments, name, parts, plate, sizes)
        _check_index(arguments, arguments.names.index(parts[0]), name, plate, sizes, where)
    return given


def _of_length(arguments: Arguments, size: int, taken: Collection[int]) -> list[int]:
    tensors = [i for i, leaf in enumerate(arguments.leaves) if isinstance(leaf, Tensor) and leaf.dim()]
    return [i for i in tensors if len(arguments.leaves[i]) == size and i not in taken]


def _check_names(arguments: Arguments, name: str, parts: Sequence[str], plate: str, sizes: Mapping[str, int]) -> None:
    if name not in sizes or name == plate:
        others = listed(map(repr, sorted(set(sizes) - {plate}))) or "none"
        raise ModelError(
            f"rows= names the plate '{name}', whose rows would belong to the elements of plate '{plate}'; the model's "
            f"plates besides '{plate}': {others}"
        )
    unknown = [part for part in parts if part not in arguments.names]
    if unknown:
        raise ModelError(
            f"rows={{'{name}': ...}} names the arguments {unknown}, but the model's are {list(arguments.names)}"
        )


def _check_index(arguments: Arguments, at: int, name: str, plate: str, sizes: Mapping[str, int], where: str) -> None:
    leaf, argument, groups = arguments.leaves[at], f"argument '{arguments.names[at]}'{where}", sizes[plate]
    if not isinstance(leaf, Tensor) or leaf.dim() != 1 or leaf.is_floating_point() or leaf.dtype == torch.bool:
        received = f"{leaf.dtype} of shape {tuple(leaf.shape)}" if isinstance(leaf, Tensor) else type(leaf).__name__
        raise DataError(
            f"{argument} says to which element of plate '{plate}' each row of plate '{name}' belongs: "
            f"expected whole numbers, ({sizes[name]},), received {received}"
        )
    if len(leaf) != sizes[name]:
        raise DataError(f"{argument} has {len(leaf)} rows, but plate '{name}' has size {sizes[name]}")
    low, high = int(leaf.min()), int(leaf.max())
    if low < 0 or high >= groups:
        cure = f": subtract {low}" if high - low < groups else ""
        between = next(
            (other for other, size in sizes.items() if other not in (plate, name) and size == high + 1), None
        )
        if between is not None and not low:
            cure = (
                f". It numbers the elements of plate '{between}', in between: partition over that, plate='{between}' "
                f"with rows={{'{name}': '{arguments.names[at]}'}}; what each element of '{plate}' has is then common "
                f"to all, and partition=pf.partition.ByGroup(...) of the '{plate}' of each '{between}' keeps them whole"
            )
        raise DataError(
            f"{argument} must number the elements of plate '{plate}', which has size {groups}: expected 0 "
            f"to {groups - 1}, received {low} to {high}{cure}"
        )


def _check_lengths(given: Mapping[str, Sequence[str]], plate: str, sizes: Mapping[str, int]) -> None:
    guessed = [plate, *(name for name, parts in given.items() if len(parts) == 1)]
    for name in guessed[1:]:
        same = [other for other in guessed if other != name and sizes[other] == sizes[name]]
        if same:
            raise ModelError(
                f"plates '{name}' and '{same[0]}' have the same size {sizes[name]}, so that arguments cannot be told "
                f"by their length: list them, as in rows={{'{name}': ('{given[name][0]}', 'x', 'y')}}, and name those "
                f"of plate '{plate}' by shard=(...)"
            )
