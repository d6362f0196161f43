"""How much one client changes an answer: the posterior with the client is compared with the posterior without it.

The posterior without client k is found in one of three ways, which `by` names. All are on the unconstrained scale.

- By sites. Some algorithms leave a Gaussian site for each client (FedEP and related algorithms, FedLaplace). The site
  is divided out of the posterior, see `audit.influence`. This costs nothing.
- By draws. Other algorithms (DSVGD, FSGLD, FedAIS, algorithms without a server) leave draws z_s only. With weights
  w_s ∝ 1 / p(y_k | z_s) the draws represent the posterior without client k. The weights are Pareto smoothed.
- By sites at the draws. If Pareto's k says that the weights are not reliable, mostly because the client has much
  influence, its site is computed by one expected Newton step at the draws, and is divided out.

Source of the weights: Vehtari et al. (2024), Pareto smoothed importance sampling.

**What each client brings.** Let Λ_k be the precision of client k's site t_k, Λ_0 that of the prior t_0, and C = Λ⁻¹ the
covariance of the posterior q ∝ t_0 Π_k t_k, with Λ = Λ_0 + Σ_k Λ_k. Then

    share_kj = (C Λ_k)_jj          client k's share of the information on parameter j
    alone_k  ∝ t_0 t_k             the posterior of client k's data alone, with the whole prior

The shares of all clients and of the prior sum to one for each parameter, since C Λ is the identity. If all rows are
equally informative, a share is the client's share of the rows, up to the prior.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from pyro_fed.audit.client_sites import around, client_log_likelihoods, product_and_sites
from pyro_fed.audit.influence import ClientFigures, apart_by_sites, by_sites, outlying_clients_sentence
from pyro_fed.conventions.calls import checked, checked_but
from pyro_fed.density.compiling.compiler import threads
from pyro_fed.errors import DataError, SettingError, shown
from pyro_fed.infer.sites.gaussian_sites import moments_of
from pyro_fed.ops.arviz_versions import group_of
from pyro_fed.ops.gaussian import Gaussian
from pyro_fed.ops.importance import LARGEST_PARETO_K, smoothed
from pyro_fed.results.data_groups import unlike_federation
from pyro_fed.results.record_dataset import kept_sites
from pyro_fed.results.to_arviz import unconstrained_draws

if TYPE_CHECKING:
    from pyro_fed.federation.federation import Federation
    from pyro_fed.results.inference_data import InferenceData

#: Passed to `require_result` by a function that takes no federation.
NOT_NEEDED: Any = object()
#: Weights need at least so many draws: Pareto's k is estimated from the largest few of them.
MIN_WEIGHTED_DRAWS = 100


@checked_but("idata", "federation")
def influence(idata: InferenceData, federation: Federation | None = None) -> xr.Dataset:
    """How many SDs each client moves each parameter, and whether one client stands apart.

    Args:
        idata: result of `pyro_fed.run`.
        federation: the federation of the run. It may be left out if the result has the clients' sites. Sites of the
            algorithm that gave the answer are used even if a federation is passed.

    Returns:
        A dataset on the unconstrained scale, see `pyro_fed.audit.influence` for the formulas. Over (client,
        parameter): `shift` and `sd_ratio`. Over (client,): `influence`, `disagreement`, `opposed`, `pareto_k` and `by`.
        `attrs["stands_apart"]` is a sentence on the clients that stand apart, or "". Where the posterior without a
        client is improper, its influence is infinite and its other figures are NaN. `found["shift"].to_pandas()` is
        a table, `pf.plots.plot_influence(found)` a figure.

    Raises:
        SettingError: the result has no sites, and no federation that holds its rows was passed.
        DataError: `idata` is no result of a run, or lacks a site of the model.

    Example:
        >>> found = pf.influence(pf.run(pf.FedEP(), fed))
        >>> found["shift"].to_pandas()
        >>> found["influence"].to_series().sort_values()
    """
    require_result("influence", idata, NOT_NEEDED if federation is None else federation)
    kept = sites_group(idata, federation)
    if kept is not None:
        q, sites = kept_sites(kept)
        names, labels = kept["client"].values.tolist(), kept["parameter"].values.tolist()
        found, sentence = by_sites(q, sites), apart_by_sites(q, sites, names, labels).text
    else:
        asked = federation_to_ask("influence", idata, federation)
        names, labels = asked.client_names, [asked.problem.name_of(number) for number in range(asked.problem.dim)]
        with threads(1), torch.no_grad():
            found = _by_draws(asked, checked_draws(idata, asked))
        sentence = outlying_clients_sentence(found, names, labels)
    return _dataset(found, names, labels, {"stands_apart": sentence})


def sites_group(idata: InferenceData, federation: Federation | None) -> xr.Dataset | None:
    """A result's group `sites`, if they are of the algorithm that gave the answer, or there is no federation to ask."""
    kept = group_of(idata, "sites") if "sites" in idata else None
    run_by = idata.attrs.get("chosen", idata.attrs.get("algorithm"))  # `chosen`: the stage of a plan that was kept
    own = kept is not None and kept.attrs.get("algorithm") == run_by
    return kept if own or federation is None else None


def federation_to_ask(what: str, idata: InferenceData, federation: Federation | None) -> Federation:
    """The federation whose clients `what` asks about a result without sites; SettingError if there is none."""
    if federation is not None and federation.holds_data:
        return federation
    received = "no federation" if federation is None else "a federation that does not hold the rows"
    raise SettingError(
        f"{what}: this result, of {idata.attrs.get('algorithm', 'something else')}, has no Gaussian sites of its "
        f"clients, so the clients must be asked, but {what} received {received}; pass the federation that holds "
        f"the rows, {what}(idata, fed)"
    )


def require_result(what: str, idata: Any, federation: Any = NOT_NEEDED) -> None:
    """DataError unless `what` was called with a result, and with the federation of its rows (`NOT_NEEDED` for none)."""
    if not hasattr(idata, "attrs") or "posterior" not in idata:
        raise DataError(f"{what} takes a result of pf.run as its first argument, received {shown(idata)}")
    if federation is not NOT_NEEDED and not hasattr(federation, "problem"):
        raise DataError(f"{what} takes the federation that the result is of, received {shown(federation)}")
    if federation is not NOT_NEEDED and (unlike := unlike_federation(idata, federation)):
        raise DataError(
            f"{what}: the result is not of this federation's data: {unlike}. Pass the federation that it was run on, "
            "or run again on this one; new rows are predicted by pf.predict, and measured by pf.compare(..., test=...)"
        )


def checked_draws(idata: InferenceData, federation: Federation) -> Tensor:
    """A result's draws on the unconstrained scale, (S, D); DataError if a site of the model is missing."""
    missing = [name for name in federation.problem.sites if name not in idata["posterior"]]
    if missing:
        raise DataError(
            f"the result has no sites {missing}; the model has {list(federation.problem.sites)}: pass the result of a "
            "run on this federation, with all its sites"
        )
    return unconstrained_draws(idata, federation.problem)


def influence_by_weights(draws: Tensor, log_lik: Tensor, names: list[str], labels: list[str]) -> xr.Dataset:
    """`influence` from draws (S, D) and the clients' log-likelihoods (S, K); NaN and `by` "none" where weights fail."""
    shape = (len(names), len(labels))
    shift, sd_ratio = np.full(shape, np.nan), np.full(shape, np.nan)
    size, disagreement, opposed, pareto_k = (np.full(len(names), np.nan) for _ in range(4))
    found = ClientFigures(
        shift, sd_ratio, size, disagreement, opposed, pareto_k, np.full(len(names), "none", dtype="<U5")
    )
    _weigh(found, draws, log_lik)
    doubted = [name for name, by in zip(names, found.by, strict=True) if by == "none"]
    return _dataset(found, names, labels, {"unreliable": ", ".join(doubted)})


def _dataset(found: ClientFigures, names: list[str], labels: list[str], attrs: dict[str, str]) -> xr.Dataset:
    data = {
        "shift": (("client", "parameter"), found.shift),
        "sd_ratio": (("client", "parameter"), found.sd_ratio),
        **{
            name: ("client", getattr(found, name))
            for name in ("influence", "disagreement", "opposed", "pareto_k", "by")
        },
    }
    return xr.Dataset(data, coords={"client": names, "parameter": labels}, attrs=attrs)


def _by_draws(federation: Federation, draws: Tensor) -> ClientFigures:
    """Figures by weights of the draws; by sites at the draws for clients whose weights are not reliable."""
    log_lik = client_log_likelihoods(federation, draws)
    at = around(federation.problem, draws)
    product, sites = product_and_sites(federation, at)
    found = by_sites(product if bool(product.is_proper()) else at, sites)
    _weigh(found, draws, log_lik)
    return found


def _weigh(found: ClientFigures, draws: Tensor, log_lik: Tensor) -> None:
    """Replace the figures of each client whose weights are reliable by figures from the weights."""
    if len(draws) < MIN_WEIGHTED_DRAWS:
        return
    z = draws.double()
    mean, sd = z.mean(0), z.std(0)
    for k in range(log_lik.shape[1]):
        weights = smoothed(-log_lik[:, k])
        found.pareto_k[k] = weights.pareto_k
        if weights.pareto_k > LARGEST_PARETO_K:
            continue
        other_mean = weights.weights @ z
        other_sd = (weights.weights @ (z - other_mean).square()).sqrt()
        found.shift[k] = ((mean - other_mean) / other_sd).numpy()
        found.sd_ratio[k] = (sd / other_sd).numpy()
        # The KL divergence is the mean of log q / q_-k over draws of q. A draw has the weight 1/S under q and w_s
        # under q_-k, so that log q / q_-k = -log(S w_s).
        divergence = -(weights.weights * len(z)).clamp_min(torch.finfo(z.dtype).tiny).log().mean()
        found.influence[k] = float((2 * divergence.clamp_min(0)).sqrt())
        found.by[k] = "draws"


@checked
def contributions(idata: InferenceData, federation: Federation | None = None) -> xr.Dataset:
    """Each client's share of the information on each parameter, and the posterior of its data alone.

    Args:
        idata: result of `pyro_fed.run`.
        federation: the federation of the run. It may be left out if the result has the clients' sites.

    Returns:
        A dataset on the unconstrained scale, on which a positive parameter is its logarithm.

        - Over (client, parameter): `share` of the information; `mean` and `sd` of the posterior of this client's data
          and the prior, NaN if that posterior is improper.
        - Over (parameter,): `prior_share`; `all_mean` and `all_sd` of the posterior of all clients.
        - Over (client,): `contribution`, the mean share over parameters; with a federation also `rows`.
        - `prior_contribution`, the mean share of the prior.

        For each parameter the shares of the clients and of the prior sum to one. `pf.plots.plot_contributions(found)`
        and `pf.plots.plot_client_forest(found)` are the figures.

    Raises:
        SettingError: the result has no sites, and no federation that holds its rows was passed.
        DataError: `idata` is no result of a run, or lacks a site of the model.

    Example:
        >>> found = pf.contributions(pf.run(pf.FedEP(), fed), fed)
        >>> found["contribution"].to_series()
    """
    require_result("contributions", idata, NOT_NEEDED if federation is None else federation)
    q, sites, clients, labels = _sites(idata, federation)
    share = _shares(q, sites)
    whole_precision, whole_eta = sites.precision.sum(0), sites.eta.sum(0)
    alone = type(sites)(q.precision - whole_precision + sites.precision, q.eta - whole_eta + sites.eta)
    (mean, sd), (all_mean, all_sd) = moments_of(alone), moments_of(q)
    prior = 1 - share.sum(0)
    data = {
        "share": (("client", "parameter"), share.numpy()),
        "mean": (("client", "parameter"), mean.numpy()),
        "sd": (("client", "parameter"), sd.numpy()),
        "prior_share": ("parameter", prior.numpy()),
        "all_mean": ("parameter", all_mean.numpy()),
        "all_sd": ("parameter", all_sd.numpy()),
        "contribution": ("client", share.mean(1).numpy()),
        "prior_contribution": ((), float(prior.mean())),
    }
    if federation is not None:
        data["rows"] = ("client", federation.summary()["rows"].to_numpy())
    return xr.Dataset(data, coords={"client": clients, "parameter": labels})


def _sites(idata: InferenceData, federation: Federation | None) -> tuple[Gaussian, Gaussian, list[str], list[str]]:
    """q, the clients' sites (left by the run, or computed at its draws), and names of clients and of parameters."""
    kept = sites_group(idata, federation)
    if kept is not None:
        return *kept_sites(kept), kept["client"].values.tolist(), kept["parameter"].values.tolist()
    asked = federation_to_ask("contributions", idata, federation)
    problem = asked.problem
    with threads(1), torch.no_grad():
        q, found = product_and_sites(asked, around(problem, checked_draws(idata, asked)))
    return q, found, asked.client_names, [problem.name_of(number) for number in range(problem.dim)]


def _shares(q: Gaussian, sites: Gaussian) -> Tensor:
    """The diagonals of C Λ_k for all clients k, (K, D)."""
    _, spread = q.to(torch.float64).moments()
    precision = sites.precision.to(torch.float64)
    return torch.einsum("ij,kji->ki", spread, precision) if q.dense else spread * precision
