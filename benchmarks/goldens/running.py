"""Records of cases, each from a fresh process: what a process has traced before changes the last digits of a step."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.goldens.cases import ROOT, SETS
from benchmarks.goldens.records import record
from benchmarks.helpers.records import made_here
from pyro_fed.analysis.bench.processes import Died, run_in_processes

#: Of the sets' files.
FOLDER = Path(__file__).parent


def path_of(name: str) -> Path:
    """The file of a set.

    Args:
        name: of the set.
    """
    return FOLDER / f"{name}.jsonl"


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
    for (_, case), found in run_in_processes(_record, ((name, case) for case in wanted), jobs, limit=limit):
        if not isinstance(found, Died):
            yield found[0] | {"code": code()}, found[1]
        elif found.late:
            print(f"{name}: {case} is left out: {found.said}", file=sys.stderr, flush=True)
        else:
            raise RuntimeError(f"{name}: '{case}': {found.said}")


def _record(task: tuple[str, str]) -> tuple[dict[str, Any], float]:
    """What a process does: its case's record, and its seconds."""
    name, case = task
    (found,) = [one for one in SETS[name]() if one.name == case]
    return record(found), time.process_time()


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
    return {"set": name, "seed": 0, "threads": 1, **made_here()}
