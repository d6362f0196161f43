"""Pyro effect handlers that turn a model into a function of one flat, unconstrained vector."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, cast

import pyro
import torch
from pyro import poutine
from pyro.poutine import runtime
from pyro.poutine.messenger import Messenger
from pyro.poutine.seed_messenger import SeedMessenger
from torch import Tensor
from torch.distributions import Distribution

from pyro_fed.conventions.resources import tick
from pyro_fed.density.latents.discrete import Enumerate, first_value, is_discrete
from pyro_fed.density.rows.batches import MaskPadding, Members
from pyro_fed.density.running.log_probs import own_log_probs
from pyro_fed.density.running.model_calls import Subsample, data_calls, keeping, pinned_plates
from pyro_fed.density.running.site_values import ObservedValues, put_walls
from pyro_fed.density.running.torch_modes import Noticed, placing, replacing
from pyro_fed.density.running.trace_sites import Message, is_imputed, plate_of, row_axis, rows_first, unconstraining
from pyro_fed.errors import SettingError, listed, without_shapes

#: Where this package's own handlers are from.
OURS = __name__.partition(".")[0] + "."
#: Pyro's stack of handlers, torch's default dtype and the validation are one for all threads: one model at a time.
_ONE_AT_A_TIME = threading.RLock()
#: Default dtypes: the session's, and that of each `default_of` that has begun and not ended, in any thread.
_DEFAULTS: list[list[torch.dtype]] = []

#: Of a model that is run as it is, no function has to give way.
UNMAPPED = Noticed(looked=True)
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
    incomplete: bool = False,
    noticed: Noticed | None = None,
    walls: Collection[str] = (),
    device: torch.device | None = None,
) -> Execution:
    """Run a model on some rows, with given values of its latents.

    Args:
        model: the Pyro model.
        args: positional arguments, with the present rows.
        kwargs: keyword arguments.
        filler: gives the latents their values.
        indices: (m,) what the partitioned plate yields; None runs it on all of its declared rows.
        dtype: floating dtype of constants that the model makes.
        densities: compute the sites' log densities.
        validate: run with Pyro's validation on.
        first_enum_dim: left of all plates, for values of discrete latents; None if none are enumerated.
        members: the rows of nested plates that belong to the present rows, by plate.
        declared: receives the plates' sizes as the model runs, also if it fails.
        incomplete: whether the data have NaN among them.
        noticed: known facts about the functions of torch that it calls.
        walls: names of sites whose density is zero beyond the constraints of their parameters.
        device: of the arguments; None for the CPU.

    Raises:
        SettingError: the call is inside handlers of somebody else.
    """
    members, declared = members or {}, {} if declared is None else declared
    held = {name: len(part) for name, part in members.items()}
    with (
        alone(),
        placing(device),
        conventions(dtype, validate, noticed),
        nullcontext() if first_enum_dim is None else Enumerate(first_enum_dim),
        pinned_plates(filler.plate, indices, held, declared),
        MaskPadding(members),
        Subsample(filler.plate, declared, indices),
        filler,
        ObservedValues(incomplete),
        data_calls(),
        own_log_probs(),
        keeping(filler.constants),
    ):
        try:
            trace = poutine.trace(model).get_trace(*args, **kwargs)
        except SystemExit as error:  # no Exception: it would end the user's program without a word
            said = RuntimeError(f"the model calls sys.exit({error.code!r}); raise an error there instead")
            raise said.with_traceback(error.__traceback__) from error
        except (ValueError, RuntimeError) as error:
            plain = without_shapes(error)
            if plain is error:
                raise
            raise plain from plain.__cause__
        if densities:
            trace.compute_log_prob(lambda _, site: not is_imputed(site, (filler.plate, *members)))
            put_walls(trace, walls)
    return Execution(trace, filler, declared)


@contextmanager
def alone() -> Iterator[None]:
    """A context in which no other thread runs a model; SettingError inside handlers of the caller."""
    with _ONE_AT_A_TIME:
        check_outside()
        yield


def check_outside() -> None:
    """Refuse a call inside handlers of the caller; SettingError names them."""
    with _ONE_AT_A_TIME:  # another thread's are gone then
        handlers = list(runtime._PYRO_STACK)
    if any(isinstance(handler, FillLatents) for handler in handlers):
        return  # what a model of this package's own run does in it
    foreign = [
        type(handler).__name__
        for handler in handlers
        if not isinstance(handler, SeedMessenger) and not type(handler).__module__.startswith(OURS)
    ]
    if foreign:
        raise SettingError(
            f"this is called inside Pyro's handlers {listed(foreign)}, which would change the model and so its "
            "posterior: call it outside of their `with` block, and put what belongs to the model into it, such as "
            "poutine.scale(model, scale=0.5)"
        )


@contextmanager
def default_of(dtype: torch.dtype) -> Iterator[None]:
    """A context in which values made without a dtype are no wider than the problem's, whatever a session has set."""
    with _ONE_AT_A_TIME:
        if not _DEFAULTS:
            _DEFAULTS.append([torch.get_default_dtype()])
        own = [torch.float32 if dtype == torch.float32 else _DEFAULTS[0][0]]
        _DEFAULTS.append(own)
        torch.set_default_dtype(own[0])
    try:
        yield
    finally:
        with _ONE_AT_A_TIME:  # threads end in any order: the last one leaves what the first one found
            _DEFAULTS[:] = [one for one in _DEFAULTS if one is not own]
            torch.set_default_dtype(_DEFAULTS[-1][0])
            if len(_DEFAULTS) == 1:
                _DEFAULTS.clear()


@contextmanager
def conventions(dtype: torch.dtype, validate: bool, noticed: Noticed | None = None) -> Iterator[None]:
    """A context with or without Pyro's validation, in which the model's constants have the problem's dtype.

    Distributions made before the model runs (a `PyroSample`, a global) keep the validation they were made
    with, which neither `vmap` nor tracing survives: without `validate` no distribution checks its values, and a
    matrix that is not positive definite is no error, see `torch_modes`.
    """
    before, patched = torch.get_default_dtype(), cast(Any, Distribution)
    check = patched._validate_sample
    torch.set_default_dtype(dtype)
    if not validate:
        patched._validate_sample = lambda *_: None
    try:
        with pyro.validation_enabled(validate), nullcontext() if validate else replacing(noticed):
            yield
    finally:
        torch.set_default_dtype(before)
        patched._validate_sample = check


@contextmanager
def run_by_pyro(dtype: torch.dtype, constants: dict[str, Any]) -> Iterator[None]:
    """A context in which Pyro's own algorithms run a model and a guide as `run_model` does."""
    with _ONE_AT_A_TIME, conventions(dtype, validate=False, noticed=UNMAPPED), data_calls(), keeping(constants):
        yield


def for_pyro(model: Callable[..., Any], constants: dict[str, Any], incomplete: bool) -> Callable[..., Any]:
    """A model for Pyro's own algorithms, its `pyro.param` held constant, in which each run checks the limit of time."""

    def run(*args: Any, **kwargs: Any) -> Any:
        tick()
        with placing(None), HeldParams(constants, hidden=True), ObservedValues(incomplete):
            return model(*args, **kwargs)

    return run


class HeldParams(Messenger):
    """Give `pyro.param` statements constant values, those read first; handlers outside see none that are `hidden`."""

    def __init__(self, constants: dict[str, Any], hidden: bool = False) -> None:
        super().__init__()
        self.constants, self.hidden = constants, hidden

    def _pyro_param(self, msg: Message) -> None:
        msg["stop"] = msg["stop"] or self.hidden
        if msg["name"] in self.constants:
            msg["value"], msg["done"] = self.constants[msg["name"]], True

    def _pyro_post_param(self, msg: Message) -> None:
        if msg["name"] not in self.constants:
            self.constants[msg["name"]] = msg["value"].detach().clone()


class RowsCount(Messenger):
    """Raise the likelihood of rows, in the partitioned plate and those nested in it, to a power."""

    def __init__(self, power: float, plates: tuple[str, ...]) -> None:
        super().__init__()
        self.power, self.plates = power, plates

    def _pyro_sample(self, msg: Message) -> None:
        if msg["is_observed"] and plate_of(msg, self.plates) is not None:
            msg["scale"] = msg["scale"] * self.power


class FillLatents(HeldParams):
    """Give every latent site the value that `source` returns, and keep the transforms' log-Jacobian.

    That of the sites inside the partitioned plate is kept row by row, in `row_jacobian` (m,). Imputed entries (the
    `_unobserved` half of a site with `obs_mask`, inside the plate) integrate to one: they get the placeholder and no
    density. Discrete latents have their value in `discrete`, or are left to an outer handler if `enumerating`, or get
    their first value. `nested` are plates whose rows follow those of the partitioned one.
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
        super().__init__(constants)
        self.source, self.plate, self.plates = source, plate, (plate, *nested)
        self.placeholder = placeholder
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
            self.keep_jacobian(msg, transform.log_abs_det_jacobian(z, value))
            self.values[msg["name"]] = msg["value"] = value
        msg["done"] = True

    def keep_jacobian(self, msg: Message, log_jacobian: Tensor) -> None:
        """Add a site's log-Jacobian, entry by entry of its unconstrained value, to that of its rows, or of the rest."""
        axis = row_axis(msg, self.plate)
        if axis is None:
            self.log_jacobian = self.log_jacobian + log_jacobian.sum()
        else:
            self.row_jacobian = self.row_jacobian + rows_first(log_jacobian, axis).sum(-1)
