"""Where a likelihood ends: rows that a latent makes impossible, and parameters beyond their constraints.

A support that depends on a latent, such as that of Uniform(0, θ), ends where θ makes a row impossible. The density is
zero beyond such an edge, and its gradient on this side says nothing of it, so that no algorithm that follows gradients
knows where the edge is, and no Gaussian ends at one.

A parameter beyond its constraint, such as the rate b x of a Poisson where that is negative, makes the density no
number. It is looked for at draws of the prior.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from pyro_fed.density.bound import BoundModel
from pyro_fed.density.checks.first_run import FirstRun
from pyro_fed.density.running.trace_sites import Message, innermost, is_deterministic
from pyro_fed.errors import listed

#: By how much latents are moved, unconstrained, to see whether rows leave the support.
MOVES = (1.0, -1.0, 4.0, -4.0)
#: Draws of the prior, and rows of each, at which parameters are looked at.
DRAWS, ROWS = 4, 2048
#: Unconstrained latents no further out than this: a heavy tail's draw overflows, and says nothing.
FARTHEST = 10.0
#: A parameter is beyond a bound by more than this, or by this part of it: less is rounding.
BEYOND = 1e-3


def moving_support(bound: BoundModel, seen: FirstRun, name: str) -> str:
    """What there is to say of an observed site whose support depends on latents; empty where it does not.

    Args:
        bound: the model and its arguments.
        seen: its first run.
        name: of the site.
    """
    msg = seen.execution.trace.nodes[name]
    if not _edges(msg):
        return ""
    latents = [latent for latent in seen.point if _changes(bound, seen, msg, (latent,))]
    return _said(msg, latents) if latents else ""


def warn_of_moving_supports(bound: BoundModel, seen: FirstRun) -> None:
    """Warn of supports that hold all rows at the first point, and lose some of them where latents are others.

    Args:
        bound: the model and its arguments.
        seen: its first run.
    """
    for name, msg in seen.execution.trace.nodes.items():
        if msg["type"] != "sample" or not msg["is_observed"] or is_deterministic(msg) or not _edges(msg):
            continue
        if not _changes(bound, seen, msg, tuple(seen.point)):
            continue
        moved = [_at(bound, seen, name, tuple(seen.point), move) for move in MOVES]
        lost = any(other is not None and not _holds_all(other) for other in moved)
        if lost and (said := moving_support(bound, seen, name)):
            warnings.warn(said, UserWarning, stacklevel=8)


def _said(msg: Message, latents: Collection[str]) -> str:
    kind = type(innermost(msg["fn"])).__name__
    first = next(iter(latents))
    return (
        f"observed site '{msg['name']}': the support of {kind} depends on {listed(map(repr, latents))}, and not all "
        f"rows are in it wherever the prior of {first!r} reaches. Beyond such an edge the density is zero, and the "
        "gradient does not tell where it is, which all algorithms here follow. Let the prior reach only where all rows "
        f"are possible, which is the same posterior: for Uniform(0, theta) that is theta above the largest row, `top = "
        "pf.shared('top', lambda: y.max())` and a prior of theta on (top, ∞), such as dist.Pareto(top, a); or take a "
        "likelihood whose support is fixed"
    )


def _edges(msg: Message) -> dict[str, Tensor]:
    """The bounds of a site's support that are tensors, by name."""
    support: Any = getattr(msg["fn"], "support", None)
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    found = {} if support is None else vars(support)
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}


def _changes(bound: BoundModel, seen: FirstRun, msg: Message, latents: Collection[str]) -> bool:
    """Whether other values of these latents move a bound."""
    other = _at(bound, seen, msg["name"], latents, MOVES[0])
    if other is None:
        return False
    after = _edges(other)
    return any(name in after and not torch.equal(value, after[name]) for name, value in _edges(msg).items())


def _at(bound: BoundModel, seen: FirstRun, name: str, latents: Collection[str], move: float) -> Message | None:
    """The site where these latents are moved; None where the model cannot be run there."""

    def source(msg: Message, _transform: Any) -> Tensor:
        return seen.point[msg["name"]] + move * float(msg["name"] in latents)

    try:
        found: Message | None = bound.execute(source, bound.all_rows).trace.nodes.get(name)
    except (RuntimeError, ValueError, KeyError):  # what a model cannot do far away is no matter of supports
        return None
    return found


def _holds_all(msg: Message) -> bool:
    try:
        inside = msg["fn"].support.check(msg["value"])
    except (RuntimeError, ValueError):
        return True
    mask = msg["mask"] if isinstance(msg["mask"], Tensor) else inside.new_ones(())
    return bool((inside | ~mask.bool()).all() if mask.dim() <= inside.dim() else inside.all())


def is_suspect(seen: FirstRun) -> bool:
    """Whether a probability is computed, which may leave [0, 1] unseen: torch clips it, and densities are numbers.

    Args:
        seen: the model's first run.
    """
    nodes = seen.execution.trace.nodes.values()
    latents = list(seen.execution.filler.values.values())
    for msg in nodes:
        if msg["type"] == "sample" and msg["is_observed"] and not is_deterministic(msg):
            given = vars(innermost(msg["fn"])).get("probs")
            if isinstance(given, Tensor) and not any(_is_latent(given, one) for one in latents):
                return True
    return False


def _is_latent(value: Tensor, latent: Tensor) -> bool:
    """Whether a value is a latent's own, broadcast as it may be."""
    return value.untyped_storage().data_ptr() == latent.untyped_storage().data_ptr()


def warn_of_parameters(bound: BoundModel) -> None:
    """Warn of observed sites a parameter of which leaves its constraint at draws of the prior.

    Args:
        bound: the model and its arguments.
    """
    few = bound.num_rows <= ROWS
    rows = bound.all_rows if few else tuple(leaf[:ROWS] for leaf in bound.rows)
    told: set[str] = set()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for _ in range(DRAWS):
            try:
                trace = bound.execute(_drawn, rows).trace
            except (RuntimeError, ValueError, IndexError, KeyError):  # what cannot be run in this way is refused after
                return
            for name, msg in trace.nodes.items():
                observed = msg["type"] == "sample" and msg["is_observed"] and not is_deterministic(msg)
                if observed and name not in told and (said := _beyond(msg)):
                    told.add(name)
                    warnings.warn(said, UserWarning, stacklevel=8)


def _drawn(msg: Message, transform: Any) -> Tensor:
    """A draw of a latent's prior, unconstrained; near zero where it cannot be drawn from."""
    shape = transform.inverse_shape(msg["fn"].shape())
    try:
        drawn: Tensor = transform.inv(msg["fn"].sample())
    except (NotImplementedError, RuntimeError, ValueError):  # an improper prior, say
        return torch.randn(shape)
    return drawn.nan_to_num(0.0).clamp(-FARTHEST, FARTHEST)


def _beyond(msg: Message) -> str:
    """What there is to say of a site with a parameter beyond a bound; empty where all are within theirs."""
    fn = innermost(msg["fn"])
    for parameter, constraint in getattr(fn, "arg_constraints", {}).items():
        value = vars(fn).get(parameter)  # those that are given: probs or logits
        while hasattr(constraint, "base_constraint"):
            constraint = constraint.base_constraint
        if not isinstance(value, Tensor) or not value.is_floating_point():
            continue
        low, high = (getattr(constraint, edge, None) for edge in ("lower_bound", "upper_bound"))
        out = torch.zeros_like(value, dtype=torch.bool)
        if low is not None:
            out |= value < low - BEYOND * (1 + abs(low))
        if high is not None:
            out |= value > high + BEYOND * (1 + abs(high))
        mask = msg["mask"]
        if isinstance(mask, Tensor) and mask.shape == out.shape:
            out &= mask
        if bool(out.any()):
            edges = (("at least", low), ("at most", high))
            wanted = " and ".join(f"{side} {float(edge):g}" for side, edge in edges if edge is not None)
            return (
                f"observed site '{msg['name']}': {parameter} of {type(fn).__name__} is {float(value[out][0]):.3g} at a "
                f"draw of the prior, where it has to be {wanted}: the likelihood is no number there, and a run that "
                f"comes there fails. Write it by a link function, such as torch.exp(...) for a rate or a scale and "
                "logits=... or torch.sigmoid(...) for a probability, or give latents a prior that keeps it within"
            )
    return ""
