"""SIGTERM, by which batch systems announce that they will kill: a run ends as by Ctrl-C, with what it has found."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Take the first SIGTERM for Ctrl-C; the next one ends the process, as it would without this.

    A handler of somebody else's is left alone, and threads but the main one cannot have any.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        own = signal.getsignal(signal.SIGINT)
        if not callable(own):  # ignored, as in a shell's background job
            raise KeyboardInterrupt
        own(signal.SIGINT, frame)

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
