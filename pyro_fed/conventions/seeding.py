"""Randomness as a function of (seed, round, client), never of arrival order or worker count."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

#: Streams of one seed, so that the server, the schedule and the final draws never share numbers with a client.
SERVER, SCHEDULE, CLIENT, DRAWS, GRAPH, LOCALS, ASSIGNMENTS, FAULTS, AUDIT = range(9)
#: Seed of points and signs that are the same at the server and all clients, in every run.
COMMON = 0

#: NumPy's `SeedSequence`, whose stream is promised not to change: start and growth of the constants that words are
#: hashed with on their way into the pool and out of it, the factors that mix two words, and the shift after each.
INTO, INTO_GROWTH, OUT_OF, OUT_OF_GROWTH = 0x43B0D7E5, 0x931E8875, 0x8B51F9DD, 0x58F38DED
MIX_OF, MIX_WITH, SHIFT = 0xCA01F9DD, 0x4973F715, 16
POOL = 4
WORD = 0xFFFFFFFF
#: Streams from which on it is faster to hash all of them at once.
AT_ONCE = 32


def sequence(seed: int, *key: int) -> np.random.SeedSequence:
    """The seed sequence of a stream."""
    return np.random.SeedSequence([seed, *key])


def torch_generator(seed: int, *key: int) -> torch.Generator:
    """A torch generator of the stream."""
    return torch.Generator().manual_seed(int(sequence(seed, *key).generate_state(1, np.uint64)[0]) >> 1)


def torch_generators(seed: int, keys: Sequence[tuple[int, ...]] | NDArray[np.int64]) -> Iterator[torch.Generator]:
    """The generators of many streams, as by `torch_generator`; each is drawn from before the next is asked for."""
    if len(keys) < AT_ONCE:
        return (torch_generator(seed, *map(int, key)) for key in keys)
    generator = torch.Generator()
    return (generator.manual_seed(number) for number in _torch_seeds(seed, keys))


def client_keys(round: int, clients: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """The streams of a round's clients; a client that appears several times has another stream each time."""
    seen: dict[int, int] = {}
    keys = []
    for client in clients:
        repeat = seen[client] = seen.get(client, -1) + 1
        keys.append((CLIENT, round, client, repeat))
    return keys


def keys_of_rounds(first: int, clients: NDArray[np.int64]) -> NDArray[np.int64]:
    """The `client_keys` of R rounds of C clients (R, C), one round after the other, (R C, 4)."""
    rounds, count = clients.shape
    order = clients.argsort(1, kind="stable")
    ascending = np.take_along_axis(clients, order, 1)
    place = np.arange(count)
    begins = np.where(np.diff(ascending, axis=1, prepend=-1) != 0, place, 0)  # where a client stands the first time
    repeat = np.empty_like(clients)
    np.put_along_axis(repeat, order, place - np.maximum.accumulate(begins, 1), 1)
    columns = (np.full_like(clients, CLIENT), first + np.arange(rounds)[:, None] + 0 * clients, clients, repeat)
    return np.stack(columns, -1).reshape(-1, len(columns))


def _torch_seeds(seed: int, keys: Sequence[tuple[int, ...]] | NDArray[np.int64]) -> list[int]:
    """The seeds of `torch_generator` for many keys at once: `SeedSequence` on arrays."""
    own = np.array(keys, dtype=np.uint32).T  # numbers that do not fit are refused
    high = [seed >> 32 * i & WORD for i in range(1, -(-seed.bit_length() // 32))]
    words = [np.full_like(own[0], word) for word in (seed & WORD, *high)] + list(own)
    constant = INTO

    def hashed(word: NDArray[np.uint32]) -> NDArray[np.uint32]:
        nonlocal constant
        word = word ^ np.uint32(constant)
        constant = constant * INTO_GROWTH & WORD
        return _xor_shift(word * np.uint32(constant))

    def mixed(word: NDArray[np.uint32], other: NDArray[np.uint32]) -> NDArray[np.uint32]:
        return _xor_shift(np.uint32(MIX_OF) * word - np.uint32(MIX_WITH) * hashed(other))

    words += [np.zeros_like(own[0])] * (POOL - len(words))
    pool = [hashed(word) for word in words[:POOL]]
    for source in range(POOL):
        for place in range(POOL):
            if place != source:
                pool[place] = mixed(pool[place], pool[source])
    for word in words[POOL:]:
        for place in range(POOL):
            pool[place] = mixed(pool[place], word)
    constants = [OUT_OF]
    for _ in range(2):
        constants.append(constants[-1] * OUT_OF_GROWTH & WORD)
    each = zip(pool[:2], constants[:2], constants[1:], strict=True)
    low, top = (_xor_shift((word ^ np.uint32(a)) * np.uint32(b)).astype(np.uint64) for word, a, b in each)
    found: list[int] = ((top << np.uint64(32) | low) >> np.uint64(1)).tolist()
    return found


def _xor_shift(word: NDArray[np.uint32]) -> NDArray[np.uint32]:
    found: NDArray[np.uint32] = word ^ word >> np.uint32(SHIFT)
    return found


def numpy_generator(seed: int, *key: int) -> np.random.Generator:
    """A NumPy generator of the stream."""
    return np.random.default_rng(sequence(seed, *key))
