"""Anderson acceleration of a fixed-point map on Gaussians.

Source: Walker & Ni (2011), *Anderson acceleration for fixed-point iterations*, Section 2 (type II). For a map G with
points x_i, moves f_i = G(x_i) - x_i and their differences ΔX, ΔF over the last rounds, and a damping δ,

    x' = x + δ f - (ΔX + δ ΔF) γ,    γ = arg min ‖f - ΔF γ‖

*Full precisions*: x are the natural parameters (P, η), and the norm is the Fisher metric at the last point, in which
the parametrisation of θ does not matter: with P = L L' and mean m

    ‖(dP, dη)‖² = ‖L⁻¹(dη - dP m)‖² + ‖L⁻¹ dP L⁻ᵀ‖² / 2

Why: expected Newton steps (natural gradients of step one) update the precision of w by E[ξ] and the mean of log ξ by
E‖w‖², both from the round before. For w ~ N(0, 1/ξ) the two are exchanged in every round: a mode of eigenvalue near
-1, in which steps alternate for ever, beside a slow one near +1, which damping leaves as slow. For a linear map
Anderson's rule is GMRES, which removes both.

*Diagonal precisions* lack the posterior's curvature, so that the mean steps f = P⁻¹g (g the score of the whole
posterior under q) may overstep for ever. Here x is the mean alone, and the norm is ‖·‖_P: for a Gaussian posterior the
rule is a Krylov method.

If a move of full precisions is `growth` times longer than the shortest one in the history, its point was a bad
extrapolation: earlier rounds are dropped. The extrapolation is at most `longest` times as long as the undamped move,
and is shortened if the precision would not be positive definite.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_fed.ops.backtrack import backtrack
from pyro_fed.ops.entries import choose
from pyro_fed.ops.gaussian import Gaussian
from pyro_fed.ops.matrices import equilibrated_cholesky


def acceleration(points: Gaussian, moves: Gaussian, damping: float, growth: float, longest: float) -> Gaussian:
    """The factor (...) that multiplies the step x + δ f from the last point of x_i (M, ...); flat without a history."""
    plain = _item(points, -1).product(_item(moves, -1).power(damping))
    if not points.dense:
        further = _mean_steps(points, moves, damping, longest)
        return type(plain)(torch.zeros_like(plain.precision), plain.precision * further)
    last = _item(points, slice(-1, None))
    vectors = _whitened_changes(last, moves)
    known = _usable_rounds(vectors.norm(dim=-1), growth)
    move_changes, point_changes = (_differences(part, known) for part in (moves, points))
    columns = torch.where(known[:-1].unsqueeze(-1), vectors.diff(dim=0), 0.0)
    weights = least_squares(columns, vectors[-1])
    extrapolation = point_changes.product(move_changes.power(damping)).power(-weights).product_over(0)
    length = _whitened_changes(last, _item(extrapolation, None))[0].norm(dim=-1)
    extrapolation = extrapolation.power(_bound(length, vectors[-1].norm(dim=-1), longest))
    # A share below a thousandth is not worth adding. Margins are wider than of a plain step, since this extrapolates.
    return extrapolation.power(backtrack(plain, extrapolation, min_fraction=1e-3, margin=0.1))


def _mean_steps(points: Gaussian, moves: Gaussian, damping: float, longest: float) -> Tensor:
    """The extrapolation of the mean of a diagonal Gaussian, (..., D)."""
    means, root = points.mean(), (points.precision[-1] + moves.precision[-1]).sqrt()
    steps = moves.score(means) / root  # P^(1/2) f
    usable = steps.isfinite().all(-1, keepdim=True)[:-1]
    columns = torch.where(usable, steps.diff(dim=0), 0.0)
    weights = least_squares(columns, steps[-1]).unsqueeze(-1)
    step = -(weights * (torch.where(usable, means.diff(dim=0), 0.0) * root + damping * columns)).sum(0)
    return step * _bound(step.norm(dim=-1), steps[-1].norm(dim=-1), longest).unsqueeze(-1) / root


def _bound(length: Tensor, step: Tensor, max_ratio: float) -> Tensor:
    return torch.where(length > max_ratio * step, max_ratio * step / length, 1.0)


def remember(past: Gaussian, new: Gaussian) -> Gaussian:
    """A history (M, ...) without its oldest entry, and with a new one."""
    return type(past)(torch.cat([past.precision[1:], new.precision[None]]), torch.cat([past.eta[1:], new.eta[None]]))


def _usable_rounds(lengths: Tensor, growth: float) -> Tensor:
    """Flags (M, ...) of the usable rounds: the last ones without a gap, or the last alone after a bad extrapolation."""
    known = lengths.isfinite().flip(0).cumprod(0).flip(0).bool()
    shortest = torch.where(known, lengths, torch.inf).amin(0)
    alone = lengths[-1] > growth * shortest
    return known & ~(
        alone & (torch.arange(len(lengths), device=lengths.device) < len(lengths) - 1).reshape(-1, *[1] * alone.dim())
    )


def _differences(factors: Gaussian, known: Tensor) -> Gaussian:
    """Differences (M - 1, ...) between neighbouring rounds, zero where one is not in the history."""
    parts = (factors.precision, factors.eta)
    return type(factors)(*(choose(known[:-1], part.diff(dim=0), 0.0) for part in parts))


def least_squares(columns: Tensor, target: Tensor) -> Tensor:
    """γ of least norm, (M - 1, ...), from possibly dependent columns (M - 1, ..., V) and a target (..., V)."""
    matrix, wanted = columns.movedim(0, -1).nan_to_num().cpu(), target.nan_to_num().cpu()
    solution: Tensor = torch.linalg.lstsq(matrix, wanted.unsqueeze(-1), driver="gelsd").solution
    return solution.squeeze(-1).movedim(-1, 0).to(target.device)


def _whitened_changes(at: Gaussian, changes: Gaussian) -> Tensor:
    """Changes (M, ...) as vectors whose Euclidean norm is the Fisher metric's at a Gaussian (1, ...): (M, ..., V)."""
    shift = changes.score(at.mean())
    if not at.dense:
        return torch.cat([shift * at.precision.rsqrt(), changes.precision / at.precision / 2**0.5], -1)
    factor = equilibrated_cholesky(at.precision)
    turned = factor.half_solve(factor.half_solve(changes.precision).mT).flatten(-2) / 2**0.5
    return torch.cat([factor.half_solve(shift.unsqueeze(-1)).squeeze(-1), turned], -1)


def _item(factors: Gaussian, index: int | slice | None) -> Gaussian:
    return type(factors)(factors.precision[index], factors.eta[index])
