"""Results' figures as plain dictionaries, which the command line writes as JSON (`--json`)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from pyro_fed.analysis.judging.compare import findings_of
from pyro_fed.analysis.judging.draws import Draws
from pyro_fed.codes.finding import texts
from pyro_fed.ops.arviz_versions import summary
from pyro_fed.results.inference_data import InferenceData, recorded_findings

#: Attributes of a result that `of_run` gives as lists.
LISTS = ("doubts", "warnings", "steps", "findings")


def as_json(values: Mapping[str, Any]) -> str:
    """Plain values as JSON. NaN and infinities, which JSON does not have, become null."""
    return json.dumps(_as_plain(values), indent=1, ensure_ascii=False, allow_nan=False)


def comparison(table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """The columns of `pyro_fed.compare` by result, `findings` and `warnings`, their texts, as lists."""
    said = findings_of(table)
    lists = {
        name: {"findings": [one.to_plain() for one in every], "warnings": texts(every)} for name, every in said.items()
    }
    return {
        str(name): {str(key): value for key, value in row.items()} | lists[str(name)]
        for name, row in table.drop(columns="warnings").iterrows()
    }


def of_run(idata: InferenceData, measured: Mapping[str, float]) -> dict[str, Any]:
    """A run's attributes, posterior table, doubts and warnings, costs, and measures on test data if there are any."""
    record = idata["federation"]
    attributes = {name: value for name, value in idata.attrs.items() if name not in LISTS}
    found = recorded_findings(idata)
    lists = {
        "doubts": texts(one for one in found if one.is_doubt),
        "warnings": texts(found),
        "findings": [one.to_plain() for one in found],
    }
    steps = {"steps": json.loads(idata.attrs["steps"])} if "steps" in idata.attrs else {}
    cost = {name: float(record[name].sum()) for name in ("bytes_up", "bytes_down", "seconds")}
    cost |= {"rounds": int(record.sizes["round"])}
    return {
        **lists,
        "posterior": posterior(idata),
        "test": dict(measured),
        "cost": cost,
        "attributes": attributes,
        **steps,
    }


def posterior(idata: InferenceData) -> dict[str, dict[str, float]]:
    """Mean, SD and 94 % interval of each scalar, for chains also R-hat and effective sample sizes; a point's values."""
    if idata.attrs.get("draws_are") == "point":
        draws = Draws.of(idata, list(map(str, idata["posterior"].data_vars)))
        return {name: {"value": float(value)} for name, value in zip(draws.labels, draws.flat.mean(0), strict=True)}
    table = summary(idata, chains=idata.attrs.get("draws_are") == "chains")
    return {str(name): {str(key): value for key, value in row.items()} for name, row in table.iterrows()}


def _as_plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _as_plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_as_plain(one) for one in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
