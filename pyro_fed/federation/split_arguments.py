"""Which of a model's arguments are split by rows: as the user names them, or guessed from their sizes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from torch import Tensor

from pyro_fed.density.rows.arguments import Arguments
from pyro_fed.errors import DataError, ModelError


def choose_shards(
    arguments: Arguments,
    num_rows: int | None,
    shard: Collection[int | str] | str | int | None,
    where: str = "",
) -> Arguments:
    """Say which leaves are split by rows.

    Args:
        arguments: the flattened arguments.
        num_rows: size of the partitioned plate, for the guess; None where `shard` says it.
        shard: names (or positions) of the arguments to split; None guesses: tensors whose leading dimension
            is the plate's size.
        where: which client the arguments are of, for messages.

    Raises:
        ModelError: an unknown name, or a guess that is ambiguous.
        DataError: sharded leaves whose leading dimensions disagree.
    """
    if shard is None:
        chosen = [i for i, leaf in enumerate(arguments.leaves) if _splits(arguments, i, leaf, num_rows)]
    else:
        chosen = _named(arguments, [shard] if isinstance(shard, (str, int)) else list(shard))
    sizes = {arguments.names[i]: len(arguments.leaves[i]) for i in chosen}
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"'{name}' has {size} rows" for name, size in sizes.items())
        raise DataError(f"row-sharded arguments must have the same leading dimension, but {listed}{where}")
    return replace(arguments, sharded=tuple(chosen))


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


def _named(arguments: Arguments, wanted: list[int | str]) -> list[int]:
    """Leaves named by themselves (`x['age']`), by the argument they belong to (`x`), or by its position."""
    heads = [name if name.startswith("args[") else name.split("[")[0] for name in arguments.names]
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
