"""Arguments of a model whose partitioned plate has rows in other plates: counties with houses.

    with pyro.plate("county", J): a = sample(...)                 the partitioned plate
    with pyro.plate("obs", N):    sample(... a[county_idx] ...)   nested in it by the argument `county_idx`

The nested rows of an element of the partitioned plate go with it (see `nested_rows`). At a client `county_idx` counts
the client's own groups from 0, and its full data are packed without the blocks' padding.

If several plates of data are split, such as observed and censored rows, the rows of all of them, one plate's after the
other's, are the elements of a plate that the model does not have, with one nested row an element.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pyro_fed.density.rows.arguments import Arguments
from pyro_fed.density.rows.batches import Members, NestedRows
from pyro_fed.errors import DataError, ModelError, listed
from pyro_fed.federation.arguments import Shard, choose_shards

#: Separates the plates' names in the name of the plate of all their rows.
AND = "+"


@dataclass(frozen=True)
class NestedPlate:
    """A nested plate, and the positions of its arguments among the leaves."""

    plate: str
    index: int  # of the argument that holds each row's group
    leaves: tuple[int, ...]  # of the others


@dataclass(frozen=True)
class GroupedArguments(Arguments):
    """Arguments of a model whose partitioned plate of J groups has nested plates."""

    num_groups: int = 0
    nested: tuple[NestedPlate, ...] = ()
    capacities: tuple[int, ...] = ()  # numbers of rows into which a client's data of each nested plate are packed

    @property
    def num_rows(self) -> int | None:
        return self.num_groups

    @cached_property
    def rows(self) -> tuple[Any, ...]:
        """The groups' numbers, the leaves with an entry a group, and the blocks of each nested plate."""
        nested = [self._blocks(part, size) for part, size in zip(self.nested, self.capacities, strict=True)]
        device = self.leaves[self.nested[0].index].device if self.nested else None
        return (torch.arange(self.num_groups, device=device), *(self.leaves[i] for i in self.sharded), *nested)

    @property
    def row_names(self) -> tuple[str, ...]:
        return tuple(self.names[i] for i in self.sharded)

    @property
    def split(self) -> tuple[int, ...]:
        return (*self.sharded, *(i for part in self.nested for i in (part.index, *part.leaves)))

    @property
    def values(self) -> tuple[int, ...]:
        return (*self.sharded, *(i for part in self.nested for i in part.leaves))

    @property
    def all_rows(self) -> tuple[Any, ...]:
        nested = [
            NestedRows(self.leaves[part.index], [self.leaves[i] for i in part.leaves], size)
            for part, size in zip(self.nested, self.capacities, strict=True)
        ]
        return (*self.rows[: 1 + len(self.sharded)], *nested)

    @property
    def columns(self) -> list[tuple[str, str | None, Tensor]]:
        groups = [(self.names[i], None, self.leaves[i]) for i in self.sharded]
        return groups + [(self.names[i], part.plate, self.leaves[i]) for part in self.nested for i in part.leaves]

    @property
    def nested_plates(self) -> tuple[str, ...]:
        return tuple(part.plate for part in self.nested)

    @property
    def nested_by_name(self) -> dict[str, list[str]]:
        return {part.plate: [self.names[i] for i in (part.index, *part.leaves)] for part in self.nested}

    def rebuild(self, rows: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        leaves = list(self.leaves)
        for i, leaf in zip(self.sharded, rows[1:], strict=False):
            leaves[i] = leaf
        for part, nested in zip(self.nested, rows[1 + len(self.sharded) :], strict=True):
            owner, _, values = nested.flat(len(rows[0]))
            leaves[part.index] = owner.to(self.leaves[part.index].dtype)
            for i, leaf in zip(part.leaves, values, strict=True):
                leaves[i] = leaf
        return self.put_together(leaves)

    def members(self, rows: Sequence[Any]) -> dict[str, Members]:
        found = {}
        for part, block in zip(self.nested, rows[1 + len(self.sharded) :], strict=True):
            owner, valid, _ = block.flat(len(rows[0]))
            found[part.plate] = Members(owner, valid, len(rows[0]))
        return found

    @property
    def lengths(self) -> tuple[int, ...]:
        return (self.num_groups, *(len(self.leaves[part.index]) for part in self.nested))

    def shifted(self, i: int, first: int) -> Tensor:
        leaf: Tensor = self.leaves[i]
        return leaf + first if i in [part.index for part in self.nested] else leaf

    def pooled(self, leaves: Sequence[Any], num_rows: int) -> Arguments:
        return replace(self, leaves=tuple(leaves), num_groups=num_rows)

    def with_client_rows(self, clients: Sequence[Tensor]) -> Arguments:
        capacities = []
        for part in self.nested:
            counts = torch.bincount(self.leaves[part.index].long(), minlength=self.num_groups)
            capacities.append(max(1, *(int(counts[groups].sum()) for groups in clients)))
        return replace(self, capacities=tuple(capacities))

    def rows_of(self, plate: str | None, groups: Tensor) -> Tensor:
        if plate is None:
            return groups
        (part,) = [part for part in self.nested if part.plate == plate]
        return torch.isin(self.leaves[part.index], groups.to(self.leaves[part.index].device)).nonzero().flatten()

    def alone(self, rows: Tensor) -> Arguments:
        """These arguments with the groups `rows` (m,) alone, in this order."""
        leaves = list(self.leaves)
        for i in self.sharded:
            leaves[i] = leaves[i][rows]
        place = torch.full((self.num_groups,), -1)
        place[rows] = torch.arange(len(rows))
        for part in self.nested:
            groups = self.leaves[part.index].long()
            owner = place.to(groups.device)[groups]
            mine = owner >= 0
            if not bool(mine.any()):
                raise DataError(
                    f"clients with {len(rows)} groups have no rows of plate '{part.plate}': a worker needs at least "
                    "one; take fewer workers"
                )
            leaves[part.index] = owner[mine].to(self.leaves[part.index].dtype)
            for i in part.leaves:
                leaves[i] = leaves[i][mine]
        return replace(self, leaves=tuple(leaves), num_groups=len(rows))

    def of_client(self, rows: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        ones = torch.ones(len(rows))
        held = [len(self.rows_of(part.plate, rows)) for part in self.nested]
        alone = replace(self, capacities=tuple(held)).rows
        return self.rebuild([leaf.packed(rows, ones) if isinstance(leaf, NestedRows) else leaf[rows] for leaf in alone])

    def _blocks(self, part: NestedPlate, capacity: int) -> NestedRows:
        owner = self.leaves[part.index].long()
        counts = torch.bincount(owner, minlength=self.num_groups)
        order = owner.argsort(stable=True)
        place = torch.arange(max(1, int(counts.max())), device=owner.device).expand(self.num_groups, -1)
        where = place < counts.unsqueeze(-1)
        first = (counts.cumsum(0) - counts).clamp(max=len(owner) - 1).unsqueeze(-1)
        table = order[torch.where(where, place, 0) + first]  # padding repeats a group's first row
        return NestedRows(where, [self.leaves[i][table] for i in part.leaves], capacity)


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
    """Arguments with several plates of rows; `shard` maps a plate to its arguments if their length is ambiguous."""
    if shard:
        chosen = _arguments_by_name(arguments, plates, sizes, shard, where)
    else:
        chosen = _arguments_by_length(arguments, plates, sizes, where)
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
                f"plates '{same[0]}' and '{plate}' have the same size {sizes[plate]}{where}, so arguments cannot be "
                f"distinguished by their length: name them, as in shard={{'{same[0]}': ('x', 'y'), '{plate}': ('z',)}}"
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


def group_arguments(
    arguments: Arguments,
    plate: str,
    sizes: Mapping[str, int],
    rows: Mapping[str, str | Sequence[str]],
    shard: Shard,
    where: str = "",
) -> GroupedArguments:
    """Arguments whose nested plates follow the groups of the partitioned plate, as `rows=` of `Federation` says."""
    given = check_rows(arguments, plate, sizes, rows, where)
    index = {name: arguments.names.index(parts[0]) for name, parts in given.items()}
    if shard is None:
        _check_lengths(given, plate, sizes)
    chosen = () if shard in ((), []) else choose_shards(arguments, sizes[plate], shard, where).sharded
    nested: list[NestedPlate] = []
    for name, parts in given.items():
        taken = {*index.values(), *(chosen if shard is not None else ())}
        named = [arguments.names.index(part) for part in parts[1:]]
        tensors = [i for i, leaf in enumerate(arguments.leaves) if isinstance(leaf, Tensor) and leaf.dim()]
        alike = [i for i in tensors if len(arguments.leaves[i]) == sizes[name] and i not in taken]
        nested.append(NestedPlate(name, index[name], tuple(named or alike)))
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
    """`rows` with columns of a frame, or keys of a dictionary, as arguments: "hospital" for "df['hospital']"."""
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
    """The arguments that `rows` names for each nested plate, once checked."""
    given = {name: [parts] if isinstance(parts, str) else list(parts) for name, parts in rows.items()}
    for name, parts in given.items():
        _check_names(arguments, name, parts, plate, sizes)
        _check_index(arguments, arguments.names.index(parts[0]), name, plate, sizes, where)
    return given


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
                f"plates '{name}' and '{same[0]}' have the same size {sizes[name]}, so arguments cannot be "
                f"distinguished by their length: list them, as in rows={{'{name}': ('{given[name][0]}', 'x', 'y')}}, "
                "and name those "
                f"of plate '{plate}' by shard=(...)"
            )
