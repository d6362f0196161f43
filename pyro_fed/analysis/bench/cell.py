"""A cell of the benchmark, which is a case, a split, an algorithm and a seed; and its outcome."""

from __future__ import annotations

import hashlib
import json
import re
import resource
import time
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pyro_fed.analysis.bench.algorithms import Algorithm
from pyro_fed.analysis.bench.cases.case import Case, Reference, Split
from pyro_fed.analysis.bench.scores import Scores, scores
from pyro_fed.errors import PyroFedError
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
PARAMETERS_KEPT = 40
#: A cell keeps this many lines of a traceback.
LINES_KEPT = 12
#: A cell keeps this many characters of a text.
TEXT_KEPT = 1500


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
class Outcome:
    """The outcome of a cell.

    Attributes:
        case: name of the case.
        split: how its rows were split over clients.
        algorithm: name of the algorithm.
        seed: seed of the split and of the run.
        version: a digest of the code and the algorithm's file.
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

    case: str
    split: str
    algorithm: str
    seed: int
    version: str
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
            lines = _where(traceback.format_exception(error)[-LINES_KEPT:]) if kind == "failed" else ""
            said = f"{type(error).__name__}: {error}"[:TEXT_KEPT]
            settled: dict[str, Any] = {"outcome": kind, "error": f"{said}\n\n{lines[-TEXT_KEPT:]}".strip()}
            return Outcome(**noted, **settled, scores={"cpu_seconds": cpu_seconds() - spent}, warned=_texts(caught))
    found["scores"] |= cost
    others = [text for text in _texts(caught) if not any(doubt in text for doubt in found["doubts"])]
    return Outcome(**noted, **found, warned=others)


def _where(lines: list[str]) -> str:
    """A traceback with the last two parts of each path only: published tables do not show the folders of a machine."""
    return re.sub(r'File "[^"]*?([^"/\\]+[/\\][^"/\\]+)"', r'File "\1"', "".join(lines))


def _texts(caught: list[warnings.WarningMessage]) -> list[str]:
    texts = [str(one.message)[:TEXT_KEPT] for one in caught if issubclass(one.category, UserWarning)]
    return list(dict.fromkeys(texts))


def _answer(idata: InferenceData, reference: Reference, federation: Federation, seed: int) -> dict[str, Any]:
    """The entries of `Outcome` for an answer: scores, parameters, doubts and settings."""
    found: Scores = scores(idata, reference, federation.problem, seed)
    doubts = [line for line in str(idata.attrs.get("doubts", "")).split("\n") if line]
    kind = (
        ("wrong, said" if doubts else "wrong, silent") if found.is_wrong else ("right, doubted" if doubts else "right")
    )
    names = ("mean_error", "sd_low", "sd_high", "coverage", "coverage_low", "sliced_wasserstein")
    return {
        "outcome": kind,
        "doubts": doubts,
        "scores": {name: getattr(found, name) for name in names} | traffic(idata),
        "where": found.where,
        "parameters": [_row(asdict(one)) for one in found.parameters[:PARAMETERS_KEPT]],
        "settings": _settings(idata),
    }


def _row(values: dict[str, Any]) -> dict[str, Any]:
    return {name: float(f"{value:.5g}") if isinstance(value, float) else value for name, value in values.items()}


def _settings(idata: InferenceData) -> str:
    chosen = f"chosen: {idata.attrs['chosen']}; " if "chosen" in idata.attrs else ""
    return (chosen + str(idata.attrs.get("settings", "")))[:TEXT_KEPT]


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
