"""A plate of groups whose rows lie in other plates: counties with houses, schools with pupils.

    with pyro.plate("county", J): a = sample(...)                 the partitioned plate
    with pyro.plate("obs", N):    sample(... a[county_idx] ...)   nested in it by the argument `county_idx`

An element of the partitioned plate takes its nested rows along. Stored, they are a block (J, M) of the largest
group's size M, with a mask; run, they are one flat axis again, `county_idx` counts the groups at hand from 0, and
what is padding has its observations masked. A client's full data are packed without the blocks' padding.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.utils import _pytree as pytree

from pyro_fed.arguments import Arguments
from pyro_fed.errors import DataError, ModelError
from pyro_fed.shards import choose_shards


class NestedRows:
    """The rows of a nested plate that belong to some groups: one entry of the row tensors, a pytree of its own.

    Attributes:
        where: (..., m, M) bool, which places of the groups' blocks are rows; packed, (..., n) int64, each row's group
            among those at hand, -1 for padding.
        leaves: the plate's arguments, (..., m, M, ...) or packed (..., n, ...).
        capacity: rows to pack into, at least those of any client.
    """

    def __init__(self, where: Tensor, leaves: Sequence[Tensor], capacity: int) -> None:
        self.where, self.leaves, self.capacity = where, tuple(leaves), capacity

    def __len__(self) -> int:
        return len(self.where)

    def __getitem__(self, index: Any) -> NestedRows:
        return NestedRows(self.where[index], [leaf[index] for leaf in self.leaves], self.capacity)

    def with_room(self, capacity: int) -> NestedRows:
        """The same, to be packed into so many rows."""
        return NestedRows(self.where, self.leaves, capacity)

    def packed(self, groups: Tensor, weight: Tensor) -> NestedRows:
        """The rows of some groups without their padding.

        Args:
            groups: (..., m) positions in the first axis.
            weight: (..., m), zero for groups that are padding themselves.
        """
        size = self.where.shape[1]
        valid = (self.where[groups] & (weight > 0).unsqueeze(-1)).flatten(-2)
        order = (~valid).to(torch.uint8).argsort(dim=-1, stable=True)[..., : self.capacity]
        slot, place = order // size, order % size
        group = groups.gather(-1, slot)
        owner = torch.where(valid.gather(-1, order), slot, -1)
        return NestedRows(owner, [leaf[group, place] for leaf in self.leaves], self.capacity)

    def flat(self, num_groups: int) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Each row's group among the m at hand (n,), whether it is one (n,), and its arguments (n, ...)."""
        if self.where.dim() == 1:
            return self.where.clamp(min=0), self.where >= 0, self.leaves
        size = self.where.shape[1]
        owner = torch.arange(num_groups, device=self.where.device).repeat_interleave(size)
        return owner, self.where.flatten(), tuple(leaf.flatten(0, 1) for leaf in self.leaves)


def _first_and_rest(parts: Iterable[Tensor]) -> tuple[Tensor, list[Tensor]]:
    first, *rest = parts
    return first, rest


pytree.register_pytree_node(
    NestedRows,
    lambda rows: ([rows.where, *rows.leaves], rows.capacity),
    lambda parts, capacity: NestedRows(*_first_and_rest(parts), capacity),
)


@dataclass(frozen=True)
class Nested:
    """A nested plate.

    Attributes:
        plate: its name.
        index: position, among the arguments' leaves, of the one that says to which group each row belongs.
        leaves: positions of its other arguments.
    """

    plate: str
    index: int
    leaves: tuple[int, ...]


@dataclass(frozen=True)
class GroupedArguments(Arguments):
    """Arguments of a model whose partitioned plate has nested ones.

    Attributes:
        num_groups: J, size of the partitioned plate.
        nested: the nested plates.
        capacities: for each of them, rows to pack a client's data into.
    """

    num_groups: int = 0
    nested: tuple[Nested, ...] = ()
    capacities: tuple[int, ...] = ()

    @property
    def num_rows(self) -> int | None:
        return self.num_groups

    @cached_property
    def rows(self) -> tuple[Any, ...]:
        """The groups' numbers, the leaves with an entry a group, and the blocks of each nested plate."""
        nested = [self._blocks(part, size) for part, size in zip(self.nested, self.capacities, strict=True)]
        return (torch.arange(self.num_groups), *(self.leaves[i] for i in self.sharded), *nested)

    @property
    def row_names(self) -> tuple[str, ...]:
        return tuple(self.names[i] for i in self.sharded)

    @property
    def split(self) -> tuple[int, ...]:
        return (*self.sharded, *(i for part in self.nested for i in (part.index, *part.leaves)))

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

    def rebuild(self, rows: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        leaves = list(self.leaves)
        for i, leaf in zip(self.sharded, rows[1:], strict=False):
            leaves[i] = leaf
        for part, nested in zip(self.nested, rows[1 + len(self.sharded) :], strict=True):
            owner, _, values = nested.flat(len(rows[0]))
            leaves[part.index] = owner.to(self.leaves[part.index].dtype)
            for i, leaf in zip(part.leaves, values, strict=True):
                leaves[i] = leaf
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return args, kwargs

    def members(self, rows: Sequence[Any]) -> dict[str, Members]:
        found = {}
        for part, block in zip(self.nested, rows[1 + len(self.sharded) :], strict=True):
            owner, valid, _ = block.flat(len(rows[0]))
            found[part.plate] = Members(owner, valid, len(rows[0]))
        return found

    def dealt(self, clients: Sequence[Tensor]) -> Arguments:
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
        """The same with some groups alone, in this order.

        Raises:
            DataError: there are no groups, or none of them has rows.
        """
        leaves = list(self.leaves)
        for i in self.sharded:
            leaves[i] = leaves[i][rows]
        place = torch.full((self.num_groups,), -1)
        place[rows] = torch.arange(len(rows))
        for part in self.nested:
            owner = place[self.leaves[part.index].long()]
            mine = owner >= 0
            if not bool(mine.any()):
                raise DataError(
                    f"clients with {len(rows)} groups have no rows of plate '{part.plate}': a worker needs one at "
                    "least; take fewer workers"
                )
            leaves[part.index] = owner[mine].to(self.leaves[part.index].dtype)
            for i in part.leaves:
                leaves[i] = leaves[i][mine]
        return replace(self, leaves=tuple(leaves), num_groups=len(rows))

    def of_client(self, rows: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        ones = torch.ones(len(rows))
        alone = self.dealt([rows]).rows
        return self.rebuild([leaf.packed(rows, ones) if isinstance(leaf, NestedRows) else leaf[rows] for leaf in alone])

    def _blocks(self, part: Nested, capacity: int) -> NestedRows:
        owner = self.leaves[part.index].long()
        counts = torch.bincount(owner, minlength=self.num_groups)
        order = owner.argsort(stable=True)
        place = torch.arange(max(1, int(counts.max())), device=owner.device).expand(self.num_groups, -1)
        where = place < counts.unsqueeze(-1)
        first = (counts.cumsum(0) - counts).clamp(max=len(owner) - 1).unsqueeze(-1)
        table = order[torch.where(where, place, 0) + first]  # padding repeats a group's first row
        return NestedRows(where, [self.leaves[i][table] for i in part.leaves], capacity)


@dataclass(frozen=True)
class Members:
    """The rows of a nested plate that belong to the groups at hand.

    Attributes:
        owner: (n,) each row's group, among those at hand.
        valid: (n,) whether it is a row, and no padding.
        num_groups: m.
    """

    owner: Tensor
    valid: Tensor
    num_groups: int

    def __len__(self) -> int:
        return len(self.owner)

    def to_groups(self, terms: Tensor) -> Tensor:
        """Sums over each group's rows, (m,), of terms (n,)."""
        return terms.new_zeros(self.num_groups).index_add(0, self.owner, terms)


class MaskPadding(Messenger):
    """Mask the observations of rows that are padding.

    Args:
        members: the nested plates' rows, by plate.
    """

    def __init__(self, members: Mapping[str, Members]) -> None:
        super().__init__()
        self.members = members

    def _pyro_sample(self, msg: Any) -> None:
        if not msg["is_observed"]:
            return
        for frame in msg["cond_indep_stack"]:
            if frame.name in self.members:
                valid = self.members[frame.name].valid.reshape(-1, *(1,) * (-1 - frame.dim))
                msg["mask"] = valid if msg["mask"] is None else valid & msg["mask"]


def group_arguments(
    arguments: Arguments,
    plate: str,
    sizes: Mapping[str, int],
    rows: Mapping[str, str | Sequence[str]],
    shard: Collection[int | str] | str | int | None,
) -> GroupedArguments:
    """Arguments whose nested plates follow the groups of the partitioned plate.

    Args:
        arguments: the flattened arguments.
        plate: name of the partitioned plate.
        sizes: the model's plates and their sizes.
        rows: nested plate → the argument that numbers each of its rows' groups; or that argument and the plate's
            others, where their length does not tell.
        shard: the arguments with one entry a group; guessed by their length.

    Raises:
        ModelError: as `check_rows`, or a guess that is ambiguous.
        DataError: as `check_rows`.
    """
    given = check_rows(arguments, plate, sizes, rows)
    index = {name: arguments.names.index(parts[0]) for name, parts in given.items()}
    if shard is None:
        _check_lengths(given, plate, sizes)
    chosen = () if shard in ((), []) else choose_shards(arguments, sizes[plate], shard).sharded
    nested: list[Nested] = []
    for name, parts in given.items():
        taken = {*index.values(), *(chosen if shard is not None else ())}
        named = [arguments.names.index(part) for part in parts[1:]]
        nested.append(Nested(name, index[name], tuple(named or _of_length(arguments, sizes[name], taken))))
    inside = {i for part in nested for i in (part.index, *part.leaves)}
    return GroupedArguments(
        arguments.leaves,
        arguments.names,
        arguments.spec,
        tuple(i for i in chosen if i not in inside),
        num_groups=sizes[plate],
        nested=tuple(nested),
        capacities=tuple(sizes[part.plate] for part in nested),
    )


def check_rows(
    arguments: Arguments, plate: str, sizes: Mapping[str, int], rows: Mapping[str, str | Sequence[str]]
) -> dict[str, list[str]]:
    """What `rows` names of each nested plate, once checked; arguments as for `group_arguments`.

    Raises:
        ModelError: a plate or argument that is not there.
        DataError: an index that is no index, of another length, or out of range.
    """
    given = {name: [parts] if isinstance(parts, str) else list(parts) for name, parts in rows.items()}
    for name, parts in given.items():
        _check_names(arguments, name, parts, plate, sizes)
        _check_index(arguments, arguments.names.index(parts[0]), name, plate, sizes)
    return given


def _of_length(arguments: Arguments, size: int, taken: Collection[int]) -> list[int]:
    tensors = [i for i, leaf in enumerate(arguments.leaves) if isinstance(leaf, Tensor) and leaf.dim()]
    return [i for i in tensors if len(arguments.leaves[i]) == size and i not in taken]


def _check_names(arguments: Arguments, name: str, parts: Sequence[str], plate: str, sizes: Mapping[str, int]) -> None:
    if name not in sizes or name == plate:
        others = sorted(set(sizes) - {plate})
        raise ModelError(f"rows= names the plate '{name}', but the model's plates besides '{plate}' are {others}")
    unknown = [part for part in parts if part not in arguments.names]
    if unknown:
        raise ModelError(
            f"rows={{'{name}': ...}} names the arguments {unknown}, but the model's are {list(arguments.names)}"
        )


def _check_index(arguments: Arguments, at: int, name: str, plate: str, sizes: Mapping[str, int]) -> None:
    leaf, argument, groups = arguments.leaves[at], arguments.names[at], sizes[plate]
    if not isinstance(leaf, Tensor) or leaf.dim() != 1 or leaf.is_floating_point() or leaf.dtype == torch.bool:
        received = f"{leaf.dtype} of shape {tuple(leaf.shape)}" if isinstance(leaf, Tensor) else type(leaf).__name__
        raise DataError(
            f"argument '{argument}' says to which element of plate '{plate}' each row of plate '{name}' belongs: "
            f"expected whole numbers, ({sizes[name]},), received {received}"
        )
    if len(leaf) != sizes[name]:
        raise DataError(f"argument '{argument}' has {len(leaf)} rows, but plate '{name}' has size {sizes[name]}")
    low, high = int(leaf.min()), int(leaf.max())
    if low < 0 or high >= groups:
        cure = f": subtract {low}" if high - low < groups else ""
        raise DataError(
            f"argument '{argument}' must number the elements of plate '{plate}', which has size {groups}: expected 0 "
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
