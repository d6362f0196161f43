"""Sparse logistic regression: few of the covariates matter, and the prior says so.

    y_i ~ Bernoulli(sigmoid(level + x_i . beta)),    beta_j = z_j tau lambda~_j,    z_j ~ N(0, 1)
    lambda~_j² = slab² lambda_j² / (slab² + tau² lambda_j²)

with lambda_j ~ HalfCauchy(1), tau ~ HalfCauchy(scale), slab = 2: a horseshoe whose large coefficients are as wide as
the slab. scale is what `expected` covariates of D that matter suggest, expected / (D - expected) · 2 / √rows, of all
rows in the study: an argument, since a client has only its own.

Source: Piironen and Vehtari (2017), Sparsity information and regularization in the horseshoe and other shrinkage
priors, eq. 2.8 and 3.12.

Data: simulated, 300 rows and 8 covariates of which the first two have the coefficients 1.5 and -1.5.
"""

import pyro
import pyro.distributions as dist
import torch

PLATE = "data"
SLAB, EXPECTED = 2.0, 2


def model(x, scale, y=None):
    """Args: x, covariates (rows, D); scale of tau, a number; y, 0. or 1. (rows,)."""
    one = x.new_tensor(1.0)
    level = pyro.sample("level", dist.Normal(0 * one, 2.0))
    tau = pyro.sample("tau", dist.HalfCauchy(scale * one))
    lam = pyro.sample("lam", dist.HalfCauchy(one.expand(x.shape[1])).to_event(1))
    z = pyro.sample("z", dist.Normal(x.new_zeros(x.shape[1]), 1.0).to_event(1))
    shrunk = SLAB * lam / (SLAB**2 + (tau * lam) ** 2).sqrt()
    beta = pyro.deterministic("beta", z * tau * shrunk)
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=level + x @ beta), obs=y)


def load_data(seed=0, rows=300, covariates=8):
    """(x, scale, y) of simulated rows, float32; there is no test part."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, covariates, generator=generator)
    logits = 1.5 * x[:, 0] - 1.5 * x[:, 1]
    y = (torch.rand(rows, generator=generator) < logits.sigmoid()).float()
    return (x, EXPECTED / (covariates - EXPECTED) * 2 / rows**0.5, y), None
