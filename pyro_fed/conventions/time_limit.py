"""A limit of time on a piece of work, which ends where it can be left.

A signal or an exception from another thread would end it anywhere: between the two halves of a context manager of
Pyro's or of torch's, say, which the rest of the process goes on with. Work therefore asks: `tick` stands before each
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
    """Seconds on the clock by which work ends; it begins anywhere, and is never put back."""
    return time.monotonic()


class TimeIsUp(KeyboardInterrupt):
    """The work has had its time. What keeps a part of the work at Ctrl-C keeps it here."""


@contextmanager
def ending_at(end: float | None) -> Iterator[None]:
    """What is done within ends at a time, in the place of what was said around it.

    Args:
        end: by `now`; None is no limit.

    Raises:
        TimeIsUp: of `tick`, at the first one after it.
    """
    before = _END.set(end)
    try:
        yield
    finally:
        _END.reset(before)


def tick() -> None:
    """Go on, unless the time is up.

    Raises:
        TimeIsUp: it is.
    """
    end = _END.get()
    if end is not None and now() >= end:
        raise TimeIsUp


def is_time(stop: BaseException | None) -> bool:
    """Whether it was the time that ended the work, whatever was made of the exception on its way.

    Args:
        stop: what ended it.
    """
    while stop is not None and not isinstance(stop, TimeIsUp):
        stop = stop.__cause__
    return stop is not None
