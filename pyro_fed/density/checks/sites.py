"""The sites of a Pyro model, from its first run, which had Pyro's validation on."""

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

#: Dimensions of every result.
TAKEN = ("chain", "draw")


class OutsideSupportError(DataError):
    """Data outside a likelihood's support; `row` is the first such row of all, if it is known."""

    def __init__(self, message: str, row: int | None) -> None:
        super().__init__(message)
        self.row = row


def describe(bound: BoundModel, initial_run: FirstRun, whole: Mapping[str, int] | None = None) -> Layout:
    """List the sites of a model's first run; `whole` has sizes of split plates that declare others' rows too."""
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
    last = {name: execution.trace.nodes[name]["fn"].enumerate_support()[-1] for name in layout.discrete}
    before = _deterministic_values(bound, layout, initial_run.point, (), {})
    on_local = _changed_sites(before, _deterministic_values(bound, layout, initial_run.point, layout.local, {}))
    on_discrete = _changed_sites(before, _deterministic_values(bound, layout, initial_run.point, (), last))
    return replace(layout, depends_on_local=on_local, depends_on_discrete=on_discrete)


def _check_names(trace: Any, plates: Collection[str]) -> None:
    """Refuse names of sites and plates that results cannot hold, as names of their dimensions or in files."""
    for plate in plates:
        if plate in TAKEN:
            raise ModelError(f"plate {plate!r}: a result has a dimension of that name; call the plate otherwise")
        if plate in trace.nodes:
            raise ModelError(f"plate {plate!r} is called like a site, which Pyro refuses: rename one of them")
    for name, msg in trace.nodes.items():
        if msg["type"] == "sample" and (name in TAKEN or not name.strip(" .")):
            why = "a result has a dimension of that name" if name in TAKEN else "no file of a result can hold it"
            raise ModelError(f"site {name!r}: {why}; call it otherwise in its `pyro.sample`")


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
    moved: Collection[str],
    discrete: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Values of the deterministic sites near the point: moved by one in some latents, discrete ones at these values."""

    def source(msg: Message, _transform: Any) -> Tensor:
        return point[msg["name"]] + float(msg["name"] in moved)

    trace = bound.execute(source, bound.all_rows, discrete=discrete).trace
    return {name: trace.nodes[name]["value"].nan_to_num() for name in layout.reported}


def _changed_sites(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> frozenset[str]:
    return frozenset(name for name, value in before.items() if not value.equal(after[name]))


def _layout(trace: Any, shapes: dict[str, tuple[int, ...]], plates: tuple[str, ...]) -> Layout:
    messages = {
        name: msg for name, msg in trace.nodes.items() if msg["type"] == "sample" and not is_imputed(msg, plates)
    }
    found: dict[str, dict[str, Site]] = {kind: {} for kind in ("latent", "local", "discrete", "reported", "observed")}
    for name, msg in messages.items():
        kind = _kind(msg, trace, shapes, plates)
        if kind is not None:
            found[kind][name] = _site(msg, shapes.get(name, ()), plates[0])
    latents = [name for name in messages if name in shapes]
    for name in latents:
        _check_nested(messages[name], plates)
    _check_found(found["latent"], found["local"], found["observed"], plates[0])
    frames = [f.dim for msg in trace.nodes.values() for f in msg.get("cond_indep_stack", ()) if f.dim is not None]
    return Layout(
        _one_after_the_other(found["latent"], lambda site: site.size),
        _one_after_the_other(found["local"], lambda site: site.row_size),
        found["reported"],
        found["observed"],
        frozenset(name for name in found["observed"] if isinstance(messages[name]["fn"], dist.Unit)),
        frozenset(name for name in latents if is_improper(messages[name]["fn"])),
        plates[0],
        discrete=found["discrete"],
        nesting=max((-dim for dim in frames), default=1),
    )


def _kind(msg: Message, trace: Any, latents: Collection[str], plates: tuple[str, ...]) -> str | None:
    """The name of the layout's dictionary to which a site belongs; None if it belongs to none."""
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


def _one_after_the_other(sites: dict[str, Site], size: Callable[[Site], int]) -> dict[str, Site]:
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
            axis = shape.index(frame.size)  # pyro.deterministic counts all dimensions as the event's unless told
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


def _check_found(latents: dict[str, Site], local: dict[str, Site], observed: dict[str, Site], plate: str) -> None:
    if not observed:
        instead = f" (it holds the latent sites {sorted(local)})" if local else ""
        raise ModelError(
            f"plate '{plate}' holds no observed site{instead}: put the likelihood, `pyro.sample(..., obs=y)` or "
            f"`pyro.factor`, inside `with pyro.plate('{plate}', len(y)):`"
        )
    if not latents:
        where = f" outside plate '{plate}', where clients have something in common" if local else ""
        raise ModelError(
            f"the model has no latent site{where}: there is nothing to infer. What is to be learnt is a pyro.sample "
            "with a prior; a pyro.param stays as it begins"
        )
    if not any(site.size for site in latents.values()):
        sites = listed(f"'{name}' of shape {site.shape}" for name, site in latents.items())
        raise ModelError(
            f"the model's latent sites outside plate '{plate}' have no elements, {sites}: there is nothing to infer. "
            "Look at the arguments: a matrix of covariates may have lost its columns; give it one at least"
        )


def _check_plate(bound: BoundModel, declared: dict[str, int], trace: Any, whole: Mapping[str, int]) -> None:
    plate = bound.plate
    for part, size in bound.split_plates.items():
        if (found := size_of_plate(part, declared)) != whole.get(part):
            check_plate_size(part, found, size)
    for name, msg in trace.nodes.items():
        if msg["type"] == "sample" and any(f.name == plate and f.dim is None for f in msg["cond_indep_stack"]):
            raise ModelError(
                f"site '{name}' is in a sequential plate: write `with pyro.plate('{plate}', n):` instead of "
                f"`for i in pyro.plate('{plate}', n):`"
            )


def _check_priors(trace: Any) -> None:
    """Refuse priors with parameters in whole numbers that cannot be drawn from, which Pyro cannot do either."""
    for name, msg in trace.nodes.items():
        if msg["type"] != "sample" or msg["is_observed"] or is_deterministic(msg) or is_discrete(msg):
            continue
        fn = innermost(msg["fn"])
        whole = [key for key in getattr(fn, "arg_constraints", {}) if _is_whole(getattr(fn, key, None))]
        if not whole:
            continue
        try:
            with torch.random.fork_rng(devices=[]):
                fn.sample()
        except (NotImplementedError, RuntimeError) as error:
            raise ModelError(
                f"latent site '{name}': {type(fn).__name__} has whole numbers as {listed(whole)}, and cannot be drawn "
                f"from then ({str(error).splitlines()[0]}): make them real numbers, such as torch.ones(2) in place of "
                "y.new_ones(2) of a column of whole numbers, or torch.tensor([1.0, 2.0]) in place of [1, 2]"
            ) from error


def _is_whole(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.is_floating_point()


def _check_observed(bound: BoundModel, initial_run: FirstRun) -> None:
    """Refuse data outside the support, or with another shape than the distribution's."""
    arguments = bound.arguments
    for name, msg in initial_run.execution.trace.nodes.items():
        if msg["type"] != "sample" or not msg["is_observed"] or is_deterministic(msg):
            continue
        try:
            density = msg["fn"].log_prob(msg["value"])
        except ValueError as error:
            _check_broadcastable(name, msg)
            if said := moving_support(bound, initial_run, name):
                raise ModelError(said) from error
            first = str(error).splitlines()[0].removesuffix(", but found invalid values:")
            raise OutsideSupportError(
                f"observed site '{name}': its data are outside the support of {type(innermost(msg['fn'])).__name__} "
                f"({_argument_outside_support(msg, arguments)}{first})",
                _first_outside(msg, arguments),
            ) from error
        if density.shape != msg["fn"].batch_shape:
            raise DataError(
                f"observed site '{name}': its data have the shape {tuple(msg['value'].shape)}, its distribution "
                f"{type(msg['fn']).__name__} the shape {tuple(msg['fn'].shape())}, and together they would make "
                f"{tuple(density.shape)} densities: give both the same shape, such as y[:, 0] for a column"
            )
        at_end, said = values_at_an_end(bound, initial_run, name)
        if said:
            raise OutsideSupportError(f"observed site '{name}': {said}", _first_row(at_end, arguments))


def _check_broadcastable(name: str, msg: Message) -> None:
    """Refuse data and a distribution whose shapes do not broadcast."""
    found, wanted = tuple(msg["value"].shape), tuple(msg["fn"].shape())
    try:
        torch.broadcast_shapes(found, wanted)
    except RuntimeError as error:
        raise DataError(
            f"observed site '{name}': its data have the shape {found}, its distribution "
            f"{type(innermost(msg['fn'])).__name__} the shape {wanted}: give the model arguments with as many rows each"
        ) from error


def _argument_of(value: Any, arguments: Arguments) -> str | None:
    """The name of the argument that a site's values are, if they are one."""
    if not isinstance(value, Tensor):
        return None
    for name, leaf in zip(arguments.names, arguments.leaves, strict=True):
        alike = isinstance(leaf, Tensor) and leaf.shape == value.shape
        if alike and bool((leaf.to(value.dtype) == value).all()):
            return name
    return None


def _first_outside(msg: Message, arguments: Arguments) -> int | None:
    """The first row whose value is outside; None if the site's first axis is not that of the rows."""
    value = msg["value"]
    if not isinstance(value, Tensor) or not value.dim() or len(value) != arguments.num_rows:
        return None
    return _first_row(~msg["fn"].support.check(value), arguments)


def _first_row(bad: Tensor, arguments: Arguments) -> int | None:
    """The first row with an entry that is bad; None if the first axis is not that of the rows."""
    if not bad.dim() or len(bad) != arguments.num_rows:
        return None
    rows = bad.reshape(len(bad), -1).any(1).nonzero()
    return int(rows[0, 0]) if len(rows) else None


def _argument_outside_support(msg: Message, arguments: Arguments) -> str:
    """A clause on the argument that a site's values are, its least and greatest value, and a Bernoulli's values."""
    value = msg["value"]
    if not isinstance(value, Tensor) or not value.numel():
        return ""
    wants = "expected 0 and 1, " if isinstance(innermost(msg["fn"]), dist.Bernoulli) else ""
    name = _argument_of(value, arguments)
    of = f"argument '{name}': " if name else ""
    return f"{of}{wants}received values from {float(value.min()):g} to {float(value.max()):g}: "
