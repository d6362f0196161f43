"""What a Pyro model consists of: one run of it, with Pyro's validation on, and the sites found there."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_fed.checks import check_plate_size
from pyro_fed.discrete import is_discrete
from pyro_fed.errors import DataError, ModelError
from pyro_fed.plate_tree import check_followers
from pyro_fed.trace_sites import Message, is_deterministic, is_improper, is_imputed, plate_of, row_axis

if TYPE_CHECKING:
    from pyro_fed.problem import Problem


@dataclass(frozen=True)
class Site:
    """A site of the model.

    Attributes:
        name: the site's name.
        shape: shape of its value.
        dims: a name for each dimension of the value: the plate's, else `NAME_dim_i`.
        unconstrained_shape: shape of its unconstrained value (latent sites).
        start: where it begins in the flat vector (latent sites); of a local site, in that of one row.
        axis: of its unconstrained value, that runs over the partitioned plate (local sites).
        event_dim: how many of its last dimensions are one value's.
    """

    name: str
    shape: tuple[int, ...]
    dims: tuple[str, ...]
    unconstrained_shape: tuple[int, ...] = ()
    start: int = 0
    axis: int | None = None
    event_dim: int = 0

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of the site's plates."""
        return self.shape[: len(self.shape) - self.event_dim]

    @property
    def size(self) -> int:
        """Length in the flat vector."""
        return int(torch.Size(self.unconstrained_shape).numel())

    @property
    def row_size(self) -> int:
        """Length in the flat vector of one row (local sites)."""
        return self.size // self.unconstrained_shape[self.axis or 0]

    def of_rows(self, block: Tensor) -> Tensor:
        """Unconstrained values of m rows in the site's own shape, from all local sites' values (m, d)."""
        axis = self.axis or 0
        rest = self.unconstrained_shape[:axis] + self.unconstrained_shape[axis + 1 :]
        part = block[:, self.start : self.start + self.row_size]
        return part.reshape(len(block), *rest).movedim(0, axis)


@dataclass(frozen=True)
class Layout:
    """The sites of a model.

    Attributes:
        latents: latent sites outside the partitioned plate, in the order of the flat vector.
        local: latent sites inside it, in the order of a row's own flat vector.
        reported: deterministic sites.
        depends_on_local: names of those `reported` whose values latents inside the plate decide.
        depends_on_discrete: the same of discrete ones.
        observed: observed sites inside the partitioned plate (`pyro.factor` included).
        factors: names of those `observed` that are `pyro.factor` statements.
        improper: latent sites with an improper prior.
        plate: name of the partitioned plate.
        discrete: discrete latents inside it, which are summed out.
        nesting: dimensions that the model's plates take.
    """

    latents: dict[str, Site]
    local: dict[str, Site]
    reported: dict[str, Site]
    observed: dict[str, Site]
    factors: frozenset[str]
    improper: frozenset[str]
    plate: str
    depends_on_local: frozenset[str] = frozenset()
    depends_on_discrete: frozenset[str] = frozenset()
    discrete: dict[str, Site] = field(default_factory=dict)
    nesting: int = 1

    @property
    def first_enum_dim(self) -> int | None:
        """First free dimension left of all plates, for the values of discrete latents; None without any."""
        return -1 - self.nesting if self.discrete else None

    def single_observed(self) -> str:
        """The one observed site that predictions are about.

        Raises:
            ModelError: there is none, or there are several, or new rows have latents of their own.
        """
        if self.local:
            raise ModelError(
                f"rows have latents of their own, sites {sorted(self.local)} inside plate '{self.plate}', so that a "
                "vector of the others does not say how an observation is distributed: use `pyro_fed.predict`, which "
                "draws them"
            )
        names = [name for name in self.observed if name not in self.factors]
        if len(names) != 1:
            raise ModelError(f"predictions need one observed site inside plate '{self.plate}', found {names}")
        return names[0]


def describe(problem: Problem) -> Layout:
    """Run the model once, validated, and list its sites.

    Raises:
        ModelError: names the site, the plate, what was expected and the cure.
        DataError: data outside a likelihood's support, or rows that do not fit the plate.
    """
    shapes: dict[str, tuple[int, ...]] = {}

    def zeros(msg: Message, transform: Any) -> Tensor:
        shapes[msg["name"]] = tuple(transform.inverse_shape(msg["fn"].shape()))
        return torch.zeros(shapes[msg["name"]], dtype=problem.dtype)

    execution = problem.execute(zeros, problem.all_rows, validate=True)
    _check_plate(problem, execution.plates, execution.trace)
    if len(execution.plates) > 1:
        check_followers(problem, execution.filler.plates)
    _check_support(execution.trace, problem.plate)
    layout = _layout(execution.trace, shapes, execution.filler.plates)
    last = {name: execution.trace.nodes[name]["fn"].enumerate_support()[-1] for name in layout.discrete}
    on_local = _moved(problem, layout, shapes, execution.trace, layout.local, {})
    on_discrete = _moved(problem, layout, shapes, execution.trace, {}, last)
    return replace(layout, depends_on_local=on_local, depends_on_discrete=on_discrete)


def _moved(
    problem: Problem,
    layout: Layout,
    shapes: dict[str, tuple[int, ...]],
    trace: Any,
    ones: Collection[str],
    discrete: Mapping[str, Tensor],
) -> frozenset[str]:
    """Deterministic sites whose values change where some latents go from zero to one, or from first to last value."""
    if not ones and not discrete:
        return frozenset()

    def source(msg: Message, _transform: Any) -> Tensor:
        return torch.full(shapes[msg["name"]], float(msg["name"] in ones), dtype=problem.dtype)

    moved = problem.execute(source, problem.all_rows, discrete=discrete).trace
    return frozenset(
        name
        for name in layout.reported
        if not torch.equal(moved.nodes[name]["value"].nan_to_num(), trace.nodes[name]["value"].nan_to_num())
    )


def _layout(trace: Any, shapes: dict[str, tuple[int, ...]], plates: tuple[str, ...]) -> Layout:
    plate = plates[0]
    latents: dict[str, Site] = {}
    local: dict[str, Site] = {}
    reported: dict[str, Site] = {}
    observed: dict[str, Site] = {}
    discrete: dict[str, Site] = {}
    factors, improper, start, row_start = set(), set(), 0, 0
    for name, msg in trace.nodes.items():
        if msg["type"] != "sample" or is_imputed(msg, plates):
            continue
        site = Site(name, tuple(msg["value"].shape), site_dims(msg))
        if name in shapes:
            _check_nested(msg, plates)
            axis = row_axis(msg, plate)
            if axis is None:
                latents[name] = Site(name, site.shape, site.dims, shapes[name], start)
                start += latents[name].size
            else:
                local[name] = Site(name, site.shape, site.dims, shapes[name], row_start, axis)
                row_start += local[name].row_size
            if is_improper(msg["fn"]):
                improper.add(name)
        elif not msg["is_observed"] and is_discrete(msg):
            discrete[name] = replace(site, event_dim=msg["fn"].event_dim)
        elif is_deterministic(msg):
            if f"{name}_unobserved" not in trace.nodes:  # the joined values of `obs_mask`: data, and no estimate
                reported[name] = site
        elif plate_of(msg, plates) is not None:
            observed[name] = site
            if isinstance(msg["fn"], dist.Unit):
                factors.add(name)
    _check_found(latents, local, observed, plate)
    frames = [f.dim for msg in trace.nodes.values() for f in msg.get("cond_indep_stack", ()) if f.dim is not None]
    return Layout(
        latents,
        local,
        reported,
        observed,
        frozenset(factors),
        frozenset(improper),
        plate,
        discrete=discrete,
        nesting=max((-dim for dim in frames), default=1),
    )


def site_dims(msg: Message) -> tuple[str, ...]:
    """A dimension takes its plate's name; the others are numbered as ArviZ does."""
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
            f"partition over '{nested}'"
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
        raise ModelError(f"the model has no latent site{where}: there is nothing to infer")


def _check_plate(problem: Problem, declared: dict[str, int], trace: Any) -> None:
    plate = problem.plate
    if plate not in declared:
        raise ModelError(f"the model has no plate '{plate}'; its plates are {sorted(declared)}. Pass plate=...")
    check_plate_size(plate, declared[plate], problem.num_rows)
    for name, msg in trace.nodes.items():
        if msg["type"] == "sample" and any(f.name == plate and f.dim is None for f in msg["cond_indep_stack"]):
            raise ModelError(
                f"site '{name}' is in a sequential plate: write `with pyro.plate('{plate}', n):` instead of "
                f"`for i in pyro.plate('{plate}', n):`"
            )


def _check_support(trace: Any, plate: str) -> None:
    for name, msg in trace.nodes.items():
        if msg["type"] != "sample" or not msg["is_observed"] or is_deterministic(msg):
            continue
        try:
            msg["fn"].log_prob(msg["value"])
        except ValueError as error:
            raise DataError(
                f"observed site '{name}': its data are outside the support of {type(msg['fn']).__name__} "
                f"({str(error).splitlines()[0]})"
            ) from error
