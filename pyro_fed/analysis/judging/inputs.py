"""Checks of the arguments of `compare`: results of one model by name, and a federation of that model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pyro_fed.errors import DataError, SettingError, StoppedError, listed
from pyro_fed.federation.federation import Federation
from pyro_fed.results.inference_data import InferenceData


def check_inputs(
    results: Mapping[str, InferenceData], reference: str | None, federation: Federation | None, test: Any
) -> list[str]:
    """Check the arguments of `compare`; returns the sorted names of the posterior's variables.

    Raises:
        SettingError: not a mapping from names to results, none, an unknown reference, a federation of another type, or
            test data without one.
        DataError: a result without a posterior, or results whose variables differ, among themselves or from the
            model's.
    """
    if isinstance(results, InferenceData) or not isinstance(results, Mapping):
        raise SettingError(f"compare takes results by name, such as {{'FedEP': idata}}, received {_kind(results)}")
    if not results:
        raise SettingError("compare needs at least one result, received none")
    odd = [name for name in results if not isinstance(name, str)]
    if odd:
        raise SettingError(f"compare takes results under names that are strings, received {odd[0]!r} ({_kind(odd[0])})")
    if reference is not None and reference not in results:
        raise SettingError(f"reference {reference!r} is not among the results {list(results)}: name one of them")
    if federation is not None and not isinstance(federation, Federation):
        raise SettingError(f"compare: expected federation to be a pf.Federation, received {_kind(federation)}")
    if federation is not None and not federation.holds_data:
        raise SettingError(
            "compare computes densities on all rows, but this federation's rows are elsewhere, at the clients: leave "
            "federation out, or pass one that was made with data"
        )
    if test is not None and federation is None:
        raise SettingError("test data need the federation, which holds the model: compare(..., federation=fed)")
    shapes = {name: _shapes(name, idata) for name, idata in results.items()}
    names = _common(shapes)
    if federation is not None:
        _check_model(shapes, federation)
    return names


def _shapes(name: str, idata: Any) -> dict[str, tuple[int, ...]]:
    """Shapes of a result's variables, without chains and draws."""
    if isinstance(idata, StoppedError):
        none = "" if idata.result is not None else ". Here it is None, as the run had no state yet: leave it out"
        raise SettingError(
            f"result {name!r} is a {_kind(idata)}: pass its `.result`, which holds the last good state{none}"
        )
    if not isinstance(idata, InferenceData):
        raise SettingError(f"result {name!r} is no InferenceData, as pf.run returns it, but {_kind(idata)}")
    if "posterior" not in idata:
        raise DataError(
            f"result {name!r} has no group 'posterior', so that there is nothing to compare: pass a result of pf.run, "
            "or of another library with its draws"
        )
    posterior = idata["posterior"]
    if not len(posterior.data_vars):
        raise DataError(
            f"the posterior of result {name!r} has no variables, so that there is nothing to compare: leave it out"
        )
    shapes = {}
    for variable, values in posterior.data_vars.items():
        if not {"chain", "draw"} <= set(values.dims):
            raise DataError(
                f"result {name!r}: '{variable}' has the dimensions {tuple(values.dims)}, expected 'chain' and 'draw' "
                "among them"
            )
        if not (np.issubdtype(values.dtype, np.number) or values.dtype == bool) or values.dtype.kind == "c":
            raise DataError(f"result {name!r}: '{variable}' holds {values.dtype}, expected real numbers")
        shapes[str(variable)] = tuple(n for dim, n in values.sizes.items() if dim not in ("chain", "draw"))
    return shapes


def _common(shapes: Mapping[str, Mapping[str, tuple[int, ...]]]) -> list[str]:
    common = set.intersection(*(set(each) for each in shapes.values()))
    odd = {name: sorted(set(each) - common) for name, each in shapes.items() if set(each) != common}
    if odd:
        raise DataError(
            f"the results have different parameters: {odd} are not in all of them. Compare results of one model, or "
            "leave those out: idata['posterior'] = idata['posterior'].drop_vars([...]), on ArviZ 1.x "
            "idata['posterior'].to_dataset().drop_vars([...])"
        )
    for variable in sorted(common):
        found = {name: each[variable] for name, each in shapes.items()}
        if len(set(found.values())) > 1:
            raise DataError(f"the results have different shapes of '{variable}': {found}; compare results of one model")
    return sorted(common)


def _check_model(shapes: Mapping[str, Mapping[str, tuple[int, ...]]], federation: Federation) -> None:
    """Check the first result against the federation's model; all results have the same variables."""
    name, each = next(iter(shapes.items()))
    sites = federation.problem.sites
    missing = [site for site in sites if site not in each]
    if missing:
        raise DataError(
            f"result {name!r} has no values for {listed(missing)}, latent sites of the federation's model; it has "
            f"{listed(each)}. Was it run on another model?"
        )
    for site, layout in sites.items():
        if each[site] != tuple(layout.shape):
            raise DataError(
                f"result {name!r} has '{site}' of shape {each[site]}, the federation's model {tuple(layout.shape)}: "
                "was it run on other data or another model?"
            )


def _kind(value: Any) -> str:
    return type(value).__name__
