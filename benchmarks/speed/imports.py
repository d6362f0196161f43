"""What importing costs, in seconds of CPU (user and system) of fresh processes with one thread.

    python -m benchmarks.speed.imports [repeats]

Each row is a command, the least and the median of its repeats; a first, unmeasured run writes the bytecode and fills
the disk's cache. The rows that begin with "torch, pyro, arviz and" are what a user pays on top of the first row, which
loads nothing of this project. `EAGER_IMPORT=1` loads every public name at once, so that laziness hides nothing.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys

BASE = "import torch, pyro, arviz"
CLI = "from pyro_fed.cli.main import main; main({!r})"
ROWS = {
    "torch, pyro, arviz": (BASE, {}),
    "torch, pyro, arviz and pyro_fed": (f"{BASE}, pyro_fed", {}),
    "torch, pyro, arviz and run, FedEP, Federation": (f"{BASE}\nfrom pyro_fed import run, FedEP, Federation", {}),
    "torch, pyro, arviz and every public name": (f"{BASE}, pyro_fed", {"EAGER_IMPORT": "1"}),
    "pyro_fed and its version": ("import pyro_fed; pyro_fed.__version__", {}),
    "pyro-fed --help": (CLI.format(["--help"]), {}),
    "pyro-fed run --help": (CLI.format(["run", "--help"]), {}),
    "pyro-fed compare --help": (CLI.format(["compare", "--help"]), {}),
}


def seconds(code: str, extra: dict[str, str]) -> float:
    """CPU seconds of one process that runs the code."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=kept | {"OMP_NUM_THREADS": "1"} | extra,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print the table."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    for code, extra in ROWS.values():
        seconds(code, extra)
    taken: dict[str, list[float]] = {name: [] for name in ROWS}
    for _ in range(repeats):  # in turn, so that a busy minute of the machine is shared by all rows
        for name, (code, extra) in ROWS.items():
            taken[name].append(seconds(code, extra))
    print(f"{'':<50}{'least':>8}{'median':>8}")
    for name, values in taken.items():
        print(f"{name:<50}{min(values):>8.2f}{statistics.median(values):>8.2f}")


if __name__ == "__main__":
    main()
