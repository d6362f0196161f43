"""Rows of data for algorithms: a client's index into row tensors, and weighted batches.

All clients of a simulation share one set of row tensors. A client is an index into it, padded to the length of the
longest client, so that all clients have the same shapes. Padding has weight zero.

The rows of nested plates are stored as a block (J, M) with a mask, where M is the size of the largest group. In a run
they have one flat axis, the present groups are numbered from 0, and observations of padding are masked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.utils import _pytree as pytree

from pyro_fed.ops.memory import count_of_densities


class NestedRows:
    """The rows of a nested plate that belong to some groups: one entry of the row tensors, a pytree.

    `where` (..., m, M) is the mask of rows in the groups' blocks; after packing it is each row's group among the
    present ones, (..., n), -1 for padding. `leaves` are the plate's arguments, (..., m, M, ...) or packed (..., n,
    ...), and `capacity` is the number of packed rows, at least those of any client.
    """

    def __init__(self, where: Tensor, leaves: Sequence[Tensor], capacity: int) -> None:
        self.where, self.leaves, self.capacity = where, tuple(leaves), capacity

    def __len__(self) -> int:
        return len(self.where)

    def __getitem__(self, index: Any) -> NestedRows:
        return NestedRows(self.where[index], [leaf[index] for leaf in self.leaves], self.capacity)

    def with_room(self, capacity: int) -> NestedRows:
        """These rows with another `capacity`, at least the number of rows of any client."""
        return NestedRows(self.where, self.leaves, capacity)

    def packed(self, groups: Tensor, weight: Tensor) -> NestedRows:
        """The rows of the groups at positions (..., m) without padding; padded groups have weight zero."""
        size = self.where.shape[1]
        valid = (self.where[groups] & (weight > 0).unsqueeze(-1)).flatten(-2)
        order = (~valid).to(torch.uint8).argsort(dim=-1, stable=True)[..., : self.capacity]
        slot, place = order // size, order % size
        group = groups.gather(-1, slot)
        owner = torch.where(valid.gather(-1, order), slot, -1)
        return NestedRows(owner, [leaf[group, place] for leaf in self.leaves], self.capacity)

    def flat(self, num_groups: int) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Each row's group among m groups (n,), whether it is a row or padding (n,), and its arguments (n, ...)."""
        if self.where.dim() == 1:
            return self.where.clamp(min=0), self.where >= 0, self.leaves
        size = self.where.shape[1]
        owner = torch.arange(num_groups, device=self.where.device).repeat_interleave(size)
        return owner, self.where.flatten(), tuple(leaf.flatten(0, 1) for leaf in self.leaves)


def _from_parts(parts: Iterable[Tensor], capacity: int) -> NestedRows:
    where, *leaves = parts
    return NestedRows(where, leaves, capacity)


pytree.register_pytree_node(NestedRows, lambda rows: ([rows.where, *rows.leaves], rows.capacity), _from_parts)


@dataclass(frozen=True)
class Members:
    """The rows of a nested plate that belong to the present groups."""

    owner: Tensor  # (n,) each row's group, among the present ones
    valid: Tensor  # (n,) False for padding
    num_groups: int

    def __len__(self) -> int:
        return len(self.owner)

    def to_groups(self, terms: Tensor) -> Tensor:
        """Sums over each group's rows, (m,), of terms (n,)."""
        return terms.new_zeros(self.num_groups).index_add(0, self.owner, terms)


class MaskPadding(Messenger):
    """Mask the observations of padding, by the nested plates' `members`."""

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


#: Largest number of rows for permutations by sorting random numbers; beyond, sorting takes longer than the steps.
SORTED_ROWS = 1_000
#: The power of a likelihood that is not tempered.
UNIT = torch.ones(())


class Batch(NamedTuple):
    """Rows with weights.

    Attributes:
        rows: tuple of tensors, each (m, ...): the row-sharded leaves of the model's arguments.
        weight: (m,) multiplicity of each row's log-likelihood; 0 is padding, N_k/m rescales a minibatch.
        near: a tuple of one `latents.quadrature.NearbyModes`, for the integrals over the rows' own latents near the
            points of the batch; or empty.
    """

    rows: tuple[Tensor, ...]
    weight: Tensor
    near: tuple[Any, ...] = ()

    def width(self) -> int:
        """Number of rows of each client including padding, or of the largest nested plate."""
        leaves = pytree.tree_leaves((self.rows, self.weight))
        return max(int(leaf.shape[self.weight.dim() - 1]) for leaf in leaves)


class ClientData(NamedTuple):
    """One client's rows (or, with a leading axis on `row_index` and `num_rows`, several clients').

    Attributes:
        rows: tuple of tensors (R, ...) shared by all clients of this process.
        row_index: (n,) positions of this client's rows in `rows`, padded with a valid position.
        num_rows: () number of valid entries of `row_index`.
        power: () power of every row's likelihood, the same for all clients: the inverse of a temperature.
    """

    rows: tuple[Tensor, ...]
    row_index: Tensor
    num_rows: Tensor
    power: Tensor = UNIT

    def of(self, clients: Tensor | slice) -> ClientData:
        """The data of some of several clients, by their positions."""
        return self._replace(row_index=self.row_index[clients], num_rows=self.num_rows[clients])

    def on(self, device: torch.device) -> ClientData:
        """These data on a device."""
        return ClientData(*pytree.tree_map_only(Tensor, lambda part: part.to(device), tuple(self)))

    def full_batch(self) -> Batch:
        """All rows of the client, with weight zero for padding."""
        n = self.row_index.shape[-1]
        weight = torch.arange(n, device=self.row_index.device) < self.num_rows.unsqueeze(-1)
        rows = (
            leaf.packed(self.row_index, weight) if isinstance(leaf, NestedRows) else leaf[self.row_index]
            for leaf in self.rows
        )
        return Batch(tuple(rows), weight.to(row_dtype(self.rows)) * self.power)

    def take(self, picks: Minibatch) -> Batch:
        """The rows at the picked positions, weighted so that the sum is unbiased for all rows."""
        index = self.row_index[picks.position]
        return Batch(tuple(leaf[index] for leaf in self.rows), picks.weight * self.power)


class Minibatch(NamedTuple):
    """Picked positions 0..num_rows-1 within a client, (m,) int64, and their weights, (m,)."""

    position: Tensor
    weight: Tensor


#: `in_dims` of a function mapped over clients, which share the rows, but not index and count.
CLIENTS: Any = ClientData._make((None, 0, 0, None))
#: `in_dims` of a function mapped over the batches of several clients.
BATCHES: Any = Batch._make((0, 0, 0))


def padded_index(client_rows: Sequence[Tensor], chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Row positions (C, n) of the `chosen` clients (C,), padded to the longest of all, and their numbers of rows."""
    counts = torch.tensor([len(rows) for rows in client_rows])
    first, num_rows = (counts.cumsum(0) - counts)[chosen], counts[chosen]
    position = torch.arange(max(1, int(counts.max()))).expand(len(chosen), -1)
    within = position < num_rows.unsqueeze(-1)
    # Padding repeats a client's first row, or the data's first if it has none.
    place = torch.where(within, position, 0) + torch.where(num_rows > 0, first, 0).unsqueeze(-1)
    return torch.cat(list(client_rows))[place], num_rows


def in_chunks(draws: Tensor, densities: int, dim: int = 0) -> Sequence[Tensor]:
    """Draws, on axis `dim`, in pieces that fit in memory, with a number of `densities` per draw."""
    pieces: Sequence[Tensor] = draws.split(count_of_densities(densities), dim)
    return pieces


def row_pieces(data: ClientData, size: int) -> tuple[Tensor, Tensor]:
    """The row numbers (L, C, size) of C clients in pieces of `size`, and their weights, zero for padding."""
    index = data.row_index
    clients, longest = index.shape
    count = -(-longest // size)
    index = torch.cat([index, index[:, -1:].expand(clients, count * size - longest)], 1)
    weight = torch.arange(count * size, device=index.device) < data.num_rows.unsqueeze(-1)
    both = (index, weight.to(row_dtype(data.rows)) * data.power)
    first, second = (part.reshape(clients, count, size).transpose(0, 1).contiguous() for part in both)
    return first, second


def row_dtype(rows: tuple[Tensor, ...]) -> torch.dtype:
    """The floating dtype of row tensors or pytrees of them, or the default one if all rows are integers."""
    floating = [leaf.dtype for leaf in pytree.tree_leaves(rows) if leaf.dtype.is_floating_point]
    return floating[0] if floating else torch.get_default_dtype()


def draw_minibatches(
    num_rows: int, batch_size: int, num_steps: int, generator: torch.Generator, dtype: torch.dtype
) -> Minibatch:
    """Positions and weights (num_steps, m) of minibatches by random reshuffling: a permutation cut in pieces.

    Each row is equally likely in each batch, so sums weighted by N_k/m are unbiased. A client with at most `batch_size`
    rows gets all of them at weight one, and padding at weight zero.
    """
    slot = torch.arange(batch_size)
    if num_rows <= batch_size:
        position = slot % max(num_rows, 1)
        weight = (slot < num_rows).to(dtype)
        return Minibatch(position.repeat(num_steps, 1), weight.repeat(num_steps, 1))
    num_picks = num_steps * batch_size
    if SORTED_ROWS < num_rows >= 2 * num_picks:
        order = _distinct(num_rows, num_picks, generator)
    else:
        order = _permutations(num_rows, -(-num_picks // num_rows), generator).flatten()
    position = order[:num_picks].reshape(num_steps, batch_size)
    weight = torch.full((num_steps, batch_size), num_rows / batch_size, dtype=dtype)
    return Minibatch(position, weight)


def _permutations(num_rows: int, count: int, generator: torch.Generator) -> Tensor:
    """Random permutations of rows, (count, num_rows)."""
    if num_rows <= SORTED_ROWS:
        return torch.rand(count, num_rows, generator=generator).argsort(-1)
    return torch.stack([torch.randperm(num_rows, generator=generator) for _ in range(count)])


def _distinct(num_rows: int, count: int, generator: torch.Generator) -> Tensor:
    """The first `count` numbers of a random permutation of at least 2 `count` rows, at a cost of order `count`."""
    candidates = torch.empty(0, dtype=torch.int64)
    first = torch.empty(num_rows, dtype=torch.int64)
    while True:
        candidates = torch.cat([candidates, torch.randint(num_rows, (count + count // 2 + 1,), generator=generator)])
        place = torch.arange(len(candidates))
        first.scatter_reduce_(0, candidates, place, "amin", include_self=False)
        distinct = candidates[first[candidates] == place]
        if len(distinct) >= count:
            return distinct[:count]


def draw_independent_minibatches(
    num_rows: int, batch_size: int, num_steps: int, generator: torch.Generator, dtype: torch.dtype
) -> Minibatch:
    """Minibatches as by `draw_minibatches`, but independent of each other; no row occurs twice in one."""
    if num_rows <= batch_size:
        return draw_minibatches(num_rows, batch_size, num_steps, generator, dtype)
    if num_rows > SORTED_ROWS and num_rows >= 2 * batch_size:
        position = torch.stack([_distinct(num_rows, batch_size, generator) for _ in range(num_steps)])
    else:
        position = _by_floyd(num_rows, batch_size, num_steps, generator)
    weight = torch.full((num_steps, batch_size), num_rows / batch_size, dtype=dtype)
    return Minibatch(position, weight)


def _by_floyd(num_rows: int, batch_size: int, num_steps: int, generator: torch.Generator) -> Tensor:
    """Floyd's sampling, all steps at once, (num_steps, m): fast for small minibatches of few rows."""
    position = torch.empty(num_steps, 0, dtype=torch.int64)
    for last in range(num_rows - batch_size, num_rows):
        candidate = torch.randint(last + 1, (num_steps, 1), generator=generator)
        is_duplicate = (position == candidate).any(1, keepdim=True)
        position = torch.cat([position, torch.where(is_duplicate, last, candidate)], 1)
    return position


def draw_epochs(
    num_rows: int, batch_size: int, epochs: int, generator: torch.Generator, dtype: torch.dtype
) -> Minibatch:
    """Positions and weights (E ⌈N_k/m⌉, m) of the minibatches of E epochs; each epoch has every row once.

    If other clients have more rows, the missing minibatches are padding with weight zero, in which the client's state
    must not change (`has_rows`).
    """
    length = max(1, -(-num_rows // batch_size))
    order = _permutations(num_rows, epochs, generator)
    position = torch.zeros(epochs, length * batch_size, dtype=torch.int64)
    position[:, :num_rows] = order
    is_row = (torch.arange(length * batch_size) < num_rows).to(dtype).reshape(length, batch_size)
    weight = is_row * num_rows / is_row.sum(-1, keepdim=True).clamp_min(1)
    return Minibatch(position.reshape(epochs * length, batch_size), weight.repeat(epochs, 1))


def epoch_length(num_rows: Tensor, batch_size: int) -> Tensor:
    """Number of steps of an epoch, max(1, ⌈N_k/m⌉), of the shape of `num_rows`."""
    return ((num_rows + batch_size - 1) // batch_size).clamp_min(1)


def has_rows(picks: Minibatch) -> Tensor:
    """Whether a step's minibatch contains a row, (); False for padding."""
    return (picks.weight > 0).any()


def with_batches(data: ClientData, batch_size: int | None) -> tuple[Batch | ClientData, Batch | ClientData]:
    """`const` and its client axes for `Problem.scan` and `batch_of`: all rows at once, or rows for minibatches."""
    if batch_size is None:
        return data.full_batch(), BATCHES
    return data, CLIENTS


def batch_of(const: Batch | ClientData, picks: Minibatch) -> Batch:
    """The batch of a step: all rows of the client, or its minibatch; `const` is that of `with_batches`."""
    return const if isinstance(const, Batch) else const.take(picks)
