"""Each agent's own Laplace approximation, with nothing exchanged: where serverless algorithms start.

    maximise  f_i(θ) = log p(D_i | θ) + c_i log p(θ)       by Levenberg-Marquardt, all agents at once
    (Λ + λ S) δ = ∇f_i,   Λ = -∇²f_i,   S = diag |Λ|       accepted where f_i rises

An agent has converged when a step would gain less, ∇f_i' δ, than the rounding of f_i, so that no trial could show it.

S makes the steps invariant to the scales of the coordinates. An agent whose rows leave directions open
(fewer rows than parameters, a constant covariate) does not move in them, and its site is flat there.

The site is Λ with its negative part removed (in the coordinates where diag |Λ| = 1), and eta = ∇f_i + Λ θ:
its mode moves exactly as Newton's step would in the directions that the data inform.

Here, too, is where every belief begins, and what is asked of a batch of them, one for each agent.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_fed.density.derivatives import Derivatives
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import Batch, row_dtype
from pyro_fed.errors import ModelError
from pyro_fed.infer.sites.gaussian_sites import SpreadGaussian, add_batch_axis, fit_prior, site_of, with_prior
from pyro_fed.ops.batched import Moments
from pyro_fed.ops.entries import choose
from pyro_fed.ops.gaussian import Gaussian
from pyro_fed.ops.matrices import equilibrated_cholesky, positive_part

#: First λ, and the factors by which it falls after a step that improves f_i and rises after one that does not.
LAMBDA_START, LAMBDA_FALL, LAMBDA_RISE = 1e-2, 0.2, 8.0
#: Smallest entry of S relative to the largest: coordinates that the data do not inform stay unchanged.
SCALE_FLOOR = 1e-12


def local_laplace(
    derivatives: Derivatives,
    problem: Problem,
    batch: Batch,
    share: Tensor | None,
    start: Tensor,
    num_steps: int = 60,
) -> Gaussian:
    """Laplace sites (C,), not negative, from `start` (C, D); `share` (C,) is c_i, None for zero."""

    def at(points: Tensor) -> Moments:
        from_data = derivatives.of_likelihood(problem, points[None], batch)
        return with_prior(derivatives, problem, points[None], from_data, share)

    place, here = start, at(start)
    damping, going = (
        torch.full_like(start[:, 0], LAMBDA_START),
        torch.ones(len(start), dtype=torch.bool, device=start.device),
    )
    for _ in range(num_steps):
        step, proper = _step(here, damping)
        unseen = (step * here.score).sum(-1) <= torch.finfo(step.dtype).eps * here.value.abs()
        going = going & ~(proper & here.finite() & unseen)
        if not bool(going.any()):
            break
        trial = place + step
        there = at(trial)
        better = going & there.finite() & (there.value > here.value)
        place = choose(better, trial, place)
        here = Moments(*(choose(better, new, old) for new, old in zip(there, here, strict=True)))
        damping = damping * torch.where(better, LAMBDA_FALL, LAMBDA_RISE)
    return site_of(here._replace(curvature=_positive_part(here.curvature)), place)


def _step(here: Moments, damping: Tensor) -> tuple[Tensor, Tensor]:
    """(Λ + λ S)⁻¹ ∇f, zero if the matrix is not positive definite; and (C,) whether it is."""
    scale = _scale(here.curvature)
    if here.curvature.dim() == 2:
        damped = here.curvature + damping[:, None] * scale
        return torch.where(damped > 0, here.score / damped, 0.0), (damped > 0).all(-1)
    factor = equilibrated_cholesky(here.curvature + torch.diag_embed(damping[:, None] * scale))
    step = factor.solve(here.score.unsqueeze(-1)).squeeze(-1)
    return torch.where(factor.proper[:, None], step, 0.0), factor.proper


def _scale(curvature: Tensor) -> Tensor:
    """S, (C, D): |diag Λ| with a floor."""
    diagonal = (curvature if curvature.dim() == 2 else curvature.diagonal(dim1=-2, dim2=-1)).abs()
    return diagonal.clamp_min(torch.finfo(diagonal.dtype).tiny).maximum(SCALE_FLOOR * diagonal.amax(-1, keepdim=True))


def _positive_part(curvature: Tensor) -> Tensor:
    """Λ without its negative eigenvalues, in coordinates where |diag Λ| = 1."""
    if curvature.dim() == 2:
        return curvature.clamp_min(0.0)
    root = _scale(curvature).sqrt()
    kept = positive_part(curvature / root.unsqueeze(-1) / root.unsqueeze(-2))
    return kept * root.unsqueeze(-1) * root.unsqueeze(-2)


def gaussian_prior(algorithm: SpreadGaussian, problem: Problem, drawn: bool, generator: torch.Generator) -> Gaussian:
    """The prior or its Gaussian approximation, (1,); one draw takes its mean's place if `drawn`."""
    start = problem.init(1, generator).double()
    if problem.traits.proper_kinks:
        prior = add_batch_axis(fit_prior(algorithm, problem, generator))
    else:
        row = tuple(leaf[None, :1] for leaf in problem.rows)
        nothing = Batch(row, torch.zeros(1, 1, dtype=row_dtype(problem.rows), device=start.device))
        prior = local_laplace(algorithm.derivatives(), problem, nothing, start.new_ones(1), start)
    if not bool(prior.is_proper().all()):
        raise ModelError(
            "every belief begins as the prior, which has no Gaussian approximation here (it is improper or "
            "flat at its mode); use weighting='exact' with start='consensus', or a proper prior"
        )
    return type(prior).from_moments(start, prior.moments()[1]) if drawn else prior


def repeated(q: Gaussian, agents: int) -> Gaussian:
    """One Gaussian (1,) for each of so many agents, (A,)."""
    return type(q)(*(part.expand(agents, *part.shape[1:]) for part in (q.precision, q.eta)))


def unit_spread(q: Gaussian) -> Tensor:
    """Spread of a standard Gaussian of q's structure and batch."""
    one = torch.ones_like(q.eta)
    return torch.diag_embed(one) if q.dense else one


def range_over_agents(values: Tensor) -> Tensor:
    """Largest minus smallest of the agents' values, (A, D) -> (D,)."""
    return values.amax(0) - values.amin(0)


def or_infinity(value: Tensor) -> float:
    """A diagnostic as a number, infinite where it is undefined (beliefs that are not proper yet)."""
    return float(value) if bool(torch.isfinite(value)) else float("inf")
