"""Fish caught by visitors of a park, of whom some did not fish at all.

    y_i = 0 with probability sigmoid(g_0 + g_1 children_i), else y_i ~ Poisson(exp(level + x_i . beta))

x holds the number of adults and of children. g ~ N(0, 1.5^2), level, beta ~ N(0, 1).

Source: Lambert (1992), Zero-inflated Poisson regression.

Data: simulated from the model with g = (-0.5, 1), level = 0, beta = (0.7, -0.4).
"""

import pyro
import pyro.distributions as dist
import torch

PLATE = "visit"
G, LEVEL, BETA = (-0.5, 1.0), 0.0, (0.7, -0.4)


def model(x, y=None):
    """Args: x, adults and children (visits, 2); y, fish (visits,)."""
    g = pyro.sample("g", dist.Normal(x.new_zeros(2), 1.5).to_event(1))
    level = pyro.sample("level", dist.Normal(x.new_tensor(0.0), 1.0))
    beta = pyro.sample("beta", dist.Normal(x.new_zeros(x.shape[1]), 1.0).to_event(1))
    idle = g[0] + g[1] * x[..., 1]
    with pyro.plate("visit", len(x)):
        fishing = dist.ZeroInflatedPoisson((level + x @ beta).exp(), gate_logits=idle)
        pyro.sample("y", fishing, obs=y)


def load_data(seed=0, visits=300):
    """(x, y) of simulated visits, float32; there is no test part."""
    generator = torch.Generator().manual_seed(seed)
    adults = torch.randint(1, 5, (visits,), generator=generator).float()
    children = torch.randint(0, 4, (visits,), generator=generator).float()
    x = torch.stack([adults, children], -1)
    y = torch.poisson((LEVEL + x @ torch.tensor(BETA)).exp(), generator=generator)
    idle = torch.rand(visits, generator=generator) < (G[0] + G[1] * children).sigmoid()
    return (x, torch.where(idle, 0.0, y)), None
