"""Arguments of a model with several plates of data, all of which are split: observed and censored rows.

    with pyro.plate("observed", N): sample(..., obs=t)
    with pyro.plate("censored", M): sample(..., obs=c)

The rows of all of them, one plate's after the other's, are the elements of a plate that the model does not have. The
model's plates are nested in it with one row an element: N + M rows to be dealt to the clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_fed.density.rows.arguments import Arguments
from pyro_fed.errors import DataError, ModelError
from pyro_fed.federation.groups.arguments import GroupedArguments, NestedPlate

#: Separates the plates' names in the name of the plate of all their rows.
AND = "+"


@dataclass(frozen=True)
class SeveralArguments(GroupedArguments):
    """Arguments whose rows are in several plates, none of which is nested in another."""

    @property
    def declared(self) -> dict[str, int]:
        return {part.plate: len(self.leaves[part.index]) for part in self.nested}

    @property
    def nested_by_name(self) -> dict[str, list[str]]:
        return {}  # the model has no plate in which these are nested


def several_arguments(
    arguments: Arguments,
    plates: Sequence[str],
    sizes: Mapping[str, int],
    shard: Mapping[str, Any] | None = None,
    where: str = "",
) -> SeveralArguments:
    """Arguments with several plates of rows.

    Args:
        arguments: the flattened arguments.
        plates: names of the plates to split.
        sizes: the model's plates and their sizes.
        shard: plate → the arguments with its rows, if their length is ambiguous.
        where: the client's place in messages, such as " at client 2".

    Raises:
        ModelError: plates have the same size, so that their arguments are ambiguous.
        DataError: an argument does not exist or has another length.
    """
    chosen = (
        _arguments_by_name(arguments, plates, sizes, shard, where)
        if shard
        else _arguments_by_length(arguments, plates, sizes, where)
    )
    leaves, names, nested, start = list(arguments.leaves), list(arguments.names), [], 0
    for plate in plates:
        nested.append(NestedPlate(plate, len(leaves), tuple(chosen[plate])))
        leaves.append(torch.arange(start, start + sizes[plate]))
        names.append(f"rows of {plate}")
        start += sizes[plate]
    return SeveralArguments(
        tuple(leaves),
        tuple(names),
        arguments.spec,
        labels=arguments.labels,
        masked=arguments.masked,
        num_groups=start,
        nested=tuple(nested),
        capacities=tuple(max(1, sizes[plate]) for plate in plates),
    )


def _arguments_by_length(
    arguments: Arguments, plates: Sequence[str], sizes: Mapping[str, int], where: str
) -> dict[str, list[int]]:
    """Positions of each plate's arguments, found by their length."""
    for number, plate in enumerate(plates):
        same = [other for other in plates[:number] if sizes[other] == sizes[plate]]
        if same:
            raise ModelError(
                f"plates '{same[0]}' and '{plate}' have the same size {sizes[plate]}{where}, so that arguments cannot "
                f"be told by their length: name them, as in shard={{'{same[0]}': ('x', 'y'), '{plate}': ('z',)}}"
            )
    tensors = {i: leaf for i, leaf in enumerate(arguments.leaves) if isinstance(leaf, Tensor) and leaf.dim()}
    found = {plate: [i for i, leaf in tensors.items() if len(leaf) == sizes[plate]] for plate in plates}
    for plate, chosen in found.items():
        if not chosen:
            raise DataError(
                f"no argument has as many rows as plate '{plate}'{where}, {sizes[plate]}: pass its data as an argument"
            )
    return found


def _arguments_by_name(
    arguments: Arguments, plates: Sequence[str], sizes: Mapping[str, int], shard: Mapping[str, Any], where: str
) -> dict[str, list[int]]:
    """Positions of each plate's arguments, as the user names them."""
    if set(shard) != set(plates):
        raise ModelError(f"shard= must name the arguments of each of the plates {list(plates)}, received {list(shard)}")
    found = {}
    for plate, given in shard.items():
        wanted = [given] if isinstance(given, str) else list(given)
        chosen = [i for i, name in enumerate(arguments.names) if name in wanted or name.split("[")[0] in wanted]
        if not chosen:
            raise ModelError(f"shard= names {wanted}, but the model's arguments are {list(arguments.names)}")
        for i in chosen:
            leaf = arguments.leaves[i]
            if not isinstance(leaf, Tensor) or not leaf.dim() or len(leaf) != sizes[plate]:
                has = f"{len(leaf)} rows" if isinstance(leaf, Tensor) and leaf.dim() else "no rows"
                raise DataError(
                    f"argument '{arguments.names[i]}'{where} has {has}, but plate '{plate}' has size {sizes[plate]}"
                )
        found[plate] = chosen
    return found
