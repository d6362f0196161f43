"""Freed memory that stays with the process while it computes.

glibc maps blocks above some size on their own and gives freed memory at the heap's end back to the system, so that
for tensors of megabytes, made and freed in every operation, all pages are requested and cleared again and again: half
of the processor's time of a hierarchical model was the kernel's. Memory at its peak is the same, except for what is
kept of tensors of other sizes: `give_back` between the phases of a run.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

#: `mallopt`'s parameters (malloc.h): freed bytes at the heap's end above which they are given back, and the size from
#: which a block is mapped on its own.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
#: What they are while a run computes: blocks up to 128 MB are taken from the heap, and stay there. And afterwards: what
#: glibc's own rule comes to at most.
COMPUTING = {TRIM_THRESHOLD: 2**31 - 1, MMAP_THRESHOLD: 2**27}
AFTERWARDS = {TRIM_THRESHOLD: 2**26, MMAP_THRESHOLD: 2**25}
#: Where the user has said how glibc's allocator is to work, it works so.
OWN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")


@cache
def allocator() -> Any:
    """glibc with its two functions; None elsewhere, and if the user has configured it."""
    if not sys.platform.startswith("linux") or any(name in os.environ for name in OWN):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None


def _set(values: dict[int, int]) -> None:
    for parameter, value in values.items():
        allocator().mallopt(parameter, value)


def keep_freed() -> None:
    """Keep freed memory with this process from now on; without effect for other C libraries."""
    if allocator() is not None:
        _set(COMPUTING)


@contextmanager
def kept_while_computing() -> Iterator[None]:
    """A context in which freed memory stays with this process; free memory is given back at its end."""
    keep_freed()
    try:
        yield
    finally:
        if allocator() is not None:
            _set(AFTERWARDS)
            give_back()


@contextmanager
def collected_later() -> Iterator[None]:
    """A context in which Python does not collect cycles of garbage, which it does afterwards.

    It looks whenever there are so many objects more. Where thousands of tensors live for a moment, that is often and in
    vain, and ends in a search of the whole process: torch and Pyro alone have some 500,000 objects.
    """
    looks = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if looks:
            gc.enable()


def give_back() -> None:
    """Give free memory back: between computations whose tensors differ in size kept memory would add up."""
    if allocator() is not None:
        allocator().malloc_trim(0)
