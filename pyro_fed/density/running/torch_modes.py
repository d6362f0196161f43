"""Modes and functions that stand in for torch's while a model runs, so that it can be mapped and run on any device.

For an operation without a batching rule `vmap` computes one draw after another, and a trace of that has as many
operations as there are draws; for others (recurrent layers) there is an error. The functions here have the values and
derivatives of those that they replace.
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
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from pyro_fed.errors import ModelError

#: Where the lower tail of the normal distribution begins, in which Φ is the scaled complementary error function's.
NORMAL_TAIL_END = -1.0


def prefix_products(values: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """`torch.cumprod` by doubling: `vmap` loops over its derivatives, and simplices and correlations are made of it."""
    products = values.to(dtype or values.dtype).movedim(dim, -1)
    done = 1
    while done < products.shape[-1]:
        products = torch.cat([products[..., :done], products[..., done:] * products[..., :-done]], -1)
        done *= 2
    return products.movedim(-1, dim)


def log_normal_cdf(values: Tensor) -> Tensor:
    """`torch.special.log_ndtr`, log Φ, of censored normal observations and probit models."""
    tail, rest = values.clamp_max(NORMAL_TAIL_END), values.clamp_min(NORMAL_TAIL_END)
    low = (torch.special.erfcx(-tail / math.sqrt(2)) / 2).log() - tail.square() / 2
    return torch.where(values < NORMAL_TAIL_END, low, torch.log1p(-torch.erfc(rest / math.sqrt(2)) / 2))


def take_flat(values: Tensor, index: Tensor) -> Tensor:
    """`torch.take` of any shape, counted as one axis, at an index."""
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
    """`torch.cdist` of (..., n, k) and (..., m, k), which cannot be differentiated twice.

    Between points at one place no derivative is infinite. Norms other than 1 and 2 are left to torch.
    """
    if p not in (1.0, 2.0):
        return torch.cdist(x1, x2, p, compute_mode) if compute_mode else torch.cdist(x1, x2, p)
    apart = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    if p == 1.0:
        return apart.abs().sum(-1)
    squares = apart.square().sum(-1)
    same = squares == 0
    return torch.where(same, 0.0, torch.where(same, 1.0, squares).sqrt())


def one_hot(values: Tensor, num_classes: int = -1) -> Tensor:
    """`torch.nn.functional.one_hot` of given classes, without a look at the values, which the first run has checked."""
    if num_classes < 0:
        return nn.functional.one_hot(values)
    return (values.unsqueeze(-1) == torch.arange(num_classes, device=values.device)).to(torch.int64)


def _lstm_cell(parts: Tensor, hidden: Sequence[Tensor], weights: Sequence[Tensor]) -> tuple[Tensor, ...]:
    enter, forget, new, leave = (parts + _linear(hidden[0], weights)).chunk(4, -1)
    cell = forget.sigmoid() * hidden[1] + enter.sigmoid() * new.tanh()
    return leave.sigmoid() * cell.tanh(), cell


def _gru_cell(parts: Tensor, hidden: Sequence[Tensor], weights: Sequence[Tensor]) -> tuple[Tensor, ...]:
    (reset, update, new), (of_reset, of_update, of_new) = parts.chunk(3, -1), _linear(hidden[0], weights).chunk(3, -1)
    kept = (update + of_update).sigmoid()
    fresh = (new + (reset + of_reset).sigmoid() * of_new).tanh()
    return (fresh + kept * (hidden[0] - fresh),)


def _plain_cell(curve: Callable[[Tensor], Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    def cell(parts: Tensor, hidden: Sequence[Tensor], weights: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return (curve(parts + _linear(hidden[0], weights)),)

    return cell


def _linear(values: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Values times a weight, plus a bias if there is one."""
    product = values @ weights[0].mT
    return product + weights[1] if len(weights) > 1 else product


def recurrent(of_torch: Callable[..., Any], cell: Callable[..., tuple[Tensor, ...]]) -> Callable[..., Any]:
    """A recurrent layer by steps of `cell`, as `vmap` has no rule; packed sequences and dropout are torch's."""

    def layers(values: Tensor, hidden: Any, weights: Any, *settings: Any) -> Any:
        packed = not isinstance(settings[0], bool)
        if packed or (settings[2] and settings[3]) or _is_projected(weights, *settings):
            return of_torch(values, hidden, weights, *settings)
        biases, count, _, _, both_ways, batch_first = settings
        sequence = values.transpose(0, 1) if batch_first else values
        states = hidden if isinstance(hidden, list | tuple) else (hidden,)
        ways, ends = 2 if both_ways else 1, list[Sequence[Tensor]]()
        each = len(weights) // (count * ways)
        for layer in range(count):
            outputs = []
            for way in range(ways):
                at = layer * ways + way
                own = weights[at * each : (at + 1) * each]
                came, stayed = ((own[0], own[2]), (own[1], own[3])) if biases else (own[:1], own[1:2])
                made, last = _steps(cell, _linear(sequence, came), [one[at] for one in states], stayed, way == 1)
                outputs.append(made)
                ends.append(last)
            sequence = torch.cat(outputs, -1)
        last_states = tuple(torch.stack(parts) for parts in zip(*ends, strict=True))
        return (sequence.transpose(0, 1) if batch_first else sequence), *last_states

    return layers


def _is_projected(
    weights: Sequence[Tensor], biases: bool, count: int, _: float, __: bool, both: bool, *___: bool
) -> bool:
    """Whether outputs are fewer than units, by another weight (`proj_size`)."""
    return len(weights) != (4 if biases else 2) * count * (2 if both else 1)


def _steps(
    cell: Callable[..., tuple[Tensor, ...]], parts: Tensor, hidden: Sequence[Tensor], weights: Any, backwards: bool
) -> tuple[Tensor, Sequence[Tensor]]:
    """Outputs of one layer in one direction over a sequence (T, N, ...), and its last states."""
    outputs = []
    for part in reversed(parts.unbind()) if backwards else parts.unbind():
        hidden = cell(part, hidden, weights)
        outputs.append(hidden[0])
    return torch.stack(outputs[::-1] if backwards else outputs), hidden


def numbers_of(values: Tensor) -> Tensor:
    """`Tensor.data`, which `vmap` refuses: a view without a gradient, into which Pyro writes."""
    return values.detach()


#: Functions in place of those that `vmap` cannot map.
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
    """Newly made floating tensors can be written into under `vmap`, as `p = torch.zeros(n); p[0] = z`.

    A tensor from `torch.zeros` is one for all particles and clients. Here it becomes one for each, by a zero made of
    the `mapped` values. Pyro's `OrderedLogistic` writes this way, and torch's `Multinomial` into a copy of its logits.
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
    """Computes in float64 in place of float32, which a model's constants and modules may be: also `x.float()`."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is Tensor.float:
            return args[0].double()
        options = {name: _in_double(value) for name, value in (kwargs or {}).items()}
        return _in_double(func(*map(_in_double, args), **options))


class OnDevice(TorchFunctionMode):
    """Runs a model on the device of its rows: its constants, the tensors that it closes over, what it makes of arrays.

    A model says `torch.zeros(3)` without a device, or with the one that it was written for, and may hold tensors and
    modules that lie elsewhere. What a function takes or returns from elsewhere is moved.
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
    return -nn.functional.softplus(-values, threshold=SOFTPLUS_THRESHOLD)


#: Where log(1 + exp(x)) is x to the last bit of float64; exp(x) is a number of float32.
SOFTPLUS_THRESHOLD = 50.0
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
    """`torch.linalg.cholesky`, but NaN for a matrix without a factor: its point has no density, and the run goes on."""
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
    """The replaced functions that runs of a model have called, by name; `looked` once densities were among the runs."""

    names: set[str] = field(default_factory=set)
    looked: bool = False

    @property
    def plain(self) -> bool:
        """Whether it is known to call none of them, so that no mode is needed."""
        return self.looked and not self.names


class Replacing(TorchFunctionMode):
    """Replaces functions that raise, or that `vmap` cannot map, by others of the same values, and notices them."""

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

    A mode takes a tenth to a fourth of the time of a model that calls none of the replaced functions: for one that is
    `noticed` to be such, only `torch.linalg.cholesky` is replaced, by its name. Recurrent modules leave their weights
    where they are: on a GPU they would look for those of a mapped draw in memory.
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
    """Random numbers are returned, not written: `vmap` cannot draw different ones into a shared tensor."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return OUT_OF_PLACE.get(func, func)(*args, **(kwargs or {}))
