"""A run of `pyro-fed run` in a process of its own, beside what this process does: Pyro has no threads."""

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

#: What the process executes.
PROGRAM = "from pyro_fed.cli.main import main; main()"
#: Seconds that it has to end in when it is told to.
GRACE = 10


class Result(Protocol):
    """Waits for the run's result."""

    def __call__(self) -> InferenceData:
        """The InferenceData, in memory.

        Raises:
            click.ClickException: the run has failed; what it said stands on the standard error.
        """


@contextmanager
def run_apart(arguments: Sequence[str]) -> Iterator[Result]:
    """Begin a run; it ends with the block, whatever it has done.

    Args:
        arguments: of `pyro-fed run`, but `--out`.

    Yields:
        what waits for the result.
    """
    import arviz as az

    with tempfile.TemporaryDirectory(prefix="pyro_fed-") as folder:
        out = Path(folder) / "result.nc"
        command = [sys.executable, "-c", PROGRAM, "run", *arguments, "--out", str(out), "--json"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

        def result() -> InferenceData:
            status = process.wait()
            if status:
                raise click.ClickException(
                    f"the reference's process ended with status {status}; what it said stands above"
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
