"""Pyro's global param store, and its global random numbers, while a guide runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyro
import torch


@contextmanager
def own_params(seed: int) -> Iterator[None]:
    """An empty param store and a seeded generator; both are restored afterwards."""
    store = pyro.get_param_store()
    before = store.get_state()
    with torch.random.fork_rng(devices=[]):
        store.clear()
        torch.default_generator.manual_seed(seed)  # `torch.manual_seed` asks all devices, which takes milliseconds
        try:
            yield
        finally:
            store.clear()  # `set_state` adds to what is there
            store.set_state(before)
