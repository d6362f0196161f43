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

#: Module prefix of this package's own handlers.
OURS = __name__.partition(".")[0] + "."
#: Lock for one model at a time: threads share Pyro's stack of handlers, torch's default dtype and the validation.
_ONE_AT_A_TIME = threading.RLock()
#: Default dtypes: of the session, and of each active `default_of`, in any thread.
_DEFAULTS: list[list[torch.dtype]] = []

#: Record for a model that is not mapped, in which no function is replaced.
UNMAPPED = Noticed(looked=True)
#: Function that returns the unconstrained value of a latent site from its message and its transform.
Source = Callable[[Message, Any], Tensor]


class Execution(NamedTuple):
    """One run of the model: its Pyro trace, the handler with the latents' values, and the declared plate sizes."""

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
    """Run a model on the rows in its arguments, with the values that `filler` gives to its latents.

    `indices` (m,) are of the partitioned plate, None for all of its declared rows; `members` are the rows of nested
    plates, by plate. Values of discrete latents are enumerated from `first_enum_dim` to the left, unless it is None.
    `declared` receives the plates' sizes, also if the run fails, and `noticed` the torch functions that are called. The
    density of sites in `walls` is zero beyond the constraints of their parameters. SettingError inside the user's own
    handlers.
    """
    members, declared = members or {}, {} if declared is None else declared
    nested_sizes = {name: len(part) for name, part in members.items()}
    with (
        alone(),
        placing(device),
        conventions(dtype, validate, noticed),
        nullcontext() if first_enum_dim is None else Enumerate(first_enum_dim),
        pinned_plates(filler.plate, indices, nested_sizes, declared),
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
        except SystemExit as error:  # would end the user's program without a message
            message = RuntimeError(f"the model calls sys.exit({error.code!r}); raise an error there instead")
            raise message.with_traceback(error.__traceback__) from error
        except (ValueError, RuntimeError) as error:
            plain_error = without_shapes(error)
            if plain_error is error:
                raise
            raise plain_error from plain_error.__cause__
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
    with _ONE_AT_A_TIME:  # no other thread has handlers on the stack then
        handlers = list(runtime._PYRO_STACK)
    if any(isinstance(handler, FillLatents) for handler in handlers):
        return  # a call by the model, within a run of this package
    foreign = [
        type(handler).__name__
        for handler in handlers
        if not isinstance(handler, SeedMessenger) and not type(handler).__module__.startswith(OURS)
    ]
    if foreign:
        raise SettingError(
            f"this is called inside Pyro's handlers {listed(foreign)}, which would change the model and so its "
            "posterior: call it outside of their `with` block, and apply handlers to the model itself, such as "
            "poutine.scale(model, scale=0.5)"
        )


@contextmanager
def default_of(dtype: torch.dtype) -> Iterator[None]:
    """A context in which the default dtype is not wider than the problem's, for any default of the session."""
    with _ONE_AT_A_TIME:
        if not _DEFAULTS:
            _DEFAULTS.append([torch.get_default_dtype()])
        own_dtype = [torch.float32 if dtype == torch.float32 else _DEFAULTS[0][0]]
        _DEFAULTS.append(own_dtype)
        torch.set_default_dtype(own_dtype[0])
    try:
        yield
    finally:
        with _ONE_AT_A_TIME:  # threads end in any order: the last one restores the session's default
            _DEFAULTS[:] = [dtypes for dtypes in _DEFAULTS if dtypes is not own_dtype]
            torch.set_default_dtype(_DEFAULTS[-1][0])
            if len(_DEFAULTS) == 1:
                _DEFAULTS.clear()


@contextmanager
def conventions(dtype: torch.dtype, validate: bool, noticed: Noticed | None = None) -> Iterator[None]:
    """A context with or without Pyro's validation, in which the model's constants have the problem's dtype.

    Distributions made before the run (a `PyroSample`, a global) keep their validation, which fails under `vmap` and
    tracing. Without `validate` no distribution checks its values, and a matrix that is not positive definite does not
    raise an error, see `torch_modes`.
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
    """A model for Pyro's own algorithms, with constant `pyro.param` values; each run checks the time limit."""

    def run(*args: Any, **kwargs: Any) -> Any:
        tick()
        with placing(None), HeldParams(constants, hidden=True), ObservedValues(incomplete):
            return model(*args, **kwargs)

    return run


class HeldParams(Messenger):
    """Give `pyro.param` statements the values of their first run; outer handlers do not see them if `hidden`."""

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
    """Raise the likelihood of rows in the partitioned plate and its nested plates to a power."""

    def __init__(self, power: float, plates: tuple[str, ...]) -> None:
        super().__init__()
        self.power, self.plates = power, plates

    def _pyro_sample(self, msg: Message) -> None:
        if msg["is_observed"] and plate_of(msg, self.plates) is not None:
            msg["scale"] = msg["scale"] * self.power


class FillLatents(HeldParams):
    """Give every latent site the value that `source` returns, and add up the transforms' log-Jacobians.

    `row_jacobian` (m,) has the log-Jacobians of the sites inside the partitioned plate, by rows. Imputed entries (the
    `_unobserved` half of a site with `obs_mask`, inside the plate) integrate to one: they have the placeholder as value
    and no density. Discrete latents take their value in `discrete`; otherwise an outer handler enumerates them
    (`enumerating`), or they take their first value. `nested` are plates nested in the partitioned one.
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
            given = self.discrete.get(msg["name"])
            if given is None and self.enumerating:
                return
            msg["value"] = first_value(msg, plate_of(msg, self.plates) is not None) if given is None else given
        else:
            transform = unconstraining(msg)
            z = self.source(msg, transform)
            value = transform(z)
            self.keep_jacobian(msg, transform.log_abs_det_jacobian(z, value))
            self.values[msg["name"]] = msg["value"] = value
        msg["done"] = True

    def keep_jacobian(self, msg: Message, log_jacobian: Tensor) -> None:
        """Add a site's log-Jacobian, by entries of its unconstrained value, to `row_jacobian` or `log_jacobian`."""
        axis = row_axis(msg, self.plate)
        if axis is None:
            self.log_jacobian = self.log_jacobian + log_jacobian.sum()
        else:
            self.row_jacobian = self.row_jacobian + rows_first(log_jacobian, axis).sum(-1)
