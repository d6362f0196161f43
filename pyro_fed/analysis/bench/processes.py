"""A function in processes of their own, several at a time: each with one thread and a limit on its CPU time.

Processes are forked from a server that has imported everything (`forkserver`), so that each starts at once, and no
answer depends on earlier runs. Where a figure depends on what has been imported, as a process's memory does,
they are started anew. The function's return value arrives when its process ends; if the process dies before (by its
limit, a crash or lack of memory), a `Died` takes its place.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import resource
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")

#: A process that waits forever uses no CPU time, and would never reach its limit. It is killed if it is older than
#: `WALL_FACTOR` times its limit, by the clock, and has used less than `MAX_IDLE_SHARE` of that time. A process that a
#: busy machine slows down has used more.
WALL_FACTOR, MAX_IDLE_SHARE = 5.0, 0.02
#: Seconds of CPU time between the signal at the limit and the kill, and until an old process is looked at again.
GRACE_SECONDS = 2
#: The module that the server imports to load libraries.
WARM = "pyro_fed.analysis.bench.preload"
#: The environment variable for the number of threads of a library.
THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class Died:
    """How a process ended without an answer, in words; `late` if it reached its limit of CPU time or of waiting."""

    reason: str
    late: bool


def run_in_processes(
    function: Callable[[T], R],
    tasks: Iterable[T],
    jobs: int = 1,
    *,
    limit: float | None = None,
    deadline: float | None = None,
    warm: bool = True,
) -> Iterator[tuple[T, R | Died]]:
    """Call a function of an importable module on each task in a process of its own, `jobs` at a time.

    Yields each task as its process ends, with what the function returned or how the process died. A process may take
    `limit` seconds of CPU time. At `deadline`, by `time.monotonic`, running processes are killed and no more started.
    `warm` processes are forked from one that has loaded libraries; otherwise each is a new Python.
    """
    context: Any = _server(function.__module__) if warm else multiprocessing.get_context("spawn")
    waiting = iter(tasks)
    running: dict[Connection, tuple[Any, T, float]] = {}
    try:
        while True:
            late = deadline is not None and time.monotonic() >= deadline
            while not late and len(running) < jobs:
                try:
                    task = next(waiting)
                except StopIteration:
                    break
                here, there = context.Pipe(duplex=False)
                process = context.Process(target=_call, args=(there, function, task, limit), daemon=True)
                with _one_thread():
                    process.start()
                there.close()
                running[here] = (process, task, time.monotonic())
            if late or not running:
                return
            ends = [process.sentinel for process, _, _ in running.values()]
            begun = [began for _, _, began in running.values()]
            wait([*running, *ends], timeout=_patience(begun, limit, deadline))
            for here, (process, task, began) in list(running.items()):
                hung = _hung(process.pid, limit, time.monotonic() - began)
                if process.is_alive() and not here.poll() and not hung:
                    continue
                if hung:
                    process.kill()
                    process.join()
                answers = _receive_answer(here)
                process.join()
                here.close()
                del running[here]
                yield task, answers[0] if answers else _cause_of_death(process.exitcode, hung, limit)
    finally:
        for process, _, _ in running.values():
            process.kill()
            process.join()


def _receive_answer(here: Connection) -> list[Any]:
    """The answer that a process has sent before it ended, or None."""
    try:
        return [here.recv()] if here.poll() else []
    except (EOFError, OSError):  # nothing, or not all of it
        return []


def _call(there: Connection, function: Callable[[Any], Any], task: Any, limit: float | None) -> None:
    """Call the function and send what it returns: the body of a process."""
    if limit is not None:
        seconds = math.ceil(limit)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + GRACE_SECONDS))
    there.send(function(task))
    there.close()


def _server(module: str) -> Any:
    """A context whose server forks processes of one thread: libraries read the variable when the server loads them."""
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([module, WARM])
    with _one_thread():
        forkserver.ensure_running()
    return context


@contextmanager
def _one_thread() -> Iterator[None]:
    """The environment in which libraries of a new process take one thread."""
    before = os.environ.get(THREADS)
    os.environ[THREADS] = "1"
    try:
        yield
    finally:
        os.environ.pop(THREADS)
        os.environ.update({} if before is None else {THREADS: before})


def _patience(begun: Iterable[float], limit: float | None, deadline: float | None) -> float | None:
    """Seconds until a process may be idle for too long, or until the deadline; None if there are no limits."""
    now = time.monotonic()
    ends = [] if limit is None else [max(began + WALL_FACTOR * limit - now, GRACE_SECONDS) for began in begun]
    ends += [max(deadline - now, 0.0)] if deadline is not None else []
    return min(ends, default=None)


def _hung(pid: int, limit: float | None, seconds: float) -> bool:
    """Whether a process, `seconds` old, has been idle for too long."""
    if limit is None or seconds <= WALL_FACTOR * limit:
        return False
    used = _cpu_seconds(pid)
    return used is None or used < MAX_IDLE_SHARE * seconds


def _cpu_seconds(pid: int) -> float | None:
    """Seconds of CPU time that a process has used; None if the system does not tell."""
    try:
        figures = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    user, system = (int(ticks) for ticks in figures[11:13])
    return (user + system) / os.sysconf("SC_CLK_TCK")


def _cause_of_death(code: int, hung: bool, limit: float | None) -> Died:
    """A sentence on why a process died before its function returned."""
    if hung or (code in (-signal.SIGXCPU, -signal.SIGKILL) and limit is not None):
        return Died(f"no answer within {limit:g} s of CPU time" + (", nor of waiting" if hung else ""), late=True)
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return Died(f"the process died: {how}" if code < 0 else f"the process died with {how}", late=False)
