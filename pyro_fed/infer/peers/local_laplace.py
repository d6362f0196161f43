"""Each agent's own Laplace approximation, with nothing exchanged: where serverless algorithms start.

    maximise  f_i(θ) = log p(D_i | θ) + c_i log p(θ)       by damped Newton steps (`ops.newton_ascent`), all at once

A step is taken where f_i rises. The agents have converged when a step would gain each less than the rounding of f_i, so
that no trial could show it. Steps do not depend on the scales of the coordinates. An agent whose rows leave directions
open (fewer rows than parameters, a constant covariate) does not move in them, and its site is flat there.

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
from pyro_fed.infer.sites.gaussian_sites import SpreadGaussian, add_batch_axis, fit_prior, site_of, where, with_prior
from pyro_fed.ops.backtrack import MAX_ITERATIONS
from pyro_fed.ops.batched import Moments
from pyro_fed.ops.gaussian import Gaussian
from pyro_fed.ops.matrices import positive_part
from pyro_fed.ops.newton_ascent import Damping, Look, NewtonAscent


def local_laplace(
    derivatives: Derivatives, problem: Problem, batch: Batch, prior_share: Tensor | None, start: Tensor
) -> Gaussian:
    """Laplace sites (C,), not negative, from `start` (C, D); `prior_share` (C,) is c_i, None for zero."""
    ascent = NewtonAscent.begin(start, dense=derivatives.structure == "full")
    for _ in range(MAX_ITERATIONS):
        points = ascent.trial[None]
        from_data = derivatives.of_likelihood(problem, points, batch)
        moments = with_prior(derivatives, problem, points, from_data, prior_share)
        ascent = ascent.tell(Look(moments.value, moments.score, moments.curvature), moments.finite(), Damping())
        gain = ascent.length.square()
        if bool((gain <= torch.finfo(gain.dtype).eps * ascent.value.abs()).all()):
            break
    found = Moments(ascent.value, ascent.score, _positive_part(ascent.curvature))
    site = site_of(found, ascent.points)
    # A climb that has seen no finite density has the curvature it began with, which is of no rows.
    unknown = type(site)(site.precision * torch.nan, site.eta * torch.nan)
    return where(ascent.value.isfinite(), site, unknown)


def _positive_part(curvature: Tensor) -> Tensor:
    """Λ without its negative eigenvalues, in coordinates where |diag Λ| = 1."""
    if curvature.dim() == 2:
        return curvature.clamp_min(0.0)
    diagonal = curvature.diagonal(dim1=-2, dim2=-1).abs()
    root = diagonal.clamp_min(torch.finfo(diagonal.dtype).tiny).sqrt()
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
