"""Ctrl-C that is not lost.

Python raises `KeyboardInterrupt` in whatever code is running, which may be a destructor or a library's callback, where
exceptions are printed and ignored. So a run remembers the signal, and checks for it between rounds.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Interruption:
    """Whether the user has asked the run to stop.

    In the main thread, `with` replaces Python's own handler of SIGINT by one that remembers the signal. A handler of
    the user is left unchanged.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def __enter__(self) -> Interruption:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._remember)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        raise KeyboardInterrupt

    def check(self) -> None:
        """Raise the exception again if it was lost.

        Raises:
            KeyboardInterrupt: the user has asked the run to stop.
        """
        if self.asked:
            raise KeyboardInterrupt
