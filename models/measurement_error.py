"""Regression on a covariate that was measured with error.

    y_i ~ N(level + slope t_i, sigma^2),    x_i ~ N(t_i, 0.5^2),    t_i ~ N(mu, spread^2)

t_i, the true value, is a latent of each row, which stays with its client; that the error's SD is 0.5 is known. Ordinary
regression on x finds a slope that is too flat. level, slope, mu ~ N(0, 2^2), sigma, spread ~ HalfNormal(2).

Source: Carroll et al., Measurement error in nonlinear models (2006), Chapter 9.

Data: simulated from the model with level = 1, slope = 2, sigma = 0.5, mu = 0, spread = 1.
"""

import pyro
import pyro.distributions as dist
import torch

PLATE = "data"
ERROR = 0.5
LEVEL, SLOPE, SIGMA = 1.0, 2.0, 0.5


def model(x, y=None):
    """Args: x, the measurement (rows,); y (rows,)."""
    two = x.new_tensor(2.0)
    level = pyro.sample("level", dist.Normal(0 * two, two))
    slope = pyro.sample("slope", dist.Normal(0 * two, two))
    sigma = pyro.sample("sigma", dist.HalfNormal(two))
    mu = pyro.sample("mu", dist.Normal(0 * two, two))
    spread = pyro.sample("spread", dist.HalfNormal(two))
    with pyro.plate("data", len(x)):
        true = pyro.sample("true", dist.Normal(mu, spread))
        pyro.sample("x", dist.Normal(true, ERROR), obs=x)
        pyro.sample("y", dist.Normal(level + slope * true, sigma), obs=y)


def load_data(seed=0, rows=200):
    """(x, y) of simulated rows, float32; there is no test part."""
    generator = torch.Generator().manual_seed(seed)
    true, error, noise = torch.randn(3, rows, generator=generator)
    return (true + ERROR * error, LEVEL + SLOPE * true + SIGMA * noise), None
