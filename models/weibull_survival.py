"""Survival times of patients, some of whom were alive when the study ended.

    t_i ~ Weibull(scale_i, shape),    log scale_i = level + x_i . beta

x holds the treatment and the standardised age. A death contributes its density, a patient who is alive at t_i the
probability exp(-(t_i / scale_i)^shape) of living longer. level ~ N(0, 2^2), beta ~ N(0, 1), shape ~ LogNormal(0, 0.5).

Source: Ibrahim, Chen and Sinha, Bayesian survival analysis (2001), Section 2.2.

Data: simulated from the model with level = 1, beta = (0.6, -0.4), shape = 1.5; the study ends at a time of 4, and some
leave earlier.
"""

import pyro
import pyro.distributions as dist
import torch

PLATE = "patient"
LEVEL, BETA, SHAPE = 1.0, (0.6, -0.4), 1.5


def model(x, died, time=None):
    """Args: x (patients, 2); died, whether the death was seen, bool (patients,); time, in years (patients,)."""
    level = pyro.sample("level", dist.Normal(x.new_tensor(0.0), 2.0))
    beta = pyro.sample("beta", dist.Normal(x.new_zeros(x.shape[1]), 1.0).to_event(1))
    shape = pyro.sample("shape", dist.LogNormal(x.new_tensor(0.0), 0.5))
    scale = (level + x @ beta).exp()
    with pyro.plate("patient", len(x)):
        time = pyro.sample("time", dist.Weibull(scale, shape).mask(died), obs=time)
        pyro.factor("alive", torch.where(died, 0.0, -((time / scale) ** shape)))


def load_data(seed=0, patients=300):
    """(x, died, time) of simulated patients, float32; there is no test part."""
    generator = torch.Generator().manual_seed(seed)
    treated = (torch.rand(patients, generator=generator) < 0.5).float()
    x = torch.stack([treated, torch.randn(patients, generator=generator)], -1)
    scale = (LEVEL + x @ torch.tensor(BETA)).exp()
    death = scale * (-torch.rand(patients, generator=generator).log()) ** (1 / SHAPE)
    end = 4.0 * torch.rand(patients, generator=generator).sqrt()
    return (x, death <= end, torch.minimum(death, end)), None
