"""Eight schools: effects of coaching, each with its own error, drawn from a common population.

    mu ~ N(0, 5²),    tau ~ HalfCauchy(5)
    z_j ~ N(0, 1),    theta_j = mu + tau z_j,    y_j | theta_j ~ N(theta_j, sigma_j²),    sigma_j known

A school's effect theta_j is a latent inside the plate: in a federation it stays with the school's client, and only
what the school says of mu and tau is sent. The non-centred form (z in place of theta) has no funnel.
Source: Rubin (1981), Journal of Educational Statistics 6, Table 1; Gelman et al., Bayesian Data Analysis, 3rd
edition, Section 5.5, with the priors of Stan's `eight_schools_noncentered` (posteriordb).
Data: the eight estimates and standard errors, scaled by nothing; no test part.
"""

import pyro
import pyro.distributions as dist
import torch

PLATE = "school"
ESTIMATES = (28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0)
STANDARD_ERRORS = (15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0)


def model(sigma, y=None):
    """Args: sigma, the standard error of every school's estimate (schools,); y, the estimates (schools,)."""
    mu = pyro.sample("mu", dist.Normal(sigma.new_zeros(()), 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(sigma.new_tensor(5.0)))
    with pyro.plate(PLATE, len(sigma)):
        z = pyro.sample("z", dist.Normal(sigma.new_zeros(()), 1.0))
        theta = pyro.deterministic("theta", mu + tau * z, event_dim=0)
        pyro.sample("y", dist.Normal(theta, sigma), obs=y)


def load_data(seed=0):
    """(sigma, y) of the eight schools, and None; `seed` changes nothing."""
    return (torch.tensor(STANDARD_ERRORS), torch.tensor(ESTIMATES)), None
