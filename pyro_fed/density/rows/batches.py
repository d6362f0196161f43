"""Rows of data as an algorithm sees them: a client's index into row tensors, and weighted batches.

All clients of a simulation share one set of row tensors; a client is an index into it, padded to the
longest client so that every client has the same shapes (nothing is recompiled for a client, and a
batch of clients is one `vmap`). Padding carries weight zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pyro_fed.density.rows.nested import NestedRows

#: Densities of rows that are worked on at once, where draws are many: of draws × rows × quadrature nodes.
CHUNK = 500_000
#: The same where rows are worked through in pieces: as much as stays in a processor's cache.
BLOCK = 262_144


#: Rows up to which a permutation is one call that sorts random numbers; of more, sorting takes longer than steps.
SORTED_ROWS = 1_000
#: The power of a likelihood that is not tempered.
UNIT = torch.ones(())


class Batch(NamedTuple):
    """Rows with weights.

    Attributes:
        rows: tuple of tensors, each (m, ...): the row-sharded leaves of the model's arguments.
        weight: (m,) multiplicity of each row's log-likelihood; 0 is padding, N_k/m rescales a minibatch.
        near: what is known of the integrals over the rows' own latents where the batch is used, a
            `latents.quadrature.Near`, the only one of a tuple; none where nothing is (`latents.ascent_starts`).
    """

    rows: tuple[Tensor, ...]
    weight: Tensor
    near: tuple[Any, ...] = ()

    def width(self) -> int:
        """Rows of each client, padding among them, or of the largest plate nested in them."""
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
        """The data of some of several clients.

        Args:
            clients: their places.
        """
        return self._replace(row_index=self.row_index[clients], num_rows=self.num_rows[clients])

    def on(self, device: torch.device) -> ClientData:
        """These data on a device.

        Args:
            device: such as `torch.device("cuda")`.
        """
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
        """The rows at the picked positions, weighted so that the sum is unbiased for all rows.

        Args:
            picks: positions and weights, each (m,).
        """
        index = self.row_index[picks.position]
        return Batch(tuple(leaf[index] for leaf in self.rows), picks.weight * self.power)


class Minibatch(NamedTuple):
    """Picked positions 0..num_rows-1 within a client, (m,) int64, and their weights, (m,)."""

    position: Tensor
    weight: Tensor


#: `in_dims` that map a function over clients: the rows are shared, index and count are not.
CLIENTS: Any = ClientData._make((None, 0, 0, None))
#: `in_dims` that map a function over the batches of several clients.
BATCHES: Any = Batch._make((0, 0, 0))


def padded_index(client_rows: Sequence[Tensor], chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Row positions of some clients, padded to the longest of all.

    Args:
        client_rows: each client's row positions, (N_k,).
        chosen: the clients wanted, (C,).

    Returns:
        positions (C, n), and how many of them are each client's, (C,).
    """
    counts = torch.tensor([len(rows) for rows in client_rows])
    first, num_rows = (counts.cumsum(0) - counts)[chosen], counts[chosen]
    position = torch.arange(max(1, int(counts.max()))).expand(len(chosen), -1)
    within = position < num_rows.unsqueeze(-1)
    # Padding repeats a client's first row; where there is none, the data's first.
    place = torch.where(within, position, 0) + torch.where(num_rows > 0, first, 0).unsqueeze(-1)
    return torch.cat(list(client_rows))[place], num_rows


def in_chunks(draws: Tensor, densities: int, dim: int = 0) -> Sequence[Tensor]:
    """Draws in pieces of at most `CHUNK` densities of rows, of which each has so many; one draw a piece at least.

    Args:
        draws: a tensor with the draws on axis `dim`.
        densities: of rows, for one draw.
        dim: axis of the draws.
    """
    pieces: Sequence[Tensor] = draws.split(max(1, CHUNK // max(1, densities)), dim)
    return pieces


def row_pieces(data: ClientData, size: int) -> tuple[Tensor, Tensor]:
    """The clients' row numbers (L, C, size) in pieces, and the rows' weights, zero for padding.

    Args:
        data: of C clients.
        size: rows in a piece.
    """
    index = data.row_index
    clients, longest = index.shape
    count = -(-longest // size)
    index = torch.cat([index, index[:, -1:].expand(clients, count * size - longest)], 1)
    weight = torch.arange(count * size, device=index.device) < data.num_rows.unsqueeze(-1)
    both = (index, weight.to(row_dtype(data.rows)) * data.power)
    first, second = (part.reshape(clients, count, size).transpose(0, 1).contiguous() for part in both)
    return first, second


def row_dtype(rows: tuple[Tensor, ...]) -> torch.dtype:
    """The floating dtype of the rows, or the default one where all rows are integers.

    Args:
        rows: row tensors, or pytrees of them.
    """
    floating = [leaf.dtype for leaf in pytree.tree_leaves(rows) if leaf.dtype.is_floating_point]
    return floating[0] if floating else torch.get_default_dtype()


def draw_minibatches(
    num_rows: int, batch_size: int, num_steps: int, generator: torch.Generator, dtype: torch.dtype
) -> Minibatch:
    """Positions of `num_steps` minibatches by random reshuffling: a permutation cut in successive pieces.

    Each row is equally likely in each batch, so sums weighted by N_k/m are unbiased. A client with at
    most `batch_size` rows gets all of them at weight one, and padding at weight zero.

    Args:
        num_rows: rows the client has, N_k.
        batch_size: m.
        num_steps: number of minibatches.
        generator: the client's generator for this round.
        dtype: dtype of the weights.

    Returns:
        Minibatch with position (num_steps, m) and weight (num_steps, m).
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
    """The beginning of a random permutation, at the cost of what is drawn and not of all rows: (count,), int64.

    Row numbers are drawn with replacement, and each counts where it appears first.

    Args:
        num_rows: of the permutation, at least twice `count`.
        count: numbers wanted.
        generator: the client's.
    """
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
    """Positions of `num_steps` minibatches, each drawn without regard to the others, no row twice in one.

    Args:
        num_rows: rows the client has, N_k.
        batch_size: m.
        num_steps: number of minibatches.
        generator: the client's generator for this round.
        dtype: dtype of the weights.

    Returns:
        Minibatch with position (num_steps, m) and weight (num_steps, m).
    """
    if num_rows <= batch_size:
        return draw_minibatches(num_rows, batch_size, num_steps, generator, dtype)
    if num_rows > SORTED_ROWS and num_rows >= 2 * batch_size:
        position = torch.stack([_distinct(num_rows, batch_size, generator) for _ in range(num_steps)])
    else:
        position = _by_floyd(num_rows, batch_size, num_steps, generator)
    weight = torch.full((num_steps, batch_size), num_rows / batch_size, dtype=dtype)
    return Minibatch(position, weight)


def _by_floyd(num_rows: int, batch_size: int, num_steps: int, generator: torch.Generator) -> Tensor:
    """Floyd's sampling, all steps at once, (num_steps, m): quick for small minibatches of few rows."""
    position = torch.empty(num_steps, 0, dtype=torch.int64)
    for last in range(num_rows - batch_size, num_rows):
        candidate = torch.randint(last + 1, (num_steps, 1), generator=generator)
        taken = (position == candidate).any(1, keepdim=True)
        position = torch.cat([position, torch.where(taken, last, candidate)], 1)
    return position


def draw_epochs(
    num_rows: int, batch_size: int, epochs: int, generator: torch.Generator, dtype: torch.dtype
) -> Minibatch:
    """Positions of the minibatches of some epochs: in each every row once, the last minibatch what is left.

    A client has `epoch_length` of them an epoch. Beside clients with more rows what it lacks is padded with weight
    zero, where it has to stand still (`at_work`).

    Args:
        num_rows: rows the client has, N_k.
        batch_size: m.
        epochs: E.
        generator: the client's generator for this round.
        dtype: dtype of the weights.

    Returns:
        Minibatch with position (E ⌈N_k/m⌉, m) and weight (E ⌈N_k/m⌉, m).
    """
    length = max(1, -(-num_rows // batch_size))
    order = _permutations(num_rows, epochs, generator)
    position = torch.zeros(epochs, length * batch_size, dtype=torch.int64)
    position[:, :num_rows] = order
    real = (torch.arange(length * batch_size) < num_rows).to(dtype).reshape(length, batch_size)
    weight = real * num_rows / real.sum(-1, keepdim=True).clamp_min(1)
    return Minibatch(position.reshape(epochs * length, batch_size), weight.repeat(epochs, 1))


def epoch_length(num_rows: Tensor, batch_size: int) -> Tensor:
    """Steps of an epoch of clients with so many rows, ⌈N_k/m⌉ and at least one, of the shape of `num_rows`."""
    return ((num_rows + batch_size - 1) // batch_size).clamp_min(1)


def at_work(picks: Minibatch) -> Tensor:
    """Whether there is a row in a step's minibatch, (): what is padded has none."""
    return (picks.weight > 0).any()


def with_batches(data: ClientData, batch_size: int | None) -> tuple[Batch | ClientData, Batch | ClientData]:
    """What a step needs of the data, and its client axes: all rows at once, or the rows to pick from.

    Args:
        data: a client's rows, or several clients'.
        batch_size: rows a step; None takes all of them.

    Returns:
        `(const, const_dims)` for `Problem.scan`; `batch_of(const, x)` is the step's batch.
    """
    if batch_size is None:
        return data.full_batch(), BATCHES
    return data, CLIENTS


def batch_of(const: Batch | ClientData, picks: Minibatch) -> Batch:
    """The batch of a step: the whole client, or the rows picked for this step.

    Args:
        const: as `with_batches` gives it, of one client.
        picks: positions and weights of this step's rows.
    """
    return const if isinstance(const, Batch) else const.take(picks)
