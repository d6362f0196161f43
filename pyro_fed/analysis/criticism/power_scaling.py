"""How sensitive a posterior is to its prior and to its likelihood, by power-scaling.

A power α of the prior gives p(θ)^α p(y | θ), of the likelihood p(θ) p(y | θ)^α. Draws of the posterior are weighted to
be draws of that one, for α near 1, and the distance of their distribution functions is taken. ArviZ computes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from pyro_fed.analysis.criticism.influence import require_result
from pyro_fed.analysis.judging.draws import entries_of
from pyro_fed.analysis.judging.metrics import MIN_LOO_DRAWS
from pyro_fed.conventions.calls import checked_but
from pyro_fed.conventions.names import closest
from pyro_fed.errors import DataError, SettingError
from pyro_fed.ops.arviz_versions import group_of, power_scaling

if TYPE_CHECKING:
    from pyro_fed.results.inference_data import InferenceData

#: Sensitivity from which on a parameter is named, as in ArviZ's `psense_summary`.
SENSITIVITY_LIMIT = 0.05


@checked_but("idata")
def power_scale(
    idata: InferenceData, *, var_names: Sequence[str] | None = None, prior: Sequence[str] | None = None
) -> pd.DataFrame:
    """How far the posterior moves if the prior, or the likelihood, is raised to a power near 1.

    Args:
        idata: result of `pyro_fed.run` or `fit`, also one that was read from a file.
        var_names: variables of the group `posterior`; all by default.
        prior: sites whose priors are scaled; by default all of the group `log_prior`. In a hierarchical model these
            should be the hyperparameters alone: the distribution of the effects is a part of the model.

    Returns:
        A table with a row for each parameter, as labelled by `arviz.summary`, and ArviZ's columns: `prior` and
        `likelihood`, the sensitivities, and `diagnosis`. Above 0.05 in both columns the prior may disagree with the
        data; above it in `prior` alone the prior is strong, or the data say little. Without the group
        `log_likelihood` (`log_likelihood=False`, or rows that are elsewhere) there is the column `prior` alone.

    Raises:
        DataError: `idata` is no result, or has no group `log_prior`.
        SettingError: fewer than 25 draws, such as a single point; unknown variables or sites.

    Source: Kallioinen, Paananen, Bürkner & Vehtari (2024), Statistics and Computing 34, 57.

    Example:
        >>> pf.power_scale(idata)
        >>> pf.power_scale(idata, var_names=["w"], prior=["w"])
    """
    require_result("power_scale", idata)
    if "log_prior" not in idata:
        raise DataError(
            "power_scale: the result has no group 'log_prior', which every run gives but a private one: run again"
        )
    posterior, log_prior = group_of(idata, "posterior"), group_of(idata, "log_prior")
    draws = posterior.sizes["chain"] * posterior.sizes["draw"]
    if draws < MIN_LOO_DRAWS:
        raise SettingError(
            f"power_scale weights draws, at least {MIN_LOO_DRAWS}; this result, of "
            f"{idata.attrs.get('algorithm', 'something else')}, has {draws}: run an algorithm with a posterior, or "
            "with a larger num_draws"
        )
    names = _checked_names("var_names", var_names, list(map(str, posterior.data_vars)))
    sites = _checked_names("prior", prior, list(map(str, log_prior.data_vars)))
    found = {"prior": power_scaling(idata, "prior", names, sites)}
    if "log_likelihood" in idata:
        found["likelihood"] = power_scaling(idata, "likelihood", names, None)
    labels = [label for name in names for label in entries_of(name, posterior[name])]
    columns = {kind: np.concatenate([part[name].values.ravel() for name in names]) for kind, part in found.items()}
    table = pd.DataFrame(columns, index=labels)
    if "likelihood" in table:
        strong, informed = table["prior"] >= SENSITIVITY_LIMIT, table["likelihood"] >= SENSITIVITY_LIMIT
        diagnoses = ["potential prior-data conflict", "potential strong prior / weak likelihood"]
        table["diagnosis"] = np.select([strong & informed, strong], diagnoses, "✓")
    return table


def _checked_names(argument: str, chosen: Sequence[str] | None, known: list[str]) -> list[str]:
    """The chosen names, all that are known by default."""
    if unknown := [name for name in chosen or () if name not in known]:
        raise SettingError(f"power_scale: {argument} names {unknown[0]!r}; {closest(unknown[0], known)}")
    return known if chosen is None else list(chosen)
