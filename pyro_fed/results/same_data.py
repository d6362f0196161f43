"""Whether a result and a federation, or two results, are of the same rows, in whatever order.

A result has its data in the groups `observed_data` and `constant_data`, unless the rows were elsewhere or the run was
private. Leave-one-out, influence and related functions take the draws for a posterior given the federation's rows;
with those of another federation their figures would be about neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pyro_fed.density.observations import observed_values
from pyro_fed.ops.arviz_versions import group_of
from pyro_fed.results.to_arviz import constant_data, observed_data

if TYPE_CHECKING:
    from pyro_fed.federation.federation import Federation
    from pyro_fed.results.inference_data import InferenceData

#: Groups of a result that hold rows.
GROUPS = ("observed_data", "constant_data")
#: Values that differ by this part are the same: a federation may compute in float32 what another has in float64.
SAME_VALUE_TOLERANCE = 1e-5


def unlike_federation(idata: InferenceData, federation: Federation) -> str:
    """The difference between the rows of a result and of a federation; empty if there is none, or one has no rows."""
    mine = _columns(idata)
    if not mine or not federation.holds_data:
        return ""
    values = observed_values(federation.problem)
    theirs = {**observed_data(federation, values).data_vars, **constant_data(federation, values).data_vars}
    return _differing_column(mine, {str(name): np.asarray(column.values) for name, column in theirs.items()})


def unlike_result(idata: InferenceData, other: InferenceData) -> str:
    """The difference between the rows of two results; empty if there is none, or one has no rows."""
    return _differing_column(_columns(idata), _columns(other))


def _columns(idata: Any) -> dict[str, np.ndarray]:
    found = [group_of(idata, name).data_vars for name in GROUPS if name in idata]
    return {str(name): np.asarray(column.values) for columns in found for name, column in columns.items()}


def _differing_column(mine: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> str:
    """The first column of both that has other values, each sorted, as rows may be in another order."""
    for name in sorted(mine.keys() & theirs.keys()):
        here, there = mine[name], theirs[name]
        if here.dtype.kind not in "biuf" or there.dtype.kind not in "biuf":
            continue
        if here.shape != there.shape:
            return f"'{name}' has the shape {here.shape} in the one and {there.shape} in the other"
        first, second = (np.sort(values.astype(float), axis=None) for values in (here, there))
        close = np.isclose(
            first, second, rtol=SAME_VALUE_TOLERANCE, atol=SAME_VALUE_TOLERANCE * _size(first), equal_nan=True
        )
        if not close.all():
            at = int(np.argmin(close))
            return f"'{name}' has other values, such as {first[at]:g} in the one and {second[at]:g} in the other"
    return ""


def _size(values: np.ndarray) -> float:
    """The typical size of the values."""
    finite = np.abs(values[np.isfinite(values)])
    return float(np.median(finite)) if len(finite) else 0.0
