"""The groups of a result that contain its data, and the comparison of rows between results and federations.

Leave-one-out, influence and related functions need draws of the posterior given the federation's rows. They refuse
draws of another federation. Results of private runs, and of runs whose rows are on other machines, contain no data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from pyro_fed.conventions.limits import ROUNDING_UNITS
from pyro_fed.density.observations import observed_values
from pyro_fed.density.rows.labelled import Labels
from pyro_fed.ops.arviz_versions import group_of

if TYPE_CHECKING:
    from pyro_fed.federation.federation import Federation
    from pyro_fed.results.inference_data import InferenceData


def observed_data(federation: Federation, values: Mapping[str, Tensor]) -> xr.Dataset:
    """The observed sites' values in the original order of the rows."""
    problem = federation.problem
    data = {name: (list(problem.layout.observed[name].dims), value.cpu().numpy()) for name, value in values.items()}
    sizes = {dim: size for dims, array in data.values() for dim, size in zip(dims, array.shape, strict=True)}
    return xr.Dataset(data, coords={dim: federation.coords.get(dim, np.arange(n)) for dim, n in sizes.items()})


#: Attribute of `constant_data` with the labels of codes.
LABELS = "labels"
#: Attribute with the names of arguments whose labels are ordered by the user.
ORDERED = "ordered"
#: Attribute with the order of the columns of data frames.
COLUMNS = "columns"


def constant_data(federation: Federation, values: Mapping[str, Tensor]) -> xr.Dataset:
    """The arguments that are split by rows, without observations; attributes have labels and the order of columns."""
    arguments = federation.problem.arguments
    data = {}
    for name, nested, leaf in arguments.columns:
        if not any(leaf.shape == value.shape and torch.equal(leaf, value) for value in values.values()):
            plate = nested or federation.problem.plate
            dims = [plate] + [f"{name}_dim_{i}" for i in range(1, leaf.dim())]
            # xarray interprets a variable with the name of a dimension as its labels.
            data[f"{name}_values" if name in dims else name] = (dims, leaf.cpu().numpy())
    owners, labels = _owners(federation)
    coded = {name: list(values) for name, values in arguments.labels.items()}
    ordered = [name for name, values in arguments.labels.items() if values.ordered]
    told = {LABELS: coded, ORDERED: ordered, COLUMNS: arguments.orders(federation.problem.model)}
    attrs = {name: json.dumps(value, ensure_ascii=False, default=str) for name, value in told.items() if value}
    return xr.Dataset({**owners, **data}, coords=labels, attrs=attrs)


def labels_in(idata: InferenceData) -> dict[str, Labels] | None:
    """The labels of codes, by the argument's name, from `constant_data`; None if it has none."""
    if "constant_data" not in idata:
        return None
    attrs = group_of(idata, "constant_data").attrs
    if LABELS not in attrs:
        return None
    ordered = json.loads(attrs.get(ORDERED, "[]"))
    return {name: Labels(values, ordered=name in ordered) for name, values in json.loads(attrs[LABELS]).items()}


def columns_in(idata: InferenceData) -> dict[str, list[Any]]:
    """Columns of data frames and keys of dictionaries, by argument, from `constant_data`; empty if it has none."""
    text = group_of(idata, "constant_data").attrs.get(COLUMNS) if "constant_data" in idata else None
    return {} if text is None else dict(json.loads(text))


def _owners(federation: Federation) -> tuple[dict[str, Any], dict[str, Any]]:
    """The group of each nested row: variables with group numbers, and coordinates with the groups' labels."""
    problem = federation.problem
    labels = federation.coords.get(problem.plate)
    numbers: dict[str, Any] = {}
    named: dict[str, Any] = {}
    for plate, (owner, *_) in problem.arguments.nested_by_name.items():
        values = problem.arguments.leaves[problem.arguments.names.index(owner)].cpu().numpy()
        taken = (plate, problem.plate)
        numbers[f"{owner}_values" if owner in taken else owner] = ([plate], values)
        if labels is not None:
            named[problem.plate] = labels
            named[f"{owner}_label"] = (plate, [labels[number] for number in values.tolist()])
    return numbers, named


#: Groups of a result that contain rows.
GROUPS = ("observed_data", "constant_data")
#: Relative difference up to which values are equal: federations may have them in float32 or float64.
SAME_VALUE_TOLERANCE = ROUNDING_UNITS * float(np.finfo(np.float32).eps)


def unlike_federation(idata: InferenceData, federation: Federation) -> str:
    """The difference between the rows of a result and of a federation; "" if there is none, or one has no rows."""
    mine = _columns(idata)
    if not mine or not federation.holds_data:
        return ""
    values = observed_values(federation.problem)
    theirs = {**observed_data(federation, values).data_vars, **constant_data(federation, values).data_vars}
    return _differing_column(mine, {str(name): np.asarray(column.values) for name, column in theirs.items()})


def unlike_result(idata: InferenceData, other: InferenceData) -> str:
    """The difference between the rows of two results; "" if there is none, or one has no rows."""
    return _differing_column(_columns(idata), _columns(other))


def _columns(idata: Any) -> dict[str, np.ndarray]:
    groups = [group_of(idata, name).data_vars for name in GROUPS if name in idata]
    return {str(name): np.asarray(column.values) for columns in groups for name, column in columns.items()}


def _differing_column(mine: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> str:
    """The first common column with different values, after sorting, since rows may be in another order."""
    for name in sorted(mine.keys() & theirs.keys()):
        here, there = mine[name], theirs[name]
        if here.dtype.kind not in "biuf" or there.dtype.kind not in "biuf":
            continue
        if here.shape != there.shape:
            return f"'{name}' has the shape {here.shape} in the first and {there.shape} in the second"
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
