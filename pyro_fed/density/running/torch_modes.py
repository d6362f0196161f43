"""Replacements of torch functions during a run, so that a model can be mapped and run on any device.

For an operation without a batching rule `vmap` loops over the draws, and its trace has one operation for each draw; for
other operations (recurrent layers) it raises an error. The functions here have the same values and derivatives as the
functions that they replace.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributions import dirichlet
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from pyro_fed.errors import ModelError
from pyro_fed.ops.batched import ForProcess

#: Upper end of the normal distribution's lower tail, in which Φ is computed by the scaled complementary error function.
NORMAL_TAIL_END = -1.0


def prefix_products(values: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """`torch.cumprod` by doubling, for simplices and correlations; `vmap` loops over torch's own derivatives."""
    products = values.to(dtype or values.dtype).movedim(dim, -1)
    done = 1
    while done < products.shape[-1]:
        products = torch.cat([products[..., :done], products[..., done:] * products[..., :-done]], -1)
        done *= 2
    return products.movedim(-1, dim)


def log_normal_cdf(values: Tensor) -> Tensor:
    """`torch.special.log_ndtr`, log Φ, for censored normal observations and probit models."""
    tail, rest = values.clamp_max(NORMAL_TAIL_END), values.clamp_min(NORMAL_TAIL_END)
    low = (torch.special.erfcx(-tail / math.sqrt(2)) / 2).log() - tail.square() / 2
    return torch.where(values < NORMAL_TAIL_END, low, torch.log1p(-torch.erfc(rest / math.sqrt(2)) / 2))


def take_flat(values: Tensor, index: Tensor) -> Tensor:
    """`torch.take`: the entries at an index into the flattened values."""
    return values.reshape(-1)[index]


def clamp_in_place(values: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """`Tensor.clamp_`, which Pyro's hidden Markov models call."""
    if min is not None:
        values.clamp_min_(min)
    if max is not None:
        values.clamp_max_(max)
    return values


def windows(values: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """`Tensor.unfold`, for which `vmap` has no derivatives: pieces of `size` along an axis, `step` apart."""
    moved = values.movedim(dimension, -1)
    starts = torch.arange(0, moved.shape[-1] - size + 1, step, device=values.device)
    pieces = moved[..., starts.unsqueeze(-1) + torch.arange(size, device=values.device)]
    return pieces.movedim(-2, dimension if dimension >= 0 else dimension - 1)


def distances(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str | None = None) -> Tensor:
    """`torch.cdist` of (..., n, k) and (..., m, k), twice differentiable for the norms 1 and 2.

    Derivatives between equal points are finite. Torch computes other norms.
    """
    if p not in (1.0, 2.0):
        return torch.cdist(x1, x2, p, compute_mode) if compute_mode else torch.cdist(x1, x2, p)
    difference = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    if p == 1.0:
        return difference.abs().sum(-1)
    squares = difference.square().sum(-1)
    same = squares == 0
    return torch.where(same, 0.0, torch.where(same, 1.0, squares).sqrt())


def one_hot(values: Tensor, num_classes: int = -1) -> Tensor:
    """`torch.nn.functional.one_hot` with a given number of classes, without a check of the values."""
    if num_classes < 0:
        return nn.functional.one_hot(values)
    return (values.unsqueeze(-1) == torch.arange(num_classes, device=values.device)).to(torch.int64)


def _lstm_cell(parts: Tensor, hidden: Sequence[Tensor], weights: Sequence[Tensor]) -> tuple[Tensor, ...]:
    enter, forget, new, leave = (parts + _linear(hidden[0], weights)).chunk(4, -1)
    cell = forget.sigmoid() * hidden[1] + enter.sigmoid() * new.tanh()
    return leave.sigmoid() * cell.tanh(), cell


def _gru_cell(parts: Tensor, hidden: Sequence[Tensor], weights: Sequence[Tensor]) -> tuple[Tensor, ...]:
    (reset, update, new), (of_reset, of_update, of_new) = parts.chunk(3, -1), _linear(hidden[0], weights).chunk(3, -1)
    kept_share = (update + of_update).sigmoid()
    candidate = (new + (reset + of_reset).sigmoid() * of_new).tanh()
    return (candidate + kept_share * (hidden[0] - candidate),)


def _plain_cell(curve: Callable[[Tensor], Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    def cell(parts: Tensor, hidden: Sequence[Tensor], weights: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return (curve(parts + _linear(hidden[0], weights)),)

    return cell


def _linear(values: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Values times a weight, plus an optional bias."""
    product = values @ weights[0].mT
    return product + weights[1] if len(weights) > 1 else product


def recurrent(of_torch: Callable[..., Any], cell: Callable[..., tuple[Tensor, ...]]) -> Callable[..., Any]:
    """A recurrent layer by steps of `cell`, which `vmap` can map; torch runs packed sequences and dropout."""

    def layers(values: Tensor, hidden: Any, weights: Any, *settings: Any) -> Any:
        packed = not isinstance(settings[0], bool)
        if packed or (settings[2] and settings[3]) or _is_projected(weights, *settings):
            return of_torch(values, hidden, weights, *settings)
        biases, count, _, _, both_ways, batch_first = settings
        sequence = values.transpose(0, 1) if batch_first else values
        states = hidden if isinstance(hidden, list | tuple) else (hidden,)
        directions, all_last_states = 2 if both_ways else 1, list[Sequence[Tensor]]()
        num_weights = len(weights) // (count * directions)
        for layer in range(count):
            outputs = []
            for direction in range(directions):
                at = layer * directions + direction
                layer_weights = weights[at * num_weights : (at + 1) * num_weights]
                input_weights, state_weights = (
                    ((layer_weights[0], layer_weights[2]), (layer_weights[1], layer_weights[3]))
                    if biases
                    else (layer_weights[:1], layer_weights[1:2])
                )
                direction_outputs, direction_states = _steps(
                    cell, _linear(sequence, input_weights), [one[at] for one in states], state_weights, direction == 1
                )
                outputs.append(direction_outputs)
                all_last_states.append(direction_states)
            sequence = torch.cat(outputs, -1)
        last_states = tuple(torch.stack(parts) for parts in zip(*all_last_states, strict=True))
        return (sequence.transpose(0, 1) if batch_first else sequence), *last_states

    return layers


def _is_projected(
    weights: Sequence[Tensor], biases: bool, count: int, _: float, __: bool, both: bool, *___: bool
) -> bool:
    """Whether another weight projects the units to fewer outputs (`proj_size`)."""
    return len(weights) != (4 if biases else 2) * count * (2 if both else 1)


def _steps(
    cell: Callable[..., tuple[Tensor, ...]], parts: Tensor, hidden: Sequence[Tensor], weights: Any, backwards: bool
) -> tuple[Tensor, Sequence[Tensor]]:
    """Outputs of a layer in one direction over a sequence (T, N, ...), and its last states."""
    outputs = []
    for part in reversed(parts.unbind()) if backwards else parts.unbind():
        hidden = cell(part, hidden, weights)
        outputs.append(hidden[0])
    return torch.stack(outputs[::-1] if backwards else outputs), hidden


def numbers_of(values: Tensor) -> Tensor:
    """`Tensor.data`, which `vmap` refuses: a view without a gradient that Pyro writes into."""
    return values.detach()


#: Replacements of functions that `vmap` cannot map.
MAPPABLE: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.cumprod: prefix_products,
    Tensor.cumprod: prefix_products,
    torch.special.log_ndtr: log_normal_cdf,
    Tensor.data.__get__: numbers_of,  # type: ignore[attr-defined]
    torch.take: take_flat,
    Tensor.take: take_flat,
    Tensor.unfold: windows,
    Tensor.clamp_: clamp_in_place,
    torch.cdist: distances,
    nn.functional.one_hot: one_hot,
    torch.lstm: recurrent(torch.lstm, _lstm_cell),
    torch.gru: recurrent(torch.gru, _gru_cell),
    torch.rnn_tanh: recurrent(torch.rnn_tanh, _plain_cell(torch.tanh)),
    torch.rnn_relu: recurrent(torch.rnn_relu, _plain_cell(torch.relu)),
}


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
    """Allows writes into new floating tensors under `vmap`, such as `p = torch.zeros(n); p[0] = z`.

    A tensor from `torch.zeros` is shared by all particles and clients. Adding a zero computed from the `mapped` values
    makes one for each. Pyro's `OrderedLogistic` writes this way, and torch's `Multinomial` into a copy of its logits.
    """

    def __init__(self, mapped: Iterable[Any]) -> None:
        super().__init__()
        entries = [leaf.flatten()[0] for leaf in mapped if isinstance(leaf, Tensor) and leaf.numel()]
        self.zero = sum((torch.zeros_like(entry, dtype=torch.float64) for entry in entries), torch.zeros(()))

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        return result + self.zero.to(result.dtype) if func in MAKERS and result.is_floating_point() else result


class InDouble(TorchFunctionMode):
    """Computes in float64 in place of float32, also for constants and modules of a model, and for `x.float()`."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is Tensor.float:
            return args[0].double()
        options = {name: _in_double(value) for name, value in (kwargs or {}).items()}
        return _in_double(func(*map(_in_double, args), **options))


class OnDevice(TorchFunctionMode):
    """Runs a model on the device of its rows, including its constants, closure and tensors made from arrays.

    A model may call `torch.zeros(3)` without a device, or with another one, and may hold tensors and modules on another
    device. Arguments and results of functions are moved to the device of the rows.
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
            tensor_place, own_place = (_place(device) for device in (args[0].device, self.device))
            cure = "keep the tensor on the CPU" if self.device == CPU else "omit device="
            raise ModelError(
                f"the model writes into a tensor on {tensor_place} ({getattr(func, '__name__', func)}), but "
                f"runs on {own_place}: make the tensor in the model, such as by torch.zeros(...), or {cure}"
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
    return -nn.functional.softplus(-values, threshold=SOFTPLUS_THRESHOLD)


#: Value x from which log(1 + exp(x)) equals x in float64; exp(x) is finite in float32.
SOFTPLUS_THRESHOLD = -math.log(torch.finfo(torch.float64).eps)
#: Replacements of functions on CUDA only.
ON_CUDA: Mapping[Callable[..., Any], Callable[..., Any]] = {nn.functional.logsigmoid: log_sigmoid}


def on_the_cpu(function: Callable[..., T]) -> Callable[..., T]:
    """Decorator of functions that run a model on the CPU, although its tensors may be on another device."""

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> T:
        with placing(None):
            return function(*args, **keywords)

    return call


def placing(device: torch.device | None) -> OnDevice | nullcontext[None]:
    """The mode that runs a model on a device, None for the CPU; no mode if the process has no other device."""
    return nullcontext() if device is None and not has_other_devices() else OnDevice(device or CPU)


def has_other_devices() -> bool:
    """Whether tensors of this process may be on other devices than the CPU; False for CUDA before its first use."""
    if torch.backends.cuda.is_built():
        return bool(torch.cuda.is_initialized())
    return torch.accelerator.is_available()


def _place(device: torch.device) -> str:
    return "the CPU" if device == CPU else str(device)


#: Functions that move numbers to the CPU, for Python and NumPy.
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
    """`torch.linalg.cholesky`, with NaN for a matrix without a factor, so that the run continues."""
    factor, info = torch.linalg.cholesky_ex(matrix, upper=upper)
    return torch.where((info > 0)[..., None, None], torch.nan, factor)


def put(tensor: Tensor, index: Any, value: Any) -> None:
    """`tensor[index] = value`; by `masked_fill_` for a mask and a number, which `vmap` cannot index."""
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
    """Names of the replaced functions that runs of a model have called; `looked` after a run with densities."""

    names: set[str] = field(default_factory=set)
    looked: bool = False

    @property
    def plain(self) -> bool:
        """Whether the model calls no replaced function, so that no mode is needed."""
        return self.looked and not self.names


class Replacing(TorchFunctionMode):
    """Replaces functions that raise, or that `vmap` cannot map, by equivalent ones, and records their names."""

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
    """`Replacing`, with attention by products and a softmax, since torch's own modules bypass all modes.

    A mode takes a tenth to a fourth of the time of a model that calls no replaced function. If `noticed` says so, only
    `torch.linalg.cholesky` is replaced, as an attribute of its module. Recurrent modules do not flatten their weights,
    since on a GPU this reads the memory of weights, which mapped draws do not have.
    """
    plain, before, flatten = noticed is not None and noticed.plain, torch.linalg.cholesky, nn.RNNBase.flatten_parameters
    if plain:
        torch.linalg.cholesky = factor_or_nan
    nn.RNNBase.flatten_parameters = _keep_weights_in_place  # type: ignore[assignment, method-assign]
    try:
        with nullcontext() if plain else Replacing(noticed), sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.linalg.cholesky = before
        nn.RNNBase.flatten_parameters = flatten  # type: ignore[method-assign]


def _keep_weights_in_place(module: nn.RNNBase) -> None:
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


class _DirichletByGammas:
    """In place of the function by which torch draws from Beta and Dirichlet distributions, which `vmap` cannot map."""

    @staticmethod
    def apply(concentration: Tensor) -> Tensor:
        """Draws of the shape of the concentrations, (..., k)."""
        parts = torch._standard_gamma(concentration.double())  # small ones underflow in float32
        draws, limits = (parts / parts.sum(-1, keepdim=True)).to(concentration.dtype), torch.finfo(concentration.dtype)
        return draws.clamp(limits.tiny, 1 - limits.eps / 2)  # as torch's own, whose logarithms are finite


_OWN_DIRICHLET = vars(dirichlet)["_Dirichlet"]


def _draw_by_gammas(on: bool) -> None:
    vars(dirichlet)["_Dirichlet"] = _DirichletByGammas if on else _OWN_DIRICHLET


_by_gammas = ForProcess(_draw_by_gammas)


class OutOfPlace(TorchFunctionMode):
    """Returns random numbers instead of writing them, since `vmap` cannot draw different ones into a shared tensor."""

    def __enter__(self) -> Any:
        _by_gammas.__enter__()
        return super().__enter__()  # type: ignore[no-untyped-call]  # of torch

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # of torch
        _by_gammas.__exit__()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return OUT_OF_PLACE.get(func, func)(*args, **(kwargs or {}))
