"""Small functions on batches of Gaussian beliefs, one for each agent."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import Batch, row_dtype
from pyro_fed.errors import ModelError
from pyro_fed.infer.peers.local_laplace import local_laplace
from pyro_fed.infer.sites.gaussian_sites import SpreadGaussian, add_batch_axis
from pyro_fed.infer.sites.prior_gaussian import fit_prior
from pyro_fed.ops.gaussian import Gaussian


def gaussian_prior(algorithm: SpreadGaussian, problem: Problem, drawn: bool, generator: torch.Generator) -> Gaussian:
    """The prior, or its Laplace approximation if it is not Gaussian, (1,).

    Of a prior whose score jumps, which has no Laplace approximation, it is the Gaussian of smallest KL(q ‖ prior). With
    `drawn` one draw from the prior is put in place of its mean.

    Raises:
        ModelError: the prior has no Gaussian approximation.
    """
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
