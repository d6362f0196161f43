"""Operations on states and messages, the flat dictionaries of tensors that algorithms work with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

#: Named tensors: what a server or a client keeps, or a message.
State = dict[str, Tensor]


def select(state: State, index: Tensor | slice) -> State:
    """Rows `index` of the leading axis."""
    return {name: value[index] for name, value in state.items()}


def contiguous(state: State) -> State:
    """The same values in one memory layout: a sum over another may round differently."""
    return {name: value.contiguous() for name, value in state.items()}


def concatenate(parts: Sequence[State]) -> State:
    """States one after the other on the leading axis."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def write(local: State, at: Tensor, new: State) -> None:
    """Store clients' new states; a state that has grown makes room for all clients."""
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
