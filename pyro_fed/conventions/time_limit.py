"""A limit of time on a piece of work, which ends at a safe place.

A signal or an exception from another thread would end it anywhere: between the two halves of a context manager of
Pyro or torch, say, which the rest of the process goes on with. Work therefore asks: `tick` stands before each
compiled step, each run of the model and each client, where an error of the model would be as welcome.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

#: When the work at hand is to end, by `now`; None: when it is done.
_END: ContextVar[float | None] = ContextVar("end", default=None)


def now() -> float:
    """Seconds on the clock that limits work; it begins anywhere, and is never put back."""
    return time.monotonic()


class TimeIsUp(KeyboardInterrupt):
    """The time of the work is over. Code that keeps a part of the work at Ctrl-C keeps it here."""


@contextmanager
def ending_at(end: float | None) -> Iterator[None]:
    """A context in which work ends at the time `end` of `now`, in place of an outer limit; None for no limit.

    Raises:
        TimeIsUp: by the first `tick` after it.
    """
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
