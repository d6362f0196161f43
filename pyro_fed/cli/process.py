"""The process of a command: the words it was typed with, signals that end it, and a run in a second process."""

from __future__ import annotations

import os
import shlex
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pyro_fed.results.inference_data import InferenceData


def typed_command() -> str:
    """The command as it was typed, with paths relative to the working directory."""
    return shlex.join(["pyro-fed", *map(_from_here, sys.argv[1:])])


def _from_here(word: str) -> str:
    """A word of the command, whose path (or the path after its `=`) is made relative to the working directory."""
    option, equals, value = word.rpartition("=") if word.startswith("--") else ("", "", word)
    if not Path(value).is_absolute():
        return word
    try:
        return f"{option}{equals}{Path(value).resolve().relative_to(Path.cwd())}"
    except ValueError:  # outside of the working directory: only the file's name is shown
        return f"{option}{equals}{Path(value).name}"


#: What a terminal sends that closes; Windows has no such signal.
HANGUP: int | None = getattr(signal, "SIGHUP", None)


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Treat the first SIGTERM, and the first SIGHUP, like Ctrl-C, in the main thread; handlers that exist stay.

    The next SIGTERM ends the process. Further SIGHUPs are ignored, also after the block: of one terminal that closes
    there may be several. What would be printed there is dropped, since writing has become an error.
    """
    main = threading.current_thread() is threading.main_thread()
    signals = [number for number in (signal.SIGTERM, HANGUP) if number is not None and main]
    taken = [number for number in signals if signal.getsignal(number) is signal.SIG_DFL]

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


def _without_terminal() -> None:
    """Point standard streams to nowhere, except those to a file or a pipe. A closed terminal does not count."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # standard input, output and errors
        try:
            if stat.S_ISCHR(os.fstat(stream).st_mode):
                os.dup2(nowhere, stream)
        except OSError:  # not open
            continue
    os.close(nowhere)


#: The program of the second process.
PROGRAM = "from pyro_fed.cli.main import main; main()"


@contextmanager
def run_apart(arguments: Sequence[str]) -> Iterator[Callable[[], InferenceData]]:
    """Start `pyro-fed run` with arguments in a second process, which ends with the block; gives what waits for it."""
    import arviz as az

    with tempfile.TemporaryDirectory(prefix="pyro_fed-") as folder:
        out = Path(folder) / "result.nc"
        command = [sys.executable, "-c", PROGRAM, "run", *arguments, "--out", str(out), "--json"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

        def result() -> InferenceData:
            status = process.wait()
            if status:
                raise click.ClickException(
                    f"the reference's process ended with status {status}; see its messages above"
                )
            loaded: InferenceData = az.from_netcdf(str(out)).load()
            return loaded

        try:
            yield result
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(timeout=10)  # seconds that it has to end after SIGTERM
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
