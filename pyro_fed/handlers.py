"""Pyro effect handlers that turn a model into a function of one flat, unconstrained vector."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, cast

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.poutine.indep_messenger import IndepMessenger
from pyro.poutine.messenger import Messenger
from pyro.poutine.subsample_messenger import SubsampleMessenger
from torch import Tensor
from torch.distributions import Distribution, biject_to

from pyro_fed.discrete import Enumerate, first_value, is_discrete
from pyro_fed.errors import ModelError
from pyro_fed.nested_rows import MaskPadding, Members

Message = dict[str, Any]
#: Gives the unconstrained value of a latent site from its message and its transform.
Source = Callable[[Message, Any], Tensor]


class Execution(NamedTuple):
    """One run of the model: its Pyro trace, the filled latents, and the plate sizes it declared."""

    trace: Any
    filler: FillLatents
    plates: dict[str, int]


def run_model(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    filler: Any,
    *,
    indices: Tensor | None,
    dtype: torch.dtype,
    densities: bool = False,
    validate: bool = False,
    first_enum_dim: int | None = None,
    members: Mapping[str, Members] | None = None,
    declared: dict[str, int] | None = None,
) -> Execution:
    """Run a model on some rows, its latents filled in.

    Args:
        model: the Pyro model.
        args: positional arguments, with the rows at hand.
        kwargs: keyword arguments.
        filler: gives the latents their values.
        indices: (m,) what the partitioned plate yields; None runs it on all of its declared rows.
        dtype: floating dtype of constants that the model makes.
        densities: compute the sites' log densities.
        validate: run with Pyro's validation on.
        first_enum_dim: first dimension, left of all plates, for the values of discrete latents, if the filler
            leaves them to be enumerated.
        members: the rows of nested plates that belong to the rows at hand, by plate.
        declared: gets the plates' sizes as the model runs, for those who outlive its failure.
    """
    members, declared = members or {}, {} if declared is None else declared
    held = {name: len(part) for name, part in members.items()}
    with (
        conventions(dtype, validate),
        nullcontext() if first_enum_dim is None else Enumerate(first_enum_dim),
        pinned_plates(filler.plate, indices, held, declared),
        MaskPadding(members),
        _Subsample(filler.plate, declared, indices),
        filler,
    ):
        trace = poutine.trace(model).get_trace(*args, **kwargs)
        if densities:
            trace.compute_log_prob(lambda _, site: not is_imputed(site, (filler.plate, *members)))
    return Execution(trace, filler, declared)


@contextmanager
def conventions(dtype: torch.dtype, validate: bool) -> Iterator[None]:
    """Pyro's validation as asked, and constants inside the model made in the problem's dtype.

    Distributions made before the model runs (a `PyroSample`, a global) keep the validation they were made
    with, which neither `vmap` nor tracing survives: without `validate` no distribution checks its values.
    """
    before, patched = torch.get_default_dtype(), cast(Any, Distribution)
    check = patched._validate_sample
    torch.set_default_dtype(dtype)
    if not validate:
        patched._validate_sample = lambda *_: None
    try:
        with pyro.validation_enabled(validate):
            yield
    finally:
        torch.set_default_dtype(before)
        patched._validate_sample = check


class FillLatents(Messenger):
    """Give every latent site the value that `source` says, and keep the transforms' log-Jacobian.

    That of the sites inside the partitioned plate is kept row by row, in `row_jacobian` (m,), zero without any.

    Imputed entries (the `_unobserved` half of a site with `obs_mask`, inside the partitioned plate)
    integrate to one: they get a placeholder and no density.

    Args:
        source: unconstrained value of a site.
        plate: name of the partitioned plate.
        constants: values of `pyro.param` statements; one that is missing is read from the model and kept.
        placeholder: value given to imputed entries.
        discrete: values of discrete latents.
        enumerating: leave the other discrete latents to an outer handler; else they get their first value.
        nested: plates whose rows follow those of the partitioned one.
    """

    def __init__(
        self,
        source: Source,
        plate: str,
        constants: dict[str, Tensor],
        placeholder: float = 0.0,
        discrete: Mapping[str, Tensor] | None = None,
        enumerating: bool = False,
        nested: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        self.source, self.plate, self.plates = source, plate, (plate, *nested)
        self.constants, self.placeholder = constants, placeholder
        self.discrete, self.enumerating = discrete or {}, enumerating
        self.values: dict[str, Tensor] = {}
        self.log_jacobian: Tensor | float = 0.0
        self.row_jacobian: Tensor | float = 0.0

    def _pyro_sample(self, msg: Message) -> None:
        if msg["is_observed"] or msg["value"] is not None:
            return
        if is_imputed(msg, self.plates):
            msg["value"] = torch.full(msg["fn"].shape(), self.placeholder)
        elif is_discrete(msg):
            known = self.discrete.get(msg["name"])
            if known is None and self.enumerating:
                return
            msg["value"] = first_value(msg, plate_of(msg, self.plates) is not None) if known is None else known
        else:
            transform = unconstraining(msg)
            z = self.source(msg, transform)
            value = transform(z)
            self._keep_jacobian(msg, transform.log_abs_det_jacobian(z, value))
            self.values[msg["name"]] = msg["value"] = value
        msg["done"] = True

    def _keep_jacobian(self, msg: Message, log_jacobian: Tensor) -> None:
        axis = row_axis(msg, self.plate)
        if axis is None:
            self.log_jacobian = self.log_jacobian + log_jacobian.sum()
        else:
            self.row_jacobian = self.row_jacobian + rows_first(log_jacobian, axis).sum(-1)

    def _pyro_param(self, msg: Message) -> None:
        if msg["name"] in self.constants:
            msg["value"], msg["done"] = self.constants[msg["name"]], True

    def _pyro_post_param(self, msg: Message) -> None:
        if msg["name"] not in self.constants:
            self.constants[msg["name"]] = msg["value"].detach().clone()


class _Subsample(Messenger):
    """`pyro.subsample(data, event_dim)`: the rows at hand, unless the data have been cut to them before."""

    def __init__(self, plate: str, declared: dict[str, int], indices: Tensor | None) -> None:
        super().__init__()
        self.plate, self.declared, self.indices = plate, declared, indices

    def _pyro_subsample(self, msg: Message) -> None:
        frame = frame_of(msg, self.plate)
        if frame is None or self.indices is None:
            return
        data = msg["args"][0]
        dim = frame.dim - msg["kwargs"]["event_dim"]
        if data.shape[dim] == self.declared[self.plate] != len(self.indices):
            msg["value"], msg["done"] = data.index_select(dim, self.indices), True


def unconstraining(msg: Message) -> Any:
    """The transform from the unconstrained space to a latent site's support.

    Raises:
        ModelError: the site is a `Delta`, or has a support without such a transform.
    """
    name, fn = msg["name"], msg["fn"]
    kind = type(_innermost(fn)).__name__
    if isinstance(_innermost(fn), dist.Delta):
        raise ModelError(
            f"latent site '{name}' is a Delta: report computed values by `pyro.deterministic('{name}', value)`"
        )
    try:
        return biject_to(fn.support)
    except NotImplementedError as error:
        raise ModelError(
            f"latent site '{name}' ({kind}) has the support {fn.support}, which has no transform "
            "to an unconstrained "
            "space: write it as a function of a latent that has one"
        ) from error


def _innermost(fn: Any) -> Any:
    while isinstance(fn, (dist.Independent, dist.MaskedDistribution, dist.ExpandedDistribution)):
        fn = fn.base_dist
    return fn


def is_improper(fn: Any) -> bool:
    """Whether the distribution is an `ImproperUniform`, masked or reshaped as it may be."""
    return isinstance(_innermost(fn), dist.ImproperUniform)


def is_imputed(msg: Any, plates: Iterable[str | None]) -> bool:
    """Whether this site stands for unobserved entries of a site with `obs_mask` inside one of the plates."""
    masked = isinstance(msg["mask"], Tensor)
    return msg["name"].endswith("_unobserved") and masked and plate_of(msg, plates) is not None


def is_deterministic(msg: Message) -> bool:
    """Whether the site reports a computed value (`pyro.deterministic`, or a reparameteriser's output)."""
    fn = msg["fn"]
    while isinstance(fn, dist.Independent):
        fn = fn.base_dist
    masked_off = isinstance(fn, dist.MaskedDistribution) and isinstance(fn.base_dist, dist.Delta)
    return bool(msg["infer"].get("_deterministic")) or (msg["is_observed"] and masked_off)


def frame_of(msg: Message, plate: str) -> Any:
    """The site's frame of the named plate, or None outside it."""
    return next((frame for frame in msg["cond_indep_stack"] if frame.name == plate), None)


def plate_of(msg: Message, plates: Iterable[str | None]) -> str | None:
    """The first of the plates that the site is in, or None."""
    return next((plate for plate in plates if plate and frame_of(msg, plate) is not None), None)


def row_axis(msg: Message, plate: str) -> int | None:
    """The axis of a site's value, constrained or not, that runs over the named plate; None outside it."""
    frame = frame_of(msg, plate)
    return None if frame is None or frame.dim is None else len(msg["fn"].batch_shape) + frame.dim


def rows_first(value: Tensor, axis: int) -> Tensor:
    """(..., m, ...) with the rows on `axis` as (m, rest)."""
    return value.movedim(axis, 0).flatten(1) if value.dim() > 1 else value.unsqueeze(-1)


def sum_to_rows(site: Message, dim: int) -> Tensor:
    """A site's log density summed over everything but the partitioned plate: (m,)."""
    log_prob = torch.broadcast_to(site["log_prob"], site["fn"].batch_shape)
    rows_first = log_prob.movedim(dim, 0)
    return rows_first.reshape(rows_first.shape[0], -1).sum(-1)


@contextmanager
def pinned_plates(
    plate: str, indices: Tensor | None, nested: Mapping[str, int], declared: dict[str, int]
) -> Iterator[None]:
    """Run the partitioned plate on given rows and every other plate on all of its own, without rescaling.

    A plate's `subsample_size` and `subsample` are overruled: minibatching belongs to this layer.

    Args:
        plate: name of the partitioned plate.
        indices: (m,) what `with pyro.plate(...) as i` yields; None for all of the plate's rows.
        nested: plates that run on so many rows instead of their own.
        declared: gets the sizes that the model declares for its plates, as it runs.
    """

    def subsample(name: str, size: int | None = None, *_args: Any, **_kwargs: Any) -> tuple[int, int, Tensor | None]:
        if size is None:
            return -1, -1, None
        declared[name] = int(size)
        if name == plate and indices is not None:
            return len(indices), len(indices), indices
        held = nested.get(name, int(size))
        return held, held, torch.arange(held)

    def iterate(self: Any) -> Iterator[int | float]:
        self._indices = range(self.size)  # numbers: a traced tensor has no `.item()`
        return IndepMessenger.__iter__(self)

    patched: Any = SubsampleMessenger
    original = patched.__dict__["_subsample"]
    patched._subsample = staticmethod(subsample)
    patched.__iter__ = iterate
    try:
        yield
    finally:
        patched._subsample = original
        del patched.__iter__
