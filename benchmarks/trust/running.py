"""A trial as a row of the table, in a process that imports what it runs from here."""

from __future__ import annotations

from functools import cache

import torch

from benchmarks.trust.judge import judged
from benchmarks.trust.references import read
from benchmarks.trust.trials import Trial, trials


@cache
def by_name() -> dict[str, Trial]:
    """All trials by posterior and label: "schools / FedEP"."""
    return {f"{trial.posterior} / {trial.label}": trial for trial in trials()}


def row_of(name: str) -> dict[str, str]:
    """One run as a row of the table.

    Args:
        name: of the trial, as in `by_name`.
    """
    torch.set_num_threads(1)
    trial = by_name()[name]
    verdict = judged(trial.target, read()[trial.posterior], trial.run)
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
    }
