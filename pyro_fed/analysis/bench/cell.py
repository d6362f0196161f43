"""One cell of the benchmark: a case, split, by an algorithm, with a seed; and what came of it."""

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

#: What an answer is, by whether it is right and whether it says so. "refused" is an error of this package or an
#: adapter in place of an answer, "failed" any other, "late" the time limit.
OUTCOMES = ("right", "right, doubted", "wrong, said", "wrong, silent", "refused", "failed", "late")
#: Folders on which no answer and no score depends.
ASIDE = ("cli", "flower", "runtime/agents", "analysis")
#: Parameters that a cell keeps: the worst ones.
PARAMETERS_KEPT = 40
#: Lines of a traceback that a cell keeps.
LINES_KEPT = 12
#: Characters of a text that a cell keeps.
TEXT_KEPT = 1500


@dataclass(frozen=True)
class Cell:
    """What is run.

    Args:
        case: the posterior's name.
        split: how its rows go to clients, such as "sorted/10".
        algorithm: its name.
        seed: of the split and of the run.
        version: changes with the code and the algorithm's file.
    """

    case: str
    split: str
    algorithm: str
    seed: int
    version: str

    @property
    def stem(self) -> str:
        """Its file's name, without the version."""
        split = self.split.replace("/", "-").replace(":", "")
        return f"{self.case}--{split}--{self.algorithm}--{self.seed}"

    @property
    def file(self) -> str:
        """Its file's name."""
        return f"{self.stem}--{self.version}.json"


@dataclass(frozen=True)
class Outcome:
    """What came of a cell.

    Attributes:
        case: the posterior's name.
        split: how its rows went to clients.
        algorithm: its name.
        seed: of the split and the run.
        version: of code and algorithm.
        outcome: one of `OUTCOMES`.
        doubts: what the answer says against itself.
        warned: other warnings.
        error: why there is no answer.
        scores: figures by name, None where there is none.
        where: the parameter that is worst.
        parameters: the worst ones, as `scores.Parameter` has them.
        settings: of the algorithm.
        limit: seconds of CPU that it had.
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
    """All files that answers and scores depend on, in order.

    Args:
        root: the package's folder.
    """
    bench, aside = root / "analysis" / "bench", [root / folder for folder in ASIDE]
    files = [file for file in root.rglob("*.py") if not any(file.is_relative_to(folder) for folder in aside)]
    files += [*(bench / "cases").glob("*"), *(bench / name for name in ("scores.py", "cell.py", "clients.py"))]
    files += (root / "analysis" / "judging").glob("*.py")
    return sorted(file for file in files if file.is_file())


def run_cell(cell: Cell, case: Case, algorithm: Algorithm, limit: float | None = None) -> Outcome:
    """Run a cell in this process.

    Args:
        cell: its names.
        case: the posterior.
        algorithm: what is run.
        limit: seconds of CPU that it has, to be noted.

    Returns:
        What came of it; an error is an outcome too.
    """
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
        except Exception as error:  # whatever is raised: it is what the cell says
            kind = "refused" if isinstance(error, PyroFedError) else "failed"
            lines = _where(traceback.format_exception(error)[-LINES_KEPT:]) if kind == "failed" else ""
            said = f"{type(error).__name__}: {error}"[:TEXT_KEPT]
            settled: dict[str, Any] = {"outcome": kind, "error": f"{said}\n\n{lines[-TEXT_KEPT:]}".strip()}
            return Outcome(**noted, **settled, scores={"cpu_seconds": cpu_seconds() - spent}, warned=_texts(caught))
    found["scores"] |= cost
    others = [text for text in _texts(caught) if not any(doubt in text for doubt in found["doubts"])]
    return Outcome(**noted, **found, warned=others)


def _where(lines: list[str]) -> str:
    """A traceback's lines; of each file's path the last two parts: tables are passed on, a machine's folders not."""
    return re.sub(r'File "[^"]*?([^"/\\]+[/\\][^"/\\]+)"', r'File "\1"', "".join(lines))


def _texts(caught: list[warnings.WarningMessage]) -> list[str]:
    texts = [str(one.message)[:TEXT_KEPT] for one in caught if issubclass(one.category, UserWarning)]
    return list(dict.fromkeys(texts))


def _answer(idata: InferenceData, reference: Reference, federation: Federation, seed: int) -> dict[str, Any]:
    """An answer's scores, and what it says."""
    found: Scores = scores(idata, reference, federation.problem, seed)
    doubts = [line for line in str(idata.attrs.get("doubts", "")).split("\n") if line]
    kind = ("wrong, said" if doubts else "wrong, silent") if found.wrong else ("right, doubted" if doubts else "right")
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
    """Rounds and bytes of an answer, of both directions and all clients; None where the data were pooled.

    Args:
        idata: of `run`, of `Auto` with all its stages, or of an adapter, which may say both in its attributes.
    """
    if "steps" in idata.attrs:
        steps = json.loads(idata.attrs["steps"])
        return {name: float(sum(step[name] or 0 for step in steps)) for name in ("rounds", "bytes")}
    if "federation" in idata and not flag(idata.attrs, "centralized"):
        record = idata["federation"]
        both = sum(float(np.nansum(record[name])) for name in ("bytes_up", "bytes_down"))
        return {"rounds": float(record.sizes["round"]), "bytes": both}
    return {name: float(idata.attrs[name]) if name in idata.attrs else None for name in ("rounds", "bytes")}


def cpu_seconds() -> float:
    """Seconds of CPU of this process, its threads and the processes that it has started."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
