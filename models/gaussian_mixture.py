"""A mixture of two Gaussians, each observation with its own discrete component.

    k_i ~ Categorical(1 - weight, weight),    y_i ~ N(mu_{k_i}, sigma_{k_i}^2),    mu_0 < mu_1

weight ~ Beta(5, 5), mu_0 ~ N(0, 2^2), mu_1 - mu_0 ~ HalfNormal(3), sigma ~ HalfNormal(2). The gap between the means is
positive, so that the components cannot change their names. Pyro enumerates k_i (`config_enumerate`), so that it is
summed out of each row's likelihood; its draws follow from the posterior of all else.

Data: simulated, 300 observations with mu = (-1.5, 1.5), sigma = (0.8, 1.2), weight 0.4.
"""

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import config_enumerate

PLATE = "data"
MU, SIGMA, WEIGHT = (-1.5, 1.5), (0.8, 1.2), 0.4


@config_enumerate
def model(y):
    """Args: y (rows,)."""
    weight = pyro.sample("weight", dist.Beta(y.new_tensor(5.0), y.new_tensor(5.0)))
    low = pyro.sample("low", dist.Normal(y.new_tensor(0.0), 2.0))
    gap = pyro.sample("gap", dist.HalfNormal(y.new_tensor(3.0)))
    sigma = pyro.sample("sigma", dist.HalfNormal(y.new_full((2,), 2.0)).to_event(1))
    mu = torch.stack([low, low + gap])
    with pyro.plate("data", len(y)):
        k = pyro.sample("k", dist.Categorical(torch.stack([1 - weight, weight])))
        pyro.sample("y", dist.Normal(mu[k], sigma[k]), obs=y)


def load_data(seed=0, rows=300):
    """Simulated (y,), float32; there is no test part."""
    generator = torch.Generator().manual_seed(seed)
    k = (torch.rand(rows, generator=generator) < WEIGHT).long()
    return (torch.tensor(MU)[k] + torch.tensor(SIGMA)[k] * torch.randn(rows, generator=generator),), None
