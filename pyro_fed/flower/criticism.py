"""Leave-one-out of a deployment's result: one more round, in which every client sends sums over its rows."""

from __future__ import annotations

import logging
from typing import Any

import xarray as xr

from pyro_fed.algorithm.privacy import Private
from pyro_fed.analysis.criticism.loo import loo
from pyro_fed.analysis.criticism.pointwise import chosen_site, observed_plates
from pyro_fed.errors import PyroFedError, SettingError
from pyro_fed.flower.elsewhere import Elsewhere
from pyro_fed.flower.executor import Flower
from pyro_fed.flower.secure import SecAgg
from pyro_fed.ops.arviz_versions import with_group

#: What an operator reads, as in `server`.
LOG = logging.getLogger("flwr")
#: Name of the result's group.
GROUP = "loo"
#: What it says of all rows, by its attributes.
OF_ALL = ("elpd_loo", "se", "p_loo", "n_samples", "n_data_points", "good_k", "warning")


def check_leaving_out(federation: Elsewhere, site: str, secure: SecAgg | None, combination: Any) -> None:
    """Refuse, before the run, what could not be asked after it.

    Args:
        federation: the clients.
        site: the observed site; "" for the only one.
        secure: of the run.
        combination: of the run.

    Raises:
        SettingError: secure aggregation or differential privacy, which clients' own sums would break.
        DataError: there is no such observed site, or there are several.
    """
    if secure is not None or isinstance(combination, Private):
        hidden = "secure aggregation hides" if secure is not None else f"{combination} counts the loss of privacy by"
        raise SettingError(
            f"loo shows the server each client's own sums over its rows, without noise, and {hidden} what clients "
            "send: choose one of the two"
        )
    chosen_site(observed_plates(federation.problem), site)


def with_loo(result: Any, federation: Elsewhere, executor: Flower, site: str) -> Any:
    """The result with the group `loo`: `elpd`, `p`, `rows` and counts of Pareto k by client, and as attributes of all.

    Where it cannot be had, the result is as it was, with the reason in the attribute `no_loo` and the log.

    Args:
        result: of `run`.
        federation: its clients.
        executor: over which they are asked.
        site: the observed site; "" for the only one.
    """
    try:
        found = loo(result, federation, var_name=site or None, executor=executor)
    except PyroFedError as error:  # the run is not lost for it
        result.attrs["no_loo"] = str(error)
        LOG.error("No leave-one-out: %s", error)
        return result
    attrs = {name: int(found[name]) if name == "warning" else found[name] for name in OF_ALL}
    return with_group(result, GROUP, xr.Dataset.from_dataframe(found["by_client"]).assign_attrs(attrs))
