"""Records of a benchmark in a file: one line of JSON each, sorted by case, under a line that says where they were made.

What is there is not run again, so that a benchmark can be cut off and resumed. A case whose run reaches its
`max_seconds` before there is an answer has a record of where, `cut`. `alone` is for figures that depend on what a
process has done before, as memory does.
"""

from __future__ import annotations

import fnmatch
import json
import platform
import resource
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import torch

from pyro_fed.analysis.bench.processes import Died, run_in_processes
from pyro_fed.conventions.output import replaced_file
from pyro_fed.errors import TimeLimitError

Record = dict[str, Any]


class Records(Mapping[str, Record]):
    """The records of a file by case, in their order; a last line that was cut off is left out. It need not exist."""

    def __init__(self, path: Path) -> None:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        found = []
        for number, text in enumerate(lines):
            try:
                found.append(json.loads(text))
            except json.JSONDecodeError:
                if number < len(lines) - 1:
                    raise
        self.path, self.header = path, found[0] if found else {}
        self._records: dict[str, Record] = {record["case"]: record for record in found[1:]}
        self._lines = {case: line_of(record) for case, record in self._records.items()}

    def __getitem__(self, case: str) -> Record:
        return self._records[case]

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def keep(self, record: Mapping[str, Any]) -> None:
        """Add a record with its `case`, or put it in its case's place; the file is written whole."""
        case, self.header = record["case"], self.header or made_here()
        self._records[case], self._lines[case] = dict(record), line_of(record)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with replaced_file(self.path) as file:
            text = line_of(self.header) + "".join(self._lines[case] for case in sorted(self._lines))
            file.write(text.encode())

    def drop(self, wanted: Callable[[Record], bool]) -> None:
        """Forget records, as those of other code; the file is as it is until the next one is added."""
        for case in [case for case, record in self._records.items() if wanted(record)]:
            del self._records[case], self._lines[case]


def made_here() -> dict[str, Any]:
    """On what figures depend besides the code: the machine, and the versions of libraries."""
    libraries = ("torch", "pyro-ppl", "arviz", "numpy", "scipy", "scikit-learn")
    return {
        "python": platform.python_version(),
        "machine": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        "versions": {library: version(library) for library in libraries},
    }


def line_of(record: Mapping[str, Any]) -> str:
    """A record as a line."""
    return json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False) + "\n"


def add_options(parser: ArgumentParser, out: str, what: str) -> None:
    """The options that all benchmarks with records have."""
    parser.add_argument("--cases", default="*", help=f"patterns of {what}, separated by commas")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing after so many")
    parser.add_argument("--out", type=Path, default=Path(out), help="file of the records")
    parser.add_argument("--again", action="store_true", help="run what has been run already, too")
    parser.add_argument("--print", action="store_true", help="run nothing, print the tables of what is there")


def matches(name: str, patterns: str) -> bool:
    """Whether a name matches one of some patterns."""
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns.split(","))


def run_missing(
    records: Records,
    cases: Iterable[str],
    function: Callable[[str], Mapping[str, Any]],
    *,
    jobs: int = 1,
    again: bool = False,
    minutes: float = float("inf"),
    warm: bool = True,
) -> Iterator[Record]:
    """New records of the cases that have none, each run in a process of its own; those that die are named on stderr."""
    stop = time.monotonic() + 60 * minutes
    waiting = (case for case in cases if (again or case not in records) and time.monotonic() < stop)
    for (_, case), found in run_in_processes(_timed, ((function, case) for case in waiting), jobs, warm=warm):
        if isinstance(found, Died):
            print(f"{case}: {found.reason}", file=sys.stderr, flush=True)
            continue
        record = {"case": case, **found}
        records.keep(record)
        yield record


def _timed(task: tuple[Callable[[str], Mapping[str, Any]], str]) -> Record:
    function, case = task
    began = time.process_time()
    try:
        found = function(case)
    except TimeLimitError as error:
        begun = error.round is not None
        found = {"cut": f"round {error.round} of {type(error.algorithm).__name__}" if begun else "its preparation"}
    return {"seconds": round(time.process_time() - began, 2), **found}


R = TypeVar("R")


def peak_gb() -> float:
    """Largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def alone(function: Callable[..., R], *arguments: Any) -> R:
    """What a function of a module returns in a process of its own; what it prints is printed."""
    ((_, found),) = run_in_processes(_called, [(function, arguments)], warm=False)
    if isinstance(found, Died):
        raise RuntimeError(f"{function.__name__}{arguments}: {found.reason}")
    answer: R = found
    return answer


def _called(task: tuple[Callable[..., Any], tuple[Any, ...]]) -> Any:
    function, arguments = task
    return function(*arguments)
