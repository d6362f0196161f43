"""Scores and curvatures of a prior whose score jumps, as a lasso's does: by scores along a coordinate.

There second derivatives are zero almost everywhere, and a site made of them says nothing of what the prior knows. Along
coordinate i, what z_i has left given the others is r ~ N(0, 1 / P_ii) under q = N(m, P⁻¹), and (Price's theorem, the
other coordinates given)

    E_q[-∂_i ∂_j f] = -E E_t[t ∂_j f(z - r e_i + t s_i e_i)] / s_i,    t ~ N(0, 1),    s_i = P_ii^(-1/2)

with the outer expectation over q's points and the inner one over cells of t, in each of which the density of t is taken
for its mean: exact where scores are linear, and zero, without noise, where ∂_j f does not depend on z_i. The mean of
∂_i f over a cell is the difference of f at its ends, so that nothing jumps as q passes a kink, and q comes to rest;
E_q[∂_i f] is made of the same. A diagonal site's curvature is -E_q[∂_i f (z - m)_i] / S_ii, at q's points.

Letters: P `precision`, r `left`, s `sd`, t `EDGES`.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from pyro_fed.density.derivatives.scores import prior_scores_and_values
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import NUMBERS_IN_MEMORY
from pyro_fed.ops.batched import Moments
from pyro_fed.ops.entries import evenly

#: Ends of the cells along a coordinate, in SDs.
EDGES = torch.linspace(-4.5, 4.5, 25, dtype=torch.float64)
#: Points under q at which it is followed, at most.
POINTS = 64


def with_kinks(problem: Problem, points: Tensor, found: Moments) -> Moments:
    """The prior's moments, scores and curvatures along coordinates along which its score jumps by the scores there.

    Args:
        problem: the model's densities.
        points: under Gaussians, (S, C, D), with their first two moments.
        found: means of the prior's value, score and negative Hessian (or its diagonal) at these points.
    """
    turns = problem.traits.prior_kinks.to(points.device)
    if len(points) == 1 or not bool(turns.any()):
        return found
    points = points.double()
    mean = points.mean(0)
    away = points - mean
    if found.curvature.dim() == 2:
        own = -(away * _at(problem, points)[0]).mean(0) / away.square().mean(0)
        return found._replace(curvature=torch.where(turns, own, found.curvature))
    precision = torch.linalg.inv(torch.einsum("sci,scj->cij", away, away) / len(points))
    own = precision.diagonal(dim1=-2, dim2=-1)
    left = torch.einsum("sci,cij->scj", away, precision) / own
    some = evenly(len(points), POINTS).to(points.device)
    score, curvature = found.score.clone(), found.curvature.clone()
    for entry in turns.nonzero().flatten().tolist():
        others = points[some].clone()
        others[..., entry] -= left[some, :, entry]
        slope, column = _along(problem, others, own[:, entry] ** -0.5, entry)
        score[:, entry] = slope + ((others.mean(0) - mean) * column).sum(-1)  # to where the mean is
        curvature[:, entry], curvature[:, :, entry] = column, column
    return Moments(found.value, score, curvature)


def _along(problem: Problem, others: Tensor, sd: Tensor, entry: int) -> tuple[Tensor, Tensor]:
    """Mean score (C,) along a coordinate, and its column of the curvature, (C, D).

    Args:
        problem: the model's densities.
        others: points (S, C, D) whose entry there is its mean given the others.
        sd: its SD given them, (C,).
        entry: which.
    """
    edges, (mass, slope) = EDGES.to(others), (part.to(others) for part in _cells())
    places = others.unsqueeze(1).repeat(1, len(edges), 1, 1)  # (S, K + 1, C, D)
    places[..., entry] += edges[None, :, None] * sd
    score, value = _at(problem, places)
    over_cells = (score[:, 1:] + score[:, :-1]) / 2
    over_cells[..., entry] = value.diff(dim=1) / (edges.diff()[None, :, None] * sd)
    mean = torch.einsum("k,skc->c", mass, over_cells[..., entry]) / len(others)
    return mean, -torch.einsum("k,skcd->cd", slope, over_cells) / (len(others) * sd.unsqueeze(-1))


def _at(problem: Problem, places: Tensor) -> tuple[Tensor, Tensor]:
    """The prior's scores (..., D) and values (...) at places (..., D), some at a time."""
    flat = places.reshape(-1, places.shape[-1]).to(problem.dtype)
    both = problem.mapped(prior_scores_and_values, (0,))
    pieces = [both(piece[None]) for piece in flat.split(max(1, NUMBERS_IN_MEMORY // flat.shape[1]))]
    score, value = (torch.cat([part[0].double() for part in parts]) for parts in zip(*pieces, strict=True))
    return score.reshape(places.shape), value.reshape(places.shape[:-1])


@lru_cache(maxsize=1)
def _cells() -> tuple[Tensor, Tensor]:
    """The mass of t in each cell, (K,), and t times it: such that linear scores have their slope."""
    density = torch.exp(-EDGES.square() / 2) / (2 * torch.pi) ** 0.5
    first = -density.diff()
    mass = torch.special.ndtr(EDGES).diff()
    return mass / mass.sum(), first / (first * (EDGES[1:] + EDGES[:-1]) / 2).sum()
