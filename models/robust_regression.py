"""Regression that outliers do not move: Student's t in place of the Gaussian, its degrees of freedom learnt.

    y_i ~ StudentT(nu, level + x_i . beta, sigma)

level ~ N(0, 5^2), beta ~ N(0, 2^2), sigma ~ HalfNormal(2), nu ~ Gamma(2, 0.1).

Source: Lange, Little and Taylor (1989), Robust statistical modeling using the t distribution; the prior of nu is that
of Juárez and Steel (2010).

Data: simulated, a Gaussian of SD 0.5 around a line with slopes (1, -2); every twelfth row is ten SDs off.
"""

import pyro
import pyro.distributions as dist
import torch

PLATE = "data"
LEVEL, BETA, SIGMA = 0.5, (1.0, -2.0), 0.5


def model(x, y=None):
    """Args: x, covariates (rows, 2); y (rows,)."""
    level = pyro.sample("level", dist.Normal(x.new_tensor(0.0), 5.0))
    beta = pyro.sample("beta", dist.Normal(x.new_zeros(x.shape[1]), 2.0).to_event(1))
    sigma = pyro.sample("sigma", dist.HalfNormal(x.new_tensor(2.0)))
    nu = pyro.sample("nu", dist.Gamma(x.new_tensor(2.0), 0.1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.StudentT(nu, level + x @ beta, sigma), obs=y)


def load_data(seed=0, rows=240):
    """(x, y) of simulated rows, float32; there is no test part."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 2, generator=generator)
    y = LEVEL + x @ torch.tensor(BETA) + SIGMA * torch.randn(rows, generator=generator)
    y[::12] += 10 * SIGMA * torch.randn(len(y[::12]), generator=generator).sign()
    return (x, y), None
