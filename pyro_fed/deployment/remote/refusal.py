"""Why a client does not follow an order, and where an exception came from: what may be said of either."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyro_fed.errors import OURS, PolicyError, ProtocolError

#: Where installed packages are, whose lines are not the user's.
INSTALLED = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib"))
#: The packages whose refusals are sent whole.
ROOM = f"{OURS}.deployment."


class Refusal(ProtocolError):
    """An order of the server that a client does not follow; the text consists of the order and settings only."""


@contextmanager
def as_refusals() -> Iterator[None]:
    """A context that reads the server's order, and nothing of the client's: its `ProtocolError` becomes a `Refusal`."""
    try:
        yield
    except ProtocolError as error:
        raise Refusal(str(error)) from None


def is_own_refusal(error: BaseException) -> bool:
    """Whether an error is a refusal of this package, and was raised by it: user code may raise the same class."""
    modules = [module for _, _, module in _frames(error)]
    return type(error) in (Refusal, PolicyError) and bool(modules) and modules[-1].startswith(ROOM)


def place_of(error: BaseException) -> str:
    """File and line of the user's code in which an exception was raised, else those of the innermost call."""
    chain, innermost = [error], ""
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and cause not in chain:
        chain.append(cause)
    for one in chain:
        frames = ((file, line, module) for file, line, module in _frames(one) if file.endswith(".py"))
        places = [(file, f"{Path(file).name}:{line}", module) for file, line, module in frames]
        innermost = innermost or (places[-1][1] if places else "")
        theirs = [place for file, place, module in places if _is_users(file, module)]
        if theirs:
            return theirs[-1]
    return innermost or "an unknown line"


def _frames(error: BaseException) -> Iterator[tuple[str, int, str]]:
    for frame, line in traceback.walk_tb(error.__traceback__):
        yield frame.f_code.co_filename, line, str(frame.f_globals.get("__name__", ""))


def _is_users(file: str, module: str) -> bool:
    ours = module.partition(".")[0] == OURS
    return not ours and not any(Path(file).is_relative_to(path) for path in INSTALLED)
