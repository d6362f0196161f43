"""Predictions of each client's own rows, which need the latents inside the plate: they are drawn from the rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from pyro_fed.analysis.predicting.drawing import ModelRun, PooledPlateSizes, draw, flat, split_plates
from pyro_fed.density.compiling.compiler import threads
from pyro_fed.density.rows.nested import NestedRows
from pyro_fed.density.running.handlers import default_of
from pyro_fed.errors import DataError, warn_user
from pyro_fed.federation.federation import Federation
from pyro_fed.ops.arviz_versions import group_of
from pyro_fed.results.inference_data import InferenceData
from pyro_fed.results.to_arviz import posterior_group, unconstrained_draws
from pyro_fed.runtime.ending.collecting import joint_result

#: A function from a random generator to two dictionaries by site: replications (S, ...) of a client's observations, and
#: the observations themselves.
OwnRows = Callable[[torch.Generator], tuple[dict[str, Tensor], dict[str, Tensor]]]


def with_own_latents(posterior: xr.Dataset, federation: Federation, seed: int) -> xr.Dataset:
    """Add draws of the latents inside the plate, from the federation's rows, to a posterior that lacks them.

    Raises:
        DataError: the posterior lacks a site outside the plate.
    """
    problem = federation.problem
    missing = [name for name in problem.sites if name not in posterior]
    if missing:
        raise DataError(
            f"the posterior has no values for the latent sites {missing}; it has {sorted(map(str, posterior))}: pass "
            "the result of a run of this model"
        )
    with threads(1), torch.no_grad(), default_of(problem.dtype):
        draws = unconstrained_draws({"posterior": posterior}, problem)
        draws = draws.unflatten(0, (posterior.sizes["chain"], posterior.sizes["draw"]))
        if problem.local_dim:
            federation, problem, draws, left_out = joint_result(federation, problem, draws, seed)
            for note in left_out:
                warn_user(note.text)
        return posterior_group(federation, problem, draws, seed)


def own_rows(idata: InferenceData, federation: Federation) -> list[OwnRows | None]:
    """For each client, a function that replicates its own rows with its own effects; None for a client without rows."""
    posterior, hidden = group_of(idata, "posterior"), frozenset(idata.attrs.get("local_sites", "").split())
    if hidden - set(posterior.data_vars):
        posterior = with_own_latents(posterior, federation, 0)
    return [
        _client_rows(posterior, hidden, federation, k) if len(rows) else None
        for k, rows in enumerate(federation.client_rows)
    ]


def _client_rows(posterior: xr.Dataset, hidden: frozenset[str], federation: Federation, client: int) -> OwnRows | None:
    """The function that replicates one client's rows; None if its groups have no rows in the nested plates."""
    problem, groups = federation.problem, federation.client_rows[client]
    arguments = problem.arguments.with_client_rows([groups])
    places = {problem.plate: groups} | {part: arguments.rows_of(part, groups) for part in arguments.nested_plates}
    if not sum(len(places[part]) for part in arguments.nested_plates or (problem.plate,)):
        return None
    ones = torch.ones(len(groups))
    rows = [leaf.packed(groups, ones) if isinstance(leaf, NestedRows) else leaf[groups] for leaf in arguments.rows]
    args, kwargs = arguments.rebuild(rows)
    values = {}
    for name, value in posterior.data_vars.items():
        at = {dim: index.numpy() for dim, index in places.items() if dim in value.dims}
        values[str(name)] = flat(np.asarray(value.isel(at).values), problem.dtype)
    here = PooledPlateSizes(problem.plate, torch.arange(len(groups)) if rows else groups, arguments.members(rows))

    def drawn(generator: torch.Generator) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        constants, split = dict(problem.bound.constants), split_plates(problem)
        run = ModelRun(problem.model, args, kwargs, problem.dtype, hidden, constants, split, here)
        first = run.first({name: value[0] for name, value in values.items()})
        given = {name: site["given"] for name, site in first.items() if isinstance(site["given"], Tensor)}
        return {name: value for name, value in draw(run, values, generator).items() if name in given}, given

    return drawn
