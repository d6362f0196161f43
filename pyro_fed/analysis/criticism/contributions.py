"""What each client brings to an answer: its share of the information, and what it would say alone.

With Λ_k the precision of client k's Gaussian site, Λ = Λ_0 + Σ_k Λ_k the posterior's, and Σ = Λ⁻¹

    share_kj = (Σ Λ_k)_jj,       Σ_k share_kj + share_0j = 1     for every parameter j
    alone_k  = t_0 t_k = q / Π_{i≠k} t_i                         the prior counted once, the data of one client

The share of a parameter's information that is a client's: for independent parameters the ratio of precisions, of which
a client with the same covariates as the others has the share of its rows. The sites are those that the algorithm left,
or those of one expected Newton step at the draws, for the prior as for the clients, whose product then is q. All on the
unconstrained scale.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import xarray as xr
from torch import Tensor

from pyro_fed.analysis.criticism.influence import NOT_NEEDED, checked_draws, kept_sites, require_result
from pyro_fed.audit.clients.say import around, with_product
from pyro_fed.conventions.calls import checked
from pyro_fed.density.compiling.compiler import threads
from pyro_fed.errors import SettingError
from pyro_fed.infer.sites.gaussian_sites import moments_of
from pyro_fed.ops.arviz_versions import group_of
from pyro_fed.ops.gaussian import Gaussian

if TYPE_CHECKING:
    from pyro_fed.federation.federation import Federation
    from pyro_fed.results.inference_data import InferenceData


class _Sites(NamedTuple):
    """The posterior and the clients' sites (K,), with the names of clients and parameters."""

    q: Gaussian
    sites: Gaussian
    clients: list[str]
    labels: list[str]


@checked
def contributions(idata: InferenceData, federation: Federation | None = None) -> xr.Dataset:
    """How much of what is known of each parameter a client has brought, and what it would say alone.

    Args:
        idata: result of `pyro_fed.run`.
        federation: what it was run on; may be left out where the result has the clients' sites.

    Returns:
        Over (client, parameter): `share` of the information, `mean` and `sd` of the client alone, its data and the
        prior (NaN where these leave it improper); over (parameter): `prior_share`, `all_mean` and `all_sd` of all
        together, all on the unconstrained scale, on which a positive parameter is its logarithm; over (client):
        `contribution`, the mean share; `prior_contribution`; and with a federation `rows`.
        Shares sum to one with the prior's. `pf.plot_contributions(found)` and `pf.plot_client_forest(found)` are the
        figures.

    Raises:
        SettingError: the result has no sites, and there is no federation whose rows are here to ask.
        DataError: it lacks a site of the model.

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


def _sites(idata: InferenceData, federation: Federation | None) -> _Sites:
    """The sites that the run left, or such as the draws suggest."""
    kept = group_of(idata, "sites") if "sites" in idata else None
    own = kept is not None and kept.attrs.get("algorithm") == idata.attrs.get("chosen", idata.attrs.get("algorithm"))
    if kept is not None and (own or federation is None):
        return _Sites(*kept_sites(kept), kept["client"].values.tolist(), kept["parameter"].values.tolist())
    if federation is None or not federation.holds_data:
        raise SettingError(
            f"contributions: this result, of {idata.attrs.get('algorithm', 'something else')}, has no Gaussian sites "
            "of its clients; pass the federation, contributions(idata, fed), whose clients are then asked"
        )
    problem = federation.problem
    with threads(1), torch.no_grad():
        q, found = with_product(federation, around(problem, checked_draws(idata, federation)))
    return _Sites(q, found, federation.client_names, [problem.name_of(number) for number in range(problem.dim)])


def _shares(q: Gaussian, sites: Gaussian) -> Tensor:
    """(K, D): the diagonals of Σ Λ_k."""
    _, spread = q.to(torch.float64).moments()
    precision = sites.precision.to(torch.float64)
    return torch.einsum("ij,kji->ki", spread, precision) if q.dense else spread * precision
