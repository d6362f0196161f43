"""A run as a record: what it did, what it says of its answer, and the answer itself, to the bit.

Each record is of a fresh process: what a process has traced before changes the last digits of a step.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
import re
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.goldens.cases import ROOT, SETS, Case
from benchmarks.goldens.differences import same
from benchmarks.goldens.surface import codes, phases
from benchmarks.helpers.records import made_here
from benchmarks.trust.judge import judged
from benchmarks.trust.posteriors import POSTERIORS
from benchmarks.trust.references import read
from pyro_fed.analysis.bench.processes import Died, run_in_processes
from pyro_fed.results import InferenceData

#: Attributes of a result that have a field of their own, or differ from run to run.
APART = {"created_at", "settings", "doubts", "warnings", "findings", "steps", "versions", "inference_library_version"}
#: Groups of a result of which a digest is kept.
GROUPS = ("sample_stats", "audit", "federation", "sites")
#: Of a site with more numbers, as the latents of rows, so many evenly spaced ones have mean and SD in the record.
NUMBERS = 40


def record(case: Case) -> dict[str, Any]:
    """The record of a case, run in this process."""
    torch.set_num_threads(1)
    results: list[InferenceData] = []
    errors: list[Exception] = []

    def run() -> InferenceData:
        try:
            results.append(case.run())
        except Exception as error:  # of any kind: its class is in the record
            errors.append(error)
            raise
        return results[0]

    found: dict[str, Any] = {"case": case.name, "refusal": None}
    if case.posterior:
        verdict = judged(POSTERIORS[case.posterior], read()[case.posterior], run)
        numbers = (verdict.mean_error, verdict.sd_low, verdict.sd_high)
        found["verdict"] = [*(float(f"{value:.4g}") for value in numbers), verdict.where, verdict.wrong]
        found["warned"] = verdict.warned.split(" | ") if verdict.warned else []
    else:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with suppress(Exception):  # it is among `errors`
                run()
        found["warned"] = [str(one.message) for one in caught if issubclass(one.category, UserWarning)]
    if errors:
        return found | {"warned": [], "refusal": {"class": type(errors[0]).__name__, "text": str(errors[0])}}
    answer = of_result(results[0])
    said = answer["doubts"] + answer["notes"]
    found["warned"] = [text for text in found["warned"] if not any(sentence in text for sentence in said)]
    federation = case.federation()
    graph = case.options.get("graph")
    answer["phases"] = phases(case.algorithm(), federation, graph(federation) if graph else None)
    last = answer["phases"][-1][-1]
    if isinstance(last, dict) and same(last["settings"], answer["settings"]):
        last["settings"] = "as the result's"
    return found | answer


def of_result(idata: InferenceData) -> dict[str, Any]:
    """The fields of a record that a result gives."""
    attrs, figures = idata.attrs, idata["federation"]
    steps = [
        {name: value for name, value in step.items() if name != "seconds"}
        for step in json.loads(attrs.get("steps", "[]"))
    ]
    posterior = idata["posterior"]
    return {
        "settings": _settings(attrs["settings"]),
        "rounds": [[name, len(list(same))] for name, same in itertools.groupby(figures["phase"].values.tolist())],
        "bytes": [int(np.nansum(figures[name])) for name in ("bytes_down", "bytes_up")],
        "doubts": _lines(attrs["doubts"]),
        "notes": [line for line in _lines(attrs["warnings"]) if line not in _lines(attrs["doubts"])],
        "codes": codes(idata),
        "steps": steps,
        "attrs": {name: _number(value) for name, value in sorted(attrs.items()) if name not in APART},
        "digests": {name: _digest_of(idata[name]) for name in GROUPS if name in idata},
        "draws": {name: _draws(posterior[name].values) for name in sorted(map(str, posterior.data_vars))},
    }


def _lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if line]


def _settings(text: str) -> Any:
    """The settings that a result has as text; infinities are no Python literals."""
    try:
        return ast.literal_eval(re.sub(r"\binf\b", "1e999", text))
    except (ValueError, SyntaxError):
        return text


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _digest_of(group: Any) -> str:
    """A digest of all numbers of a group but the seconds."""
    digest = hashlib.sha256()
    for name in sorted(map(str, group.data_vars)):
        if "seconds" not in name:
            digest.update(f"{name}{group[name].shape}".encode() + _bytes(group[name].values))
    return digest.hexdigest()[:16]


def _bytes(values: np.ndarray) -> bytes:
    if values.dtype.kind in "OUS":
        return repr(values.tolist()).encode()
    return np.ascontiguousarray(values, np.float64).tobytes()


def _draws(values: np.ndarray) -> dict[str, Any]:
    """The digest of draws (chain, draw, ...), and mean and SD of its numbers."""
    flat = values.reshape(values.shape[0] * values.shape[1], -1).astype(np.float64)
    count = min(flat.shape[1], NUMBERS)
    some: np.ndarray = np.unique(np.linspace(0, max(flat.shape[1] - 1, 0), count).astype(int))
    return {
        "shape": list(values.shape),
        "sha256": hashlib.sha256(_bytes(values)).hexdigest(),
        "mean": _digits(flat[:, some].mean(0)),
        "sd": _digits(flat[:, some].std(0)),
    }


def _digits(values: Iterable[float]) -> list[float]:
    return [float(f"{value:.12g}") for value in values]


#: Of the sets' files.
FOLDER = Path(__file__).parent


def path_of(name: str) -> Path:
    """The file of a set."""
    return FOLDER / f"{name}.jsonl"


def run_all(
    name: str, wanted: Iterable[str], jobs: int, limit: float | None = None
) -> Iterator[tuple[dict[str, Any], float]]:
    """Records of a set's cases as they end, with seconds; a case beyond `limit` of the processor is left out."""
    if name == "names":  # nothing is run
        yield from (({**one.record(), "code": code()}, 0.0) for one in SETS[name]() if one.name in set(wanted))
        return
    for (_, case), found in run_in_processes(_record, ((name, case) for case in wanted), jobs, limit=limit):
        if not isinstance(found, Died):
            yield found[0] | {"code": code()}, found[1]
        elif found.late:
            print(f"{name}: {case} is left out: {found.reason}", file=sys.stderr, flush=True)
        else:
            raise RuntimeError(f"{name}: '{case}': {found.reason}")


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
    """What the first line of a file says: on what its records depend besides the code."""
    return {"set": name, "seed": 0, "threads": 1, **made_here()}
