"""A logistic regression on rows in a memory-mapped file and on the same rows in memory: seconds, peak memory, draws.

    python -m benchmarks.speed.rows_on_disk [ROWS] [--threads N] [--folder FOLDER]

Ten clients hold successive parts of ROWS × 50 numbers in float32 (1e6 by default; 1e7 are 2 GB on disk, and in memory
2 GB more). Each case is a process of its own. Peak memory is all that is resident (on Linux), the file's pages that are
in use among it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pyro_fed as pf
from benchmarks.helpers.exact_logistic import model
from benchmarks.helpers.records import alone, peak_gb

DIM, CLIENTS, WRITTEN = 50, 10, 100_000


def write(folder: Path, rows: int) -> None:
    """The rows, as two NumPy files."""
    rng = np.random.default_rng(0)
    weights = 0.2 * rng.standard_normal(DIM, dtype=np.float32)
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (rows, DIM))
    y = np.lib.format.open_memmap(folder / "y.npy", "w+", np.float32, (rows,))
    for first in range(0, rows, WRITTEN):
        part = slice(first, min(rows, first + WRITTEN))
        x[part] = rng.standard_normal((part.stop - first, DIM), dtype=np.float32)
        y[part] = rng.random(part.stop - first) < 1 / (1 + np.exp(-x[part] @ weights))


def work(case: str, folder: str, threads: int) -> None:
    """One case: its line, and its draws in the folder."""
    torch.set_num_threads(threads)
    x, y = (np.load(Path(folder, f"{name}.npy"), mmap_mode="r" if case == "file" else None) for name in "xy")
    ends = np.linspace(0, len(x), CLIENTS + 1).astype(int)
    began = time.perf_counter(), time.process_time()
    clients = [(x[a:b], y[a:b]) for a, b in pairwise(ends)]
    fed = pf.Federation.from_clients(model, clients, plate="data")
    made, peak = time.perf_counter(), peak_gb()
    idata: Any = pf.run(pf.FedEP(), fed, audit=False, log_likelihood=False, progress=False, num_threads=threads)
    ended = time.perf_counter(), time.process_time()
    np.save(Path(folder, f"draws_{case}.npy"), idata.posterior["w"].values)
    print(
        f"{case:6}: federation {made - began[0]:.1f} s, FedEP {ended[0] - made:.1f} s, of the processor "
        f"{ended[1] - began[1]:.1f} s; peak {peak:.2f} GB, then {peak_gb():.2f} GB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="?", type=float, default=1e6)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", help="where the files are written; a folder of the system's for such by default")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        write(Path(folder), int(given.rows))
        for case in ("file", "memory"):
            alone(work, case, folder, given.threads)
        apart = np.abs(np.load(Path(folder, "draws_file.npy")) - np.load(Path(folder, "draws_memory.npy"))).max()
        print(f"draws differ by {apart:g}")


if __name__ == "__main__":
    main()
