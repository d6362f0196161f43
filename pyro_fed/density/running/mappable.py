"""Functions that torch cannot map or differentiate twice, made of functions that it can.

For an operation without a batching rule `vmap` computes one draw after another, and a trace of that has as many
operations as there are draws; for others (recurrent layers) there is an error. Each function here has the values and
derivatives of the one that it replaces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

#: Where the lower tail of the normal distribution begins, in which Φ is the scaled complementary error function's.
TAIL = -1.0


def prefix_products(values: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """`torch.cumprod` of any shape along an axis by doubling, of which `vmap` knows all derivatives.

    Those of `torch.cumprod` itself are looped over, with torch's warning; simplices and correlations are made of it.
    """
    products = values.to(dtype or values.dtype).movedim(dim, -1)
    done = 1
    while done < products.shape[-1]:
        products = torch.cat([products[..., :done], products[..., done:] * products[..., :-done]], -1)
        done *= 2
    return products.movedim(-1, dim)


def log_normal_cdf(values: Tensor) -> Tensor:
    """`torch.special.log_ndtr`, log Φ, of censored normal observations and probit models."""
    tail, rest = values.clamp_max(TAIL), values.clamp_min(TAIL)
    low = (torch.special.erfcx(-tail / math.sqrt(2)) / 2).log() - tail.square() / 2
    return torch.where(values < TAIL, low, torch.log1p(-torch.erfc(rest / math.sqrt(2)) / 2))


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
    """`torch.nn.functional.one_hot`, without a look at the values, which the model's first run has checked.

    Torch's own is used if the number of classes follows from the values.
    """
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
    """A recurrent layer of torch, step by step with `cell`, as `vmap` has no rule for it.

    Packed sequences and dropout are left to `of_torch`, `torch.lstm` or a similar function.
    """

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
    """`Tensor.data`, which `vmap` refuses: a view without a gradient, of the same numbers.

    Pyro writes through it into what it has just made, as `safe_normalize` does, or its stable distributions' noise.
    """
    return values.detach()


#: What stands for what.
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
