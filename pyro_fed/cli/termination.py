"""SIGTERM, which batch systems send before they kill a process: the run ends as by Ctrl-C, with what it has found."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Treat the first SIGTERM like Ctrl-C; the next one ends the process, as usual.

    A handler that is set already is left as it is. In threads other than the main one this does nothing.
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
