"""Operations on states and messages, which are flat dictionaries of tensors."""

from __future__ import annotations

from collections.abc import Sequence, Set

import torch
from torch import Tensor

#: Named tensors: a state of the server or a client, or a message.
State = dict[str, Tensor]


def select(state: State, index: Tensor | slice) -> State:
    """Rows `index` of the leading axis."""
    if isinstance(index, Tensor) and index.dtype == torch.int64:  # halves the time, which matters for chains
        return {name: value.index_select(0, index) for name, value in state.items()}
    return {name: value[index] for name, value in state.items()}


def contiguous(state: State) -> State:
    """A state with contiguous tensors, since sums over other memory layouts may round differently."""
    return {name: value.contiguous() for name, value in state.items()}


def concatenate(parts: Sequence[State]) -> State:
    """States concatenated along the leading axis."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def write(local: State, at: Tensor, new: State) -> None:
    """Store clients' new states; an entry that has grown is enlarged for all clients."""
    for name, value in new.items():
        kept = local[name]
        if value.shape[1:] != kept.shape[1:]:
            room = kept.new_zeros((len(kept), *value.shape[1:]))
            room[tuple(slice(size) for size in kept.shape)] = kept
            kept = local[name] = room
        kept[at] = value


def prefixed(prefix: str, state: State) -> State:
    """The tensors of a state under the names `{prefix}.{name}`."""
    return {f"{prefix}.{name}": value for name, value in state.items()}


def within(tensors: State, prefix: str) -> State:
    """The state that `prefixed` put among other tensors."""
    head = f"{prefix}."
    return {name.removeprefix(head): value for name, value in tensors.items() if name.startswith(head)}


def packed(state: State, symmetric: Set[str]) -> State:
    """A state with its `symmetric` matrices (A, D, D) as lower triangles (A, D (D + 1) / 2); the rest is unchanged."""
    packed_state = dict(state)
    for name in symmetric & state.keys():
        if state[name].dim() == 3:
            row, column = torch.tril_indices(*state[name].shape[-2:])
            packed_state[name] = state[name][:, row, column]
    return packed_state


def unpacked(state: State, like: State) -> State:
    """The inverse of `packed`, with the shapes of another state's entries."""
    unpacked_state = dict(state)
    for name, value in state.items():
        if name in like and like[name].dim() == value.dim() + 1:
            dim = like[name].shape[-1]
            row, column = torch.tril_indices(dim, dim)
            whole = value.new_empty(len(value), dim, dim)
            whole[:, row, column] = value
            whole[:, column, row] = value
            unpacked_state[name] = whole
    return unpacked_state
