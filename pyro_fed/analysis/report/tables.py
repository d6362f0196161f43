"""Tables of the page: the posterior with a row for each parameter, and what the sites answered to questions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pyro_fed.analysis.judging.calibration import OF_DEPLOYMENT, calibration_table
from pyro_fed.analysis.numbers import digits, number_text, significant
from pyro_fed.analysis.plots.forest import OUTER
from pyro_fed.analysis.report.pictures import ReportData
from pyro_fed.infer.langevin.chain_diagnostics import fewest_effective, r_hat_limit
from pyro_fed.ops.arviz_versions import group_of, names_of_groups
from pyro_fed.results.inference_data import InferenceData

#: Largest number of rows of the table; of more parameters, those on which the results differ most are shown.
MAX_ROWS = 1000
SUMMARY = """
Mean, SD and 94 % interval of every parameter of the reference. For the other results, the distance of the mean in SDs
of the reference, and the ratio of the SD to the reference's. Sort by such a column to see the worst parameters first.
"""
OF_ONE = "Mean, SD and 94 % interval (equal tails) of every parameter."
CHAINS = """
The chains' largest R-hat and its parameter, and the smallest effective number of draws of all chains, beside what is
wanted of so many chains: R-hat at most, effective draws at least.
"""


def posterior_tables(about: ReportData) -> list[dict[str, Any]]:
    """The posterior and the chains' mixing, as the page's template takes tables."""
    found = [_summary(about, about.centre)] if about.centre is not None else []
    return found + ([_mixing_table(about)] if about.chains else [])


def _summary(about: ReportData, centre: str) -> dict[str, Any]:
    truth = about.draws[centre]
    flat = truth.flat
    low, high = np.quantile(flat, OUTER, axis=0)
    columns: dict[str, tuple[np.ndarray, Callable[[float], str]]] = {
        f"{centre}: mean": (flat.mean(0), significant),
        "SD": (flat.std(0), significant),
        "3\u00a0%": (low, significant),
        "97\u00a0%": (high, significant),
    }
    for name, found in about.gaps.items():
        place = {label: i for i, label in enumerate(found.labels)}
        at = [place.get(label, -1) for label in truth.labels]
        mean, ratio = (np.append(values, math.nan)[at] for values in (found.mean, found.ratio))  # the last is NaN
        columns |= {f"{name}: mean off by": (mean, digits(2)), f"{name}: SD ratio": (ratio, digits(2))}
    shown = about.different(centre, MAX_ROWS)
    kept = [truth.labels.index(label) for label in shown]
    rows = {
        truth.labels[i]: [(number_text(values[i], write), values[i]) for values, write in columns.values()]
        for i in kept
    }
    total = len(truth.labels)
    rest = f" The {len(shown)} of {total} on which results differ most." if len(shown) < total else ""
    note = (SUMMARY if len(columns) > 4 else OF_ONE) + rest + about.caveats
    return {"title": "Posterior", "note": note, "first": "parameter", "columns": list(columns), "rows": rows}


def _mixing_table(about: ReportData) -> dict[str, Any]:
    rows = {}
    for name, chains in about.chains.items():
        draws = about.draws[name]
        count, each, _ = draws.values.shape
        most, least = r_hat_limit(count), float(fewest_effective(count))
        values = (float(count), float(each), float(chains.rhat.max()), most, float(np.nanmin(chains.ess)), least)
        written = (f"{count}", f"{each:,}", digits(3)(values[2]), f"{most:.3f}", f"{values[4]:,.0f}", f"{least:.0f}")
        worst = draws.labels[int(chains.rhat.argmax())]
        rows[name] = [*zip(written, values, strict=True), (worst, worst)]
    columns = ["chains", "draws each", "largest R-hat", "at most", "smallest ESS", "at least"]
    columns.append("parameter of that R-hat")
    return {"title": "Have the chains mixed?", "note": CHAINS, "first": "result", "columns": columns, "rows": rows}


ESTIMAND = "Posterior mean, SD and 94 % interval of an average over the sites' rows."
CALIBRATION = "Predicted and observed shares by bins of the predicted one, with 95 % limits of the observed share."
LOO = """
Leave-one-out by Pareto smoothed importance sampling, from sums over each site's rows: expected log predictive density,
effective number of parameters, and rows by their Pareto k. In all {elpd_loo:.1f} (SE {se:.1f}).
"""


def answer_tables(results: Mapping[str, InferenceData]) -> Iterator[dict[str, Any]]:
    """Estimands, calibration and leave-one-out that the results of deployments hold."""
    for name, one in results.items():
        of = f" of {name}" if len(results) > 1 else ""
        for group in names_of_groups(one):
            if group.startswith(OF_DEPLOYMENT):
                yield _answer(one, group.removeprefix(OF_DEPLOYMENT), of)
            elif group == "loo" and "elpd" in one[group]:
                found = group_of(one, group)
                rows = found.to_dataframe()[["rows", "elpd", "p", "good", "bad", "very_bad"]]
                yield _table(f"Leave-one-out{of}", LOO.format(**found.attrs), "site", rows.columns, dict(rows.T))


def _answer(result: InferenceData, name: str, of: str) -> dict[str, Any]:
    found = group_of(result, f"{OF_DEPLOYMENT}{name}")
    withheld = f" Withheld by the sites' rules: {found.attrs['withheld']}." if found.attrs.get("withheld") else ""
    if "observed" in found:
        table = calibration_table(result, name)
        labels = [f"{client}, to {end:g}" for client, end in zip(table["client"], table["bin"], strict=True)]
        shown = table.drop(columns=["client", "bin"])
        rows = dict(zip(labels, shown.to_numpy(float), strict=True))
        return _table(f"Calibration {name}{of}", CALIBRATION + withheld, "site and bin", shown.columns, rows)
    rows, counts = {}, found["rows"]
    dims = [str(dim) for dim in found["estimand"].dims if dim not in ("chain", "draw")]
    for at in np.ndindex(*(found.sizes[dim] for dim in dims)):
        place = dict(zip(dims, at, strict=True))
        labels = [f"{dim}={found[dim].values[i]}" for dim, i in place.items()]
        draws = found["estimand"].isel(place).values
        number = counts.isel({dim: i for dim, i in place.items() if dim in counts.dims})
        rows[", ".join(labels) or "all rows"] = [float(number), draws.mean(), draws.std(), *np.quantile(draws, OUTER)]
    columns = ["rows", "mean", "SD", "3\u00a0%", "97\u00a0%"]
    return _table(f"Estimand {name}{of}", ESTIMAND + withheld, "group", columns, rows)


def _table(
    title: str, note: str, first: str, columns: Sequence[Any], rows: Mapping[Any, Sequence[float]]
) -> dict[str, Any]:
    cells = {
        str(name): [(number_text(float(x), significant), float(x)) for x in values] for name, values in rows.items()
    }
    return {"title": title, "note": note, "first": first, "columns": list(map(str, columns)), "rows": cells}
