"""Posterior predictive checks at the clients: a statistic of the observed rows is compared with replicated rows.

    T_obs = T(y_k),    T_s = T(y_s),  y_s ~ p(y | x_k, z_s)

y_k are the observed rows of client k, x_k its covariates and z_s a draw of the posterior, with the client's own effects
if the model has some. The client draws the replications y_s itself, and sends only the statistics and

    p = P(T_s > T_obs) + P(T_s = T_obs) / 2

p is 1/2 on average if the model fits, and near 0 or 1 if the model does not produce such data.

Source: Gelman, Meng & Stern (1996), Posterior predictive assessment of model fitness.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from pyro_fed.analysis.criticism.influence import require_result
from pyro_fed.analysis.criticism.loo import chosen_site
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
        statistics: a function that takes a client's rows of the observed site, an array (n, ...), and returns a
            number; or several such functions by name.
        var_name: the observed site; needed only if the model has several.
        seed: seed of the replications.

    Returns:
        A dataset. Over (client, statistic): `p_value`; `observed`, the statistic of the observed rows; `mean` and `sd`
        of the statistic over the replications. Over (client, statistic, sample): `replicated`, one value for each draw
        of the posterior. A client without rows has NaN. `pf.plots.plot_checks(found)` is the figure.

    Raises:
        SettingError: there are no statistics, or the federation does not hold its rows.
        DataError: the result lacks a site, the model has several observed sites and `var_name` names none of them, or
            a statistic raises an error or is not finite.

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
        raise SettingError(
            "check_clients draws replications of the rows at the clients, but this federation does not hold the "
            "rows: pass a federation that was made with data"
        )
    count = idata["posterior"].sizes["chain"] * idata["posterior"].sizes["draw"]
    shape = (federation.num_clients, len(named))
    observed, replicated = np.full(shape, np.nan), np.full((*shape, count), np.nan)
    with threads(1), torch.no_grad():
        for k, own in enumerate(own_rows(idata, federation)):
            if own is None:
                continue
            drawn, given = own(seeding.torch_generator(seed, seeding.DRAWS, k + 1))
            site = chosen_site(given, var_name or "")
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


def _number(function: Statistic, rows: Tensor, name: str, client: str) -> float:
    try:
        value = np.asarray(function(rows.detach().cpu().numpy()))
    except Exception as error:  # the user's function may raise any kind of error
        cause = f"{type(error).__name__}: {error!s:.200}"
        raise DataError(
            f"statistic '{name}' at client {client} raised {cause}; it must take an array (n, ...) of rows, here of "
            f"shape {tuple(rows.shape)}, and return a number"
        ) from error
    if value.size != 1 or value.dtype.kind not in "biuf" or not np.isfinite(value).all():
        raise DataError(
            f"statistic '{name}' at client {client}: expected a finite number, received {value!r:.200} from rows of "
            f"shape {tuple(rows.shape)}"
        )
    return float(value.reshape(()))
