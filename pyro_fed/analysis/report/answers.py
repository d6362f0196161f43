"""What the sites answered to questions about a result, as tables of the page: estimands, calibration, leave-one-out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pyro_fed.analysis.judging.calibration import OF_DEPLOYMENT, calibration_table
from pyro_fed.analysis.judging.tables import cell
from pyro_fed.analysis.report.posterior import ENDS, significant
from pyro_fed.ops.arviz_versions import group_of, names_of_groups
from pyro_fed.results.inference_data import InferenceData

ESTIMAND = "Posterior mean, SD and 94 % interval of an average over the sites' rows."
CALIBRATION = "Predicted and observed shares by bins of the predicted one, with 95 % limits of the observed share."
LOO = """
Leave-one-out by Pareto smoothed importance sampling, from sums over each site's rows: expected log predictive density,
effective number of parameters, and rows by their Pareto k. In all {elpd_loo:.1f} (SE {se:.1f}).
"""


def tables(results: Mapping[str, InferenceData]) -> Iterator[dict[str, Any]]:
    """The tables as the page's template takes them."""
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
        rows[", ".join(labels) or "all rows"] = [float(number), draws.mean(), draws.std(), *np.quantile(draws, ENDS)]
    columns = ["rows", "mean", "SD", "3\u00a0%", "97\u00a0%"]
    return _table(f"Estimand {name}{of}", ESTIMAND + withheld, "group", columns, rows)


def _table(
    title: str, note: str, first: str, columns: Sequence[Any], rows: Mapping[Any, Sequence[float]]
) -> dict[str, Any]:
    cells = {str(name): [(cell(float(x), significant), float(x)) for x in values] for name, values in rows.items()}
    return {"title": title, "note": note, "first": first, "columns": list(map(str, columns)), "rows": cells}
