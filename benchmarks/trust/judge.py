"""Is a result wrong, and what was said of it? A trial as a row of the table, run in a process of its own."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

import pyro_fed as pf
from benchmarks.trust.posterior import Posterior, coordinates
from benchmarks.trust.references import read
from benchmarks.trust.trials import Trial, trials

#: An answer is wrong with a mean further off than this, in SDs of the reference, or with an SD outside this part of the
#: reference's. These are not the package's constants, which are judged here.
LARGEST_MEAN_ERROR, SD_RANGE = 0.25, (0.8, 1.25)

#: A draw of which rounding decides the unconstrained number, by more than this many SDs of the reference (of a simplex
#: whose last part is 1e-17), is left out; at most this part of the draws.
TOLD, LEFT_OUT = 0.1, 0.01


@dataclass(frozen=True)
class Verdict:
    """One run.

    Attributes:
        mean_error: largest error of a mean, in SDs of the reference; NaN without a result or a reference.
        sd_low: least SD over the reference's.
        sd_high: largest.
        where: the site and scale that is furthest off.
        wrong: whether the answer is wrong; None where there is no answer.
        converged: what the run says.
        said: doubts of the result, or the error.
        warned: other warnings that were given.
    """

    mean_error: float
    sd_low: float
    sd_high: float
    where: str
    wrong: bool | None
    converged: bool | None
    said: str
    warned: str


def errors(posterior: Posterior, idata: Any, sites: Mapping[str, Any]) -> tuple[float, float, float, str]:
    """Largest mean error, least and largest SD ratio over both scales, and the worst site."""
    places = coordinates(posterior.model, posterior.data())
    worst, where = -1.0, ""
    error, low, high = 0.0, np.inf, 0.0
    for name, kept in sites.items():
        values = torch.as_tensor(np.ascontiguousarray(idata["posterior"][name].values)).double()
        values = values.flatten(0, 1)
        u = places[name].transform.inv(values).reshape(len(values), -1)
        scales = [("", _known(places[name].transform, values, u, kept), kept)]
        if "constrained" in kept and not torch.equal(u, values.reshape(len(values), -1)):
            scales.append((" itself", values.reshape(len(values), -1).numpy(), kept["constrained"]))
        for label, drawn, truth in scales:
            mean, sd = (np.array(truth[key], dtype=float) for key in ("mean", "sd"))
            at = np.isfinite(sd)
            if not at.any():
                continue
            away = np.abs(np.nanmean(drawn, 0) - mean)[at] / sd[at]
            ratio = np.nanstd(drawn, 0, ddof=1)[at] / sd[at]
            away, ratio = np.nan_to_num(away, nan=np.inf), np.nan_to_num(ratio, nan=np.inf)
            error, low, high = max(error, away.max()), min(low, ratio.min()), max(high, ratio.max())
            # How many times over the limit.
            limits = np.log([1 / SD_RANGE[0], SD_RANGE[1]])
            spread = np.abs(np.log(np.maximum(ratio, 1e-12))) / np.where(ratio < 1, *limits)
            badness = float(max((away / LARGEST_MEAN_ERROR).max(), spread.max()))
            if badness > worst:
                worst, where = badness, name + label
    return float(error), float(low), float(high), where


def _known(transform: Any, values: torch.Tensor, u: torch.Tensor, kept: Mapping[str, Any]) -> np.ndarray:
    """Unconstrained draws u (S, D), NaN where rounding decides them."""
    eps = torch.finfo(values.dtype).eps
    up, down = (transform.inv(values * (1 + by)).reshape(u.shape) for by in (eps, -eps))
    unknown = ((up - down).abs() > TOLD * torch.as_tensor(np.array(kept["sd"], dtype=float))) & u.isfinite()
    unknown &= unknown.double().mean(0) <= LEFT_OUT
    return torch.where(unknown, torch.nan, u).numpy()


def judged(posterior: Posterior, kept: Mapping[str, Any], run: Any) -> Verdict:
    """The verdict on what `run` returns or raises, by the reference that is kept."""
    nan = float("nan")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            idata = run()
        except Exception as error:  # whatever is raised is no silent answer, and a crash is told by its class
            said = f"{type(error).__name__}: {error}".replace("\n", " ")
            refused = isinstance(error, pf.PyroFedError)
            return Verdict(nan, nan, nan, "", None, None, said if refused else f"CRASH {said}", "")
    doubts = [doubt for doubt in idata.attrs["doubts"].split("\n") if doubt]
    warned = [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
    others = [text for text in warned if not any(doubt in text for doubt in doubts)]
    converged = {1: True, 0: False}.get(idata.attrs.get("converged"))
    if not kept["sites"]:
        found = (nan, nan, nan, "")
        wrong = True  # there is no posterior: whatever is answered is wrong
    else:
        found = errors(posterior, idata, kept["sites"])
        wrong = not (found[0] <= LARGEST_MEAN_ERROR and SD_RANGE[0] <= found[1] and found[2] <= SD_RANGE[1])
    return Verdict(*found, wrong, converged, " | ".join(doubts), " | ".join(others))


@cache
def by_name() -> dict[str, Trial]:
    """All trials by posterior and label: "schools / FedEP"."""
    return {f"{trial.posterior} / {trial.label}": trial for trial in trials()}


def row_of(name: str) -> dict[str, str]:
    """One run as a row of the table."""
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
