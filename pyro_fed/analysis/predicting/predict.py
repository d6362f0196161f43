"""Draws of new observations from a posterior.

For each posterior draw z_s the model runs on the given arguments with its latent sites at z_s, and its observed sites
are drawn anew, y_s ~ p(y | x, z_s). Over all draws this is the posterior predictive distribution p(y | x, data), up to
the finite number of draws.

Latents a inside the partitioned plate belong to groups, such as a hospital's own level. New data of a fitted group use
that group's draws: y_s ~ p(y | x, a_s, θ_s). A new group's latents are drawn from the population p(a | θ_s), see
`groups`.

The same from the prior, z_s ~ p(z), before anything is fitted (`prior_predict`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
import xarray as xr
from pyro.distributions import Unit
from torch import Tensor

from pyro_fed.analysis.predicting.drawing import ModelRun, draw, flat, split_plates
from pyro_fed.analysis.predicting.groups import NEW, Groups, Plate, match
from pyro_fed.analysis.predicting.new_data import (
    check_finite,
    check_shapes,
    encode_arguments,
    first_run,
    given_arguments,
    has_finite_predictions,
)
from pyro_fed.analysis.predicting.own_rows import with_own_latents
from pyro_fed.conventions import seeding
from pyro_fed.conventions.calls import checked, explained
from pyro_fed.density.checks.sites import site_dims
from pyro_fed.density.layout import name_dims
from pyro_fed.density.rows.arguments import Arguments
from pyro_fed.density.running.trace_sites import frame_of
from pyro_fed.errors import DataError, PyroFedError, SettingError, listed, warn_user
from pyro_fed.federation.federation import Federation
from pyro_fed.ops.arviz_versions import group_of
from pyro_fed.results.inference_data import InferenceData
from pyro_fed.results.to_arviz import make_inference_data


@checked
@explained(DataError, "predict: the model cannot be run on these arguments and this posterior")
def predict(
    idata: InferenceData,
    model: Federation | Callable[..., Any],
    args: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    groups: str | Sequence[Any] | None = None,
    seed: int = 0,
) -> InferenceData:
    """Draw observations for new data, or for the training data, from a posterior.

    Args:
        idata: result of `pyro_fed.run`, or any InferenceData with the model's latent sites in `posterior`.
        model: the Pyro model, or the federation that it was fitted on. Latents inside the plate that the result
            lacks are drawn from the federation's rows: at a client, pass a federation of its own rows alone.
        args: the model's arguments for the new data, as in `model(*args)`. The argument for the observations is
            ignored: pass None if the model allows it, else any values of the right shape. Without `args` and `kwargs`
            the training data of the federation are predicted, with the latents inferred for them, so that
            `arviz.plot_ppc` works on the result.
        kwargs: the model's keyword arguments for the new data.
        groups: for a model with latents inside the plate (a hospital's own level), the groups that the new data
            belong to. "known": the fitted groups, in their order. "new": new groups, whose latents are drawn from the
            population. A list: a label for each element of the plate, None for a new group, such as
            `groups=["Dresden", None]`. If the rows say their group by a label, fitted labels are known groups and
            others are new ones, as in `predict(idata, fed, (x_new, ["Dresden", "Ulm"], 2, None))`; otherwise by default
            "known" if the observations are in a plate of their own and there are as many groups as were fitted; for
            other cases see `pyro_fed.analysis.predicting.groups`, which warns if it must guess.
        seed: seed of the draws.

    Returns:
        InferenceData with the group `posterior_predictive`, of draws (chain, draw, ...) under the names of the observed
        sites, and the group `observed_data` if observations were given. `idata.extend(...)` adds them to a result.

    Raises:
        DataError: there are neither arguments nor a federation; the posterior lacks a latent site; the model has no
            observed site; a label was not fitted; new rows have NaN or infinities that the model does not handle.
        SettingError: `groups` was passed without new data, or for a model without latents inside the plate.

    Example:
        >>> pf.predict(idata, fed)["posterior_predictive"]              # the training rows
        >>> pf.predict(idata, model, (x_new, None))["posterior_predictive"]["y"]
        >>> pf.predict(idata, fed, (x_new, hospital_idx, 1, None), groups=["Dresden"])
    """
    return _predicted(idata, model, args, kwargs, groups, seed)


@checked
@explained(DataError, "posterior_epred: the model cannot be run on these arguments and this posterior")
def posterior_epred(
    idata: InferenceData,
    model: Federation | Callable[..., Any],
    args: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    groups: str | Sequence[Any] | None = None,
    seed: int = 0,
) -> InferenceData:
    """Expected observations at each posterior draw: `predict` without the noise of single observations.

    At draw z_s it is E[y | x, z_s], the mean of the observed site's distribution: a probability for a Bernoulli
    outcome, a rate for a count.

    Args:
        idata: as for `predict`.
        model: as for `predict`.
        args: as for `predict`.
        kwargs: as for `predict`.
        groups: as for `predict`.
        seed: seed of the latents of new groups, which are drawn from the population.

    Returns:
        InferenceData with the group `posterior_predictive` of expected observations (chain, draw, ...) under the names
        of the observed sites, and `observed_data` if observations were given.

    Raises:
        DataError: as for `predict`, or an observed site's distribution has no mean.
        SettingError: as for `predict`.

    Example:
        >>> pf.posterior_epred(idata, fed)["posterior_predictive"]["y"].mean(("chain", "draw"))
    """
    return _predicted(idata, model, args, kwargs, groups, seed, expected=True)


def _predicted(
    idata: InferenceData,
    model: Federation | Callable[..., Any],
    args: Any,
    kwargs: Mapping[str, Any] | None,
    groups: str | Sequence[Any] | None,
    seed: int,
    expected: bool = False,
) -> InferenceData:
    """`predict`; with `expected`, the means of the observed sites' distributions."""
    new_rows = args is not None or bool(kwargs)
    if groups is not None and not new_rows:
        raise SettingError(
            f"predict: groups says which groups new data belong to, but received groups={groups!r} without new data: "
            "pass args, or leave groups out"
        )
    posterior, hidden = group_of(idata, "posterior"), frozenset(idata.attrs.get("local_sites", "").split())
    if (
        hidden - set(posterior.data_vars)
        and isinstance(model, Federation)
        and _may_use_row_latents(model, new_rows, groups)
    ):
        posterior = with_own_latents(posterior, model, seed)
    if not new_rows and (missing := sorted(hidden - set(posterior.data_vars))):
        raise DataError(
            f"the latents inside the plate, sites {missing}, were not collected, and the training rows, from which "
            "they could be drawn, are not available: run with collect_local=True, or pass args for new rows"
        )
    args, kwargs = given_arguments(model, args, kwargs)
    function = model.problem.model if isinstance(model, Federation) else model
    kept = dict(model.problem.bound.constants) if isinstance(model, Federation) else None
    latents = {str(name): value for name, value in posterior.data_vars.items() if not new_rows or name not in hidden}
    split = split_plates(model.problem) if isinstance(model, Federation) else None
    plate = model.problem.plate if isinstance(model, Federation) else str(idata.attrs.get("plate", ""))

    def run_on(arguments: Arguments) -> tuple[ModelRun, dict[str, Tensor], dict[str, Any]]:
        dtype = arguments.floating_dtype()
        values = {name: flat(np.asarray(value.values), dtype) for name, value in latents.items()}
        # NumPy arrays and pandas objects as tensors
        run = ModelRun(function, *arguments.call_arguments(), dtype, hidden, kept, split, expected=expected)
        at = {name: value[0] for name, value in values.items()}
        return run, values, _checked_first_run(run, at, arguments, model if new_rows else None)

    arguments, labels = encode_arguments(model, function, args, kwargs, idata)
    made = None
    try:
        made = run_on(arguments)
    except (DataError, RuntimeError, ValueError, IndexError):
        if labels is None:
            raise
    if labels is not None and (made is None or _plate_size(made[2], hidden, plate) != len(labels)):
        # The new data may have only the groups with rows there: the size of the model's plate shows that.
        arguments, labels = encode_arguments(model, function, args, kwargs, idata, present_alone=True)
        made = run_on(arguments)
    run, values, first = cast(tuple[ModelRun, dict[str, Tensor], dict[str, Any]], made)
    found = None
    if new_rows:
        if labels is not None and groups is None and isinstance(model, Federation):
            groups = _groups_of_labels(labels, model, _plate_size(first, hidden, plate))
        found = _fitted_groups(first, posterior, hidden, groups, plate)
        if found is not None and found.is_fitted.any():
            values |= run.keep(first, found, posterior)
    drawn = draw(run, values, seeding.torch_generator(seed, seeding.DRAWS))
    shape = (posterior.sizes["chain"], posterior.sizes["draw"])
    shaped = {name: value.reshape(*shape, *value.shape[1:]) for name, value in drawn.items()}
    known = {} if not new_rows or found is None or found.labels is None else {found.plate.name: found.labels}
    rows = _row_dims(first) if new_rows else frozenset()
    return make_inference_data(datasets(model, first, shaped, rows, known), dict(idata.attrs))


def _groups_of_labels(labels: list[Any], federation: Federation, size: int) -> str | list[Any]:
    """The label of each element of the plate, None for one that was not fitted or has no rows; "new" if all are new."""
    arguments, fitted = federation.problem.arguments, federation.coords[federation.problem.plate]
    if arguments.row_names and labels[: len(fitted)] != list(fitted):
        warn_user(
            f"predict: the groups of the new data are [{listed(labels)}], in this order, and "
            f"{listed(arguments.row_names)} must have their entries in it"
        )
    found = [label if label in fitted else None for label in labels] + [None] * (size - len(labels))
    return found if any(label is not None for label in found) else NEW


def _plate_size(first: dict[str, Any], hidden: Collection[str], plate: str) -> int:
    """The size of the plate of the latents inside it; 0 where there are none."""
    frames = [frame_of(first[name], plate) for name in sorted(hidden & first.keys())]
    return next((int(frame.size) for frame in frames if frame is not None), 0)


def _checked_first_run(run: ModelRun, values: dict[str, Tensor], arguments: Arguments, model: Any) -> dict[str, Any]:
    """The random sites of a run at one draw; an error that new rows (`model` is not None) cause names the argument."""
    try:
        first = first_run(run, values, arguments)
        usable = model is None or has_finite_predictions(first)
    except (RuntimeError, ValueError) as error:
        if model is not None and not isinstance(error, PyroFedError):
            check_shapes(model, arguments, error)
            check_finite(run, values, arguments, error)
        raise
    if not usable:
        check_finite(run, values, arguments, None)
    return first


def _may_use_row_latents(federation: Federation, new_rows: bool, groups: Any) -> bool:
    """Whether the prediction can use latents inside the plate, and the rows to draw them from are here."""
    named = bool(federation.problem.arguments.nested_plates) or federation.problem.plate in federation.coords
    return federation.holds_data and (not new_rows or groups not in (None, NEW) or (groups is None and named))


def _fitted_groups(
    first: dict[str, Any],
    posterior: xr.Dataset,
    hidden: Collection[str],
    groups: str | Sequence[Any] | None,
    plate: str,
) -> Groups | None:
    """The fitted groups that the new data belong to; None if no latent is inside the plate."""
    inside = {name: frame_of(first[name], plate) for name in sorted(hidden & first.keys())}
    frames = {name: frame for name, frame in inside.items() if frame is not None}
    asked = groups not in (None, NEW)
    if not frames:
        if asked:
            raise SettingError(
                f"predict: received groups={groups!r}, but no latent of this model is inside the partitioned plate, "
                "so there are no groups: leave groups out"
            )
        return None
    lacking = sorted(name for name in frames if name not in posterior or plate not in posterior[name].dims)
    if lacking:
        if asked:
            raise DataError(
                f"the posterior has no values of {lacking}, latents inside plate '{plate}', so known groups cannot "
                "be predicted: run with collect_local=True, or pass the federation in place of the model (at a "
                "client, a federation of its own rows)"
            )
        return None
    looked_up = not any(site["redrawn"] and frame_of(site, plate) is not None for site in first.values())
    size = next(iter(frames.values())).size
    return match(groups, Plate(plate, size, looked_up), posterior)


def _row_dims(first: dict[str, Any]) -> frozenset[str]:
    """Plates of the predicted sites. Labels of the training rows do not belong to the new rows in these plates."""
    return frozenset(frame.name for site in first.values() if site["redrawn"] for frame in site["cond_indep_stack"])


def datasets(
    model: Any, sites: dict[str, Any], drawn: dict[str, Tensor], rows: Collection[str], known: Mapping[str, list[Any]]
) -> dict[str, xr.Dataset]:
    """The result's groups, from draws (chain, draw, ...); `rows` are new dimensions, `known` their fitted labels."""
    named, coords = (model.dims, model.coords) if isinstance(model, Federation) else ({}, {})
    coords = {dim: values for dim, values in coords.items() if dim not in rows} | dict(known)
    predicted, observed = {}, {}
    sizes: dict[str, int] = {}
    for name, value in drawn.items():
        dims = name_dims(site_dims(sites[name]), named.get(name, []))
        predicted[name] = (["chain", "draw", *dims], value.cpu().numpy())
        sizes |= dict(zip(["chain", "draw", *dims], value.shape, strict=True))
        if isinstance(sites[name]["given"], Tensor):
            observed[name] = (dims, sites[name]["given"].cpu().numpy())

    def labels(*skip: str) -> dict[str, Any]:
        found = {dim: coords[dim] if len(coords.get(dim, ())) == n else np.arange(n) for dim, n in sizes.items()}
        return {dim: value for dim, value in found.items() if dim not in skip}

    groups = {"posterior_predictive": xr.Dataset(predicted, coords=labels())}
    if observed:
        groups["observed_data"] = xr.Dataset(observed, coords=labels("chain", "draw"))
    return groups


@checked
@explained(DataError, "prior_predict: the model's prior cannot be drawn from")
def prior_predict(federation: Federation, *, num_draws: int = 1000, seed: int = 0) -> InferenceData:
    """Draw parameters and observations from the prior, at the rows of a federation.

    Args:
        federation: the model and its data.
        num_draws: number of draws.
        seed: seed of the draws.

    Returns:
        InferenceData with the groups `prior`, of the latents, and `prior_predictive`, of the observed sites, both of
        draws (chain, draw, ...) with one chain, and `observed_data`. Names, dimensions and coordinates are those of
        a result, so that `idata.extend(...)` adds them to it.

    Raises:
        DataError: a prior that cannot be drawn from, since it is improper or a `pyro.factor`; rows that are not here.
        SettingError: fewer than one draw.

    Example:
        >>> prior = pf.prior_predict(fed)
        >>> az.plot_ppc(prior, group="prior")                   # before the fit
        >>> idata.extend(prior)                                    # prior and posterior side by side
    """
    if num_draws < 1:
        raise SettingError(f"prior_predict: num_draws must be at least 1, received {num_draws}")
    problem = federation.problem
    if not federation.holds_data:
        raise DataError("prior_predict: the rows are at the clients: draw there, from a federation of their own rows")
    args, kwargs = problem.arguments.call_arguments()
    constants, split = dict(problem.bound.constants), split_plates(problem)
    reported = tuple(problem.layout.reported)
    run = ModelRun(problem.model, args, kwargs, problem.dtype, frozenset(), constants, split, reported=reported)
    with torch.random.fork_rng(devices=[]):
        trace, handler = run.trace({})
    factors = [name for name, site in trace.nodes.items() if isinstance(site.get("fn"), Unit)]
    if factors:
        raise DataError(
            f"prior_predict: the sites {listed(factors)} are pyro.factor, numbers from which nothing can be drawn: "
            "write them as distributions, pyro.sample(...)"
        )
    drawn = draw(run, {"": torch.arange(num_draws)}, seeding.torch_generator(seed, seeding.DRAWS))
    sites = {name: {**trace.nodes[name], "given": handler.given.get(name)} for name in drawn}
    groups = datasets(federation, sites, {name: value[None] for name, value in drawn.items()}, frozenset(), {})
    whole = groups.pop("posterior_predictive")
    observed = [name for name in drawn if name in handler.given]
    groups["prior"] = whole[[name for name in drawn if name not in handler.given]]
    groups["prior_predictive"] = whole[observed]
    return make_inference_data(groups, {"plate": problem.plate, "seed": seed})
