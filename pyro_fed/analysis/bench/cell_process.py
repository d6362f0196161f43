"""The function that each process of the benchmark runs: it computes one cell and writes its file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyro_fed.analysis.bench.algorithms import Algorithm
from pyro_fed.analysis.bench.cases.library import all_cases
from pyro_fed.analysis.bench.cell import Cell, run_cell
from pyro_fed.analysis.bench.store import Store


@dataclass(frozen=True)
class Task:
    """A cell to run, with the paths that another process needs; `limit` is in seconds of CPU time, None for none."""

    cell: Cell
    path: Path
    adapter: bool
    posteriordb: Path | None
    folder: Path
    limit: float | None


def entry(task: Task) -> None:
    """Run a task's cell and write it."""
    case = all_cases(task.posteriordb)[task.cell.case]
    algorithm = Algorithm(task.cell.algorithm, task.path, task.adapter)
    Store(task.folder).write(run_cell(task.cell, case, algorithm, task.limit))
