"""How much of an answer is one client's doing: its site taken out of the posterior.

    q ∝ t_0 Π_k t_k,      q_-k = q / t_k     the posterior of all the others

Where an algorithm leaves Gaussian sites t_k (FedEP and its kin, FedLaplace) this costs nothing. They are what the
server was sent, so that a client that says something else than its data say is seen as well. Of a client k

    shift          (E_q θ_i - E_-k θ_i) / SD_-k θ_i            by how many SDs it moves each parameter's mean
    sd_ratio       SD_q θ_i / SD_-k θ_i                        and by how much it narrows it
    influence      √(2 KL(q || q_-k))                          all of it in SDs: d for a mean moved by d SDs
    disagreement   how far the client is from the others       in SDs of what chance does

for the last of which, with δ = E_q θ - E_-k θ, note that clients with the same parameters have δ' (Σ_-k - Σ)⁻¹ δ ~ χ²
over the directions that the client knows about: the tail probability of that is told as SDs of a normal distribution.
A large client has influence and no disagreement; one whose labels are flipped has both; one whose rows are counted a
hundred times has the influence of a large one. A hospital with another population disagrees too: this says what
differs, and decides nothing.

Other algorithms (DSVGD, FSGLD, FedAIS, those without a server) have draws z_s alone. Those of the others' posterior are
the same with weights w_s ∝ 1 / p(y_k | z_s), smoothed (PSIS). Where Pareto's k says that these are not reliable, mostly
since the client has much influence, its site is found by one expected Newton step at the draws instead, and `by` says
so. All on the unconstrained scale.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from pyro_fed.analysis.criticism.clients import around, client_log_likelihoods, sites_at
from pyro_fed.density.compiling.compiler import threads
from pyro_fed.errors import DataError, SettingError
from pyro_fed.infer.sites.gaussian_sites import gaussian, moments_of
from pyro_fed.ops.gaussian import Gaussian
from pyro_fed.ops.importance import LARGEST_PARETO_K, smoothed
from pyro_fed.results.to_arviz import unconstrained_draws

if TYPE_CHECKING:
    from pyro_fed.federation.federation import Federation
    from pyro_fed.results.inference_data import InferenceData

#: Directions in which a client adds less than this share to what the others know are none that it speaks of.
LEAST_SHARE = 1e-3
#: Draws that weights need: fewer have no tail to be judged by.
FEWEST_DRAWS = 100
#: A client is said to stand apart where it disagrees with the others by so many SDs, one false alarm in 15,000 of those
#: with the same parameters, or narrows the posterior so many times as much as the median client does; and where its
#: influence is so many times the median client's.
FAR, NARROWER, TIMES = 4.0, 10.0, 3.0


class Without(NamedTuple):
    """The posterior with and without each client, in figures.

    Args:
        shift: (K, D).
        sd_ratio: (K, D).
        influence: (K,).
        disagreement: (K,).
        pareto_k: (K,), NaN where no weights were taken.
        by: (K,), "sites" or "draws".
    """

    shift: np.ndarray
    sd_ratio: np.ndarray
    influence: np.ndarray
    disagreement: np.ndarray
    pareto_k: np.ndarray
    by: np.ndarray


def influence(idata: InferenceData, federation: Federation | None = None) -> xr.Dataset:
    """How many SDs each client moves each parameter, and whether one of them stands apart.

    Args:
        idata: result of `pyro_fed.run`.
        federation: what it was run on; may be left out where the result has the clients' sites, which are taken first
            where they are those of the answer itself.

    Returns:
        `shift` and `sd_ratio` (client, parameter), `influence`, `disagreement`, `pareto_k` and `by` (client), on the
        unconstrained scale, see `pyro_fed.analysis.criticism.influence`; in `attrs["stands_apart"]` a sentence on
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
    kept = idata["sites"] if "sites" in idata else None  # noqa: SIM401
    own = kept is not None and kept.attrs.get("algorithm") == idata.attrs.get("algorithm", idata.attrs.get("chosen"))
    if kept is not None and (own or federation is None):
        q, sites = kept_sites(kept)
        names, labels = kept["client"].values.tolist(), kept["parameter"].values.tolist()
        found = by_sites(q, sites)
    elif federation is not None and federation.holds_data:
        problem = federation.problem
        names, labels = federation.client_names, [problem.name_of(number) for number in range(problem.dim)]
        with threads(1), torch.no_grad():
            found = _by_draws(federation, checked_draws(idata, federation))
    else:
        raise SettingError(
            f"influence: this result, of {idata.attrs.get('algorithm', 'something else')}, has no Gaussian sites of "
            "its clients; pass the federation, influence(idata, fed), whose clients are then asked"
        )
    data = {
        "shift": (("client", "parameter"), found.shift),
        "sd_ratio": (("client", "parameter"), found.sd_ratio),
        **{name: ("client", getattr(found, name)) for name in ("influence", "disagreement", "pareto_k", "by")},
    }
    attrs = {"stands_apart": apart(found, names, labels)}
    return xr.Dataset(data, coords={"client": names, "parameter": labels}, attrs=attrs)


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


def by_sites(q: Gaussian, sites: Gaussian) -> Without:
    """Of Gaussians.

    Args:
        q: the posterior.
        sites: (K,).
    """
    count = len(sites.eta)
    others = type(sites)(q.precision - sites.precision, q.eta - sites.eta)
    proper = others.is_proper()
    mean, sd = moments_of(q)
    other_mean, other_sd = moments_of(others)
    whole = type(sites)(q.precision.expand_as(sites.precision), q.eta.expand_as(sites.eta))
    divergence = whole.kl(others).clamp_min(0)
    size = torch.where(proper, (2 * divergence).sqrt(), torch.inf)
    far = [
        float(_disagreement(q, _one(others, k), mean - other_mean[k])) if proper[k] else np.nan for k in range(count)
    ]
    return Without(
        ((mean - other_mean) / other_sd).numpy(),
        (sd / other_sd).numpy(),
        size.numpy(),
        np.array(far),
        np.full(count, np.nan),
        np.full(count, "sites"),
    )


def _one(sites: Gaussian, k: int) -> Gaussian:
    return type(sites)(sites.precision[k], sites.eta[k])


def _disagreement(q: Gaussian, others: Gaussian, delta: Tensor) -> float:
    """SDs of a normal distribution whose two-sided tail is that of δ' (Σ_-k - Σ)⁻¹ δ under χ²."""
    from scipy.stats import chi2, norm  # takes a second

    if q.dense:
        factor = torch.linalg.cholesky(others.precision)
        inside = torch.linalg.solve_triangular(torch.linalg.cholesky(q.precision), factor, upper=False)
        added, vectors = torch.linalg.eigh(torch.eye(len(delta), dtype=delta.dtype) - inside.T @ inside)
        along = vectors.T @ (factor.T @ delta)
    else:
        added, along = 1 - others.precision / q.precision, others.precision.sqrt() * delta
    spoken = added > LEAST_SHARE
    if not bool(spoken.any()):
        return 0.0
    squared = float((along[spoken].square() / added[spoken]).sum())
    tail = float(chi2.sf(squared, int(spoken.sum())))
    return float(norm.isf(tail / 2)) if tail > 0 else squared**0.5


def _by_draws(federation: Federation, draws: Tensor) -> Without:
    """Of draws and the clients' log-likelihoods there, with their sites at the draws where weights are no good."""
    log_lik = client_log_likelihoods(federation, draws)
    q = around(federation.problem, draws)
    found = by_sites(q, sites_at(federation, q))
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
    return found


def apart(found: Without, names: list[str], labels: list[str]) -> str:
    """A sentence on the clients that stand apart; "" where none does.

    Args:
        found: of the clients.
        names: theirs, (K,).
        labels: the parameters', (D,).
    """
    if len(names) < 3:
        return ""
    typical = float(np.median(found.influence))
    narrowing = -np.log(found.sd_ratio).sum(1)
    far = (found.disagreement > FAR) | (narrowing > NARROWER * np.abs(np.median(narrowing))) | np.isnan(narrowing)
    chosen = [k for k in np.argsort(-found.influence) if far[k] and found.influence[k] > TIMES * typical]
    return "; ".join(_said(found, k, names[k], labels) for k in chosen)


def _said(found: Without, k: int, name: str, labels: list[str]) -> str:
    if not np.isfinite(found.shift[k]).all():
        return f"client {name} alone determines some parameters: without it there is no posterior"
    most = int(np.abs(found.shift[k]).argmax())
    return (
        f"client {name} moves the mean of '{labels[most]}' by {abs(found.shift[k, most]):.2g} SDs and its SD by the "
        f"factor {found.sd_ratio[k, most]:.2g}; it disagrees with the others by {found.disagreement[k]:.2g} SDs"
    )
