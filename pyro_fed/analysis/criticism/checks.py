"""Posterior predictive checks at the clients: a statistic of replicated rows against that of the observed ones.

    T_obs = T(y_k),    T_s = T(y_s),  y_s ~ p(y | x_k, z_s)    for each client k, with its own effects if it has some

The client draws the replications and sends the statistics alone, with p = P(T_s > T_obs) + P(T_s = T_obs) / 2, which is
near 1/2 on average where the model fits, and near 0 or 1 where it cannot make such data (Gelman, Meng & Stern 1996).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from pyro_fed.analysis.criticism.influence import require_result
from pyro_fed.analysis.predicting.own_rows import own_rows
from pyro_fed.conventions import seeding
from pyro_fed.conventions.calls import checked
from pyro_fed.density.compiling.compiler import threads
from pyro_fed.errors import DataError, SettingError

if TYPE_CHECKING:
    from pyro_fed.federation.federation import Federation
    from pyro_fed.results.inference_data import InferenceData

#: A user's function of a client's rows (n, ...), replicated or observed.
Statistic = Callable[[np.ndarray], float]


@checked
def check_clients(
    idata: InferenceData,
    federation: Federation,
    statistics: Statistic | Mapping[str, Statistic],
    *,
    var_name: str | None = None,
    seed: int = 0,
) -> xr.Dataset:
    """Posterior predictive checks at each client, by test statistics of its rows.

    Args:
        idata: result of `pyro_fed.run` on the federation.
        federation: the model and its clients.
        statistics: a function of the client's rows of the observed site, an array (n, ...), to a number, or several by
            name.
        var_name: the observed site, where there are several.
        seed: of the replications.

    Returns:
        Over (client, statistic): `p_value`, `observed`, and of the replications `mean` and `sd`; over (client,
        statistic, sample) `replicated`, one a draw of the posterior. NaN of a client without rows.
        `pf.plot_checks(found)` is the figure.

    Raises:
        SettingError: no statistics, or a federation that does not hold its rows.
        DataError: the result lacks a site, the observed site is not clear, or a statistic is no number.

    Example:
        >>> pf.check_clients(idata, fed, {"mean": np.mean, "largest": np.max})["p_value"].to_pandas()
    """
    require_result("check_clients", idata, federation)
    named = {_name(statistics): statistics} if callable(statistics) else statistics
    if not isinstance(named, Mapping) or not named or not all(callable(one) for one in named.values()):
        raise SettingError(
            "check_clients takes a function of the rows, or functions by name, such as {'mean': np.mean}, received "
            f"{statistics!r}"
        )
    if not federation.holds_data:
        raise SettingError("check_clients draws replications of the rows at the clients: it needs the rows here")
    count = idata["posterior"].sizes["chain"] * idata["posterior"].sizes["draw"]
    shape = (federation.num_clients, len(named))
    observed, replicated = np.full(shape, np.nan), np.full((*shape, count), np.nan)
    with threads(1), torch.no_grad():
        for k, own in enumerate(own_rows(idata, federation)):
            if own is None:
                continue
            drawn, given = own(seeding.torch_generator(seed, seeding.DRAWS, k + 1))
            site = _site(given, var_name)
            for i, (name, function) in enumerate(named.items()):
                observed[k, i] = _number(function, given[site], name, federation.client_names[k])
                replicated[k, i] = [
                    _number(function, one, name, federation.client_names[k]) for one in drawn[site].cpu()
                ]
    above = (replicated > observed[..., None]).mean(-1) + (replicated == observed[..., None]).mean(-1) / 2
    dims = ("client", "statistic")
    return xr.Dataset(
        {
            "p_value": (dims, np.where(np.isnan(observed), np.nan, above)),
            "observed": (dims, observed),
            "mean": (dims, replicated.mean(-1)),
            "sd": (dims, replicated.std(-1)),
            "replicated": ((*dims, "sample"), replicated),
        },
        coords={"client": federation.client_names, "statistic": list(named)},
    )


def _name(function: Any) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    return "statistic" if name == "<lambda>" else str(name)


def _site(given: Mapping[str, Any], var_name: str | None) -> str:
    if var_name is not None and var_name not in given:
        raise DataError(f"there is no observed site {var_name!r}; the model has {list(given)}")
    if var_name is None and len(given) != 1:
        raise DataError(f"the model has several observed sites, {list(given)}: say which by var_name")
    return var_name or next(iter(given))


def _number(function: Statistic, rows: Tensor, name: str, client: str) -> float:
    try:
        value = np.asarray(function(rows.detach().cpu().numpy()))
    except Exception as error:  # of any kind, as it is the user's code that raised it
        said = f"{type(error).__name__}: {error!s:.200}"
        raise DataError(f"statistic '{name}' at client {client} raised {said}") from error
    if value.size != 1 or value.dtype.kind not in "biuf" or not np.isfinite(value).all():
        raise DataError(
            f"statistic '{name}' at client {client}: expected a finite number, received {value!r:.200} from rows of "
            f"shape {tuple(rows.shape)}"
        )
    return float(value.reshape(()))
