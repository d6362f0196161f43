"""The function that each process of the benchmark runs: it computes one cell and writes its file."""

from __future__ import annotations

import math
import resource

from pyro_fed.analysis.bench.algorithms import Algorithm
from pyro_fed.analysis.bench.cases.library import all_cases
from pyro_fed.analysis.bench.cell import run_cell
from pyro_fed.analysis.bench.store import Store
from pyro_fed.analysis.bench.work import GRACE, Task


def entry(task: Task) -> None:
    """Run a task's cell and write it.

    Args:
        task: the cell and its paths.
    """
    if task.limit is not None:
        seconds = math.ceil(task.limit)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + GRACE))
    case = all_cases(task.posteriordb)[task.cell.case]
    algorithm = Algorithm(task.cell.algorithm, task.path, task.adapter)
    Store(task.folder).write(run_cell(task.cell, case, algorithm, task.limit))
