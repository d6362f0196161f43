"""Criticism of a deployment's result, by one more round in which every client gets the draws.

For leave-one-out and WAIC a client sends sums over its rows. For influence it sends its log-likelihood at every draw,
as for the audit.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
import xarray as xr

from pyro_fed.algorithm.privacy import Private
from pyro_fed.analysis.criticism.influence import checked_draws, influence, influence_by_weights
from pyro_fed.analysis.criticism.loo import loo_and_waic
from pyro_fed.analysis.criticism.pointwise import Pointwise, chosen_site, observed_plates
from pyro_fed.deployment.flower.executor import Flower
from pyro_fed.deployment.flower.secure import SecAgg
from pyro_fed.deployment.remote.remote_federation import RemoteFederation
from pyro_fed.errors import PyroFedError, SettingError
from pyro_fed.ops.arviz_versions import group_of, with_group
from pyro_fed.ops.entries import evenly
from pyro_fed.runtime.executors import Work
from pyro_fed.runtime.executors.base import LOG_LIK, MOST_DRAWS

#: The log that the operator reads, as in `server`.
LOG = logging.getLogger("flwr")
#: Names of the groups in the result.
GROUP, INFLUENCE = "loo", "influence"
#: The figures about all rows, which are attributes of the group `loo`.
OF_ALL = ("elpd_loo", "se", "p_loo", "n_samples", "n_data_points", "good_k", "warning")


def check_leaving_out(
    federation: RemoteFederation, site: str | None, secure: SecAgg | None, combination: Any, what: str = GROUP
) -> None:
    """Refuse before the run a criticism, "loo" or "influence", that would not be possible after it.

    `site` is the observed site: "" for the only one, None if the criticism needs none.

    Raises:
        SettingError: the run has secure aggregation or differential privacy, which single clients' sums would break.
        DataError: there is no such observed site, or there are several.
    """
    if secure is not None or isinstance(combination, Private):
        hidden = "secure aggregation hides" if secure is not None else f"{combination} counts the loss of privacy by"
        raise SettingError(
            f"{what} shows the server each client's own sums over its rows, without noise, and {hidden} what clients "
            "send: choose one of the two"
        )
    if site is None:
        return
    chosen_site(observed_plates(federation.problem), site)


def with_loo(result: Any, federation: RemoteFederation, executor: Flower, site: str) -> Any:
    """The result with the group `loo`: `elpd`, `p`, `rows`, Pareto k and WAIC by client, and of all rows as attributes.

    If that is not possible, the result is returned unchanged, with the reason in its attribute `no_loo` and in the log.
    """
    try:
        found, wide = loo_and_waic(result, federation, var_name=site or None, executor=executor)
    except PyroFedError as error:  # the run's result is kept
        result.attrs["no_loo"] = str(error)
        LOG.error("No leave-one-out: %s", error)
        return result
    attrs = {name: int(found[name]) if name == "warning" else found[name] for name in OF_ALL}
    attrs |= {"elpd_waic": wide["elpd_waic"], "se_waic": wide["se"], "p_waic": wide["p_waic"]}
    attrs["warning_waic"] = int(wide["warning"])
    table = found["by_client"].assign(waic=wide["by_client"]["elpd"], p_waic=wide["by_client"]["p"])
    return with_group(result, GROUP, xr.Dataset.from_dataframe(table).assign_attrs(attrs))


def with_influence(result: Any, federation: RemoteFederation, executor: Flower) -> Any:
    """The result with the group `influence`, as `pf.influence` has it: by sites, or by log-likelihoods at the draws.

    If that is not possible, the result is returned unchanged, with the reason in its attribute `no_influence` and in
    the log.
    """
    run_by = result.attrs.get("chosen", result.attrs.get("algorithm"))
    try:
        if "sites" in result and group_of(result, "sites").attrs.get("algorithm") == run_by:
            found = influence(result)
        else:
            found = _influence_by_rounds(result, federation, executor)
    except PyroFedError as error:  # the run's result is kept
        result.attrs["no_influence"] = str(error)
        LOG.error("No influence: %s", error)
        return result
    return with_group(result, INFLUENCE, found)


def _influence_by_rounds(result: Any, federation: RemoteFederation, executor: Flower) -> xr.Dataset:
    """The clients' influence by their log-likelihoods at the draws."""
    problem, clients = federation.problem, list(range(federation.num_clients))
    draws = checked_draws(result, federation)
    draws = draws[evenly(len(draws), MOST_DRAWS)]
    with torch.no_grad():
        executor.start(Pointwise(), problem, federation.client_data(), {})
        try:
            received = {"draws": draws.expand(len(clients), *draws.shape)}
            log_lik = executor.ask(LOG_LIK, Work(0, 0, clients, received))[LOG_LIK].double().T
        finally:
            executor.close()
    labels = [problem.name_of(number) for number in range(problem.dim)]
    return influence_by_weights(draws, log_lik, federation.client_names, labels)
