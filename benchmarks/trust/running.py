"""Trials in this process or in several, as rows of the file; these import what they run from here."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterable

import torch

from benchmarks.trust.judge import judged
from benchmarks.trust.references import read
from benchmarks.trust.trials import Trial, trials

COLUMNS = (
    *("posterior", "kind", "label", "setting", "mean_error", "sd_low", "sd_high", "where"),
    *("wrong", "converged", "said", "warned", "seconds"),
)


def row_of(trial: Trial) -> dict[str, str]:
    """One run as a row of the file."""
    torch.set_num_threads(1)
    began = time.perf_counter()
    verdict = judged(trial.target, read()[trial.posterior], trial.run)
    seconds = time.perf_counter() - began
    return {
        "posterior": trial.posterior,
        "kind": trial.target.kind,
        "label": trial.label,
        "setting": "wrong" if trial.wrong else "default",
        "mean_error": f"{verdict.mean_error:.4g}",
        "sd_low": f"{verdict.sd_low:.4g}",
        "sd_high": f"{verdict.sd_high:.4g}",
        "where": verdict.where,
        "wrong": str(verdict.wrong),
        "converged": str(verdict.converged),
        "said": verdict.said,
        "warned": verdict.warned,
        "seconds": f"{seconds:.1f}",
    }


def run_all(wanted: list[Trial], jobs: int) -> Iterable[dict[str, str]]:
    """Their rows, as they come."""
    if jobs == 1:
        yield from map(row_of, wanted)
        return
    numbers = {(trial.posterior, trial.label): number for number, trial in enumerate(trials())}
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(_row_of_number, [numbers[trial.posterior, trial.label] for trial in wanted])


def _row_of_number(number: int) -> dict[str, str]:
    """The row of one of all trials: their functions cannot be sent to another process."""
    return row_of(trials()[number])
