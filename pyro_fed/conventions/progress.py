"""The progress of a run: a bar in a terminal or a notebook, a line now and then in a log, or a function of the user's.

    a terminal      tqdm's bar, that of a long local step below its round's
    a notebook      one output a bar, replaced in place, also in notebooks that are executed unattended
    anything else   a line now and then, after 10, 30, 70 seconds and every minute, and one at the end of each phase

`set_progress` chooses for all runs of the process, the argument `progress` of a run for that one.
"""

from __future__ import annotations

import html
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from pyro_fed.conventions.calls import checked
from pyro_fed.conventions.doors import public_dir

__all__ = ["Progress", "set_progress"]
__dir__ = public_dir(__all__)

#: Seconds from one line of a log to the next: at first, and after it has doubled some times. An hour has 60 lines.
LOG_SECONDS, MAX_LOG_SECONDS = 10.0, 60.0
#: Seconds from one picture of a notebook's bar to the next: each is a message to the browser.
NOTEBOOK_SECONDS = 0.5


@dataclass(frozen=True)
class Progress:
    """How far a phase of a run is.

    Attributes:
        name: of the phase: the algorithm, such as `FedEP`, or `FedLaplace, for FedEP`.
        done: rounds (or draws) that are done.
        total: how many there are at most; a phase that converges ends earlier.
        unit: what is counted: "round", or "draw" in a long local step.
        figures: of the last round, such as `10 clients, change 0.02`.
        seconds: since the phase began.
        finished: whether the phase has ended.

    Example:
        >>> pf.run(pf.FedEP(), fed, progress=lambda now: print(f"{now.done} of {now.total} {now.unit}s"))
    """

    name: str
    done: int
    total: int
    unit: str
    figures: str = ""
    seconds: float = 0.0
    finished: bool = False

    def __str__(self) -> str:
        """One line: `FedEP: 12 of 50 rounds, 3.1 s, 10 clients, change 0.02`."""
        counted = f"{self.done} of {self.total} {self.unit}s"
        spent = f"{self.seconds:.1f} s" if self.seconds < 100 else f"{self.seconds:.0f} s"
        return f"{self.name}: {', '.join(filter(None, [counted, spent, self.figures]))}"


#: A function of the user's that is told of every round.
Callback = Callable[[Progress], None]
#: Whether to show progress, or who is told of it.
Show = bool | Callback

_everywhere: Show = True
_here: ContextVar[Show | None] = ContextVar("progress", default=None)


@checked
def set_progress(show: Show) -> None:
    """Show the progress of all runs of this process, or do not.

    Args:
        show: True: a bar in a terminal or a notebook, a line now and then elsewhere. False: nothing. A function:
            it is called with a `Progress` after every round and at the end of each phase, and nothing is printed.

    Raises:
        SettingError: something else.

    Example:
        >>> pf.progress.set_progress(False)
        >>> pf.progress.set_progress(lambda progress: print(progress.name, progress.done, progress.total))
    """
    global _everywhere
    _everywhere = show if callable(show) else bool(show)  # NumPy's flags too


@contextmanager
def showing(show: Show) -> Iterator[None]:
    """Show progress this way within the block; True leaves it to `set_progress`."""
    shown = show if callable(show) else bool(show)
    token = _here.set(None if shown is True else shown)
    try:
        yield
    finally:
        _here.reset(token)


def begin(name: str, total: int, unit: str, *, done: int = 0, shown: bool = True, inner: bool = False) -> Bar:
    """A bar for a phase that begins, to be closed; an `inner` one is a part of a round, and leaves nothing behind."""
    here = _here.get()
    show = _everywhere if here is None else here
    start = Progress(name, done, total, unit)
    if not shown or show is False:
        return _CallbackBar(start, _ignore)
    if show is not True:
        return _CallbackBar(start, show)
    if _in_notebook():
        return _Notebook(start)
    return _Terminal(start, inner) if sys.stderr.isatty() else _Log(start, inner)


def say(line: str, *, shown: bool = True) -> None:
    """Print a line between bars, unless progress is not shown or goes to a function of the user's."""
    here = _here.get()
    if not shown or (_everywhere if here is None else here) is not True:
        return
    if sys.stderr.isatty():
        from tqdm import tqdm

        tqdm.write(line, file=sys.stderr)
    else:
        print(line, file=sys.stderr, flush=True)


class Bar(ABC):
    """The progress of a running phase; a context that closes itself."""

    def __init__(self, start: Progress) -> None:
        self.now, self._began = start, time.monotonic()

    def advance(self, figures: str = "") -> None:
        """Count one more round or draw, with its figures."""
        figures, spent = figures or self.now.figures, time.monotonic() - self._began
        self.now = replace(self.now, done=self.now.done + 1, figures=figures, seconds=spent)
        self._show()

    def close(self) -> None:
        """End the phase."""
        self.now = replace(self.now, seconds=time.monotonic() - self._began, finished=True)
        self._end()

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @abstractmethod
    def _show(self) -> None:
        """Show `now`."""

    @abstractmethod
    def _end(self) -> None:
        """Show `now` for the last time."""


class _CallbackBar(Bar):
    """A display that calls a function."""

    def __init__(self, start: Progress, callback: Callback) -> None:
        super().__init__(start)
        self._callback = callback

    def _show(self) -> None:
        try:
            self._callback(self.now)
        except Exception as error:  # the user's own, by which a run may be ended
            self._callback = _ignore  # the end of the phase, which this error brings about, is not told
            error.add_note(f"pyro_fed: the function given as progress= raised this error at: {self.now}")
            raise

    def _end(self) -> None:
        self._show()


def _ignore(progress: Progress) -> None:
    return


class _Log(Bar):
    """A display of a line now and then, and one at the end."""

    def __init__(self, start: Progress, inner: bool) -> None:
        super().__init__(start)
        self._inner, self._said, self._pause = inner, self._began, LOG_SECONDS
        self._done: int | None = None

    def _show(self) -> None:
        if time.monotonic() - self._said >= self._pause:
            self._pause = min(2 * self._pause, MAX_LOG_SECONDS)
            self._say()

    def _end(self) -> None:
        if not self._inner and self._done != self.now.done:  # else the last line says all
            self._say()

    def _say(self) -> None:
        self._said, self._done = time.monotonic(), self.now.done
        print(self.now, file=sys.stderr, flush=True)


class _Terminal(Bar):
    """A display as tqdm's bar."""

    def __init__(self, start: Progress, inner: bool) -> None:
        super().__init__(start)
        from tqdm import tqdm

        self._bar = tqdm(
            desc=start.name, initial=start.done, total=start.total, unit=start.unit, leave=not inner, dynamic_ncols=True
        )

    def _show(self) -> None:
        self._bar.set_postfix_str(self.now.figures, refresh=False)
        self._bar.update()

    def _end(self) -> None:
        self._bar.close()


class _Notebook(Bar):
    """A display as one output of the cell, replaced in place."""

    def __init__(self, start: Progress) -> None:
        super().__init__(start)
        from IPython.display import display

        show: Any = display  # without types
        self._handle, self._shown = show(self._picture(), raw=True, display_id=True), self._began

    def _show(self) -> None:
        if time.monotonic() - self._shown >= NOTEBOOK_SECONDS:
            self._draw()

    def _end(self) -> None:
        self._draw()

    def _draw(self) -> None:
        self._shown = time.monotonic()
        self._handle.update(self._picture(), raw=True)

    def _picture(self) -> dict[str, str]:
        now = self.now
        bar = f'<progress value="{now.done}" max="{now.total}" style="width: 12em"></progress>'
        return {
            "text/plain": str(now),
            "text/html": f"<div>{'' if now.finished else bar} {html.escape(str(now))}</div>",
        }


def _in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    return hasattr(get_ipython(), "kernel")
