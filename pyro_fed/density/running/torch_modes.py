"""Modes that change torch's functions while a model runs, so that it can be mapped and run on any device."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from pyro_fed.density.running.mappable import MAPPABLE
from pyro_fed.errors import ModelError

T = TypeVar("T")
CPU = torch.device("cpu")
MAKERS = frozenset(
    (
        *(torch.zeros, torch.ones, torch.empty, torch.full),
        *(torch.zeros_like, torch.ones_like, torch.empty_like, torch.full_like),
        *(Tensor.new_zeros, Tensor.new_ones, Tensor.new_empty, Tensor.new_full),
        *(torch.clone, Tensor.clone),
    )
)


class Writable(TorchFunctionMode):
    """Newly made floating tensors can be written into under `vmap`, as `p = torch.zeros(n); p[0] = z`.

    A tensor from `torch.zeros` is one for all particles and clients, so that none of them can write its own value
    into it. Here it becomes one a particle and a client, by adding a mapped zero. Pyro's `OrderedLogistic` writes this
    way, and torch's `Multinomial` into a copy of its logits, which are the same for all clients.

    Args:
        mapped: values that are mapped over particles or clients; only their tensors matter.
    """

    def __init__(self, mapped: Iterable[Any]) -> None:
        super().__init__()
        entries = [leaf.flatten()[0] for leaf in mapped if isinstance(leaf, Tensor) and leaf.numel()]
        self.zero = sum((torch.zeros_like(entry, dtype=torch.float64) for entry in entries), torch.zeros(()))

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        return made + self.zero.to(made.dtype) if func in MAKERS and made.is_floating_point() else made


class InDouble(TorchFunctionMode):
    """Computes in float64 in place of float32: constants, parameters of modules, `x.float()`.

    A model may have tensors in float32 whatever its arguments are; mixed with others they would round, or raise.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is Tensor.float:
            return args[0].double()
        options = {name: _in_double(value) for name, value in (kwargs or {}).items()}
        return _in_double(func(*map(_in_double, args), **options))


class OnDevice(TorchFunctionMode):
    """Runs a model on a device: its constants, the tensors that it closes over, what it makes of arrays.

    A model says `torch.zeros(3)` and `dist.Normal(0.0, 1.0).expand([3])` without a device, or with the one that it was
    written for, and may hold tensors and modules that lie elsewhere: on the CPU while it runs on a GPU, or on a GPU
    while it is checked on the CPU. A tensor from elsewhere that a function takes is moved for it, and one that it
    returns.

    Args:
        device: where the model's rows and latents lie.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in TO_CPU:
            return func(*args, **(kwargs or {}))
        if args and isinstance(args[0], Tensor) and args[0].device.type != self.device.type and _writes(func):
            at, here = (_place(device) for device in (args[0].device, self.device))
            cure = "let it lie on the CPU" if self.device == CPU else "leave device= out"
            raise ModelError(
                f"the model writes into a tensor that lies on {at} ({getattr(func, '__name__', func)}), while it "
                f"runs on {here}: let it make the tensor anew, such as by torch.zeros(...), or {cure}"
            )
        options = {name: self._to_device(value) for name, value in (kwargs or {}).items()}
        if self.device.type == "cuda":
            func = ON_CUDA.get(func, func)
        with torch.device(self.device):
            return self._to_device(func(*map(self._to_device, args), **options))

    def _to_device(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            shape_alone = type(value) is Tensor and value.is_meta
            return value if shape_alone or value.device == self.device else value.to(self.device)
        return type(value)(map(self._to_device, value)) if type(value) in (list, tuple) else value


def log_sigmoid(values: Tensor) -> Tensor:
    """`torch.nn.functional.logsigmoid`, which `vmap` cannot map on CUDA."""
    return -nn.functional.softplus(-values, threshold=LINEAR)


#: Where log(1 + exp(x)) is x to the last bit of float64; exp(x) is a number of float32.
LINEAR = 50.0
#: Functions that give way to others on CUDA alone.
ON_CUDA: Mapping[Callable[..., Any], Callable[..., Any]] = {nn.functional.logsigmoid: log_sigmoid}


def on_the_cpu(function: Callable[..., T]) -> Callable[..., T]:
    """Decorator of functions that run a model on the CPU, with its priors among others, which may be elsewhere."""

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> T:
        with placing(None):
            return function(*args, **keywords)

    return call


def placing(device: torch.device | None) -> OnDevice | nullcontext[None]:
    """The mode in which a model runs on the device of its rows, None for the CPU; none if the process has no other."""
    return nullcontext() if device is None and not has_other_devices() else OnDevice(device or CPU)


def has_other_devices() -> bool:
    """Whether tensors of this process may be on devices other than the CPU: CUDA reports it once it has been used."""
    if torch.backends.cuda.is_built():
        return bool(torch.cuda.is_initialized())
    return torch.accelerator.is_available()


def _place(device: torch.device) -> str:
    return "the CPU" if device == CPU else str(device)


#: What brings numbers to the CPU, for Python and NumPy.
TO_CPU = frozenset((Tensor.cpu, Tensor.numpy, Tensor.tolist, Tensor.item, Tensor.__array__))


def _writes(func: Callable[..., Any]) -> bool:
    """Whether a function changes its first argument in place."""
    name = getattr(func, "__name__", "")
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__") and name != "requires_grad_")


def _in_double(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.double() if value.dtype is torch.float32 else value
    if value is torch.float32:
        return torch.float64
    return type(value)(map(_in_double, value)) if type(value) in (list, tuple) else value


def factor_or_nan(matrix: Tensor, *, upper: bool = False) -> Tensor:
    """`torch.linalg.cholesky` of (..., n, n), but NaN for a matrix without a factor, so that the point has no density.

    An error would end the run because one trial of one client leaves the support, if only by rounding.
    """
    factor, info = torch.linalg.cholesky_ex(matrix, upper=upper)
    return torch.where((info > 0)[..., None, None], torch.nan, factor)


def put(tensor: Tensor, index: Any, value: Any) -> None:
    """`tensor[index] = value`, without indices for a mask and a number, since `vmap` lacks those."""
    mask = isinstance(index, Tensor) and index.dtype is torch.bool and isinstance(value, int | float)
    if not mask or index.shape != tensor.shape[: index.dim()]:
        tensor[index] = value
        return
    tensor.masked_fill_(index.reshape(index.shape + (1,) * (tensor.dim() - index.dim())), value)


REPLACED: Mapping[Callable[..., Any], Callable[..., Any]] = {
    torch.linalg.cholesky: factor_or_nan,
    Tensor.__setitem__: put,
    **MAPPABLE,
}


@dataclass
class Noticed:
    """The functions that runs of a model have called.

    Attributes:
        names: names of the functions that are replaced by others.
        looked: whether a run that computed its densities has been inspected.
    """

    names: set[str] = field(default_factory=set)
    looked: bool = False

    @property
    def plain(self) -> bool:
        """Whether it is known to call none of them, so that no mode is needed."""
        return self.looked and not self.names


class Replacing(TorchFunctionMode):
    """Replaces functions that raise, or that `vmap` cannot map, by others of the same values, see `mappable`.

    `noticed` receives the names of those that are called.
    """

    def __init__(self, noticed: Noticed | None = None) -> None:
        super().__init__()
        self.noticed = noticed or Noticed()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in REPLACED:
            self.noticed.names.add(func.__name__)
            func = REPLACED[func]
        return func(*args, **(kwargs or {}))


@contextmanager
def replacing(noticed: Noticed | None = None) -> Iterator[None]:
    """`Replacing`, and attention by products and a softmax, which torch's own modules call past all modes.

    Recurrent modules leave their weights where they are: on a GPU they would look for those of a mapped draw in memory.

    A mode looks at every function, and at every shape that is asked for: a tenth to a fourth of the time of a model
    that calls none of the replaced functions. For such a one only `torch.linalg.cholesky` is replaced, by its name.
    `noticed` are known facts about the model, to which this run adds.
    """
    plain, before, flatten = noticed is not None and noticed.plain, torch.linalg.cholesky, nn.RNNBase.flatten_parameters
    if plain:
        torch.linalg.cholesky = factor_or_nan
    nn.RNNBase.flatten_parameters = _left_where_they_are  # type: ignore[assignment, method-assign]
    try:
        with nullcontext() if plain else Replacing(noticed), sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.linalg.cholesky = before
        nn.RNNBase.flatten_parameters = flatten  # type: ignore[method-assign]


def _left_where_they_are(module: nn.RNNBase) -> None:
    return


def _uniform(like: Tensor, low: float = 0.0, high: float = 1.0, **_: Any) -> Tensor:
    return low + (high - low) * torch.rand_like(like)


def _exponential(like: Tensor, rate: float = 1.0, **_: Any) -> Tensor:
    return -torch.log1p(-torch.rand_like(like)) / rate


def _cauchy(like: Tensor, median: float = 0.0, scale: float = 1.0, **_: Any) -> Tensor:
    return median + scale * torch.tan(math.pi * (torch.rand_like(like) - 0.5))


def _normal(like: Tensor, mean: float = 0.0, std: float = 1.0, **_: Any) -> Tensor:
    return mean + std * torch.randn_like(like)


OUT_OF_PLACE: Mapping[Callable[..., Any], Callable[..., Any]] = {
    Tensor.uniform_: _uniform,
    Tensor.exponential_: _exponential,
    Tensor.cauchy_: _cauchy,
    Tensor.normal_: _normal,
}


class OutOfPlace(TorchFunctionMode):
    """Random numbers are returned, not written: `vmap` cannot draw different ones for each into a shared tensor.

    Torch's distributions take what is returned (`torch.empty(shape).normal_()`).
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return OUT_OF_PLACE.get(func, func)(*args, **(kwargs or {}))
