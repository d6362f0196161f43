"""The model on each client's own rows, which needs the latents inside the plate: they are drawn from the rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from pyro_fed.analysis.predicting.drawing import ModelRun, PooledPlateSizes, draw, flat, split_plates
from pyro_fed.conventions.calls import checked, explained
from pyro_fed.density.compiling.compiler import threads
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.arguments import Arguments
from pyro_fed.density.rows.batches import NestedRows
from pyro_fed.density.running.handlers import default_of
from pyro_fed.errors import DataError, warn_user
from pyro_fed.federation.federation import Federation
from pyro_fed.ops.arviz_versions import group_of
from pyro_fed.results.inference_data import InferenceData
from pyro_fed.results.to_arviz import joint_result, make_inference_data, posterior_group, unconstrained_draws

#: A function from a random generator to two dictionaries by site: replications (S, ...) of a client's observations, and
#: the observations themselves.
OwnRows = Callable[[torch.Generator], tuple[dict[str, Tensor], dict[str, Tensor]]]


def with_own_latents(posterior: xr.Dataset, federation: Federation, seed: int) -> xr.Dataset:
    """The posterior with draws of the latents inside the plate, from the federation's rows."""
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


@checked
@explained(DataError, "own_effects: the model cannot be run on these rows and this posterior")
def own_effects(idata: InferenceData, federation: Federation, *, seed: int = 0) -> InferenceData:
    """Draws of groups' own latents, given the shared parameters' draws and the groups' rows.

    At draw θ_s of the shared parameters, the latents a of a group are drawn from p(a | θ_s, the group's rows). A
    hospital computes its own effects this way from the result of a run that returned shared parameters alone.

    Args:
        idata: result of `pyro_fed.run`, with draws of all shared parameters.
        federation: the model and the groups' rows; at a client, a federation of its own rows.
        seed: seed of the draws.

    Returns:
        InferenceData with the group `posterior`: the shared parameters' draws (chain, draw, ...) as they were, and
        those of the latents inside the plate, with the federation's groups as their dimension.

    Raises:
        DataError: the model has no latents inside the plate; the posterior lacks a shared parameter; rows are not here.

    Example:
        >>> pf.own_effects(idata, own).posterior["level"]
    """
    if not federation.problem.local_dim:
        raise DataError("own_effects: the model has no latent inside the partitioned plate")
    if not federation.holds_data:
        raise DataError("own_effects: the rows are at the clients: call it there, with a federation of their own rows")
    posterior = group_of(idata, "posterior")
    shared = posterior.drop_vars([name for name in federation.problem.layout.local if name in posterior])
    return make_inference_data({"posterior": with_own_latents(shared, federation, seed)}, dict(idata.attrs))


def own_rows(idata: InferenceData, federation: Federation) -> list[OwnRows | None]:
    """For each client, a function that replicates its own rows with its own effects; None for a client without rows."""
    posterior, hidden = group_of(idata, "posterior"), frozenset(idata.attrs.get("local_sites", "").split())
    if hidden - set(posterior.data_vars):
        posterior = with_own_latents(posterior, federation, 0)
    return [
        _client_rows(posterior, hidden, federation, k) if len(rows) else None
        for k, rows in enumerate(federation.client_rows)
    ]


class ClientRun(NamedTuple):
    """The model on one client's rows, values (S, ...) by site, and numbers of its rows by plate."""

    run: ModelRun
    values: dict[str, Tensor]
    places: dict[str, Tensor]
    plate: str


def client_run(
    posterior: xr.Dataset,
    hidden: frozenset[str],
    problem: Problem,
    groups: Tensor,
    arguments: Arguments | None = None,
    expected: bool = False,
) -> ClientRun | None:
    """The model on the rows of one client's `groups`; None without rows in the nested plates."""
    arguments = (arguments or problem.arguments).with_client_rows([groups])
    places = {problem.plate: groups} | {part: _packed_rows(arguments, part, groups) for part in arguments.nested_plates}
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
    constants, split = dict(problem.bound.constants), split_plates(problem)
    run = ModelRun(problem.model, args, kwargs, problem.dtype, hidden, constants, split, here, expected)
    return ClientRun(run, values, places, problem.plate)


def _packed_rows(arguments: Arguments, plate: str, groups: Tensor) -> Tensor:
    """Numbers of a nested plate's rows of some groups (m,), group by group, as a model runs on them."""
    rows, (owner, *_) = arguments.rows_of(plate, groups), arguments.nested_by_name[plate]
    of_row = arguments.leaves[arguments.names.index(owner)][rows]
    return rows[position_among(groups, of_row).argsort(stable=True)]


def position_among(groups: Tensor, of_rows: Tensor) -> Tensor:
    """The place among some groups (m,), in any order, of the group of each row (n,)."""
    return (of_rows[:, None] == groups).int().argmax(1)


def _client_rows(posterior: xr.Dataset, hidden: frozenset[str], federation: Federation, client: int) -> OwnRows | None:
    """The function that replicates one client's rows; None if its groups have no rows in the nested plates."""
    found = client_run(posterior, hidden, federation.problem, federation.client_rows[client])
    if found is None:
        return None
    run, values = found.run, found.values

    def drawn(generator: torch.Generator) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        first = run.first({name: value[0] for name, value in values.items()})
        given = {name: site["given"] for name, site in first.items() if isinstance(site["given"], Tensor)}
        return {name: value for name, value in draw(run, values, generator).items() if name in given}, given

    return drawn
