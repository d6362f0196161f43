"""Run cells in parallel: each in its own process, with one thread and a limit on its CPU time.

Processes are forked from a server that has imported everything (`forkserver`), so that a cell starts at once, and no
answer depends on other cells. Each process writes its own cell, so that finished cells are kept whatever happens to
other processes. If a process dies before (by its limit, a crash or lack of memory), the cell's outcome says so.
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

#: A process that waits forever uses no CPU time, and would never reach its limit. It is killed if it is older than
#: `WALL_FACTOR` times its limit, by the clock, and has used less than `IDLE_SHARE` of that time. A process that a busy
#: machine slows down has used more.
WALL_FACTOR, IDLE_SHARE = 5.0, 0.02
#: Seconds until a process older than that is looked at again.
LOOK = 1.0
#: Seconds of CPU time between the signal at the limit and the kill.
GRACE = 2
#: The module that the server imports to load libraries.
WARM = "pyro_fed.analysis.bench.warm"
#: The environment variable for the number of threads of a library.
THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class Task:
    """A cell to run, with the paths that another process needs for it.

    Args:
        cell: names of the cell.
        path: the algorithm's file.
        adapter: whether the algorithm is an adapter.
        posteriordb: folder of posteriordb.
        folder: folder of the cells' files.
        limit: seconds of CPU time that the cell may take; None for no limit.
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
    """Run tasks, several at a time.

    Args:
        tasks: the tasks, in the order in which they are started.
        entry: the function that a process runs on a task; it writes the cell. The server imports its module.
        jobs: number of processes at a time.
        deadline: a time by `time.monotonic`, at which running tasks are killed, and no more are started.

    Yields:
        Each finished task, with None if its process has written the cell, or else with an outcome that says how the
        process died.
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
    """A context whose server forks processes of one thread: libraries read the variable when the server loads them."""
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
    """Seconds until a process may be idle for too long, or until the deadline; None if there are no limits."""
    now = time.monotonic()
    ends = [max(began + WALL_FACTOR * task.limit - now, LOOK) for _, task, began in running if task.limit is not None]
    ends += [max(deadline - now, 0.0)] if deadline is not None else []
    return min(ends, default=None)


def _hung(pid: int, limit: float | None, seconds: float) -> bool:
    """Whether a process, `seconds` old, has been idle for too long."""
    if limit is None or seconds <= WALL_FACTOR * limit:
        return False
    used = _cpu_seconds(pid)
    return used is None or used < IDLE_SHARE * seconds


def _cpu_seconds(pid: int) -> float | None:
    """Seconds of CPU time that a process has used; None if the system does not tell."""
    try:
        figures = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    user, system = (int(ticks) for ticks in figures[11:13])
    return (user + system) / os.sysconf("SC_CLK_TCK")


def _dead(task: Task, code: int, hung: bool) -> Outcome:
    """The outcome for a process that died before it wrote its cell."""
    late = hung or (code in (-signal.SIGXCPU, -signal.SIGKILL) and task.limit is not None)
    if late:
        said = f"no answer within {task.limit:g} s of CPU time" + (", nor of waiting" if hung else "")
    else:
        said = f"the process died: signal {-code}" if code < 0 else f"the process died with exit code {code}"
    return Outcome(**asdict(task.cell), outcome="late" if late else "failed", error=said, limit=task.limit)
