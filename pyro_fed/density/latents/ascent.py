"""The ascent to the modes of the rows' latents given θ, by Newton's method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import grad, vjp

from pyro_fed.density.bound import RowDensities
from pyro_fed.ops.entries import choose
from pyro_fed.ops.matrices import absolute_cholesky, solve_lower, solve_lower_transposed

Rows = tuple[Tensor, ...]


class Centre(NamedTuple):
    """Where the nodes of m rows are: mode (m, d), factor C of the curvature (m, d, d), and how near the mode is.

    `decrement` (m,) is the length of the next Newton step, in posterior SDs of x; `value` (m,) the log joint density.
    Of rows with several modes each has an axis of these before the rows'.
    """

    mode: Tensor
    factor: Tensor
    decrement: Tensor
    value: Tensor

    def at(self, which: int | slice) -> Centre:
        """Those of one mode, or of some, where each has an axis."""
        return Centre(*(part[which] for part in self))

    def places_at(self, units: Tensor) -> Tensor:
        """Places so many SDs from the modes, m + C⁻ᵀ u.

        Args:
            units: u, (..., d), like `mode` or with more axes before.
        """
        return self.mode + solve_lower_transposed(self.factor, units)

    def units_of(self, place: Tensor) -> Tensor:
        """Where places (..., d) are in units of the curvatures, C'(x - m): what `places_at` takes."""
        found: Tensor = (self.factor.mT @ (place - self.mode).unsqueeze(-1)).squeeze(-1)
        return found

    def distance(self, place: Tensor) -> Tensor:
        """How many SDs places (..., d) are from the modes."""
        found: Tensor = self.units_of(place).norm(dim=-1)
        return found


class Look(NamedTuple):
    """The rows' log joint densities f (m,), their scores (m, d) and curvatures -∇²f (m, d, d), in x."""

    value: Tensor
    score: Tensor
    curvature: Tensor


class Ascent(NamedTuple):
    """On the way to the modes: where each row is (m, d), what is seen there, and the share of the next step (m,)."""

    place: Tensor
    here: Look
    share: Tensor


@dataclass(frozen=True)
class Climber:
    """Newton's method uphill.

    Args:
        steps: how many are taken.
        shorten: a step that does not go uphill is tried again at this fraction.
        floor: smallest pivot of a curvature that is not positive definite, relative to its largest entry.
    """

    steps: int
    shorten: float
    floor: float

    def climbed(self, problem: RowDensities, theta: Tensor, rows: Rows, place: Tensor) -> Ascent:
        """The end of the way from places (m, d), at θ (D,)."""
        state = self.foot(problem, theta, rows, place)
        for _ in range(self.steps):
            state = self.climb(problem, theta, rows, state)
        return state

    def foot(self, problem: RowDensities, theta: Tensor, rows: Rows, place: Tensor) -> Ascent:
        """The beginning of the way."""
        return Ascent(place, look(problem, theta, rows, place), theta.new_ones(len(place)))

    def climb(
        self, problem: RowDensities, theta: Tensor, rows: Rows, state: Ascent, part: Tensor | float = 1.0
    ) -> Ascent:
        """One step, or a part of it."""
        place, here, share = state
        trial = place + part * share.unsqueeze(-1) * self.newton(here)[0]
        there = look(problem, theta, rows, trial)
        better = there.value >= here.value
        chosen = Look(*(choose(better, new, old) for new, old in zip(there, here, strict=True)))
        return Ascent(choose(better, trial, place), chosen, torch.where(better, 1.0, share * self.shorten))

    def summit(self, state: Ascent) -> Centre:
        """Where it has come to; constants for derivatives."""
        step, factor = self.newton(state.here)
        decrement = (step * state.here.score).sum(-1).abs().sqrt()
        return Centre(*(part.detach() for part in (state.place, factor, decrement, state.here.value)))

    def newton(self, here: Look) -> tuple[Tensor, Tensor]:
        """The step |H|⁻¹ ∇f and the factor of |H|.

        A latent on which f does not depend, as one that a mask leaves out with all that is observed of it, has a unit
        curvature. Its integral is infinite, and the same at all θ: it has to stay that, whatever the others' curvature.
        """
        unused = (here.curvature == 0).all(-1) & (here.score == 0)
        factor = absolute_cholesky(here.curvature + torch.diag_embed(unused.to(here.curvature)), self.floor)
        return solve_lower_transposed(factor, solve_lower(factor, here.score)), factor


def look(problem: RowDensities, theta: Tensor, rows: Rows, place: Tensor) -> Look:
    """What is seen of the rows' log joint densities at places (m, d)."""

    def score_and_value(x: Tensor) -> tuple[Tensor, Tensor]:
        def total(y: Tensor) -> tuple[Tensor, Tensor]:
            value = problem.conditional_parts(theta, rows, y)[1]
            return value.sum(), value

        score, value = grad(total, has_aux=True)(x)
        return score, value

    (score, value), pull = vjp(score_and_value, place)[:2]
    units = torch.eye(place.shape[-1], dtype=place.dtype, device=place.device)
    # Rows are independent given θ: one product with a unit vector at every row gives a column of every row's block.
    columns = problem.vmap(lambda unit: pull((unit.expand_as(place), torch.zeros_like(value)))[0])(units)
    return Look(value.detach(), score.detach(), -columns.movedim(0, -1).detach())
