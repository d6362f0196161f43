"""Checks of messages against their honest range: magnitudes and signs.

The limits are wide: honest messages never exceed them, whereas a reply scaled by 1e30 or with the wrong sign is
rejected. `pyro_fed.combination` handles everything in between.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_fed.ops.gaussian import Gaussian

#: Log-likelihood of impossible parameters: finite, so that it can be sent, summed and mixed.
IMPOSSIBLE = -1e30
#: Largest ratio of a message to what the client received, or to the other clients' median,
LARGEST_RATIO = 1e12
#: and the largest message if there are no others.
LARGEST_ALONE = 1e18
#: Largest fall of the precision by a change, as a multiple of the precision, plus this multiple per nat of the client's
#: expected log-likelihood below zero (see `natural`).
LARGEST_FALL = 100.0

#: Reasons to reject messages, with the clients (C,) that each applies to.
Objections = dict[str, Tensor]


def grown(received: dict[str, Tensor], messages: dict[str, Tensor]) -> Objections:
    """Clients whose message has an entry that is more than `LARGEST_RATIO` times what they received."""
    return {
        f"its '{name}' is more than {LARGEST_RATIO:g} times what it received": _grown(received[name], messages[name])
        for name in messages
        if name in received and received[name].is_floating_point()
    }


def _grown(received: Tensor, message: Tensor) -> Tensor:
    """Whether each client's entry has grown by more than `LARGEST_RATIO`, (C,), by its largest magnitude."""
    if message.numel() and float(message.abs().max()) <= LARGEST_RATIO:
        return torch.zeros(len(message), dtype=torch.bool, device=message.device)
    return sizes(message) > LARGEST_RATIO * (1 + sizes(received))


def outlying_clients(size: Tensor, what: str) -> Objections:
    """Clients of a size (C,), in units in which 1 is small, far above the others'; `what` names it."""
    if len(size) == 1:
        return {f"its {what} is above {LARGEST_ALONE:g}": size > LARGEST_ALONE}
    usual = median_of_others(size.unsqueeze(-1)).squeeze(-1).clamp_min(1.0)
    return {f"its {what} is more than {LARGEST_RATIO:g} times the other clients'": size > LARGEST_RATIO * usual}


def outlying_sites(messages: dict[str, Tensor]) -> Objections:
    """Clients whose precisions or etas are far above the others', relative to the fall of `values` (C, L) on a line."""
    swing: Tensor | float = 1.0
    if "values" in messages:
        values = messages["values"].double()
        swing = (values.amax(-1) - values.amin(-1)).clamp(1.0, torch.finfo(values.dtype).max)
    return {
        **outlying_clients(sizes(messages["precision"]) / swing, "'precision'"),
        **outlying_clients(sizes(messages["eta"]) / swing, "'eta'"),
    }


def natural(q: Gaussian, deltas: Gaussian, values: Tensor | None = None) -> Objections:
    """Clients whose changes (C,) of the natural parameters of q, (1,), cannot be honest.

    The checked sizes are |Δ_ij|, -Δ_ii and the step in SDs, in units of q's precision plus the other clients' changes.

    A log-likelihood l of at most M has an expected curvature Λ with -Λ_ii ≤ P_ii (M - E_q[l]), by Stein's identity: in
    the direction u, in units of q, -u'Λu = E_q[(1 - (u'ε)²) (M - l)] and M - l ≥ 0. At finitely many points Λ_ii and
    the score are within this bound times the largest (u'ε)². A client whose log-likelihood has fallen to -10⁵ nats
    under q may therefore honestly remove 10⁵ times the precision, as happens for rows with scales of their own after a
    step or a start that is too far away. All three sizes are therefore relative to the fall. The step is wrong then,
    not the message, and algorithms that know the values reject the step.

    Args:
        q: the Gaussian that the clients received.
        deltas: the changes that the clients sent.
        values: the clients' expected log-likelihoods under q, (C,), if they send them.
    """
    fall = torch.zeros_like(deltas.eta[:, 0]) if values is None else (-values).clamp_min(0.0)
    full = deltas.dense
    own, parts = (p.precision.diagonal(dim1=-2, dim2=-1) if full else p.precision for p in (q, deltas))
    scale = own + median_of_others(parts.abs())
    root = scale.sqrt()
    change = deltas.precision / (root.unsqueeze(-1) * root.unsqueeze(-2) if full else scale)
    moved = deltas.precision @ q.mean().unsqueeze(-1) if full else (parts * q.mean()).unsqueeze(-1)
    return {
        **outlying_clients(sizes(change) / (1 + fall), "change of the precision"),
        **outlying_clients(sizes((deltas.eta - moved.squeeze(-1)) / root) / (1 + fall), "step"),
        "its precision has the wrong sign": (parts < -(LARGEST_FALL + fall).unsqueeze(-1) * scale).any(-1),
    }


def sizes(value: Tensor) -> Tensor:
    """The largest magnitude of each client, (C,), float64; values that all clients share are inspected once."""
    count = len(value)
    value = value if value.stride(0) else value[:1]
    flat = value.reshape(len(value), -1)
    largest = torch.maximum(flat.amax(1), -flat.amin(1)) if flat.shape[1] else flat.new_zeros(len(value))
    return largest.double().expand(count)


def median_of_others(values: Tensor) -> Tensor:
    """For each client the median over the others, (C, D) → (C, D); zero if there are none."""
    count = len(values)
    if count == 1:
        return torch.zeros_like(values)
    ordered, rank = values.sort(0)[0], values.argsort(0).argsort(0)
    middle = (count - 2) // 2
    return torch.where(rank <= middle, ordered[middle + 1], ordered[middle])
