"""SIGTERM, of batch systems, and SIGHUP, of a closing terminal: the run ends as by Ctrl-C, with its results so far."""

from __future__ import annotations

import os
import signal
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

#: What a terminal sends that closes; Windows has no such signal.
HANGUP: int | None = getattr(signal, "SIGHUP", None)
#: Standard input, output and errors.
STREAMS = (0, 1, 2)


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Treat the first SIGTERM, and the first SIGHUP, like Ctrl-C.

    The next SIGTERM ends the process, as usual. Further SIGHUPs are ignored, also after the block: of one terminal that
    closes there may be several, from the system and from the shell. What would be printed in that terminal is dropped,
    since writing there has become an error.

    An existing handler is left unchanged, as is a SIGHUP that is ignored (`nohup`). In threads other than the
    main one this does nothing.
    """
    main = threading.current_thread() is threading.main_thread()
    taken = [number for number in (signal.SIGTERM, HANGUP) if number is not None and main and _has_no_handler(number)]

    def interrupt(number: int, frame: FrameType | None) -> None:
        if number == HANGUP:
            signal.signal(number, signal.SIG_IGN)
            _without_terminal()
        else:
            signal.signal(number, signal.SIG_DFL)
        own = signal.getsignal(signal.SIGINT)
        if not callable(own):  # ignored, as in a shell's background job
            raise KeyboardInterrupt
        own(signal.SIGINT, frame)

    for number in taken:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in taken:
            if signal.getsignal(number) is interrupt:
                signal.signal(number, signal.SIG_DFL)


def _has_no_handler(number: int) -> bool:
    """Whether a signal has no handler, and is not ignored."""
    return signal.getsignal(number) is signal.SIG_DFL


def _without_terminal() -> None:
    """Point standard streams to nowhere, except those to a file or a pipe. A closed terminal does not count."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in STREAMS:
        try:
            if stat.S_ISCHR(os.fstat(stream).st_mode):
                os.dup2(nowhere, stream)
        except OSError:  # not open
            continue
    os.close(nowhere)
