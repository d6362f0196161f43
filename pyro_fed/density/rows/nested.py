"""The rows of plates nested in the partitioned one, as row tensors store them and as a model runs on them.

Stored, they are a block (J, M) of the largest group's size M, with a mask. In a run they are one flat axis again, with
the groups at hand counted from 0, and the observations of padding masked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.utils import _pytree as pytree


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
        """These rows, to be packed into `capacity` rows, at least those of any client."""
        return NestedRows(self.where, self.leaves, capacity)

    def packed(self, groups: Tensor, weight: Tensor) -> NestedRows:
        """The rows of the groups at positions (..., m) without their padding.

        `weight` (..., m) is zero for groups that are padding themselves.
        """
        size = self.where.shape[1]
        valid = (self.where[groups] & (weight > 0).unsqueeze(-1)).flatten(-2)
        order = (~valid).to(torch.uint8).argsort(dim=-1, stable=True)[..., : self.capacity]
        slot, place = order // size, order % size
        group = groups.gather(-1, slot)
        owner = torch.where(valid.gather(-1, order), slot, -1)
        return NestedRows(owner, [leaf[group, place] for leaf in self.leaves], self.capacity)

    def flat(self, num_groups: int) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Each row's group among the m at hand (n,), whether it is a row (n,), and its arguments (n, ...)."""
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
class Members:
    """The rows of a nested plate that belong to the groups at hand.

    Attributes:
        owner: (n,) each row's group, among those at hand.
        valid: (n,) whether it is a row, and not padding.
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
    """Mask the observations of rows that are padding, by the nested plates' `members`."""

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
