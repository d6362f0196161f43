"""Where the ascents to the modes of the rows' latents begin at many points: at the modes at the points' mean.

Each integral over a row's latents is centred at their mode given θ, which Newton's method climbs to. From zero that
takes up to twelve steps, the same at every θ. Where the points θ are those of one posterior, the modes at their mean
are near, and `NEAR_STEPS` steps lead from there to each of the others.

That they do is looked at where it is least likely, at the points that are farthest from the mean. A client whose rows'
ascents are not at rest there begins at zero as before. Its own rows decide, not who is computed beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch
from torch import Tensor

from pyro_fed.density.latents.quadrature import CONVERGED_DECREMENT, NEAR_STEPS
from pyro_fed.density.rows.batches import BATCHES, Batch

if TYPE_CHECKING:
    from pyro_fed.density.problem import Problem

T = TypeVar("T")

#: Points that are looked at, the farthest; and how many times as many there are at least, or it saves nothing.
NUM_OUTERMOST_POINTS, MIN_POINTS_RATIO = 4, 4


class AscentStarts(NamedTuple):
    """Rows with the places where ascents begin, and the clients whose ascents arrive from there, (C,)."""

    batch: Batch
    arrive: Tensor


def from_modes(
    problem: Problem,
    points: Tensor,
    batch: Batch,
    compute: Callable[[Batch], T],
    choose: Callable[[Tensor, T, T], T],
) -> T:
    """What is computed of C clients' rows at points of one posterior, by ascents that begin where they best do.

    Args:
        problem: the model's densities.
        points: (C, S, D), unconstrained.
        batch: the clients' rows.
        compute: of the rows, with or without places where ascents begin.
        choose: of two results, the first for the clients (C,) that are named, else the second.
    """
    near = ascent_starts(problem, points, batch)
    if near is None:
        return compute(batch)
    found = compute(near.batch)
    return found if bool(near.arrive.all()) else choose(near.arrive, found, compute(batch))


def ascent_starts(problem: Problem, points: Tensor, batch: Batch) -> AscentStarts | None:
    """The rows of C clients with places near the modes of their latents; None where none is near, or it saves nothing.

    Args:
        problem: the model's densities.
        points: (C, S, D), unconstrained.
        batch: the clients' rows, each as often as its weight says.
    """
    rule, dim = problem.quadrature, problem.local_dim
    if not dim or rule.starts or rule.by_tails(dim) or (rule.mode_steps or 0) <= NEAR_STEPS:
        return None
    if points.shape[1] < MIN_POINTS_RATIO * NUM_OUTERMOST_POINTS:
        return None
    mean = points.double().mean(1, keepdim=True)
    sd = points.double().std(1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    farthest = ((points - mean) / sd).square().sum(-1).topk(NUM_OUTERMOST_POINTS).indices
    outermost = points.gather(1, farthest.unsqueeze(-1).expand(-1, -1, points.shape[2])).to(problem.dtype)
    places = problem.mapped(_modes, (0, BATCHES), calls=0)(mean[:, 0].to(problem.dtype), batch)
    found = batch._replace(begin=(places,))
    left = problem.mapped(_remaining_sds, (0, BATCHES), calls=0)(outermost, found)
    arrive = (left <= CONVERGED_DECREMENT).flatten(1).all(1)  # not a number is not
    return AscentStarts(found, arrive) if bool(arrive.any()) else None


def _modes(problem: Problem, theta: Tensor, batch: Batch) -> Tensor:
    """The modes of the rows' latents at θ (D,), (m, d)."""
    return problem.quadrature.centre(problem, theta, batch.rows).mode


def _remaining_sds(problem: Problem, points: Tensor, batch: Batch) -> Tensor:
    """How many SDs of a row's latents ascents still have to go at points (P, D), (P, m); 0 of padding."""

    def at(theta: Tensor) -> Tensor:
        return problem.quadrature.centre_from(problem, theta, batch.rows, *batch.begin).decrement

    left: Tensor = problem.vmap(at)(points)
    return torch.where(batch.weight > 0, left, 0.0)
