"""Draws of the rows' latents given draws of θ: each from its own conditional, and together spread evenly.

    x_i ~ p(x_i | θ_s, y_i)      for every draw s and row i

A draw is the end of a short Markov chain in the units of `quadrature`, x = m + C⁻ᵀ u around the mode m:

1. T steps of independence Metropolis-Hastings whose proposals u are Student t: the weights p / t are bounded where
   the posterior's tails are no heavier, so that a few steps forget the start;
2. one more such step with a normal proposal. Where x | θ_s, y_i is Gaussian it is always taken, so that x is a
   function of that proposal alone; elsewhere it is taken the more often the nearer x is to Gaussian, and leaves the
   distribution as it is.

Where the nodes of one latent a row are placed by its `tails`, proposals are places of the density that is linear
between these nodes: by uniform numbers in step 1, by Φ of the normal ones in step 2. Nearly all are taken.

The normal proposals of the S draws are `balanced_normal`: stratified over the draws, and over those with similar modes.
Each has its exact distribution and those of different rows are independent, but their sum over the draws hardly varies.
So the moments of x err by little more than those of θ, even where θ has only a hundred particles. (With independent
draws a mean errs by a tenth of an SD, and by three tenths in the worst of a hundred rows.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from pyro_fed.density.latents.ascent import Centre
from pyro_fed.density.rows.batches import CHUNK
from pyro_fed.ops.points import balanced_normal
from pyro_fed.ops.tiny import solve_lower_transposed

if TYPE_CHECKING:
    from pyro_fed.density.problem import Problem

#: Draws × numbers of the rows' latents whose normal proposals are made at once.
WIDE_CHUNK = 5_000_000


class Proposals(NamedTuple):
    """The randomness of a draw of m rows: student (T + 1, m, d), normal (m, d), and uniform (T + 1, m), float64.

    Where proposals are placed by tails, `student` are uniform numbers.
    """

    student: Tensor
    normal: Tensor
    uniform: Tensor


def draw_locals(problem: Problem, theta: Tensor, rows: tuple[Tensor, ...], generator: torch.Generator) -> Tensor:
    """Draws of the rows' latents, unconstrained.

    Args:
        problem: the model's densities.
        theta: (S, D).
        rows: row tensors, each (m, ...), of one client or of all.
        generator: source of randomness.

    Returns:
        (S, m, local_dim).
    """
    rule = problem.quadrature
    size = min(len(theta), max(1, CHUNK // (problem.widest * (rule.draw_steps + 2))))
    starts = range(0, len(theta), size)
    chunks = [torch.arange(first, first + size).clamp_max(len(theta) - 1) for first in starts]  # compiled once
    find = problem.mapped(rule.centre, (0, None), calls=0)
    found = [find(theta[chunk], rows) for chunk in chunks]
    centre = Centre(*(torch.cat(parts)[: len(theta)] for parts in zip(*found, strict=True)))
    normal = _spread(centre.mode, generator)
    by_tails = rule.by_tails(problem.local_dim)
    draw = problem.mapped(draw_by_tails if by_tails else draw_given, (0, 0, 0, None), calls=0)
    out = []
    for chunk in chunks:
        here = Centre(*(part[chunk] for part in centre))
        student, uniform = _proposals(here.mode, rule.draw_steps, rule.degrees, generator)
        if by_tails:
            student = torch.rand(student.shape, generator=generator, dtype=torch.float64)
        out.append(draw(theta[chunk], here, Proposals(student, normal[chunk], uniform), rows))
    return torch.cat(out)[: len(theta)]


def _spread(modes: Tensor, generator: torch.Generator) -> Tensor:
    """Normal proposals (S, m, d), a few rows at a time."""
    width = max(1, WIDE_CHUNK // (len(modes) * modes.shape[-1]))
    return torch.cat([balanced_normal(part, generator) for part in modes.split(width, 1)], 1)


def _proposals(modes: Tensor, steps: int, degrees: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Student proposals (S, T + 1, m, d) and uniforms (S, T + 1, m)."""
    count, rows, dim = modes.shape
    normal = torch.randn(count, steps + 1, rows, dim + degrees, generator=generator, dtype=torch.float64)
    chi_square = normal[..., dim:].square().sum(-1, keepdim=True)
    uniform = torch.rand(count, steps + 1, rows, generator=generator, dtype=torch.float64)
    return normal[..., :dim] * (degrees / chi_square).sqrt(), uniform


def draw_given(problem: Problem, theta: Tensor, centre: Centre, noise: Proposals, rows: tuple[Tensor, ...]) -> Tensor:
    """One draw of the latents of m rows, (m, d), given θ (D,).

    Args:
        problem: the model's densities.
        theta: (D,).
        centre: where the rows' nodes are at this θ.
        noise: the randomness of the draw.
        rows: row tensors, each (m, ...).
    """
    nodes = torch.cat([noise.student, noise.normal.unsqueeze(0)]).to(centre.mode)
    places = centre.mode + solve_lower_transposed(centre.factor, nodes)
    values = problem.vmap(lambda place: problem.conditional_parts(theta, rows, place)[1])(places)
    squares, degrees, last = nodes.square().sum(-1), problem.quadrature.degrees, len(nodes) - 1
    over_student = values + 0.5 * (degrees + nodes.shape[-1]) * torch.log1p(squares / degrees)
    over_normal = values + 0.5 * squares
    at = _ended([over_student] * (last - 1) + [over_normal], noise.uniform)
    return places.gather(0, at[None, :, None].expand(1, *places.shape[1:])).squeeze(0)


def draw_by_tails(
    problem: Problem, theta: Tensor, centre: Centre, noise: Proposals, rows: tuple[Tensor, ...]
) -> Tensor:
    """The same of one latent a row whose nodes are placed by its tails.

    Args:
        problem: the model's densities.
        theta: (D,).
        centre: modes and curvatures of the rows at this θ.
        noise: the randomness of the draw.
        rows: row tensors, each (m, ...).
    """
    _, profile = problem.quadrature.profile(problem, theta, rows, centre)
    uniform = torch.cat([noise.student, torch.special.ndtr(noise.normal).unsqueeze(0)]).squeeze(-1)
    places, log_slope, log_proposed = profile.inverse(uniform.to(centre.mode))
    values = problem.vmap(lambda place: problem.conditional_parts(theta, rows, place.unsqueeze(-1))[1])(places)
    at = _ended([values + log_slope - log_proposed] * (len(places) - 1), noise.uniform)
    return places.gather(0, at.unsqueeze(0)).squeeze(0).unsqueeze(-1)


def _ended(weights: list[Tensor], uniform: Tensor) -> Tensor:
    """Which of T + 1 proposals (m,) a chain of T steps ends at, by log weights (T + 1, m) of each step."""
    at = torch.zeros_like(weights[0][0], dtype=torch.int64)
    for step, over in enumerate(weights, 1):
        rise = over[step] - over.gather(0, at.unsqueeze(0)).squeeze(0)
        at = torch.where(uniform[step - 1].log() < rise, step, at)
    return at
