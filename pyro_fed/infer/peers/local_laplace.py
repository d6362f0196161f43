"""Each agent's own Laplace approximation, without messages: the start of algorithms without a server.

    maximise  f_i(θ) = log p(D_i | θ) + c_i log p(θ)       by damped Newton steps (`ops.newton_ascent`), batched

A step is accepted if f_i rises. The agents have converged when the predicted gain of a step is below the rounding error
of f_i for each. Steps do not depend on the scales of the coordinates. If an agent's rows do not determine a direction
(fewer rows than parameters, a constant covariate), the agent does not move along it, and its site is flat there.

The site has the precision Λ without its negative part (in coordinates where diag |Λ| = 1) and eta = ∇f_i + Λ θ. In the
directions that the data determine, its mode is at the end of a Newton step.

The module also has the initial belief, and functions of a batch of beliefs, one for each agent.
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
from pyro_fed.ops.newton_ascent import Damping, NewtonAscent


def local_laplace(
    derivatives: Derivatives, problem: Problem, batch: Batch, prior_share: Tensor | None, start: Tensor
) -> Gaussian:
    """Laplace sites (C,), positive semidefinite, by a search from `start` (C, D); `prior_share` (C,) is c_i or None."""
    ascent = NewtonAscent.begin(start, dense=derivatives.structure == "full")
    for _ in range(MAX_ITERATIONS):
        points = ascent.trial[None]
        from_data = derivatives.of_likelihood(problem, points, batch)
        moments = with_prior(derivatives, problem, points, from_data, prior_share)
        ascent = ascent.tell(moments, moments.finite(), Damping())
        gain = ascent.length.square()
        if bool((gain <= torch.finfo(gain.dtype).eps * ascent.value.abs()).all()):
            break
    at_end = Moments(ascent.value, ascent.score, _positive_part(ascent.curvature))
    site = site_of(at_end, ascent.points)
    # A search that has evaluated no finite density still has its initial curvature, which is no information.
    unknown = type(site)(site.precision * torch.nan, site.eta * torch.nan)
    return where(ascent.value.isfinite(), site, unknown)


def _positive_part(curvature: Tensor) -> Tensor:
    """Λ without its negative eigenvalues, in coordinates where |diag Λ| = 1."""
    if curvature.dim() == 2:
        return curvature.clamp_min(0.0)
    diagonal = curvature.diagonal(dim1=-2, dim2=-1).abs()
    root = diagonal.clamp_min(torch.finfo(diagonal.dtype).tiny).sqrt()
    scaled = positive_part(curvature / root.unsqueeze(-1) / root.unsqueeze(-2))
    return scaled * root.unsqueeze(-1) * root.unsqueeze(-2)


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
    """One Gaussian (1,), repeated for this many agents, (A,)."""
    return type(q)(*(part.expand(agents, *part.shape[1:]) for part in (q.precision, q.eta)))


def unit_spread(q: Gaussian) -> Tensor:
    """Spread of a standard Gaussian of q's structure and batch."""
    one = torch.ones_like(q.eta)
    return torch.diag_embed(one) if q.dense else one


def range_over_agents(values: Tensor) -> Tensor:
    """Largest minus smallest of the agents' values, (A, D) -> (D,)."""
    return values.amax(0) - values.amin(0)


def or_infinity(value: Tensor) -> float:
    """A diagnostic as a number; infinite if undefined, as for beliefs that are not proper yet."""
    return float(value) if bool(torch.isfinite(value)) else float("inf")
