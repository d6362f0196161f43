"""Draws of new observations from a posterior.

For each posterior draw z_s the model runs on the given arguments with its latent sites at z_s, and its
observed sites are drawn anew:  y_s ~ p(y | x, z_s).  Over all draws this is the posterior predictive
distribution p(y | x, data), without any approximation of the integral but its finite number of draws. Latents
inside the partitioned plate belong to the groups that they were inferred for: new data of such a group take its draws
x_s, so that y_s ~ p(y | x, x_s, θ_s); other groups draw theirs from the prior p(x_new | θ_s) (see `groups`).

    new_data    the arguments of the new data, and what is said where the model fails on them
    groups      which groups of the new data were fitted
    own_rows    a client's own rows, with its own latents
    drawing     the model run at posterior draws
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from torch import Tensor

from pyro_fed.analysis.predicting.drawing import ModelRun, draw, flat, split_plates
from pyro_fed.analysis.predicting.finite import predicted
from pyro_fed.analysis.predicting.groups import NEW, Groups, Plate, match
from pyro_fed.analysis.predicting.new_data import check_finite, check_shapes, coded, first_run, given_arguments
from pyro_fed.analysis.predicting.own_rows import with_own_latents
from pyro_fed.conventions import seeding
from pyro_fed.conventions.calls import checked, explained
from pyro_fed.density.checks.sites import site_dims
from pyro_fed.density.layout import name_dims
from pyro_fed.density.running.trace_sites import frame_of
from pyro_fed.errors import DataError, PyroFedError, SettingError
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
            lacks are drawn here, from the federation's rows: at a client, pass a federation of its own rows alone.
        args: the model's arguments for the new data, as in `model(*args)`; what stands for the observations
            (None where the model allows it, else any values of the right shape) is ignored. Left out, with a
            federation: the training data with the latents inferred there, so that `arviz.plot_ppc` works on the
            answer.
        kwargs: the model's keyword arguments.
        groups: whose the new data are, where latents belong to the elements of a plate (a hospital's own level):
            "known", the fitted groups in their order; "new", others, whose effects the population says; or a label
            for each element, such as `groups=["Dresden", None]`, None for a new one. By default "known" where
            observations look their group up by its number and there are as many groups as were fitted; else see
            `pyro_fed.analysis.predicting.groups`, which warns where that is a guess.
        seed: of the draws.

    Returns:
        InferenceData with the group `posterior_predictive`, (chain, draw, ...) under the observed sites'
        names, and `observed_data` where observations were given. `idata.extend(...)` adds them to a result.

    Raises:
        DataError: neither args nor a federation; a latent site that the posterior lacks; nothing to predict; groups
            that were not fitted; new rows with NaN or infinities that the model does not handle.
        SettingError: `groups` that mean nothing here.

    Example:
        >>> pf.predict(idata, fed)["posterior_predictive"]              # the training rows
        >>> pf.predict(idata, model, (x_new, None))["posterior_predictive"]["y"]
        >>> pf.predict(idata, fed, (x_new, hospital_idx, 1, None), groups=["Dresden"])
    """
    new_rows = args is not None or bool(kwargs)
    if groups is not None and not new_rows:
        raise SettingError("predict: groups says whose new data are, and there are none: pass args, or leave it out")
    posterior, hidden = group_of(idata, "posterior"), frozenset(idata.attrs.get("local_sites", "").split())
    if hidden - set(posterior.data_vars) and isinstance(model, Federation) and _wanted(model, new_rows, groups):
        posterior = with_own_latents(posterior, model, seed)
    if not new_rows and (missing := sorted(hidden - set(posterior.data_vars))):
        raise DataError(
            f"the latents inside the plate, sites {missing}, were not collected, so that the training rows cannot be "
            "predicted where these are not: run with collect_local=True, or pass args for new rows"
        )
    args, kwargs = given_arguments(model, args, kwargs)
    function = model.problem.model if isinstance(model, Federation) else model
    kept = dict(model.problem.bound.constants) if isinstance(model, Federation) else None
    arguments = coded(model, function, args, kwargs, idata)
    dtype = arguments.floating_dtype()
    args, kwargs = arguments.whole()  # NumPy arrays and pandas objects as tensors
    latents = {str(name): value for name, value in posterior.data_vars.items() if not new_rows or name not in hidden}
    values = {name: flat(np.asarray(value.values), dtype) for name, value in latents.items()}
    split = split_plates(model.problem) if isinstance(model, Federation) else None
    run = ModelRun(function, args, kwargs, dtype, hidden, kept, split)
    at_first = {name: value[0] for name, value in values.items()}
    try:
        first = first_run(run, at_first, arguments)
        usable = predicted(first) if new_rows else True
    except (RuntimeError, ValueError) as error:
        if new_rows and not isinstance(error, PyroFedError):
            check_shapes(model, arguments, error)
            check_finite(run, at_first, arguments, error)
        raise
    if not usable:
        check_finite(run, at_first, arguments, None)
    found = None
    if new_rows:
        plate = model.problem.plate if isinstance(model, Federation) else str(idata.attrs.get("plate", ""))
        found = _matched(first, posterior, hidden, groups, plate)
        if found is not None and found.known.any():
            values |= run.keep(first, found, posterior)
    drawn = draw(run, values, seeding.torch_generator(seed, seeding.DRAWS))
    shape = (posterior.sizes["chain"], posterior.sizes["draw"])
    shaped = {name: value.reshape(*shape, *value.shape[1:]) for name, value in drawn.items()}
    known = {} if not new_rows or found is None or found.labels is None else {found.plate.name: found.labels}
    rows = _row_dims(first) if new_rows else frozenset()
    return make_inference_data(_groups(model, first, shaped, rows, known), dict(idata.attrs))


def _wanted(federation: Federation, new_rows: bool, groups: Any) -> bool:
    """Whether the latents inside the plate are worth drawing, from rows that are here."""
    named = bool(federation.problem.arguments.nested_plates) or federation.problem.plate in federation.coords
    return federation.holds_data and (not new_rows or groups not in (None, NEW) or (groups is None and named))


def _matched(
    first: dict[str, Any],
    posterior: xr.Dataset,
    hidden: Collection[str],
    groups: str | Sequence[Any] | None,
    plate: str,
) -> Groups | None:
    """Which fitted groups the new data have; None where no latent belongs to one.

    Args:
        first: the sites of a run on the new data.
        posterior: with the latents inside the plate, if there are any to be had.
        hidden: their names.
        groups: the user's word.
        plate: the partitioned plate's name.

    Raises:
        DataError: the user names groups, but the posterior has no latents of theirs.
        SettingError: the user names groups, but the model has none.
    """
    inside = {name: frame_of(first[name], plate) for name in sorted(hidden & first.keys())}
    frames = {name: frame for name, frame in inside.items() if frame is not None}
    asked = groups not in (None, NEW)
    if not frames:
        if asked:
            raise SettingError(
                "predict: groups says whose new data are, but no latent of this model is inside the partitioned plate: "
                "every effect is in the posterior already. Leave it out"
            )
        return None
    lacking = sorted(name for name in frames if name not in posterior or plate not in posterior[name].dims)
    if lacking:
        if asked:
            raise DataError(
                f"the posterior has no values of {lacking}, latents inside plate '{plate}', so that known groups "
                "cannot be predicted: run with collect_local=True, or pass the federation in place of the model, at "
                "a client that of its own rows"
            )
        return None
    looked_up = not any(site["redrawn"] and frame_of(site, plate) is not None for site in first.values())
    size = next(iter(frames.values())).size
    return match(groups, Plate(plate, size, looked_up), posterior)


def _row_dims(first: dict[str, Any]) -> frozenset[str]:
    """Plates of the predicted sites: the new data's rows are no training rows, whatever those were called."""
    return frozenset(frame.name for site in first.values() if site["redrawn"] for frame in site["cond_indep_stack"])


def _groups(
    model: Any, sites: dict[str, Any], drawn: dict[str, Tensor], rows: Collection[str], known: Mapping[str, list[Any]]
) -> dict[str, xr.Dataset]:
    """The groups of the answer.

    Args:
        model: as given to `predict`.
        sites: of a run on the arguments.
        drawn: the predictions, (chain, draw, ...).
        rows: dimensions that the federation's labels do not belong to, since their rows are others.
        known: labels of those that do after all.
    """
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
