"""Ctrl-C, noticed also where the exception that it raises is lost.

Python raises `KeyboardInterrupt` wherever it happens to be: in a destructor, say, or in a callback of a library, where
exceptions are printed and forgotten. A run therefore remembers the signal, and asks between rounds.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Interruption:
    """Whether the user has asked the run to stop.

    In a main thread whose handler of SIGINT is Python's own, `with` puts one in its place that remembers the signal;
    any other handler is left alone.
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
        """Raise the exception that was lost.

        Raises:
            KeyboardInterrupt: the user has asked the run to stop, and it has not.
        """
        if self.asked:
            raise KeyboardInterrupt
