"""A Gaussian for the prior: the start of FedEP without a warm start.

The means and variances of a few draws from the prior, then expected Newton steps to the Gaussian of smallest
KL(q ‖ prior); for a prior that is Gaussian on the unconstrained scale the first step is exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pyro_fed.density.problem import Problem
from pyro_fed.ops.backtrack import backtrack
from pyro_fed.ops.gaussian import Gaussian
from pyro_fed.ops.gaussian_structures import STRUCTURES

if TYPE_CHECKING:
    from pyro_fed.infer.sites.gaussian_sites import SpreadGaussian

#: Draws of the prior for the first means and variances.
NUM_DRAWS = 32
#: Largest number of Newton steps to a Gaussian that the prior is part of.
MAX_NEWTON_STEPS = 50
#: KL divergence between successive q below which the steps stop.
SMALLEST_KL = 1e-12


def fit_prior(algorithm: SpreadGaussian, problem: Problem, generator: torch.Generator) -> Gaussian:
    """The Gaussian closest to a proper prior, in the algorithm's structure."""
    draws = problem.sample_prior(NUM_DRAWS, generator).double()
    q = STRUCTURES["diag"].from_moments(draws.mean(0), draws.var(0))
    q = q.to_full() if algorithm.structure == "full" else q
    for _ in range(MAX_NEWTON_STEPS):
        delta = algorithm.prior_site(problem, q).quotient(q)
        new = q.product(delta.power(backtrack(q, delta)))
        if float(new.kl(q)) < SMALLEST_KL:
            return new
        q = new
    return q
