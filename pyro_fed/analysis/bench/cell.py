"""A cell of the benchmark, which is a case, a split, an algorithm and a seed; its outcome, and the outcomes' files.

Each outcome is a JSON file, named by cell and version, and written completely or not at all. A process of the benchmark
calls `run_task`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import tempfile
import time
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pyro_fed.analysis.bench.algorithms import Algorithm
from pyro_fed.analysis.bench.cases.case import Case, Reference, Split
from pyro_fed.analysis.bench.cases.library import all_cases
from pyro_fed.analysis.bench.scores import Scores, scores
from pyro_fed.analysis.report.overview import as_json, doubt_sentences
from pyro_fed.errors import DataError, PyroFedError
from pyro_fed.federation.federation import Federation
from pyro_fed.results.inference_data import flag

if TYPE_CHECKING:
    from pyro_fed.results.inference_data import InferenceData

#: Outcomes of a cell. An answer is right or wrong, and the run may itself doubt it ("doubted", "said") or not. Without
#: an answer, "refused" is an error of this package or of loading an adapter, "failed" any other error, and "late" the
#: time limit.
OUTCOMES = ("right", "right, doubted", "wrong, said", "wrong, silent", "refused", "failed", "late")
#: Folders of this package on which no answer and no score depends: they are not part of a cell's version.
ASIDE = ("cli", "deployment", "analysis")
#: A cell keeps this many parameters, the worst ones.
MAX_PARAMETERS = 40
#: A cell keeps this many characters of a text, of a traceback the last ones.
MAX_TEXT = 1500


@dataclass(frozen=True)
class Cell:
    """The names of a cell: its case, split such as "sorted/10", algorithm and seed, and a digest of the code."""

    case: str
    split: str
    algorithm: str
    seed: int
    version: str

    @property
    def stem(self) -> str:
        """The beginning of the name of the cell's file, without the version."""
        split = self.split.replace("/", "-").replace(":", "")
        return f"{self.case}--{split}--{self.algorithm}--{self.seed}"

    @property
    def file(self) -> str:
        """The name of the cell's file."""
        return f"{self.stem}--{self.version}.json"


@dataclass(frozen=True)
class Outcome(Cell):
    """The outcome of a cell.

    Attributes:
        outcome: one of `OUTCOMES`.
        doubts: sentences by which the run doubts its own answer.
        warned: other warnings of the run.
        error: the error, if there is no answer.
        scores: figures by name; None for figures that the algorithm does not have.
        where: name of the worst parameter.
        parameters: the worst parameters, each with the attributes of `scores.Parameter`.
        settings: settings of the algorithm.
        limit: seconds of CPU time that the cell was allowed.
    """

    outcome: str
    doubts: list[str] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)
    error: str = ""
    scores: Mapping[str, float | None] = field(default_factory=dict)
    where: str = ""
    parameters: list[dict[str, Any]] = field(default_factory=list)
    settings: str = ""
    limit: float | None = None

    @property
    def answered(self) -> bool:
        """Whether there is an answer."""
        return bool(self.parameters)


def code_version() -> str:
    """Digest of all code that answers and scores depend on."""
    root, digest = Path(__file__).parents[2], hashlib.sha256()
    for file in code_files(root):
        digest.update(str(file.relative_to(root)).encode() + file.read_bytes())
    return digest.hexdigest()


def code_files(root: Path) -> list[Path]:
    """All files that answers and scores depend on, in order."""
    bench, aside = root / "analysis" / "bench", [root / folder for folder in ASIDE]
    files = [file for file in root.rglob("*.py") if not any(file.is_relative_to(folder) for folder in aside)]
    files += [*(bench / "cases").glob("*"), *(bench / name for name in ("scores.py", "cell.py", "clients.py"))]
    files += (root / "analysis" / "judging").glob("*.py")
    return sorted(file for file in files if file.is_file())


def run_cell(cell: Cell, case: Case, algorithm: Algorithm, limit: float | None = None) -> Outcome:
    """Run a cell in this process; an error that the algorithm raises is its outcome. `limit` is only recorded."""
    torch.set_num_threads(1)
    noted: dict[str, Any] = {**asdict(cell), "limit": limit}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        spent = cpu_seconds()
        try:
            federation = Split.parse(cell.split).federation(case, cell.seed)
            reference = case.reference(case.data())
            spent, began = cpu_seconds(), time.perf_counter()
            idata = algorithm.run(case, federation, cell.seed)
            cost = {"cpu_seconds": cpu_seconds() - spent, "seconds": time.perf_counter() - began}
            found = _answer(idata, reference, federation, cell.seed)
        except Exception as error:  # an error of any kind is the cell's outcome
            kind = "refused" if isinstance(error, PyroFedError) else "failed"
            lines = _where(traceback.format_exception(error)) if kind == "failed" else ""
            message = f"{type(error).__name__}: {error}"[:MAX_TEXT]
            settled: dict[str, Any] = {"outcome": kind, "error": f"{message}\n\n{lines[-MAX_TEXT:]}".strip()}
            return Outcome(**noted, **settled, scores={"cpu_seconds": cpu_seconds() - spent}, warned=_texts(caught))
    found["scores"] |= cost
    others = [text for text in _texts(caught) if not any(doubt in text for doubt in found["doubts"])]
    return Outcome(**noted, **found, warned=others)


def _where(lines: list[str]) -> str:
    """A traceback with the last two parts of each path only: published tables do not show the folders of a machine."""
    return re.sub(r'File "[^"]*?([^"/\\]+[/\\][^"/\\]+)"', r'File "\1"', "".join(lines))


def _texts(caught: list[warnings.WarningMessage]) -> list[str]:
    texts = [str(one.message)[:MAX_TEXT] for one in caught if issubclass(one.category, UserWarning)]
    return list(dict.fromkeys(texts))


def _answer(idata: InferenceData, reference: Reference, federation: Federation, seed: int) -> dict[str, Any]:
    """The entries of `Outcome` for an answer: scores, parameters, doubts and settings."""
    found: Scores = scores(idata, reference, federation.problem, seed)
    doubts = doubt_sentences(idata)
    kind = (
        ("wrong, said" if doubts else "wrong, silent") if found.is_wrong else ("right, doubted" if doubts else "right")
    )
    names = ("mean_error", "sd_low", "sd_high", "coverage", "coverage_low", "sliced_wasserstein")
    return {
        "outcome": kind,
        "doubts": doubts,
        "scores": {name: getattr(found, name) for name in names} | traffic(idata),
        "where": found.where,
        "parameters": [_row(asdict(one)) for one in found.parameters[:MAX_PARAMETERS]],
        "settings": _settings(idata),
    }


def _row(values: dict[str, Any]) -> dict[str, Any]:
    return {name: float(f"{value:.5g}") if isinstance(value, float) else value for name, value in values.items()}


def _settings(idata: InferenceData) -> str:
    chosen = f"chosen: {idata.attrs['chosen']}; " if "chosen" in idata.attrs else ""
    return (chosen + str(idata.attrs.get("settings", "")))[:MAX_TEXT]


def traffic(idata: InferenceData) -> dict[str, float | None]:
    """Rounds and bytes of all clients in both directions, over all stages of `Auto`; None if the data were pooled."""
    if "steps" in idata.attrs:
        steps = json.loads(idata.attrs["steps"])
        return {name: float(sum(step[name] or 0 for step in steps)) for name in ("rounds", "bytes")}
    if "federation" in idata and not flag(idata.attrs, "centralized"):
        record = idata["federation"]
        both = sum(float(np.nansum(record[name])) for name in ("bytes_up", "bytes_down"))
        return {"rounds": float(record.sizes["round"]), "bytes": both}
    return {name: float(idata.attrs[name]) if name in idata.attrs else None for name in ("rounds", "bytes")}


def cpu_seconds() -> float:
    """Seconds of CPU time of this process, with its threads, and of the processes that it has started."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


class Store:
    """A folder of cells; with `any_version` a cell of another version stands in for a missing one, the newest first."""

    def __init__(self, folder: Path, any_version: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.any_version = folder, any_version

    def read(self, cell: Cell, limit: float | None) -> Outcome | None:
        """The outcome of a cell; None if it has not been run, or was stopped by a lower limit than the present one."""
        path = self.folder / cell.file
        if not path.is_file() and self.any_version:
            others = sorted(self.folder.glob(f"{cell.stem}--*.json"), key=lambda file: file.stat().st_mtime)
            path = others[-1] if others else path
        if not path.is_file():
            return None
        found = read_outcome(path)
        return None if _cut_by_lower_limit(found, limit) else found

    def of_any_split(self, cell: Cell, limit: float | None) -> Outcome | None:
        """The outcome of a cell on pooled rows, under this cell's names, from any split; None if it was run on none."""
        version = "*" if self.any_version else cell.version
        files = self.folder.glob(f"{cell.case}--*--{cell.algorithm}--{cell.seed}--{version}.json")
        found = [read_outcome(file) for file in sorted(files, key=lambda file: file.stat().st_mtime)]
        usable = [replace(one, split=cell.split) for one in found if not _cut_by_lower_limit(one, limit)]
        return self.read(cell, limit) or (usable[-1] if usable else None)

    def take(self, table: Path) -> None:
        """Add the cells that a JSON file lists, if it exists. Cells that have a file here do not change."""
        if not table.is_file():
            return
        try:
            cells = [Outcome(**one) for one in json.loads(table.read_text(encoding="utf-8"))["cells"]]
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(
                f"{table} is no table of the benchmark: {error}; delete it, or choose another folder"
            ) from error
        for one in cells:
            if not (self.folder / one.file).is_file():
                self.write(one)

    def write(self, outcome: Outcome) -> None:
        """Write a cell's file atomically: a reader sees the old file or the new one, and no part of it."""
        handle, name = tempfile.mkstemp(dir=self.folder, suffix=".part")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(as_json(asdict(outcome)))
        Path(name).replace(self.folder / outcome.file)


def _cut_by_lower_limit(found: Outcome, limit: float | None) -> bool:
    """Whether the cell was stopped by a lower limit than the present one."""
    return found.outcome == "late" and found.limit is not None and (limit is None or limit > found.limit)


def read_outcome(path: Path) -> Outcome:
    """Read a cell's file; DataError if it is damaged."""
    try:
        return Outcome(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise DataError(
            f"{path} is no file of a cell of the benchmark: {error}; delete it, and the cell is run again"
        ) from error


@dataclass(frozen=True)
class Task:
    """A cell to run, with the paths that another process needs; `limit` is in seconds of CPU time, None for none."""

    cell: Cell
    path: Path
    adapter: bool
    posteriordb: Path | None
    folder: Path
    limit: float | None


def run_task(task: Task) -> None:
    """Run a task's cell and write it."""
    case = all_cases(task.posteriordb)[task.cell.case]
    algorithm = Algorithm(task.cell.algorithm, task.path, task.adapter)
    Store(task.folder).write(run_cell(task.cell, case, algorithm, task.limit))
