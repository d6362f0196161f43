"""The sites of a Pyro model, from its first run with Pyro's validation."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_fed.density.bound import BoundModel
from pyro_fed.density.checks.first_run import FirstRun
from pyro_fed.density.checks.plates import check_followers, check_plate_size, size_of_plate
from pyro_fed.density.edges import check_moving_supports, moving_support, values_at_an_end
from pyro_fed.density.latents.discrete import is_discrete
from pyro_fed.density.layout import Layout, Site
from pyro_fed.density.rows.arguments import Arguments
from pyro_fed.density.running.trace_sites import (
    Message,
    frame_of,
    innermost,
    is_deterministic,
    is_improper,
    is_imputed,
    is_reported,
    plate_of,
    row_axis,
)
from pyro_fed.errors import DataError, ModelError, listed

#: Names of the dimensions of every result.
RESULT_DIMS = ("chain", "draw")


class OutsideSupportError(DataError):
    """Data outside a likelihood's support; `row` is the first such row, if known."""

    def __init__(self, message: str, row: int | None) -> None:
        super().__init__(message)
        self.row = row


def describe(bound: BoundModel, initial_run: FirstRun, whole: Mapping[str, int] | None = None) -> Layout:
    """List the sites of a model's first run; `whole` has the sizes of split plates that declare rows of others too."""
    execution = initial_run.execution
    _check_names(execution.trace, execution.plates)
    shapes = {name: tuple(value.shape) for name, value in initial_run.point.items()}
    _check_plate(bound, execution.plates, execution.trace, whole or {})
    if len(execution.plates) > 1 and _has_latents_inside(execution.trace, bound.plate):
        check_followers(bound, execution.filler.plates)
    _check_priors(execution.trace)
    _check_observed(bound, initial_run)
    check_moving_supports(bound, initial_run)
    layout = _layout(execution.trace, shapes, execution.filler.plates)
    if not layout.reported or not (layout.local or layout.discrete):
        return layout
    last_values = {name: execution.trace.nodes[name]["fn"].enumerate_support()[-1] for name in layout.discrete}
    values_before = _deterministic_values(bound, layout, initial_run.point, (), {})
    on_local = _changed_sites(values_before, _deterministic_values(bound, layout, initial_run.point, layout.local, {}))
    on_discrete = _changed_sites(
        values_before, _deterministic_values(bound, layout, initial_run.point, (), last_values)
    )
    return replace(layout, depends_on_local=on_local, depends_on_discrete=on_discrete)


def _check_names(trace: Any, plates: Collection[str]) -> None:
    """Refuse names of sites and plates that results cannot have, as dimensions or in files."""
    for plate in plates:
        if plate in RESULT_DIMS:
            raise ModelError(f"plate {plate!r}: a result has a dimension of that name; rename the plate")
        if plate in trace.nodes:
            raise ModelError(f"plate {plate!r} has the name of a site, which Pyro refuses: rename one of them")
    for name, msg in trace.nodes.items():
        if msg["type"] == "sample" and (name in RESULT_DIMS or not name.strip(" .")):
            why = "a result has a dimension of that name" if name in RESULT_DIMS else "no file of a result can have it"
            raise ModelError(f"site {name!r}: {why}; rename it in its `pyro.sample`")


def _has_latents_inside(trace: Any, plate: str) -> bool:
    return any(
        msg["type"] == "sample"
        and not msg["is_observed"]
        and not is_deterministic(msg)
        and frame_of(msg, plate) is not None
        for msg in trace.nodes.values()
    )


def _deterministic_values(
    bound: BoundModel,
    layout: Layout,
    point: Mapping[str, Tensor],
    shifted: Collection[str],
    discrete: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Values of the deterministic sites near the point: some latents shifted by one, discrete ones at given values."""

    def source(msg: Message, _transform: Any) -> Tensor:
        return point[msg["name"]] + float(msg["name"] in shifted)

    trace = bound.execute(source, bound.all_rows, discrete=discrete).trace
    return {name: trace.nodes[name]["value"].nan_to_num() for name in layout.reported}


def _changed_sites(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> frozenset[str]:
    return frozenset(name for name, value in before.items() if not value.equal(after[name]))


def _layout(trace: Any, shapes: dict[str, tuple[int, ...]], plates: tuple[str, ...]) -> Layout:
    messages = {
        name: msg for name, msg in trace.nodes.items() if msg["type"] == "sample" and not is_imputed(msg, plates)
    }
    sites_by_kind: dict[str, dict[str, Site]] = {
        kind: {} for kind in ("latent", "local", "discrete", "reported", "observed")
    }
    for name, msg in messages.items():
        kind = _kind(msg, trace, shapes, plates)
        if kind is not None:
            sites_by_kind[kind][name] = _site(msg, shapes.get(name, ()), plates[0])
    latents = [name for name in messages if name in shapes]
    for name in latents:
        _check_nested(messages[name], plates)
    _check_not_empty(sites_by_kind["latent"], sites_by_kind["local"], sites_by_kind["observed"], plates[0])
    frames = [f.dim for msg in trace.nodes.values() for f in msg.get("cond_indep_stack", ()) if f.dim is not None]
    return Layout(
        _with_starts(sites_by_kind["latent"], lambda site: site.size),
        _with_starts(sites_by_kind["local"], lambda site: site.row_size),
        sites_by_kind["reported"],
        sites_by_kind["observed"],
        frozenset(name for name in sites_by_kind["observed"] if isinstance(messages[name]["fn"], dist.Unit)),
        frozenset(name for name in latents if is_improper(messages[name]["fn"])),
        plates[0],
        discrete=sites_by_kind["discrete"],
        nesting=max((-dim for dim in frames), default=1),
    )


def _kind(msg: Message, trace: Any, latents: Collection[str], plates: tuple[str, ...]) -> str | None:
    """The name of a site's dictionary in the layout; None if it has none."""
    if msg["name"] in latents:
        return "latent" if row_axis(msg, plates[0]) is None else "local"
    if not msg["is_observed"] and is_discrete(msg):
        return "discrete"
    if is_reported(msg):  # the joined values of `obs_mask` are data, not an estimate
        return None if f"{msg['name']}_unobserved" in trace.nodes else "reported"
    return "observed" if plate_of(msg, plates) is not None else None


def _site(msg: Message, unconstrained_shape: tuple[int, ...], plate: str) -> Site:
    axis = row_axis(msg, plate) if unconstrained_shape else None
    shape, event_dim = tuple(msg["value"].shape), msg["fn"].event_dim
    return Site(msg["name"], shape, site_dims(msg), unconstrained_shape, axis=axis, event_dim=event_dim)


def _with_starts(sites: dict[str, Site], size: Callable[[Site], int]) -> dict[str, Site]:
    """The sites with their places in a flat vector."""
    starts = itertools.accumulate((size(site) for site in sites.values()), initial=0)
    return {name: replace(site, start=start) for (name, site), start in zip(sites.items(), starts, strict=False)}


def site_dims(msg: Message) -> tuple[str, ...]:
    """A name for each dimension of a site's value: its plate's name, or a number as ArviZ assigns it."""
    shape, event_dim = tuple(msg["value"].shape), msg["fn"].event_dim
    names = [f"{msg['name']}_dim_{i}" for i in range(len(shape))]
    for frame in msg["cond_indep_stack"]:
        axis = len(shape) - event_dim + (frame.dim or 0)
        if axis < 0 and frame.size in shape and is_deterministic(msg):
            axis = shape.index(frame.size)  # pyro.deterministic takes all dimensions for event dimensions by default
        if frame.dim is not None and axis >= 0:
            names[axis] = frame.name
    return tuple(names)


def _check_nested(msg: Message, plates: tuple[str, ...]) -> None:
    nested = plate_of(msg, plates[1:])
    if nested is not None and plate_of(msg, plates[:1]) is None:
        raise ModelError(
            f"latent site '{msg['name']}' is inside plate '{nested}', whose rows follow plate '{plates[0]}': latents "
            f"may have one value an element of '{plates[0]}'. Integrate '{msg['name']}' out of the likelihood, or "
            f"partition over '{nested}' alone"
        )


def _check_not_empty(latents: dict[str, Site], local: dict[str, Site], observed: dict[str, Site], plate: str) -> None:
    if not observed:
        instead = f" (it contains the latent sites {sorted(local)})" if local else ""
        raise ModelError(
            f"plate '{plate}' contains no observed site{instead}: put the likelihood, `pyro.sample(..., obs=y)` or "
            f"`pyro.factor`, inside `with pyro.plate('{plate}', len(y)):`"
        )
    if not latents:
        where = f" outside plate '{plate}', shared by all clients" if local else ""
        raise ModelError(
            f"the model has no latent site{where}: there is nothing to infer. Write unknown quantities as pyro.sample "
            "with a prior; a pyro.param keeps its initial value"
        )
    if not any(site.size for site in latents.values()):
        sites = listed(f"'{name}' of shape {site.shape}" for name, site in latents.items())
        raise ModelError(
            f"the model's latent sites outside plate '{plate}' have no elements, {sites}: there is nothing to infer. "
            "Check the arguments: a matrix of covariates may have no columns; give it at least one"
        )


def _check_plate(bound: BoundModel, declared: dict[str, int], trace: Any, whole: Mapping[str, int]) -> None:
    plate = bound.plate
    for name_of_plate, size in bound.split_plates.items():
        if (declared_size := size_of_plate(name_of_plate, declared)) != whole.get(name_of_plate):
            check_plate_size(name_of_plate, declared_size, size)
    for name, msg in trace.nodes.items():
        if msg["type"] == "sample" and any(f.name == plate and f.dim is None for f in msg["cond_indep_stack"]):
            raise ModelError(
                f"site '{name}' is in a sequential plate: write `with pyro.plate('{plate}', n):` instead of "
                f"`for i in pyro.plate('{plate}', n):`"
            )


def _check_priors(trace: Any) -> None:
    """Refuse priors with integer parameters that cannot be sampled, by Pyro either."""
    for name, msg in trace.nodes.items():
        if msg["type"] != "sample" or msg["is_observed"] or is_deterministic(msg) or is_discrete(msg):
            continue
        fn = innermost(msg["fn"])
        integers = [key for key in getattr(fn, "arg_constraints", {}) if _is_integer(getattr(fn, key, None))]
        if not integers:
            continue
        try:
            with torch.random.fork_rng(devices=[]):
                fn.sample()
        except (NotImplementedError, RuntimeError) as error:
            raise ModelError(
                f"latent site '{name}': {type(fn).__name__} has integers as {listed(integers)}, and cannot be "
                f"sampled ({str(error).splitlines()[0]}): make them real numbers, such as torch.ones(2) in place of "
                "y.new_ones(2) of an integer column, or torch.tensor([1.0, 2.0]) in place of [1, 2]"
            ) from error


def _is_integer(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.is_floating_point()


def _check_observed(bound: BoundModel, initial_run: FirstRun) -> None:
    """Refuse data outside the support, or of another shape than the distribution."""
    arguments = bound.arguments
    for name, msg in initial_run.execution.trace.nodes.items():
        if msg["type"] != "sample" or not msg["is_observed"] or is_deterministic(msg):
            continue
        try:
            density = msg["fn"].log_prob(msg["value"])
        except ValueError as error:
            _check_broadcastable(name, msg)
            if sentence := moving_support(bound, initial_run, name):
                raise ModelError(sentence) from error
            detail = str(error).splitlines()[0].removesuffix(", but found invalid values:")
            raise OutsideSupportError(
                f"observed site '{name}': its data are outside the support of {type(innermost(msg['fn'])).__name__} "
                f"({_argument_outside_support(msg, arguments)}{detail})",
                _first_outside(msg, arguments),
            ) from error
        if density.shape != msg["fn"].batch_shape:
            raise DataError(
                f"observed site '{name}': its data have the shape {tuple(msg['value'].shape)}, its distribution "
                f"{type(msg['fn']).__name__} the shape {tuple(msg['fn'].shape())}, and together they would have "
                f"{tuple(density.shape)} densities: give both the same shape, such as y[:, 0] for a column"
            )
        at_end, sentence = values_at_an_end(bound, initial_run, name)
        if sentence:
            raise OutsideSupportError(f"observed site '{name}': {sentence}", _first_row(at_end, arguments))


def _check_broadcastable(name: str, msg: Message) -> None:
    """Refuse data and a distribution whose shapes do not broadcast."""
    data_shape, shape = tuple(msg["value"].shape), tuple(msg["fn"].shape())
    try:
        torch.broadcast_shapes(data_shape, shape)
    except RuntimeError as error:
        raise DataError(
            f"observed site '{name}': its data have the shape {data_shape}, its distribution "
            f"{type(innermost(msg['fn'])).__name__} the shape {shape}: give the model arguments with as many rows each"
        ) from error


def _argument_of(value: Any, arguments: Arguments) -> str | None:
    """The name of the argument that equals a site's values; None if there is none."""
    if not isinstance(value, Tensor):
        return None
    for name, leaf in zip(arguments.names, arguments.leaves, strict=True):
        same_shape = isinstance(leaf, Tensor) and leaf.shape == value.shape
        if same_shape and bool((leaf.to(value.dtype) == value).all()):
            return name
    return None


def _first_outside(msg: Message, arguments: Arguments) -> int | None:
    """The first row whose value is outside the support; None if the site's first axis is not the axis of rows."""
    value = msg["value"]
    if not isinstance(value, Tensor) or not value.dim() or len(value) != arguments.num_rows:
        return None
    return _first_row(~msg["fn"].support.check(value), arguments)


def _first_row(bad: Tensor, arguments: Arguments) -> int | None:
    """The first row with a True entry in `bad`; None if the first axis is not the axis of rows."""
    if not bad.dim() or len(bad) != arguments.num_rows:
        return None
    rows = bad.reshape(len(bad), -1).any(1).nonzero()
    return int(rows[0, 0]) if len(rows) else None


def _argument_outside_support(msg: Message, arguments: Arguments) -> str:
    """A clause on the argument with a site's values, its smallest and largest value, and a Bernoulli's values."""
    value = msg["value"]
    if not isinstance(value, Tensor) or not value.numel():
        return ""
    expectation = "expected 0 and 1, " if isinstance(innermost(msg["fn"]), dist.Bernoulli) else ""
    name = _argument_of(value, arguments)
    argument = f"argument '{name}': " if name else ""
    return f"{argument}{expectation}received values from {float(value.min()):g} to {float(value.max()):g}: "
