"""Conversion of draws to InferenceData: one xarray Dataset for each group, for ArviZ 0.2x and 1.x."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from functools import partial, reduce
from importlib.metadata import version
from operator import add
from typing import Any, cast

import numpy as np
import pyro
import torch
import xarray as xr
from torch import Tensor
from torch.distributions.transforms import CorrCholeskyTransform, IndependentTransform, StickBreakingTransform

from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.record import Record
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions import seeding
from pyro_fed.conventions.nested_settings import all_settings
from pyro_fed.conventions.resources import TimeIsUp, ending_at
from pyro_fed.conventions.version import VERSION
from pyro_fed.density.forms import JointProblem
from pyro_fed.density.latents.draws import assign, draw_locals
from pyro_fed.density.layout import name_dims
from pyro_fed.density.observations import observed_rows, observed_values, without_data
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import in_chunks
from pyro_fed.density.running.trace_sites import unconstraining
from pyro_fed.density.size import densities_at_once
from pyro_fed.federation.federation import Federation
from pyro_fed.ops.arviz_versions import make_result
from pyro_fed.policy.results import MAX_COLLECTED, MAX_POINTWISE, MAX_UNASKED, collects_latents
from pyro_fed.results.data_groups import constant_data, observed_data
from pyro_fed.results.inference_data import InferenceData
from pyro_fed.results.record_dataset import audit_group, federation_group, sites_group

#: The attribute `released` of a private run's result: its contents, and what is omitted.
RELEASED = (
    "what the mechanism released and what follows from it alone: no observed_data, constant_data, log_likelihood or "
    "lp, no figures or failures' reasons of single clients, no seconds, and no deterministic site that depends on rows"
)
#: Figures of the result's last round that become attributes, since later rounds may belong to other stages.
EVIDENCE = ("log_evidence", "log_evidence_se")


def to_inference_data(
    algorithm: Algorithm,
    federation: Federation,
    problem: Problem,
    draws: Tensor,
    stats: dict[str, Tensor],
    record: Record,
    seed: int,
    log_likelihood: bool,
    collect_local: bool,
) -> InferenceData:
    """A run's draws and record, with all groups that can be computed from the available data.

    Args:
        algorithm: the algorithm that was run.
        federation: the model and its clients.
        problem: the model's densities.
        draws: (chain, draw, D), unconstrained.
        stats: further variables of `sample_stats` (chain, draw).
        record: the run's record.
        seed: the run's seed.
        log_likelihood: whether to compute the pointwise log-likelihood.
        collect_local: whether to draw and collect the rows' discrete latents.

    Returns:
        The groups `posterior` (constrained, under the model's own names), `log_prior` (by site, of the constrained
        values) and `federation` (the record); if the federation holds the rows also `sample_stats`, `log_likelihood`,
        `observed_data` and `constant_data`, else `sample_stats` without the log density.
    """
    drawn = collect_local and federation.holds_data
    with ending_at(None):  # every result has its posterior, and the sites at which a later run can begin
        groups = {
            "posterior": posterior_group(federation, problem, draws, seed if drawn else None),
            "federation": federation_group(record),
            "audit": audit_group(record),
            "sites": sites_group(record, federation.problem),
        }
    prior = _log_prior_terms(problem, draws)
    groups["log_prior"] = _stats({name: value for name, value in prior.items() if name})
    if federation.holds_data:
        log_prior = reduce(add, prior.values())
        groups |= _from_data(federation, problem, draws, log_prior, stats, log_likelihood, record)
    else:
        groups["sample_stats"] = _stats(stats)
    attrs = _attributes(algorithm, federation, record, seed)
    groups["posterior"].attrs.update(attrs)
    return make_inference_data({name: group for name, group in groups.items() if group.data_vars}, attrs)


def released_alone(
    algorithm: Algorithm, federation: Federation, problem: Problem, draws: Tensor, record: Record, seed: int
) -> InferenceData:
    """The result of a private run, computed only from what the mechanism has released."""
    public = without_data(problem, draws.reshape(-1, draws.shape[-1]))
    posterior = posterior_group(federation, problem, draws, None, public.rows)[[*problem.sites, *public.reported]]
    rounds = federation_group(record)
    told = [name for name in rounds if name == "seconds" or str(name).startswith("failure_")]
    attrs = _attributes(algorithm, federation, record, seed)
    attrs |= {"partition": type(federation.partition).__name__, "released": RELEASED}
    posterior.attrs.update(attrs)
    return make_inference_data({"posterior": posterior, "federation": rounds.drop_vars(told)}, attrs)


def posterior_alone(
    algorithm: Algorithm, federation: Federation, problem: Problem, draws: Tensor, record: Record
) -> InferenceData:
    """The group `posterior` of an unfinished run, from draws (chain, draw, D)."""
    return make_inference_data(
        {"posterior": posterior_group(federation, problem, draws, None)},
        {"draws_are": algorithm.draws_are, "num_rounds": len(record.rounds)},
    )


def _from_data(
    federation: Federation,
    problem: Problem,
    draws: Tensor,
    log_prior: Tensor,
    stats: dict[str, Tensor],
    log_likelihood: bool,
    record: Record,
) -> dict[str, xr.Dataset]:
    """The groups that need the rows; a note about omitted groups is added to the record."""
    flat = draws.reshape(-1, draws.shape[-1])
    pointwise: dict[str, Tensor] = {}
    seen: dict[str, Tensor] = {}
    lp: dict[str, Tensor] = {}
    if log_likelihood and len(flat) * problem.widest > MAX_POINTWISE:
        left_out = sentences.log_likelihood_left_out(draws=len(flat), rows=problem.widest, most=MAX_POINTWISE)
        record.findings.append(left_out)
        log_likelihood = False
    if log_likelihood or len(flat) * problem.evaluations <= MAX_UNASKED:
        try:
            pointwise, total = _log_likelihoods(problem, flat, log_likelihood)
            seen = {
                name: observed_rows(value, partial(_log_likelihoods_of, name, problem), problem)
                for name, value in pointwise.items()
            }
            lp = {"lp": log_prior + total.reshape(draws.shape[:2])}
        except TimeIsUp:
            record.findings.append(sentences.not_in_time(what="the groups log_likelihood and lp"))
    with ending_at(None):
        values = observed_values(federation.problem)
    groups = {
        "sample_stats": _stats({**lp, **stats}),
        "observed_data": observed_data(federation, values),
        "constant_data": constant_data(federation, values),
    }
    if pointwise:
        shaped = {name: value.reshape(*draws.shape[:2], -1) for name, value in pointwise.items()}
        with ending_at(None):
            plates = problem.compiler.find_once(("plates of terms",), problem.term_plates, problem)
        whole = _dataset(shaped, {name: [plates[name]] for name in shaped}, federation.coords)
        groups["log_likelihood"] = _of_observed_rows(whole, seen)
    return groups


def _log_prior_terms(problem: Problem, draws: Tensor) -> dict[str, Tensor]:
    """The terms of the log prior (chain, draw) at draws (chain, draw, D), see `Problem.log_prior_terms`."""
    with ending_at(None):
        pieces = [problem.log_prior_terms(part) for part in in_chunks(draws.flatten(0, 1), 1)]
    return {name: torch.cat([piece[name] for piece in pieces]).reshape(draws.shape[:2]) for name in pieces[0]}


def _of_observed_rows(terms: xr.Dataset, seen: Mapping[str, Tensor]) -> xr.Dataset:
    """Pointwise terms (chain, draw, row) of the rows with an observed site; all rows if there are none."""
    for dim in set(terms.dims) - {"chain", "draw"}:
        kept = torch.stack([seen[str(name)] for name, value in terms.data_vars.items() if dim in value.dims]).any(0)
        if bool(kept.any()) and not bool(kept.all()):
            terms = terms.isel({dim: kept.cpu().numpy()})
    return terms


def _log_likelihoods(problem: Problem, flat: Tensor, wanted: bool) -> tuple[dict[str, Tensor], Tensor]:
    """Log-likelihoods (S, N) by observed site, if requested, and the sum of all terms in the plate (S,)."""
    at_once = densities_at_once(problem)
    if not wanted:
        return {}, torch.cat([problem.log_lik(part) for part in in_chunks(flat, at_once)])
    pointwise: dict[str, Tensor] = {}
    done = 0
    for part in in_chunks(flat, at_once):
        for name, value in problem.site_log_lik(part).items():
            whole = pointwise.setdefault(name, value.new_empty(len(flat), *value.shape[1:]))
            whole[done : done + len(part)] = value
        done += len(part)
    total = sum((value.sum(-1) for value in pointwise.values()), flat.new_zeros(len(flat)))
    latent = {"", *problem.layout.local}
    return {name: value for name, value in pointwise.items() if name not in latent}, total


def _log_likelihoods_of(name: str, problem: Problem, flat: Tensor) -> Tensor:
    """Log-likelihoods (S, n) of one observed site."""
    return _log_likelihoods(problem, flat, wanted=True)[0][name]


def make_inference_data(groups: dict[str, xr.Dataset], attrs: dict[str, Any]) -> InferenceData:
    """Groups as an `arviz.InferenceData`, or on ArviZ 1.x the `xarray.DataTree` that replaces it."""
    return cast("InferenceData", make_result(groups, attrs))


def unconstrained_draws(idata: InferenceData | Mapping[str, xr.Dataset], problem: Problem) -> Tensor:
    """The posterior of a result with all the model's sites as unconstrained vectors (chain × draw, D), float64.

    Chains come one after another.

    Example:
        >>> unconstrained_draws(idata, fed.problem).shape
    """
    posterior = idata["posterior"]
    stacked = {
        name: torch.as_tensor(
            np.asarray(posterior[name].transpose("chain", "draw", ...).values), dtype=torch.float64
        ).flatten(0, 1)
        for name in problem.sites
    }
    vectors: Tensor = problem.vmap(problem.unconstrain)(stacked)
    return vectors


def joint_result(
    federation: Federation, problem: Problem, draws: Tensor, seed: int
) -> tuple[Federation, Problem, Tensor, list[Finding]]:
    """Federation, problem and draws in joint form, with the rows' latents; unchanged, with a note, if too many."""
    theta = draws.flatten(0, 1)
    if not collects_latents(problem.traits, len(theta)):
        left_out = sentences.latents_left_out(
            sites=sorted(problem.layout.local), draws=len(theta), rows=problem.num_rows, most=MAX_COLLECTED
        )
        return federation, problem, draws, [left_out]
    local = draw_locals(problem, theta, problem.all_rows, seeding.torch_generator(seed, seeding.LOCALS))
    joint = JointProblem.of(problem)
    return federation.joint, joint, joint.join(theta, local).unflatten(0, draws.shape[:2]), []


def posterior_group(
    federation: Federation, problem: Problem, draws: Tensor, seed: int | None, rows: tuple[Tensor, ...] | None = None
) -> xr.Dataset:
    """Constrained draws of (chain, draw, D) under the model's names; without `seed` no discrete latents."""
    flat = draws.reshape(-1, draws.shape[-1])
    joint = bool(problem.layout.local) and not problem.local_dim
    if rows is not None or problem.reported or joint or problem.layout.discrete:
        pieces = [problem.constrain(part, rows) for part in in_chunks(flat, densities_at_once(problem))]
    else:  # no site depends on the rows
        pieces = [problem.constrain(flat, problem.fewest_rows)]
    if problem.layout.discrete and seed is not None and not problem.local_dim:
        generator = seeding.torch_generator(seed, seeding.ASSIGNMENTS)
        parts = zip(pieces, in_chunks(flat, densities_at_once(problem)), strict=True)
        pieces = [piece | assign(problem, part, generator) for piece, part in parts]
    values = {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}
    values |= in_double(problem, flat)
    shaped = {name: value.reshape(*draws.shape[:2], *value.shape[1:]) for name, value in values.items()}
    sites = {**problem.sites, **problem.layout.discrete, **problem.layout.reported}
    if not federation.holds_data or rows is not None:  # deterministic sites in the plate need the clients' rows
        shaped = {name: value for name, value in shaped.items() if problem.plate not in sites[name].dims}
    dims = {name: name_dims(sites[name].dims, federation.dims.get(name, [])) for name in shaped}
    return _dataset(shaped, dims, federation.coords)


def _dataset(values: dict[str, Tensor], dims: dict[str, list[str]], coords: dict[str, list[Any]]) -> xr.Dataset:
    data = {}
    for name, value in values.items():  # counts and flags stay as they are
        value = value.detach().cpu()
        array = (value.double() if value.is_floating_point() else value).numpy()
        data[name] = (["chain", "draw", *dims[name]], array)
    sizes = {dim: size for spec, array in data.values() for dim, size in zip(spec, array.shape, strict=True)}
    labels = {dim: coords.get(dim, np.arange(size)) for dim, size in sizes.items()}
    return xr.Dataset(data, coords=labels)


def _stats(values: dict[str, Tensor]) -> xr.Dataset:
    return _dataset(values, {name: [] for name in values}, {})


def _attributes(algorithm: Algorithm, federation: Federation, record: Record, seed: int) -> dict[str, Any]:
    """The result's attributes: texts, numbers, and flags as 0 or 1, as in NetCDF; unknown ones are omitted."""
    problem = federation.problem
    return {
        "created_at": datetime.datetime.now(datetime.UTC).isoformat(),
        "inference_library": "pyro_fed",
        "inference_library_version": VERSION,
        "algorithm": type(algorithm).__name__,
        "settings": repr(all_settings(algorithm)),
        "draws_are": algorithm.draws_are,
        "centralized": int(algorithm.pooled),
        "seed": seed,
        "partition": repr(federation.partition)[:1000],
        "plate": problem.plate,
        "local_sites": " ".join([*problem.layout.local, *problem.layout.discrete]),
        "num_clients": federation.num_clients,
        "num_rounds": len(record.rounds),
        **({} if record.converged is None else {"converged": int(record.converged)}),
        "interrupted": int(record.interrupted),
        **({"stopped": record.stopped} if record.stopped else {}),
        "warnings": "\n".join(record.warning_texts()),
        "doubts": "\n".join(record.doubts),
        "findings": json.dumps([one.to_plain() for one in record.findings]),
        "audited": int(record.audited),
        **record.by_sums.attributes(),
        **{name: record.latest[name] for name in EVIDENCE if name in record.latest},
        "stands_apart": record.stands_apart,
        **_spent(record),
        "versions": f"pyro {pyro.__version__}, torch {torch.__version__}, arviz {version('arviz')}",
    }


def _spent(record: Record) -> dict[str, float]:
    """The ε and δ that a private run has spent, and the size of its noise; empty for other runs."""
    private = record.private
    return {} if private is None else {"epsilon": private.epsilon, "delta": private.delta, "noise": private.noise}


def in_double(problem: Problem, draws: Tensor) -> dict[str, Tensor]:
    """Values of latent sites in float64 at draws (S, D), site name → (S, *site shape); empty for models in float64."""
    if problem.dtype == torch.float64 or not len(draws):
        return {}
    nodes = problem.execute_at(draws[0], problem.fewest_rows).trace.nodes
    values = {}
    for name, site in problem.sites.items():
        transform: Any = unconstraining(nodes[name])
        if isinstance(_base(transform), (StickBreakingTransform, CorrCholeskyTransform)):
            part = draws[:, site.start : site.start + site.size].cpu().double()
            values[name] = transform(part.reshape(len(draws), *site.unconstrained_shape))
    return values


def _base(transform: Any) -> Any:
    return _base(transform.base_transform) if isinstance(transform, IndependentTransform) else transform
