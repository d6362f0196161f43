"""Limits of time on a piece of work, which ends at a safe place, and memory that stays with the process.

A signal or an exception from another thread would end work anywhere, such as between the two halves of a context
manager. Work therefore asks: `tick` stands before each compiled step, each run of the model and each client.

glibc gives freed memory back to the system, so that for tensors of megabytes, made and freed in every operation, all
pages are requested and cleared again and again: half of the time of a hierarchical model was the kernel's.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

#: When the work at hand is to end, by `now`; None: when it is done.
_END: ContextVar[float | None] = ContextVar("end", default=None)

#: `mallopt`'s parameters (malloc.h): freed bytes at the heap's end above which they are given back, and the size from
#: which a block is mapped on its own.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
#: What they are while a run computes: blocks up to 128 MB are taken from the heap, and stay there. And afterwards: what
#: glibc's own rule comes to at most.
COMPUTING = {TRIM_THRESHOLD: 2**31 - 1, MMAP_THRESHOLD: 2**27}
AFTERWARDS = {TRIM_THRESHOLD: 2**26, MMAP_THRESHOLD: 2**25}
#: Where the user has said how glibc's allocator is to work, it works so.
OWN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")


def now() -> float:
    """Seconds on the clock that limits work; it begins anywhere, and is never put back."""
    return time.monotonic()


class TimeIsUp(KeyboardInterrupt):
    """The time of the work is over. Code that keeps a part of the work at Ctrl-C keeps it here."""


@contextmanager
def ending_at(end: float | None) -> Iterator[None]:
    """A context in which `tick` raises TimeIsUp after the time `end` of `now`, in place of an outer limit."""
    before = _END.set(end)
    try:
        yield
    finally:
        _END.reset(before)


def tick() -> None:
    """Do nothing, unless the time is up: then raise TimeIsUp."""
    end = _END.get()
    if end is not None and now() >= end:
        raise TimeIsUp


def is_time(stop: BaseException | None) -> bool:
    """Whether the exception that ended the work came from the limit of time, however it was converted on its way."""
    while stop is not None and not isinstance(stop, TimeIsUp):
        stop = stop.__cause__
    return stop is not None


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
    """A context in which Python does not collect cycles of garbage: it would search torch's 500,000 objects."""
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
