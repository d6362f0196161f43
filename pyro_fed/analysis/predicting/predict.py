"""Draws of new observations from a posterior.

For each posterior draw z_s the model runs on the given arguments with its latent sites at z_s, and its
observed sites are drawn anew:  y_s ~ p(y | x, z_s).  Over all draws this is the posterior predictive
distribution p(y | x, data), without any approximation of the integral but its finite number of draws. Latents
inside the partitioned plate belong to the groups that they were inferred for: new data of such a group take its draws
x_s, so that y_s ~ p(y | x, x_s, θ_s); other groups draw theirs from the prior p(x_new | θ_s) (see `groups`). Draws are
made together by `vmap`, one by one where the model or a sampler does not allow it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import xarray as xr
from pyro.distributions import Unit
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_fed.analysis.predicting.finite import not_finite, predicted
from pyro_fed.analysis.predicting.groups import NEW, Groups, Plate, match
from pyro_fed.conventions import seeding
from pyro_fed.conventions.calls import checked, explained
from pyro_fed.density.checks.blame import line_of
from pyro_fed.density.checks.sites import site_dims
from pyro_fed.density.compiling.batched import vmap
from pyro_fed.density.compiling.compiler import threads
from pyro_fed.density.compiling.loop_map import loop_map
from pyro_fed.density.layout import name_dims
from pyro_fed.density.rows.arguments import Arguments, flatten, parameter_names, with_held
from pyro_fed.density.rows.leaves import UnknownLabelError
from pyro_fed.density.rows.nested import Members, NestedRows
from pyro_fed.density.running.handlers import default_of, run_model
from pyro_fed.density.running.trace_sites import frame_of, is_deterministic, row_axis
from pyro_fed.errors import DataError, PyroFedError, SettingError, listed
from pyro_fed.federation.federation import Federation
from pyro_fed.ops.arviz_versions import group_of
from pyro_fed.results.inference_data import InferenceData
from pyro_fed.results.to_arviz import labels_in, make_inference_data, posterior_group, unconstrained_draws
from pyro_fed.runtime.ending.collecting import collected

#: Draws that are mapped in one call: it bounds the memory, and changes no distribution.
DRAWS_AT_ONCE = 256


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
    args, kwargs = _arguments(model, args, kwargs)
    function = model.problem.model if isinstance(model, Federation) else model
    kept = dict(model.problem.bound.constants) if isinstance(model, Federation) else None
    arguments = _flattened(model, function, args, kwargs, idata)
    dtype = arguments.floating_dtype()
    args, kwargs = arguments.whole()  # NumPy arrays and pandas objects as tensors
    latents = {str(name): value for name, value in posterior.data_vars.items() if not new_rows or name not in hidden}
    values = {name: _flat(np.asarray(value.values), dtype) for name, value in latents.items()}
    run = _Run(function, args, kwargs, dtype, hidden, kept)
    at_first = {name: value[0] for name, value in values.items()}
    try:
        first = _first(run, at_first, arguments)
        usable = predicted(first) if new_rows else True
    except (RuntimeError, ValueError) as error:
        if new_rows and not isinstance(error, PyroFedError):
            _check_shapes(model, arguments, error)
            _check_finite(run, at_first, arguments, error)
        raise
    if not usable:
        _check_finite(run, at_first, arguments, None)
    found = None
    if new_rows:
        plate = model.problem.plate if isinstance(model, Federation) else str(idata.attrs.get("plate", ""))
        found = _matched(first, posterior, hidden, groups, plate)
        if found is not None and found.known.any():
            values |= run.keep(first, found, posterior)
    drawn = _draw(run, values, seeding.torch_generator(seed, seeding.DRAWS))
    shape = (posterior.sizes["chain"], posterior.sizes["draw"])
    shaped = {name: value.reshape(*shape, *value.shape[1:]) for name, value in drawn.items()}
    known = {} if not new_rows or found is None or found.labels is None else {found.plate.name: found.labels}
    rows = _row_dims(first) if new_rows else frozenset()
    return make_inference_data(_groups(model, first, shaped, rows, known), dict(idata.attrs))


def _flat(value: np.ndarray, dtype: torch.dtype) -> Tensor:
    """Draws (chain, draw, ...) in one row; whole numbers, values of discrete latents, stay what they are."""
    tensor = torch.as_tensor(value.reshape(-1, *value.shape[2:]))
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _wanted(federation: Federation, new_rows: bool, groups: Any) -> bool:
    """Whether the latents inside the plate are worth drawing, from rows that are here."""
    named = bool(federation.problem.arguments.nested_plates) or federation.problem.plate in federation.coords
    return federation.holds_data and (not new_rows or groups not in (None, NEW) or (groups is None and named))


def with_own_latents(posterior: xr.Dataset, federation: Federation, seed: int) -> xr.Dataset:
    """A posterior with the latents inside the plate, drawn where the rows are.

    Args:
        posterior: with all sites outside the plate.
        federation: the model with the rows, of one client or of all.
        seed: of the draws.

    Raises:
        DataError: a site that is missing.
    """
    problem = federation.problem
    missing = [name for name in problem.sites if name not in posterior]
    if missing:
        raise DataError(
            f"the posterior has no values for the latent sites {missing}; it has {sorted(map(str, posterior))}"
        )
    with threads(1), torch.no_grad(), default_of(problem.dtype):
        draws = unconstrained_draws({"posterior": posterior}, problem)
        draws = draws.unflatten(0, (posterior.sizes["chain"], posterior.sizes["draw"]))
        if problem.local_dim:
            notes: list[str] = []
            federation, problem, draws = collected(federation, problem, draws, seed, notes)
            for note in notes:
                warnings.warn(note, UserWarning, stacklevel=4)
        return posterior_group(federation, problem, draws, seed)


class Here(NamedTuple):
    """The rows at hand, where the model may say how many they are by a number of all rows.

    Args:
        plate: the partitioned one.
        indices: what it yields, (m,).
        members: the rows of nested plates, by plate.
    """

    plate: str
    indices: Tensor
    members: Mapping[str, Members]


#: Draws of a client's observations (S, ...) by site, from a generator, and what it has observed.
OwnRows = Callable[[torch.Generator], tuple[dict[str, Tensor], dict[str, Tensor]]]


def own_rows(idata: InferenceData, federation: Federation) -> list[OwnRows | None]:
    """For each client, what replicates its own rows with its own effects; None for one without rows.

    Args:
        idata: a result on the federation.
        federation: with the rows.

    Raises:
        DataError: a latent site that the posterior lacks.
    """
    posterior, hidden = group_of(idata, "posterior"), frozenset(idata.attrs.get("local_sites", "").split())
    if hidden - set(posterior.data_vars):
        posterior = with_own_latents(posterior, federation, 0)
    return [
        _own(posterior, hidden, federation, k) if len(rows) else None for k, rows in enumerate(federation.client_rows)
    ]


def _own(posterior: xr.Dataset, hidden: frozenset[str], federation: Federation, client: int) -> OwnRows | None:
    """The same of one client; None where its groups have no rows."""
    problem, groups = federation.problem, federation.client_rows[client]
    arguments = problem.arguments.dealt([groups])
    places = {problem.plate: groups} | {part: arguments.rows_of(part, groups) for part in arguments.nested_plates}
    if not sum(len(places[part]) for part in arguments.nested_plates or (problem.plate,)):
        return None
    ones = torch.ones(len(groups))
    rows = [leaf.packed(groups, ones) if isinstance(leaf, NestedRows) else leaf[groups] for leaf in arguments.rows]
    args, kwargs = arguments.rebuild(rows)
    values = {}
    for name, value in posterior.data_vars.items():
        at = {dim: index.numpy() for dim, index in places.items() if dim in value.dims}
        values[str(name)] = _flat(np.asarray(value.isel(at).values), problem.dtype)
    here = Here(problem.plate, torch.arange(len(groups)) if rows else groups, arguments.members(rows))

    def draw(generator: torch.Generator) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        run = _Run(problem.model, args, kwargs, problem.dtype, hidden, dict(problem.bound.constants), here)
        first = run.first({name: value[0] for name, value in values.items()})
        given = {name: site["given"] for name, site in first.items() if isinstance(site["given"], Tensor)}
        return {name: value for name, value in _draw(run, values, generator).items() if name in given}, given

    return draw


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


def _flattened(
    model: Federation | Callable[..., Any],
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    idata: InferenceData,
) -> Arguments:
    """The new arguments, text and categories coded as they were when the model was fitted.

    Raises:
        DataError: labels that were not fitted, or text where it is not known which codes it had.
    """
    fitted = model.problem.arguments if isinstance(model, Federation) else None
    known = labels_in(idata) or {} if fitted is None else fitted.labels
    owners: set[str] = set()
    if fitted is not None:
        owners = {owner for owner, *_ in fitted.nested_by_name.values()}
        split = owners | {name for name, _, _ in fitted.columns}
        named = zip(parameter_names(function, len(args)), args, strict=True)
        # A list of one is a column too, where rows are known to be.
        args = tuple(np.asarray(arg, object) if isinstance(arg, list) and name in split else arg for name, arg in named)
    try:
        arguments = flatten(function, args, kwargs, known)
    except UnknownLabelError as error:
        if error.argument not in owners:
            raise
        raise DataError(
            f"{error}. For groups that were not fitted pass numbers from 0 in place of the labels, as many groups as "
            f"there are, and say which they are: groups='new', or a label for each, such as "
            f"groups=[{listed(map(repr, known[error.argument][:1]))}, None], None for a new one"
        ) from error
    if fitted is not None:
        _check_rows(arguments, fitted)
    unknown = sorted(set(arguments.labels) - set(known))
    if fitted is None and unknown:
        raise DataError(
            f"argument '{unknown[0]}' is text or a category, and this result does not say which codes it had when the "
            "model was fitted: pass the federation in place of the model, predict(idata, fed, ...), or the codes"
        )
    return arguments


def _check_rows(arguments: Arguments, fitted: Arguments) -> None:
    """Refuse rows of other dimensions than those that were fitted: one row that was taken out is a column of its own.

    Raises:
        DataError: names the argument, and what was received.
    """
    columns = {name: leaf for name, _, leaf in fitted.columns}
    for name, leaf in zip(arguments.names, arguments.leaves, strict=True):
        before = columns.get(name)
        if isinstance(leaf, Tensor) and before is not None and leaf.dim() < before.dim():
            raise DataError(
                f"predict: argument '{name}' has the shape {tuple(leaf.shape)}, expected rows of the shape "
                f"{tuple(before.shape[1:])}, one after the other: a single row is {name}[:1], not {name}[0]"
            )


def _first(run: _Run, values: dict[str, Tensor], arguments: Arguments) -> dict[str, Any]:
    """The first run, whose failures are said with what is likely to cause them.

    Raises:
        DataError: the model cannot be run on these arguments.
    """
    named = list(zip(arguments.names, arguments.leaves, strict=True))
    try:
        return run.first(values)
    except ZeroDivisionError as error:  # a plate of no size
        empty = [name for name, leaf in named if 0 in np.shape(leaf)]
        if not empty:
            raise
        raise DataError(f"predict: there are no rows in {listed(empty)}; nothing can be predicted") from error
    except (TypeError, AttributeError) as error:
        nothing = [name for name, leaf in named if leaf is None]
        if not nothing or "NoneType" not in str(error):
            raise
        rows = next((name for name, leaf in named if np.ndim(leaf)), "x")
        raise DataError(
            f"predict: the model cannot do without {listed(nothing)}, which is None{line_of(error)}: {error}. A "
            f"plate's size may be taken from an argument that is given, such as len({rows}); or pass any values of the "
            "right shape in place of None: what is observed is drawn anew"
        ) from error
    except IndexError as error:
        coded = {name: len(labels) for name, labels in arguments.labels.items()}
        if not coded:
            raise
        sizes = listed(f"'{name}' by 0 to {size - 1}" for name, size in coded.items())
        raise DataError(
            f"predict: a code is beyond the sizes of the new data{line_of(error)}: {error}. Text and categories are "
            f"coded as they were when the model was fitted, {sizes}: give the model as many elements as were fitted, "
            "or pass numbers from 0 in place of the labels, and say by groups= whose they are"
        ) from error


def _check_shapes(model: Any, arguments: Arguments, cause: Exception) -> None:
    """Say which argument has another shape than at the fit, where the model cannot be run on the new rows.

    Raises:
        DataError: names the argument and both shapes.
    """
    if not isinstance(model, Federation):
        return
    fitted = model.problem.bound.arguments
    before = dict(zip(fitted.names, fitted.leaves, strict=True))
    for name, leaf in zip(arguments.names, arguments.leaves, strict=True):
        known = before.get(name)
        if not isinstance(leaf, Tensor) or not isinstance(known, Tensor) or leaf.shape[1:] == known.shape[1:]:
            continue
        raise DataError(
            f"predict: argument '{name}' has shape {tuple(leaf.shape)}, but had {tuple(known.shape)} when the model "
            "was fitted: only the number of rows may differ. The model fails on it: "
            f"{type(cause).__name__}: {str(cause).splitlines()[0] if str(cause) else ''}"
        ) from cause


def _check_finite(run: _Run, values: dict[str, Tensor], arguments: Arguments, cause: Exception | None) -> None:
    """Refuse new rows that are not finite, where the model cannot be run on them or predicts what is not.

    Raises:
        DataError: names the argument and the row.
    """

    def works(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        try:
            return predicted(run.on(args, kwargs).first(values))
        except (RuntimeError, ValueError):
            return False

    if said := not_finite(arguments, works):
        raise said from cause


def _row_dims(first: dict[str, Any]) -> frozenset[str]:
    """Plates of the predicted sites: the new data's rows are no training rows, whatever those were called."""
    return frozenset(frame.name for site in first.values() if site["redrawn"] for frame in site["cond_indep_stack"])


def _arguments(model: Any, args: Any, kwargs: Mapping[str, Any] | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if args is not None or kwargs:
        args = () if args is None else args
        args = tuple(args) if isinstance(args, tuple | list) else (args,)
        if isinstance(model, Federation):  # what `functools.partial` held is no part of its model
            kwargs = with_held(model.problem.arguments, model.problem.model, args, kwargs)
        return args, dict(kwargs or {})
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
        here: Here | None = None,
    ) -> None:
        self.model, self.args, self.kwargs, self.dtype, self.hidden = model, args, kwargs, dtype, hidden
        self.constants, self.here = constants, here
        self.partly: dict[str, Tensor] = {}

    def on(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Run:
        """The same on other arguments."""
        return _Run(self.model, args, kwargs, self.dtype, self.hidden, self.constants, self.here)

    def trace(self, values: dict[str, Tensor]) -> tuple[Any, _Redraw]:
        """One run with the latents at `values`."""
        handler = _Redraw(values, self.hidden, self.constants, self.partly)
        options: dict[str, Any] = {"indices": None}
        if self.here is not None:
            handler.plate = self.here.plate
            options = {"indices": self.here.indices, "members": self.here.members}
        execution = run_model(self.model, self.args, self.kwargs, handler, dtype=self.dtype, **options)
        return execution.trace, handler

    def first(self, values: dict[str, Tensor]) -> dict[str, Any]:
        """The random sites' messages, checked; `redrawn` says which of them are predicted.

        Raises:
            DataError: the posterior lacks a latent site, or there is nothing to predict.
        """
        with torch.random.fork_rng(devices=[]):
            trace, handler = self.trace(values)
        if not handler.drawn:
            factors = [name for name, site in trace.nodes.items() if isinstance(site.get("fn"), Unit)]
            raise DataError(
                "the model has no observed site on these arguments: there is nothing to predict"
                + (
                    f". Its likelihood is pyro.factor('{factors[0]}', ...), a number that nothing can be drawn from: "
                    "write it as a distribution, pyro.sample(..., obs=y)"
                    if factors
                    else ""
                )
            )
        outside = [name for name in handler.drawn if not trace.nodes[name]["cond_indep_stack"]]
        unknown = [name for name in outside if name not in handler.given]
        if unknown:
            raise DataError(f"the posterior has no values for the latent sites {unknown}; it has {sorted(values)}")
        names = [*handler.drawn, *(name for name in self.hidden if name in trace.nodes)]
        return {
            name: {**trace.nodes[name], "given": handler.given.get(name), "redrawn": name in handler.drawn}
            for name in names
        }

    def keep(self, first: dict[str, Any], groups: Groups, posterior: xr.Dataset) -> dict[str, Tensor]:
        """The known groups' values (S, ...) of the latents inside the plate, which later runs take from now on.

        Args:
            first: the sites of a run on the new data.
            groups: which of the plate's elements are known.
            posterior: with these latents.

        Raises:
            DataError: a latent has another shape in the posterior.
        """
        found = {}
        for name in sorted(self.hidden & first.keys()):
            axis = row_axis(first[name], groups.plate.name)
            if axis is None:
                continue
            value = first[name]["value"]
            kept, mask = groups.of(posterior[name], axis - value.dim())
            if kept.shape[2:] != value.shape:
                raise DataError(
                    f"latent site '{name}' has the shape {tuple(value.shape)} on the new data, and that of the fitted "
                    f"groups would be {tuple(kept.shape[2:])}: was the posterior fitted on another model?"
                )
            found[name] = _flat(kept.numpy(), self.dtype)
            if not bool(mask.all()):
                self.partly[name] = mask
        return found

    def __call__(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        trace, handler = self.trace(values)
        return {name: trace.nodes[name]["value"] for name in handler.drawn}


class _Redraw(Messenger):
    """Put the latents at given values, and draw everything else that is random, observed or not.

    Latents in `hidden` that have no value are drawn, and are no prediction; those in `partly` have values where its
    mask says so, and are drawn elsewhere.
    """

    plate: str | None = None

    def __init__(
        self,
        values: dict[str, Tensor],
        hidden: frozenset[str],
        constants: dict[str, Any] | None,
        partly: Mapping[str, Tensor],
    ) -> None:
        super().__init__()
        self.values, self.hidden, self.constants, self.partly = values, hidden, constants, partly
        self.drawn: list[str] = []
        self.given: dict[str, Any] = {}

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        name = msg["name"]
        if name in self.values and not is_deterministic(msg):
            value, mask = self.values[name], self.partly.get(name)
            msg["value"], msg["done"] = value if mask is None else torch.where(mask, value, msg["fn"].sample()), True
        elif not is_deterministic(msg) and not isinstance(msg["fn"], Unit):  # a `pyro.factor`
            if msg["is_observed"]:
                self.given[name] = msg["value"]
            msg["value"], msg["done"], msg["is_observed"] = msg["fn"].sample(), True, False
            if name not in self.hidden:
                self.drawn.append(name)


def _draw(run: _Run, values: dict[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
    batched: Callable[..., Any] = vmap(run, randomness="different")
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
