"""The arguments of a model that are split by rows: as the user names them, or guessed from their sizes."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from pyro_fed.density.rows.arguments import Arguments
from pyro_fed.errors import DataError, ModelError

#: Type of `shard=`, by which a user names the arguments that are split by rows.
Shard = Collection[int | str] | Mapping[Any, Any] | str | int | None


def choose_shards(
    arguments: Arguments,
    num_rows: int | None,
    shard: Shard,
    where: str = "",
) -> Arguments:
    """The arguments with the leaves marked that are split by rows.

    Args:
        arguments: the flattened arguments.
        num_rows: size of the partitioned plate, for the guess; None if `shard` names the arguments.
        shard: names (or positions) of the arguments to split; a mapping from names to the axis of their rows, None
            for an argument that is not split, which leaves the others to be guessed; None guesses: tensors whose
            leading dimension is the plate's size.
        where: the client's place in messages, such as " at client 2".

    Raises:
        ModelError: an unknown name, or a guess that is ambiguous.
        DataError: sharded leaves whose leading dimensions disagree.
    """
    if isinstance(shard, Mapping):
        return _by_axis(arguments, num_rows, shard, where)
    if shard is None:
        chosen = [i for i, leaf in enumerate(arguments.leaves) if _splits(arguments, i, leaf, num_rows)]
    else:
        chosen = _leaves_by_name(arguments, [shard] if isinstance(shard, (str, int)) else list(shard))
    sizes = {arguments.names[i]: len(arguments.leaves[i]) for i in chosen}
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"'{name}' has {size} rows" for name, size in sizes.items())
        cure = other_axis_cure(arguments, max(num_rows or 0, *sizes.values()), chosen)
        raise DataError(
            f"row-sharded arguments must have the same leading dimension, but {listed}{where}. {cure}".rstrip()
        )
    return replace(arguments, sharded=tuple(chosen))


def _by_axis(arguments: Arguments, num_rows: int | None, shard: Mapping[Any, int | None], where: str) -> Arguments:
    """The arguments with rows on the first axis of split leaves: named ones along their axis, the others as guessed."""
    axes: dict[int, int | None] = {}
    for name, axis in shard.items():
        for i in _leaves_by_name(arguments, [name]):
            leaf = arguments.leaves[i]
            if axis is not None and not -leaf.dim() <= axis < leaf.dim():
                raise ModelError(
                    f"shard={{'{name}': {axis}}} names an axis that argument '{arguments.names[i]}' of shape "
                    f"{tuple(leaf.shape)} does not have"
                )
            axes[i] = None if axis is None else axis % leaf.dim()
    moved = arguments.rows_first({i: axis for i, axis in axes.items() if axis})
    rest = [i for i, leaf in enumerate(moved.leaves) if i not in axes and _splits(moved, i, leaf, num_rows)]
    chosen = sorted([i for i, axis in axes.items() if axis is not None] + rest)
    lengths = {f"'{arguments.names[i]}' has {len(moved.leaves[i])} rows": len(moved.leaves[i]) for i in chosen}
    if len(set(lengths.values())) > 1:
        raise DataError(f"row-sharded arguments must have as many rows as one another, but {', '.join(lengths)}{where}")
    return replace(moved, sharded=tuple(chosen))


def other_axis_cure(arguments: Arguments, num_rows: int, split: Collection[int]) -> str:
    """The cure if an argument that is not in `split` has its rows on another axis than the first; "" if none has."""
    for i, (name, leaf) in enumerate(zip(arguments.names, arguments.leaves, strict=True)):
        if not isinstance(leaf, Tensor) or num_rows < 2 or i in arguments.axes:
            continue
        axes = [axis for axis, size in enumerate(leaf.shape) if size == num_rows]
        if axes and 0 not in axes:
            head = name if name.startswith("args[") else re.split(r"[.\[]", name)[0]
            return (
                f"Argument '{name}' has shape {tuple(leaf.shape)}: where its rows are on dimension {axes[0]}, say "
                f"shard={{'{head}': {axes[0]}}}, or transpose it. "
            )
    return ""


def _splits(arguments: Arguments, i: int, leaf: Any, num_rows: int | None) -> bool:
    if not isinstance(leaf, Tensor) or leaf.dim() == 0 or len(leaf) != num_rows:
        return False
    if list(leaf.shape).count(num_rows) > 1:
        raise ModelError(
            f"argument '{arguments.names[i]}' has shape {tuple(leaf.shape)}: more than one dimension equals the "
            f"plate's size {num_rows}, so it is ambiguous whether it is split by rows. Name the arguments to split, "
            "such as shard=('x', 'y')."
        )
    return True


def _leaves_by_name(arguments: Arguments, wanted: list[int | str]) -> list[int]:
    """Positions of leaves by their own name (`x['age']`), by the name of their argument (`x`), or by its position."""
    heads = [name if name.startswith("args[") else re.split(r"[.\[]", name)[0] for name in arguments.names]
    order = list(dict.fromkeys(heads))
    names = [order[w] if isinstance(w, int) and -len(order) <= w < len(order) else w for w in wanted]
    unknown = [name for name in names if name not in order and name not in arguments.names]
    if unknown:
        raise ModelError(f"shard= names {unknown}, but the model's arguments are {order}")
    chosen = [
        i
        for i, leaf in enumerate(arguments.leaves)
        if (heads[i] in names or arguments.names[i] in names) and isinstance(leaf, Tensor) and leaf.dim()
    ]
    if not chosen:
        raise ModelError(f"shard={wanted} names no tensor with rows: nothing would be split over the clients")
    return chosen
