"""Simulation-based calibration: is the truth where the posterior says, over data simulated from the prior?

Parameters are drawn from the prior, θ ~ p(θ), and data of the same shapes at every client, y ~ p(y | θ). The rank of θ
among draws of p(θ | y) is uniform on 0 ... L if the algorithm, and the program, are right (Talts et al. 2018).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
import xarray as xr

from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.analysis.predicting.predict import prior_predict
from pyro_fed.conventions.calls import checked, explained
from pyro_fed.density.rows.arguments import Arguments
from pyro_fed.errors import DataError, PyroFedError, SettingError, listed, warn_user
from pyro_fed.federation.federation import Federation
from pyro_fed.infer.auto import Auto
from pyro_fed.ops.arviz_versions import group_of
from pyro_fed.ops.entries import evenly
from pyro_fed.results.inference_data import InferenceData
from pyro_fed.results.to_arviz import make_inference_data
from pyro_fed.runtime.run import run

#: A user's simulator: from a generator, the true values by site and the model's arguments (and its keyword ones).
Simulate = Callable[[np.random.Generator], tuple[Any, ...]]
#: From a seed, the true values by site and the federation on simulated data.
Simulated = Callable[[int], tuple[dict[str, np.ndarray], Federation]]


class Replicate(NamedTuple):
    """One replicate: its number, the true values and the ranks by site, and whether the result was doubted."""

    number: int
    truth: dict[str, xr.DataArray]
    ranks: dict[str, xr.DataArray]
    doubted: bool


@checked
@explained(DataError, "sbc: the data cannot be simulated")
def sbc(
    federation: Federation,
    n: int,
    *,
    algorithm: Algorithm | Auto | None = None,
    seed: int = 0,
    num_ranks: int = 99,
    simulate: Simulate | None = None,
    **options: Any,
) -> InferenceData:
    """Simulation-based calibration: ranks of true parameters among the draws, over data simulated from the prior.

    Each replicate draws parameters from the prior and fresh observations in all rows of every client, runs the
    algorithm, and counts the draws below the truth. Everything but the observations stays: covariates, clients, and
    which row is where. Runs compile nothing anew.

    Args:
        federation: the model and its clients.
        n: number of replicates.
        algorithm: the algorithm to calibrate; by default what `pf.fit` does.
        seed: seed of the replicates; those of a smaller `n` are the first of a larger one.
        num_ranks: L, the draws that a truth is ranked among: of a result's draws so many at equal distances. A result
            with fewer has its ranks spread over 0 ... L at random.
        simulate: in place of the model's prior, a function from a NumPy generator to the true values by site and the
            model's arguments, `(truth, args)` or `(truth, args, kwargs)`, of the federation's shapes. For a likelihood
            that nothing can be drawn from (`pyro.factor`), or data that are to be sorted before they are dealt out.
        **options: arguments of `pyro_fed.run`, such as `graph`.

    Returns:
        InferenceData with the groups `prior_sbc`, of ranks 0 ... L as `simuk` has them, `prior`, of the true values,
        and `sample_stats` with `doubted`, all over (chain, draw), one chain and a draw for each replicate.
        `az.plot_ecdf_pit` of ArviZ 1.x reads it. Replicates that ended in an error are left out, with a warning;
        `attrs["failed"]` counts them.

    Raises:
        DataError: a prior that is improper or cannot be drawn from; observations that are no argument of the model,
            or that it uses for more than the likelihood; rows that are elsewhere.
        SettingError: fewer than one replicate or rank; an algorithm that gives a point.
        PyroFedError: no replicate gave a result; the first one's error.

    Source: Talts, Betancourt, Simpson, Vehtari & Gelman (2018), arXiv:1804.06788.

    Example:
        >>> ranks = pf.sbc(fed, 2, algorithm=pf.FedEP())["prior_sbc"]["w"]
        >>> pit = (ranks.values.ravel() + 0.5) / 100
        >>> az.plot_ecdf(pit, cdf=lambda u: u, eval_points=np.linspace(0, 1, 50), difference=True)
    """
    if n < 1 or num_ranks < 1:
        raise SettingError(f"sbc needs at least one replicate and one rank, received n={n}, num_ranks={num_ranks}")
    algorithm = Auto() if algorithm is None else algorithm
    if getattr(algorithm, "draws_are", "") == "point":
        raise SettingError(f"sbc ranks the truth among draws, and {type(algorithm).__name__} gives a single point")
    data = _from_prior(federation) if simulate is None else _from_user(federation, simulate)
    quiet: dict[str, Any] = {"progress": False, "log_likelihood": False, "collect_local": False}
    found: list[Replicate] = []
    errors: list[PyroFedError] = []
    for number, seeds in enumerate(np.random.default_rng(seed).integers(2**31, size=(n, 3)).tolist()):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # `doubted` says that there was one
            try:
                values, simulated = data(seeds[0])
                idata = run(algorithm, simulated, seed=seeds[1], **quiet | options)
            except PyroFedError as error:
                errors.append(error)
                continue
        posterior, rng = group_of(idata, "posterior"), np.random.default_rng(seeds[2])
        truth = {name: xr.DataArray(value, dims=posterior[name].dims[2:]) for name, value in values.items()}
        ranks = {name: _rank(posterior[name], value, num_ranks, rng) for name, value in truth.items()}
        found.append(Replicate(number, truth, ranks, bool(idata.attrs["doubts"])))
    if not found:
        raise errors[0]
    if errors:
        warn_user(f"sbc: {len(errors)} of {n} replicates ended in an error and are left out; the first: {errors[0]}")
    attrs = {"algorithm": type(algorithm).__name__, "num_ranks": num_ranks, "failed": len(errors), "seed": seed}
    return make_inference_data(_groups(found), attrs)


def _rank(posterior: xr.DataArray, truth: xr.DataArray, most: int, rng: np.random.Generator) -> xr.DataArray:
    """The rank 0 ... `most` of true values (...) among draws (chain, draw, ...)."""
    draws = posterior.stack(sample=("chain", "draw"))
    kept = draws.isel(sample=evenly(draws.sizes["sample"], most).numpy())
    below = (kept < truth).sum("sample")
    return ((below + rng.uniform(size=below.shape)) / (kept.sizes["sample"] + 1) * (most + 1)).astype(int)


def _groups(found: list[Replicate]) -> dict[str, xr.Dataset]:
    """The groups of the result, with the replicates' numbers as the coordinate of the draws."""
    numbers = xr.DataArray([one.number for one in found], dims="draw", name="draw")

    def over_replicates(values: list[dict[str, xr.DataArray]]) -> xr.Dataset:
        columns = {name: xr.concat([each[name] for each in values], numbers) for name in values[0]}
        return xr.Dataset(columns).expand_dims(chain=[0])

    doubted = [{"doubted": xr.DataArray(one.doubted)} for one in found]
    return {
        "prior_sbc": over_replicates([one.ranks for one in found]),
        "prior": over_replicates([one.truth for one in found]),
        "sample_stats": over_replicates(doubted),
    }


def _from_user(federation: Federation, simulate: Simulate) -> Simulated:
    """The data of a user's simulator, checked as those of a federation are."""

    def data(seed: int) -> tuple[dict[str, np.ndarray], Federation]:
        truth, *arguments = simulate(np.random.default_rng(seed))
        sites = federation.problem.sites
        if unknown := sorted(set(truth) - set(sites)):
            raise DataError(f"sbc: simulate gives true values of {listed(unknown)}; the model has {listed(sites)}")
        return {name: np.reshape(value, sites[name].shape) for name, value in truth.items()}, federation.with_args(
            *arguments
        )

    return data


def _from_prior(federation: Federation) -> Simulated:
    """Data that the model draws, in the places of those that it observes; DataError where these are no arguments."""
    problem = federation.problem
    if problem.layout.improper:
        raise DataError(
            f"sbc: the sites {listed(sorted(problem.layout.improper))} have improper priors, from which nothing can "
            "be drawn: give proper ones"
        )
    if problem.layout.factors:
        raise DataError(
            f"sbc: the sites {listed(sorted(problem.layout.factors))} are pyro.factor, numbers from which no data "
            "can be drawn: write them as distributions, or pass simulate="
        )

    def data(seed: int) -> tuple[dict[str, np.ndarray], Federation]:
        drawn = prior_predict(federation, num_draws=1, seed=seed)
        prior, new = group_of(drawn, "prior"), group_of(drawn, "prior_predictive")
        truth = {name: prior[name].values[0, 0] for name in problem.layout.latents}
        values = {name: new[name].values[0, 0] for name in places}
        return truth, federation.with_arguments(_with_observations(problem.arguments, places, values))

    first = prior_predict(federation, num_draws=1)
    places = _places(problem.arguments, group_of(first, "observed_data"))
    new = group_of(first, "prior_predictive")
    values = {name: new[name].values[0, 0] for name in places}
    again = prior_predict(federation.with_arguments(_with_observations(problem.arguments, places, values)), num_draws=1)
    taken = group_of(again, "observed_data")
    for name, value in values.items():
        if not np.array_equal(taken[name], value) or not group_of(again, "prior_predictive")[name].equals(new[name]):
            raise DataError(
                f"sbc: the model uses the observations of '{name}' for more than its likelihood, such as a covariate, "
                "a count or a mask, so simulated ones cannot replace them: pass simulate="
            )
    return data


def _places(arguments: Arguments, observed: Mapping[Any, xr.DataArray]) -> dict[str, list[int]]:
    """For each observed site, the positions of the leaves that are its values; DataError if there are none."""
    found: dict[str, list[int]] = {}
    for name, value in observed.items():
        leaves = {i: _of_model(arguments, i, arguments.leaves[i]) for i in arguments.split}
        found[str(name)] = [
            i
            for i, leaf in leaves.items()
            if leaf.numel() == value.size and np.array_equal(leaf.cpu().numpy().reshape(value.shape), value)
        ]
        if not found[str(name)]:
            raise DataError(
                f"sbc: the observations of '{name}' are not an unchanged argument of the model, so simulated ones "
                "cannot replace them: pass the observed values as an argument, complete, or pass simulate="
            )
    return found


def _of_model(arguments: Arguments, i: int, leaf: torch.Tensor) -> torch.Tensor:
    """A leaf with its rows on the model's own axis."""
    return leaf.movedim(0, arguments.axes[i]) if i in arguments.axes else leaf


def _with_observations(
    arguments: Arguments, places: Mapping[str, list[int]], values: Mapping[str, np.ndarray]
) -> Arguments:
    """The arguments with other observations."""
    leaves = list(arguments.leaves)
    for name, value in values.items():
        for i in places[name]:
            old = _of_model(arguments, i, leaves[i])
            new = torch.as_tensor(value).to(old).reshape(old.shape)
            leaves[i] = new.movedim(arguments.axes[i], 0) if i in arguments.axes else new
    return replace(arguments, leaves=tuple(leaves))
