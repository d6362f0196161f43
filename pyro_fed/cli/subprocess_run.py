"""A run of `pyro-fed run` in a second process, while this process goes on: Pyro is not thread-safe."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import click

if TYPE_CHECKING:
    from pyro_fed.results.inference_data import InferenceData

#: The program of the second process.
PROGRAM = "from pyro_fed.cli.main import main; main()"
#: Seconds that the process has to end after SIGTERM.
GRACE = 10


class Result(Protocol):
    """A function that waits for the run's result."""

    def __call__(self) -> InferenceData:
        """The run's InferenceData, loaded into memory.

        Raises:
            click.ClickException: the run has failed; its messages are on the standard error.
        """


@contextmanager
def run_apart(arguments: Sequence[str]) -> Iterator[Result]:
    """Start `pyro-fed run` with arguments, except `--out`, in a second process, which ends with the block."""
    import arviz as az

    with tempfile.TemporaryDirectory(prefix="pyro_fed-") as folder:
        out = Path(folder) / "result.nc"
        command = [sys.executable, "-c", PROGRAM, "run", *arguments, "--out", str(out), "--json"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

        def result() -> InferenceData:
            status = process.wait()
            if status:
                raise click.ClickException(
                    f"the reference's process ended with status {status}; its messages are above"
                )
            loaded: InferenceData = az.from_netcdf(str(out)).load()
            return loaded

        try:
            yield result
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(GRACE)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
