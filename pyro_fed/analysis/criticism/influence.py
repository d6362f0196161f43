"""How much of an answer is one client's doing, from its Gaussian site or from draws.

Where an algorithm leaves Gaussian sites (FedEP and its kin, FedLaplace) `audit.clients.influence` divides them out of
the posterior, at no cost. Other algorithms (DSVGD, FSGLD, FedAIS, those without a server) have draws z_s alone. Those
of the others' posterior are the same with weights w_s ∝ 1 / p(y_k | z_s), smoothed (PSIS). Where Pareto's k says that
these are not reliable, mostly since the client has much influence, its site is found by one expected Newton step at the
draws instead, and `by` says so. All on the unconstrained scale.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from pyro_fed.audit.clients.influence import Without, apart, apart_by_sites, by_sites
from pyro_fed.audit.clients.say import around, client_log_likelihoods, with_product
from pyro_fed.conventions.calls import checked_but
from pyro_fed.density.compiling.compiler import threads
from pyro_fed.errors import DataError, SettingError, shown
from pyro_fed.infer.sites.gaussian_sites import gaussian
from pyro_fed.ops.arviz_versions import group_of
from pyro_fed.ops.gaussian import Gaussian
from pyro_fed.ops.importance import LARGEST_PARETO_K, smoothed
from pyro_fed.results.to_arviz import unconstrained_draws

if TYPE_CHECKING:
    from pyro_fed.federation.federation import Federation
    from pyro_fed.results.inference_data import InferenceData

#: In the place of a federation that is not needed.
NOT_NEEDED: Any = object()
#: Draws that weights need: fewer have no tail to be judged by.
FEWEST_DRAWS = 100


@checked_but("idata", "federation")
def influence(idata: InferenceData, federation: Federation | None = None) -> xr.Dataset:
    """How many SDs each client moves each parameter, and whether one of them stands apart.

    Args:
        idata: result of `pyro_fed.run`.
        federation: what it was run on; may be left out where the result has the clients' sites, which are taken first
            where they are those of the answer itself.

    Returns:
        `shift` and `sd_ratio` (client, parameter), `influence`, `disagreement`, `opposed`, `pareto_k`, `by` (client),
        on the unconstrained scale, see `pyro_fed.audit.clients.influence`; in `attrs["stands_apart"]` a sentence on
        clients that do, or "". NaN and an infinite influence where the others' posterior is improper.
        `found["shift"].to_pandas()` is the table, `pf.plot_influence(found)` the figure.

    Raises:
        SettingError: the result has no sites, and there is no federation to ask.
        DataError: it lacks a site of the model.

    Example:
        >>> found = pf.influence(pf.run(pf.FedEP(), fed))
        >>> found["shift"].to_pandas()
        >>> found["influence"].to_series().sort_values()
    """
    require_result("influence", idata)
    kept = group_of(idata, "sites") if "sites" in idata else None
    run_by = idata.attrs.get("chosen", idata.attrs.get("algorithm"))  # of a plan, the stage whose answer it is
    own = kept is not None and kept.attrs.get("algorithm") == run_by
    if kept is not None and (own or federation is None):
        q, sites = kept_sites(kept)
        names, labels = kept["client"].values.tolist(), kept["parameter"].values.tolist()
        found, said = by_sites(q, sites), apart_by_sites(q, sites, names, labels)
    elif federation is not None and federation.holds_data:
        problem = federation.problem
        names, labels = federation.client_names, [problem.name_of(number) for number in range(problem.dim)]
        with threads(1), torch.no_grad():
            found = _by_draws(federation, checked_draws(idata, federation))
        said = apart(found, names, labels)
    else:
        raise SettingError(
            f"influence: this result, of {idata.attrs.get('algorithm', 'something else')}, has no Gaussian sites of "
            "its clients; pass the federation, influence(idata, fed), whose clients are then asked"
        )
    return _dataset(found, names, labels, {"stands_apart": said})


def require_result(what: str, idata: Any, federation: Any = NOT_NEEDED) -> None:
    """Refuse what is no result of a run, and no federation where one is needed.

    Args:
        what: the function that was called.
        idata: its result.
        federation: its federation, where one is needed.

    Raises:
        DataError: names what was received.
    """
    if not hasattr(idata, "attrs") or "posterior" not in idata:
        raise DataError(f"{what} takes a result of pf.run as its first argument, received {shown(idata)}")
    if federation is not NOT_NEEDED and not hasattr(federation, "problem"):
        raise DataError(f"{what} takes the federation that the result is of, received {shown(federation)}")


def checked_draws(idata: InferenceData, federation: Federation) -> Tensor:
    """The draws (S, D) of a result that has all the model's sites.

    Raises:
        DataError: it lacks one.
    """
    missing = [name for name in federation.problem.sites if name not in idata["posterior"]]
    if missing:
        raise DataError(f"the result has no sites {missing}; the model has {list(federation.problem.sites)}")
    return unconstrained_draws(idata, federation.problem)


def kept_sites(group: xr.Dataset) -> tuple[Gaussian, Gaussian]:
    """q and the clients' sites (K,) of a result's group `sites`."""
    state = {str(name): torch.from_numpy(np.array(value.values)) for name, value in group.data_vars.items()}
    return gaussian(state, "q_"), gaussian(state)


def influence_by_weights(draws: Tensor, log_lik: Tensor, names: list[str], labels: list[str]) -> xr.Dataset:
    """The same as `influence` from draws and what clients said of them, where no site can be asked for.

    Args:
        draws: (S, D), unconstrained.
        log_lik: each client's log-likelihood at each, (S, K).
        names: the clients', (K,).
        labels: the parameters', (D,).

    Returns:
        as of `influence`; NaN, with `by` "none", of clients whose weights are not reliable, mostly since they have much
        influence: `attrs["unreliable"]` names them. `disagreement` and `opposed` take sites and are
        NaN.
    """
    shape = (len(names), len(labels))
    shift, sd_ratio = np.full(shape, np.nan), np.full(shape, np.nan)
    size, disagreement, opposed, pareto_k = (np.full(len(names), np.nan) for _ in range(4))
    found = Without(shift, sd_ratio, size, disagreement, opposed, pareto_k, np.full(len(names), "none", dtype="<U5"))
    _weigh(found, draws, log_lik)
    doubted = [name for name, by in zip(names, found.by, strict=True) if by == "none"]
    return _dataset(found, names, labels, {"unreliable": ", ".join(doubted)})


def _dataset(found: Without, names: list[str], labels: list[str], attrs: dict[str, str]) -> xr.Dataset:
    data = {
        "shift": (("client", "parameter"), found.shift),
        "sd_ratio": (("client", "parameter"), found.sd_ratio),
        **{
            name: ("client", getattr(found, name))
            for name in ("influence", "disagreement", "opposed", "pareto_k", "by")
        },
    }
    return xr.Dataset(data, coords={"client": names, "parameter": labels}, attrs=attrs)


def _by_draws(federation: Federation, draws: Tensor) -> Without:
    """Of draws and the clients' log-likelihoods there, with their sites at the draws where weights are no good."""
    log_lik = client_log_likelihoods(federation, draws)
    at = around(federation.problem, draws)
    product, sites = with_product(federation, at)
    found = by_sites(product if bool(product.is_proper()) else at, sites)
    _weigh(found, draws, log_lik)
    return found


def _weigh(found: Without, draws: Tensor, log_lik: Tensor) -> None:
    """Put in the place of clients' figures those by weights, where these are reliable."""
    z = draws.double()
    mean, sd = z.mean(0), z.std(0)
    for k in range(log_lik.shape[1]):
        weights = smoothed(-log_lik[:, k])
        found.pareto_k[k] = weights.pareto_k
        if weights.pareto_k > LARGEST_PARETO_K or len(z) < FEWEST_DRAWS:
            continue
        other_mean = weights.weights @ z
        other_sd = (weights.weights @ (z - other_mean).square()).sqrt()
        found.shift[k] = ((mean - other_mean) / other_sd).numpy()
        found.sd_ratio[k] = (sd / other_sd).numpy()
        # log q / q_-k is the logarithm of a draw's share under all over that under the others
        divergence = -(weights.weights * len(z)).clamp_min(torch.finfo(z.dtype).tiny).log().mean()
        found.influence[k] = float((2 * divergence.clamp_min(0)).sqrt())
        found.by[k] = "draws"
