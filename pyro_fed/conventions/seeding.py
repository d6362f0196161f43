"""Randomness as a function of (seed, round, client), never of arrival order or worker count."""

from __future__ import annotations

import numpy as np
import torch

#: Streams of one seed, so that the server, the schedule and the final draws never share numbers with a client.
SERVER, SCHEDULE, CLIENT, DRAWS, GRAPH, LOCALS, ASSIGNMENTS, FAULTS, AUDIT = range(9)


def sequence(seed: int, *key: int) -> np.random.SeedSequence:
    """The seed sequence of a stream."""
    return np.random.SeedSequence([seed, *key])


def torch_generator(seed: int, *key: int) -> torch.Generator:
    """A torch generator of the stream."""
    return torch.Generator().manual_seed(int(sequence(seed, *key).generate_state(1, np.uint64)[0]) >> 1)


def numpy_generator(seed: int, *key: int) -> np.random.Generator:
    """A NumPy generator of the stream."""
    return np.random.default_rng(sequence(seed, *key))
