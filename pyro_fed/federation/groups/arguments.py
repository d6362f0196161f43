"""Arguments of a model whose partitioned plate has groups with rows in other plates: counties with houses.

    with pyro.plate("county", J): a = sample(...)                 the partitioned plate
    with pyro.plate("obs", N):    sample(... a[county_idx] ...)   nested in it by the argument `county_idx`

The nested rows of an element of the partitioned plate go with it (see `nested_rows`). At a client `county_idx` counts
the client's own groups from 0, and its full data are packed without the blocks' padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pyro_fed.density.rows.arguments import Arguments
from pyro_fed.density.rows.batches import Members, NestedRows
from pyro_fed.errors import DataError


@dataclass(frozen=True)
class NestedPlate:
    """A nested plate.

    Attributes:
        plate: its name.
        index: position, among the arguments' leaves, of the one that holds each row's group.
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
        capacities: for each nested plate, the number of rows into which a client's data are packed.
    """

    num_groups: int = 0
    nested: tuple[NestedPlate, ...] = ()
    capacities: tuple[int, ...] = ()

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
        """These arguments with the groups `rows` (m,) alone, in this order.

        Raises:
            DataError: there are no groups, or none of them has rows.
        """
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
                    f"clients with {len(rows)} groups have no rows of plate '{part.plate}': a worker needs one at "
                    "least; take fewer workers"
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
