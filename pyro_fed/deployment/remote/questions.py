"""Questions about a deployment's result, by one more round in which every client gets the draws.

For leave-one-out, WAIC and estimands a client sends sums over its rows. For influence, and to predict a client from the
others, it sends its log-likelihood at every draw, as for the audit. Estimands are those that the model's file names, of
which each client has its own copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import xarray as xr

from pyro_fed.analysis.criticism.influence import checked_draws, influence, influence_by_weights
from pyro_fed.analysis.criticism.leave_out import (
    SitesAt,
    asked_log_likelihoods,
    asked_sites,
    leave_out_by_log_likelihoods,
)
from pyro_fed.analysis.criticism.loo import chosen_site, loo_and_waic, observed_plates
from pyro_fed.analysis.judging.calibration import OF_DEPLOYMENT
from pyro_fed.analysis.predicting.estimand import estimand_by_rounds
from pyro_fed.analysis.predicting.row_sums import ESTIMANDS, named_questions
from pyro_fed.conventions.names import closest
from pyro_fed.deployment.claimed_federation import ClaimedFederation
from pyro_fed.errors import PyroFedError, SettingError
from pyro_fed.federation.federation import Federation
from pyro_fed.ops.arviz_versions import group_of, with_group
from pyro_fed.ops.entries import evenly
from pyro_fed.runtime.executors import Executor
from pyro_fed.runtime.executors.base import MAX_ASKED_DRAWS
from pyro_fed.runtime.executors.remote import Remote

#: Names of the groups in the result; that of an estimand is `estimand_NAME`.
LOO, INFLUENCE, ESTIMAND, LEFT_OUT = "loo", "influence", OF_DEPLOYMENT, "leave_one_client_out"
#: The figures about all rows, which are attributes of the group `loo`.
OF_ALL = ("elpd_loo", "se", "p_loo", "n_samples", "n_data_points", "good_k", "warning")


def check_questions(federation: Federation, module: Any, names: Sequence[str], loo: str | None) -> None:
    """Refuse before the run what could not be asked after it; `loo` is a site, "" the only one, None for none."""
    if loo is not None:
        chosen_site(observed_plates(federation.problem), loo)
    if taken := [name for name in getattr(module, ESTIMANDS, None) or {} if name in ABOUT_CLIENTS]:
        raise SettingError(f"{ESTIMANDS} of the model's file has {taken[0]!r}, the name of another question: rename it")
    known = named_questions(module, federation.problem) if names else {}
    for name in names:
        if name not in known:
            hint = f"; {closest(name, known)}" if known else " and names none"
            raise SettingError(f"{ESTIMANDS} of the model's file has no estimand {name!r}{hint}")


def with_loo(result: Any, federation: ClaimedFederation, executor: Executor, site: str = "") -> Any:
    """The result with the group `loo`: elpd, p, rows, Pareto k and WAIC by client, and of all rows as attributes."""

    def loo_group() -> xr.Dataset:
        found, wide = loo_and_waic(result, federation, var_name=site or None, executor=executor)
        attrs = {name: int(found[name]) if name == "warning" else found[name] for name in OF_ALL}
        attrs |= {"elpd_waic": wide["elpd_waic"], "se_waic": wide["se"], "p_waic": wide["p_waic"]}
        attrs["warning_waic"] = int(wide["warning"])
        table = found["by_client"].assign(waic=wide["by_client"]["elpd"], p_waic=wide["by_client"]["p"])
        return xr.Dataset.from_dataframe(table).assign_attrs(attrs)

    return _with_answer(result, LOO, loo_group)


def with_answer(
    result: Any, federation: ClaimedFederation, executor: Executor, module: Any, name: str, fewest: int = 1
) -> Any:
    """The result with the answer to a question by its name; of estimands, groups of fewer rows are withheld."""
    if name in ABOUT_CLIENTS:
        return ABOUT_CLIENTS[name](result, federation, executor)
    return with_estimand(result, federation, executor, module, name, fewest)


def with_estimand(
    result: Any, federation: ClaimedFederation, executor: Executor, module: Any, name: str, fewest: int = 1
) -> Any:
    """The result with the group `estimand_NAME`, as `pyro_fed.estimand` has it, of an estimand of the model's file."""
    question, do = (
        named_questions(module, federation.problem, fewest)[name],
        getattr(module, ESTIMANDS)[name].get("do") or {},
    )
    return _with_answer(
        result,
        f"{ESTIMAND}{name}",
        lambda: group_of(estimand_by_rounds(result, federation, question, do, executor), "posterior"),
    )


def with_influence(result: Any, federation: ClaimedFederation, executor: Executor) -> Any:
    """The result with the group `influence`, as `pf.influence` has it: by sites, or by log-likelihoods at the draws."""
    run_by = result.attrs.get("chosen", result.attrs.get("algorithm"))

    def influence_group() -> xr.Dataset:
        if "sites" in result and group_of(result, "sites").attrs.get("algorithm") == run_by:
            return influence(result)
        return _influence_by_rounds(result, federation, executor)

    return _with_answer(result, INFLUENCE, influence_group)


def with_left_out(result: Any, federation: ClaimedFederation, executor: Executor) -> Any:
    """The result with the group `leave_one_client_out`: how well the others predict each client."""

    def left_out() -> xr.Dataset:
        with torch.no_grad():
            ask = partial(asked_log_likelihoods, federation, executor, False)
            # A client of a server sends its site by its recipe alone.
            sites = None if isinstance(executor, Remote) else partial(asked_sites, federation, executor)
            found = leave_out_by_log_likelihoods(result, federation, MAX_ASKED_DRAWS, ask, sites)
            return xr.Dataset.from_dataframe(found)

    return _with_answer(result, LEFT_OUT, left_out)


#: Questions about any model's result, by name; all other names are of estimands.
ABOUT_CLIENTS: dict[str, Callable[[Any, ClaimedFederation, Executor], Any]] = {
    LOO: with_loo,
    INFLUENCE: with_influence,
    LEFT_OUT: with_left_out,
}
#: The kinds of messages, of `policy.rules.KINDS`, that an agent's answers to them are; to an estimand, "estimate".
ANSWER_KINDS = {LOO: ("loo",), INFLUENCE: ("log_likelihood",), LEFT_OUT: (SitesAt.answer_kind, "log_likelihood")}


def _with_answer(result: Any, group: str, answer: Callable[[], xr.Dataset]) -> Any:
    """The result with an answer's group; or unchanged, with the reason in an attribute: the run's result is kept."""
    try:
        return with_group(result, group, answer())
    except PyroFedError as error:
        result.attrs[f"no_{group}"] = str(error)
        return result


def _influence_by_rounds(result: Any, federation: ClaimedFederation, executor: Executor) -> xr.Dataset:
    """The clients' influence by their log-likelihoods at the draws."""
    draws = checked_draws(result, federation)
    draws = draws[evenly(len(draws), MAX_ASKED_DRAWS)]
    labels = [federation.problem.name_of(number) for number in range(federation.problem.dim)]
    with torch.no_grad():
        log_lik = asked_log_likelihoods(federation, executor, False, draws)
    return influence_by_weights(draws, log_lik, federation.client_names, labels)
