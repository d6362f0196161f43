"""Cells side by side: a process each, one thread, with a limit on its CPU time.

Processes are forked from a server that has imported everything (`forkserver`), so that a cell begins at once, and its
answer depends on no other cell. A process writes its own cell: what is done stays done, whoever is killed. One that
dies without (the limit, a crash, no memory) is a cell that says so.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from multiprocessing import forkserver
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from pyro_fed.analysis.bench.cell import Cell, Outcome

#: A process that hardly uses CPU, waiting for what never comes, is ended after so many times its limit. Hardly: less
#: than this share of the time, which what is only held up by others, niced on a busy machine, has more of.
WALL_FACTOR, IDLE_SHARE = 5.0, 0.02
#: Seconds until a process that is overdue is looked at again.
LOOK = 1.0
#: Seconds from the end of its CPU time to its end by force.
GRACE = 2
#: What the server imports besides.
WARM = "pyro_fed.analysis.bench.warm"
#: How many threads a library starts.
THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class Task:
    """A cell, and where its parts are found by another process.

    Args:
        cell: its names.
        path: of the algorithm's file.
        adapter: whether that is an adapter.
        posteriordb: folder of posteriordb.
        folder: of the cells.
        limit: seconds of CPU; None for none.
    """

    cell: Cell
    path: Path
    adapter: bool
    posteriordb: Path | None
    folder: Path
    limit: float | None


def work(
    tasks: Iterable[Task], entry: Callable[[Task], None], jobs: int, deadline: float | None
) -> Iterator[tuple[Task, Outcome | None]]:
    """Run tasks, as many at a time as there are jobs.

    Args:
        tasks: in the order in which they are begun.
        entry: what a process runs, a function of a module, which the server imports; it writes the cell.
        jobs: processes at a time.
        deadline: by `time.monotonic`; then none is begun any more, and those that run are ended and not kept.

    Yields:
        Each task at its end, with a cell where its process died without having written one.
    """
    context = _server(entry.__module__)
    waiting = iter(tasks)
    running: dict[int, tuple[Any, Task, float]] = {}
    try:
        while True:
            late = deadline is not None and time.monotonic() >= deadline
            while not late and len(running) < jobs and (task := next(waiting, None)) is not None:
                process = context.Process(target=entry, args=(task,), daemon=True)
                process.start()
                running[process.sentinel] = (process, task, time.monotonic())
            if late or not running:
                return
            wait(list(running), timeout=_patience(running.values(), deadline))
            for sentinel, (process, task, began) in list(running.items()):
                hung = _hung(process.pid, task.limit, time.monotonic() - began)
                if process.is_alive() and not hung:
                    continue
                if hung:
                    process.kill()
                process.join()
                del running[sentinel]
                yield task, None if process.exitcode == 0 else _dead(task, process.exitcode, hung)
    finally:
        for process, _, _ in running.values():
            process.kill()
            process.join()


def _server(module: str) -> Any:
    """The context of a server whose processes have one thread each; libraries read the variable as they are loaded."""
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([module, WARM])
    before = os.environ.get(THREADS)
    os.environ[THREADS] = "1"
    try:
        forkserver.ensure_running()
    finally:
        os.environ.pop(THREADS)
        os.environ.update({} if before is None else {THREADS: before})
    return context


def _patience(running: Iterable[tuple[Any, Task, float]], deadline: float | None) -> float | None:
    """Seconds until something has to be looked at."""
    now = time.monotonic()
    ends = [max(began + WALL_FACTOR * task.limit - now, LOOK) for _, task, began in running if task.limit is not None]
    ends += [max(deadline - now, 0.0)] if deadline is not None else []
    return min(ends, default=None)


def _hung(pid: int, limit: float | None, seconds: float) -> bool:
    """Whether a process of that age waits for what never comes."""
    if limit is None or seconds <= WALL_FACTOR * limit:
        return False
    used = _cpu_seconds(pid)
    return used is None or used < IDLE_SHARE * seconds


def _cpu_seconds(pid: int) -> float | None:
    """Seconds of CPU that a process has used; None where the system does not tell."""
    try:
        figures = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    user, system = (int(ticks) for ticks in figures[11:13])
    return (user + system) / os.sysconf("SC_CLK_TCK")


def _dead(task: Task, code: int, hung: bool) -> Outcome:
    """The cell of a process that died without a word."""
    late = hung or (code in (-signal.SIGXCPU, -signal.SIGKILL) and task.limit is not None)
    if late:
        said = f"no answer within {task.limit:g} s of CPU time" + (", nor of waiting" if hung else "")
    else:
        said = f"the process died: signal {-code}" if code < 0 else f"the process died with exit code {code}"
    return Outcome(**asdict(task.cell), outcome="late" if late else "failed", error=said, limit=task.limit)
