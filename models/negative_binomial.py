"""Infections in wards, counted over different numbers of bed-days: more varied than Poisson's.

    y_i ~ NegativeBinomial(mean = days_i exp(level + x_i . beta), concentration)

so that a count's variance is mean + mean² / concentration. level ~ N(-2, 2^2), beta ~ N(0, 1), concentration ~
LogNormal(1, 1).

Source: Gelman, Hill and Vehtari, Regression and other stories (2020), Chapter 15.

Data: simulated from the model with level = -2, beta = (0.5, -0.3) and concentration 2.
"""

import pyro
import pyro.distributions as dist
import torch

PLATE = "ward"
LEVEL, BETA, CONCENTRATION = -2.0, (0.5, -0.3), 2.0


def model(x, days, y=None):
    """Args: x, covariates (wards, 2); days, bed-days (wards,); y, infections (wards,)."""
    level = pyro.sample("level", dist.Normal(x.new_tensor(-2.0), 2.0))
    beta = pyro.sample("beta", dist.Normal(x.new_zeros(x.shape[1]), 1.0).to_event(1))
    concentration = pyro.sample("concentration", dist.LogNormal(x.new_tensor(1.0), 1.0))
    mean = days * (level + x @ beta).exp()
    with pyro.plate("ward", len(x)):
        logits = mean.log() - concentration.log()
        pyro.sample("y", dist.NegativeBinomial(concentration, logits=logits), obs=y)


def load_data(seed=0, wards=250):
    """(x, days, y) of simulated wards, float32; there is no test part."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(wards, 2, generator=generator)
    days = 10 + 90 * torch.rand(wards, generator=generator)
    mean = days * (LEVEL + x @ torch.tensor(BETA)).exp()
    # A Gamma of shape two: the sum of two exponentials.
    varied = -torch.rand(wards, 2, generator=generator).log().sum(-1) / CONCENTRATION
    return (x, days, torch.poisson(mean * varied, generator=generator)), None
