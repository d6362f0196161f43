"""What each client brings to an answer: its share of the information, and the posterior of its data alone.

Let Λ_k be the precision matrix of client k's Gaussian site t_k and Λ_0 that of the prior t_0. The posterior
q ∝ t_0 Π_k t_k has the precision Λ = Λ_0 + Σ_k Λ_k and the covariance C = Λ⁻¹. Then

    share_kj = (C Λ_k)_jj          client k's share of the information on parameter j
    alone_k  ∝ t_0 t_k             the posterior of client k's data alone, with the whole prior

The shares of all clients and of the prior sum to one for each parameter, since C Λ is the identity. For independent
parameters a share is a ratio of precisions: if all rows are equally informative, it is the client's share of the rows,
up to the prior.

The sites are those that the algorithm left. If it left none, the sites of the prior and of all clients are computed by
one expected Newton step at the draws, and q is their product. All figures are on the unconstrained scale.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import xarray as xr
from torch import Tensor

from pyro_fed.analysis.criticism.influence import (
    NOT_NEEDED,
    checked_draws,
    federation_to_ask,
    kept_sites,
    require_result,
    sites_group,
)
from pyro_fed.audit.client_sites import around, with_product
from pyro_fed.conventions.calls import checked
from pyro_fed.density.compiling.compiler import threads
from pyro_fed.infer.sites.gaussian_sites import moments_of
from pyro_fed.ops.gaussian import Gaussian

if TYPE_CHECKING:
    from pyro_fed.federation.federation import Federation
    from pyro_fed.results.inference_data import InferenceData


class _Sites(NamedTuple):
    """The posterior q and the K clients' sites, with the names of the clients and of the parameters."""

    q: Gaussian
    sites: Gaussian
    clients: list[str]
    labels: list[str]


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


def _sites(idata: InferenceData, federation: Federation | None) -> _Sites:
    """The sites that the run left, or sites computed at the draws."""
    kept = sites_group(idata, federation)
    if kept is not None:
        return _Sites(*kept_sites(kept), kept["client"].values.tolist(), kept["parameter"].values.tolist())
    asked = federation_to_ask("contributions", idata, federation)
    problem = asked.problem
    with threads(1), torch.no_grad():
        q, found = with_product(asked, around(problem, checked_draws(idata, asked)))
    return _Sites(q, found, asked.client_names, [problem.name_of(number) for number in range(problem.dim)])


def _shares(q: Gaussian, sites: Gaussian) -> Tensor:
    """The diagonals of C Λ_k for all clients k, (K, D)."""
    _, spread = q.to(torch.float64).moments()
    precision = sites.precision.to(torch.float64)
    return torch.einsum("ij,kji->ki", spread, precision) if q.dense else spread * precision
