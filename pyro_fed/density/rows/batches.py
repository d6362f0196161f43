"""Rows of data as an algorithm sees them: a client's index into row tensors, and weighted batches.

All clients of a simulation share one set of row tensors; a client is an index into it, padded to the longest client so
that every client has the same shapes. Padding carries weight zero.

The rows of plates nested in the partitioned one are stored as a block (J, M) of the largest group's size M, with a
mask. In a run they are one flat axis again, the groups at hand counted from 0, the observations of padding masked.
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
    """The rows of a nested plate that belong to some groups: one entry of the row tensors, a pytree of its own.

    `where` (..., m, M) says which places of the groups' blocks are rows; packed it is each row's group among those at
    hand, (..., n), -1 for padding. `leaves` are the plate's arguments, (..., m, M, ...) or packed (..., n, ...), and
    `capacity` rows to pack into, at least those of any client.
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
        """The rows of the groups at positions (..., m) without padding; groups that are padding have no weight."""
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


def _from_parts(parts: Iterable[Tensor], capacity: int) -> NestedRows:
    where, *leaves = parts
    return NestedRows(where, leaves, capacity)


pytree.register_pytree_node(NestedRows, lambda rows: ([rows.where, *rows.leaves], rows.capacity), _from_parts)


@dataclass(frozen=True)
class Members:
    """The rows of a nested plate that belong to the groups at hand."""

    owner: Tensor  # (n,) each row's group, among those at hand
    valid: Tensor  # (n,) whether it is a row, and not padding
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


#: Rows up to which a permutation is one call that sorts random numbers; with more, sorting takes longer than steps.
SORTED_ROWS = 1_000
#: The power of a likelihood that is not tempered.
UNIT = torch.ones(())


class Batch(NamedTuple):
    """Rows with weights.

    Attributes:
        rows: tuple of tensors, each (m, ...): the row-sharded leaves of the model's arguments.
        weight: (m,) multiplicity of each row's log-likelihood; 0 is padding, N_k/m rescales a minibatch.
        near: a tuple of one `latents.quadrature.NearbyModes`, what is known of the integrals over the rows' own latents
            where the batch is used; empty if nothing is known.
    """

    rows: tuple[Tensor, ...]
    weight: Tensor
    near: tuple[Any, ...] = ()

    def width(self) -> int:
        """Number of rows of each client, with padding, or of the largest plate nested in them."""
        leaves = pytree.tree_leaves((self.rows, self.weight))
        return max(int(leaf.shape[self.weight.dim() - 1]) for leaf in leaves)


class ClientData(NamedTuple):
    """One client's rows (or, with a leading axis on `row_index` and `num_rows`, several clients').

    Attributes:
        rows: tuple of tensors (R, ...) shared by all clients of this process.
        row_index: (n,) positions of this client's rows in `rows`, padded with a valid position.
        num_rows: () number of valid entries of `row_index`.
        power: () to which every row's likelihood is raised, the same for all clients: one over a temperature.
    """

    rows: tuple[Tensor, ...]
    row_index: Tensor
    num_rows: Tensor
    power: Tensor = UNIT

    def of(self, clients: Tensor | slice) -> ClientData:
        """The data of the clients at these places, of several."""
        return self._replace(row_index=self.row_index[clients], num_rows=self.num_rows[clients])

    def on(self, device: torch.device) -> ClientData:
        """These data on a device."""
        return ClientData(*pytree.tree_map_only(Tensor, lambda part: part.to(device), tuple(self)))

    def full_batch(self) -> Batch:
        """All rows of the client, padding at weight zero."""
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


#: `in_dims` that map a function over clients: they share the rows, but not index and count.
CLIENTS: Any = ClientData._make((None, 0, 0, None))
#: `in_dims` that map a function over the batches of several clients.
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
    """Draws, on axis `dim`, in pieces that memory allows, with so many `densities` a draw."""
    pieces: Sequence[Tensor] = draws.split(count_of_densities(densities), dim)
    return pieces


def row_pieces(data: ClientData, size: int) -> tuple[Tensor, Tensor]:
    """The row numbers (L, C, size) of C clients in pieces of `size`, and the rows' weights, zero for padding."""
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
    wanted = num_steps * batch_size
    if SORTED_ROWS < num_rows >= 2 * wanted:
        order = _distinct(num_rows, wanted, generator)
    else:
        order = _permutations(num_rows, -(-wanted // num_rows), generator).flatten()
    position = order[:wanted].reshape(num_steps, batch_size)
    weight = torch.full((num_steps, batch_size), num_rows / batch_size, dtype=dtype)
    return Minibatch(position, weight)


def _permutations(num_rows: int, count: int, generator: torch.Generator) -> Tensor:
    """Random permutations of rows, (count, num_rows)."""
    if num_rows <= SORTED_ROWS:
        return torch.rand(count, num_rows, generator=generator).argsort(-1)
    return torch.stack([torch.randperm(num_rows, generator=generator) for _ in range(count)])


def _distinct(num_rows: int, count: int, generator: torch.Generator) -> Tensor:
    """The first `count` numbers of a random permutation of at least twice as many, at a cost of `count`."""
    drawn = torch.empty(0, dtype=torch.int64)
    first = torch.empty(num_rows, dtype=torch.int64)
    while True:
        drawn = torch.cat([drawn, torch.randint(num_rows, (count + count // 2 + 1,), generator=generator)])
        place = torch.arange(len(drawn))
        first.scatter_reduce_(0, drawn, place, "amin", include_self=False)
        found = drawn[first[drawn] == place]
        if len(found) >= count:
            return found[:count]


def draw_anew(
    num_rows: int, batch_size: int, num_steps: int, generator: torch.Generator, dtype: torch.dtype
) -> Minibatch:
    """`draw_minibatches`, drawn independently of each other, no row twice in one."""
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
        taken = (position == candidate).any(1, keepdim=True)
        position = torch.cat([position, torch.where(taken, last, candidate)], 1)
    return position


def draw_epochs(
    num_rows: int, batch_size: int, epochs: int, generator: torch.Generator, dtype: torch.dtype
) -> Minibatch:
    """Positions and weights (E ⌈N_k/m⌉, m) of the minibatches of E epochs: in each every row once.

    If other clients have more rows, the missing minibatches are padding with weight zero, in which the client must not
    move (`at_work`).
    """
    length = max(1, -(-num_rows // batch_size))
    order = _permutations(num_rows, epochs, generator)
    position = torch.zeros(epochs, length * batch_size, dtype=torch.int64)
    position[:, :num_rows] = order
    real = (torch.arange(length * batch_size) < num_rows).to(dtype).reshape(length, batch_size)
    weight = real * num_rows / real.sum(-1, keepdim=True).clamp_min(1)
    return Minibatch(position.reshape(epochs * length, batch_size), weight.repeat(epochs, 1))


def epoch_length(num_rows: Tensor, batch_size: int) -> Tensor:
    """Steps of an epoch of clients with `num_rows` rows, ⌈N_k/m⌉ and at least one, of the shape of `num_rows`."""
    return ((num_rows + batch_size - 1) // batch_size).clamp_min(1)


def at_work(picks: Minibatch) -> Tensor:
    """Whether there is a row in a step's minibatch, (); padding has none."""
    return (picks.weight > 0).any()


def with_batches(data: ClientData, batch_size: int | None) -> tuple[Batch | ClientData, Batch | ClientData]:
    """`const` and its client axes for `Problem.scan`: all rows at once, or the rows to pick from, for `batch_of`."""
    if batch_size is None:
        return data.full_batch(), BATCHES
    return data, CLIENTS


def batch_of(const: Batch | ClientData, picks: Minibatch) -> Batch:
    """The batch of a step: the whole client, or the rows picked for it; `const` of `with_batches`, of one client."""
    return const if isinstance(const, Batch) else const.take(picks)
