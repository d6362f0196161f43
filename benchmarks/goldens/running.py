"""Records of cases, each from a fresh process: what a process has traced before changes the last digits of a step."""

from __future__ import annotations

import hashlib
import math
import multiprocessing
import os
import platform
import resource
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import version
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from benchmarks.goldens.cases import ROOT, SETS
from benchmarks.goldens.records import record

#: Seconds of the processor between the signal at a limit and the kill.
GRACE = 2
#: Loaded once, by the process that the others are forked from.
PRELOADED = ["pyro_fed.analysis.bench.warm", "benchmarks.goldens.running"]


def run_all(
    name: str, wanted: Iterable[str], jobs: int, limit: float | None = None
) -> Iterator[tuple[dict[str, Any], float]]:
    """Records of a set's cases as they end, each with its seconds of the processor.

    Args:
        name: of the set.
        wanted: names of its cases.
        jobs: how many processes at a time.
        limit: seconds of the processor after which a case is given up, without a record; None: no limit.

    Raises:
        RuntimeError: a process has died; the message names its case.
    """
    if name == "names":  # nothing is run
        yield from (({**one.record(), "code": code()}, 0.0) for one in SETS[name]() if one.name in set(wanted))
        return
    os.environ["OMP_NUM_THREADS"] = "1"  # of the process from which the others are forked
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    waiting = iter(wanted)
    running: dict[Connection, tuple[Any, str]] = {}
    try:
        while True:
            while len(running) < jobs and (case := next(waiting, None)) is not None:
                here, there = context.Pipe(duplex=False)
                process = context.Process(target=_send, args=(there, name, case, limit), daemon=True)
                process.start()
                there.close()
                running[here] = (process, case)
            if not running:
                return
            ready = wait(list(running))
            for here in [one for one in running if one in ready]:
                process, case = running.pop(here)
                try:
                    found, seconds = here.recv()
                except EOFError:
                    process.join()
                    if process.exitcode == -signal.SIGXCPU:
                        print(f"{name}: {case} has taken {limit:g} s and is left out", file=sys.stderr, flush=True)
                        continue
                    raise RuntimeError(f"{name}: the process of '{case}' ended with code {process.exitcode}") from None
                process.join()
                yield found | {"code": code()}, seconds
    finally:
        for process, _ in running.values():
            process.kill()


def _send(there: Connection, name: str, case: str, limit: float | None) -> None:
    """What a process does: its case's record."""
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(limit), math.ceil(limit) + GRACE))
    (found,) = [one for one in SETS[name]() if one.name == case]
    there.send((record(found), time.process_time()))
    there.close()


@cache
def code() -> str:
    """A digest of the files that records depend on: package, models, recipes, posteriors and the contract's runs."""
    digest = hashlib.sha256()
    for folder in ("pyro_fed", "models", "inference", "benchmarks/trust", "tests/helpers"):
        for file in sorted((ROOT / folder).rglob("*.*")):
            if file.suffix in (".py", ".pyi", ".toml"):
                digest.update(str(file.relative_to(ROOT)).encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def header(name: str) -> dict[str, Any]:
    """What the first line of a file says: on what its records depend besides the code.

    Args:
        name: of the set.
    """
    libraries = ("torch", "pyro-ppl", "arviz", "numpy", "scipy", "scikit-learn")
    return {
        "set": name,
        "seed": 0,
        "threads": 1,
        "python": platform.python_version(),
        "machine": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        "versions": {library: version(library) for library in libraries},
    }
