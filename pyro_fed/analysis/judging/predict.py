"""Draws of new observations from a posterior.

For each posterior draw z_s the model runs on the given arguments with its latent sites at z_s, and its
observed sites are drawn anew:  y_s ~ p(y | x, z_s).  Over all draws this is the posterior predictive
distribution p(y | x, data), without any approximation of the integral but its finite number of draws. Latents
inside the partitioned plate belong to the rows that they were inferred for; new rows draw theirs from the prior
p(x_new | θ_s). Draws are made together by `vmap`, one by one where the model or a sampler does not allow it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import xarray as xr
from pyro.distributions import Unit
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_fed.conventions import seeding
from pyro_fed.density.checks.sites import site_dims
from pyro_fed.density.compiling.loop_map import loop_map
from pyro_fed.density.layout import name_dims
from pyro_fed.density.rows.arguments import flatten
from pyro_fed.density.running.handlers import run_model
from pyro_fed.density.running.trace_sites import is_deterministic
from pyro_fed.errors import DataError
from pyro_fed.federation.federation import Federation
from pyro_fed.ops.arviz_versions import group_of
from pyro_fed.results.inference_data import InferenceData
from pyro_fed.results.to_arviz import make_inference_data

#: Draws that are mapped in one call: it bounds the memory, and changes no distribution.
DRAWS_AT_ONCE = 256


def predict(
    idata: InferenceData,
    model: Federation | Callable[..., Any],
    args: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    seed: int = 0,
) -> InferenceData:
    """Draw observations for new data, or for the training data, from a posterior.

    Args:
        idata: result of `pyro_fed.run`, or any InferenceData with the model's latent sites in `posterior`.
        model: the Pyro model, or the federation that it was fitted on.
        args: the model's arguments for the new data, as in `model(*args)`; what stands for the observations
            (None where the model allows it, else any values of the right shape) is ignored. Their rows are new, with
            new latents of their own. Left out, with a federation: the training data with the latents inferred
            there, so that `arviz.plot_ppc` works on the answer.
        kwargs: the model's keyword arguments.
        seed: of the draws.

    Returns:
        InferenceData with the group `posterior_predictive`, (chain, draw, ...) under the observed sites'
        names, and `observed_data` where observations were given. `idata.extend(...)` adds them to a result.

    Raises:
        DataError: neither args nor a federation; a latent site that the posterior lacks; nothing to predict.

    Example:
        >>> pf.predict(idata, fed)["posterior_predictive"]              # the training rows
        >>> pf.predict(idata, model, (x_new, None))["posterior_predictive"]["y"]
    """
    posterior, hidden = _posterior(idata, new_rows=args is not None or bool(kwargs))
    args, kwargs = _arguments(model, args, kwargs)
    function = model.problem.model if isinstance(model, Federation) else model
    latents = {str(name): np.asarray(value.values) for name, value in posterior.data_vars.items()}
    shape = next(iter(latents.values())).shape[:2]
    kept = dict(model.problem.bound.constants) if isinstance(model, Federation) else None
    labels = model.problem.arguments.labels if isinstance(model, Federation) else None
    arguments = flatten(function, args, kwargs, labels)
    dtype = arguments.floating_dtype()
    args, kwargs = arguments.whole()  # NumPy arrays and pandas objects as tensors
    values = {name: _flat(value, dtype) for name, value in latents.items()}
    run = _Run(function, args, kwargs, dtype, hidden, kept)
    sites = run.sites({name: value[0] for name, value in values.items()})
    drawn = _draw(run, values, seeding.torch_generator(seed, seeding.DRAWS))
    groups = _groups(model, sites, {name: value.reshape(*shape, *value.shape[1:]) for name, value in drawn.items()})
    return make_inference_data(groups, dict(idata.attrs))


def _flat(value: np.ndarray, dtype: torch.dtype) -> Tensor:
    """Draws (chain, draw, ...) in one row; whole numbers, values of discrete latents, stay what they are."""
    tensor = torch.as_tensor(value.reshape(-1, *value.shape[2:]))
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _posterior(idata: InferenceData, new_rows: bool) -> tuple[xr.Dataset, frozenset[str]]:
    """The posterior, and the latents inside the plate, which it is without for new rows."""
    posterior, hidden = group_of(idata, "posterior"), frozenset(idata.attrs.get("local_sites", "").split())
    if new_rows:
        return posterior.drop_vars(hidden & set(posterior.data_vars)), hidden
    missing = sorted(hidden - set(posterior.data_vars))
    if missing:
        raise DataError(
            f"the latents inside the plate, sites {missing}, were not collected, so that the training rows cannot be "
            "predicted: run with collect_local=True, or pass args for new rows, which draw their own"
        )
    return posterior, hidden


def _arguments(model: Any, args: Any, kwargs: Mapping[str, Any] | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if args is not None or kwargs:
        args = () if args is None else args
        return (tuple(args) if isinstance(args, tuple | list) else (args,)), dict(kwargs or {})
    if isinstance(model, Federation):
        return model.problem.arguments.whole()
    raise DataError("predict needs the model's arguments for the new data, or a Federation, whose own data are taken")


class _Run:
    """The model on fixed arguments, as a function of its latent values."""

    def __init__(
        self,
        model: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        dtype: torch.dtype,
        hidden: frozenset[str] = frozenset(),
        constants: dict[str, Any] | None = None,
    ) -> None:
        self.model, self.args, self.kwargs, self.dtype, self.hidden = model, args, kwargs, dtype, hidden
        self.constants = constants

    def trace(self, values: dict[str, Tensor]) -> tuple[Any, _Redraw]:
        """One run with the latents at `values`."""
        handler = _Redraw(values, self.hidden, self.constants)
        execution = run_model(self.model, self.args, self.kwargs, handler, indices=None, dtype=self.dtype)
        return execution.trace, handler

    def sites(self, values: dict[str, Tensor]) -> dict[str, Any]:
        """The predicted sites' messages, checked.

        Raises:
            DataError: the posterior lacks a latent site, or there is nothing to predict.
        """
        with torch.random.fork_rng(devices=[]):
            trace, handler = self.trace(values)
        if not handler.drawn:
            raise DataError("the model has no observed site on these arguments: there is nothing to predict")
        outside = [name for name in handler.drawn if not trace.nodes[name]["cond_indep_stack"]]
        unknown = [name for name in outside if name not in handler.given]
        if unknown:
            raise DataError(f"the posterior has no values for the latent sites {unknown}; it has {sorted(values)}")
        return {name: {**trace.nodes[name], "given": handler.given.get(name)} for name in handler.drawn}

    def __call__(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        trace, handler = self.trace(values)
        return {name: trace.nodes[name]["value"] for name in handler.drawn}


class _Redraw(Messenger):
    """Put the latents at given values, and draw everything else that is random, observed or not.

    Latents in `hidden` that have no value are drawn, and are no prediction.
    """

    plate = None

    def __init__(self, values: dict[str, Tensor], hidden: frozenset[str], constants: dict[str, Any] | None) -> None:
        super().__init__()
        self.values, self.hidden, self.constants = values, hidden, constants
        self.drawn: list[str] = []
        self.given: dict[str, Any] = {}

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        name = msg["name"]
        if name in self.values and not is_deterministic(msg):
            msg["value"], msg["done"] = self.values[name], True
        elif not is_deterministic(msg) and not isinstance(msg["fn"], Unit):  # a `pyro.factor`
            if msg["is_observed"]:
                self.given[name] = msg["value"]
            msg["value"], msg["done"], msg["is_observed"] = msg["fn"].sample(), True, False
            if name not in self.hidden:
                self.drawn.append(name)


def _draw(run: _Run, values: dict[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
    batched: Callable[..., Any] = torch.vmap(run, randomness="different")
    seed = int(torch.randint(2**62, (), generator=generator))
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        if not _maps(batched, {name: value[:2] for name, value in values.items()}):
            batched = loop_map(run, 0)
        torch.manual_seed(seed)
        count = len(next(iter(values.values())))
        pieces = [
            batched({name: value[i : i + DRAWS_AT_ONCE] for name, value in values.items()})
            for i in range(0, count, DRAWS_AT_ONCE)
        ]
    return {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}


def _maps(batched: Callable[..., Any], values: dict[str, Tensor]) -> bool:
    """Whether `vmap` can draw from the model: some samplers (Student's t) are not made for it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # torch only warns where `vmap` makes a sampler write out of its bounds
            batched(values)
    except (RuntimeError, ValueError, TypeError, UserWarning):
        return False
    return True


def _groups(model: Any, sites: dict[str, Any], drawn: dict[str, Tensor]) -> dict[str, xr.Dataset]:
    named, coords = (model.dims, model.coords) if isinstance(model, Federation) else ({}, {})
    predicted, observed = {}, {}
    sizes: dict[str, int] = {}
    for name, value in drawn.items():
        dims = name_dims(site_dims(sites[name]), named.get(name, []))
        predicted[name] = (["chain", "draw", *dims], value.cpu().numpy())
        sizes |= dict(zip(["chain", "draw", *dims], value.shape, strict=True))
        if isinstance(sites[name]["given"], Tensor):
            observed[name] = (dims, sites[name]["given"].cpu().numpy())

    def labels(*skip: str) -> dict[str, Any]:
        known = {dim: coords[dim] if len(coords.get(dim, ())) == n else np.arange(n) for dim, n in sizes.items()}
        return {dim: value for dim, value in known.items() if dim not in skip}

    groups = {"posterior_predictive": xr.Dataset(predicted, coords=labels())}
    if observed:
        groups["observed_data"] = xr.Dataset(observed, coords=labels("chain", "draw"))
    return groups
