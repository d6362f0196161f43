"""Logistic regression where a covariate is missing in some rows: what is missing is drawn with the rest.

    y_i ~ Bernoulli(sigmoid(level + b_0 age_i + b_1 marker_i)),    marker_i ~ N(c_0 + c_1 age_i, spread^2)

Where marker_i was not measured it is a latent of its row, which stays with its client: the latent `imputed` of every
row is N(c_0 + c_1 age_i, spread^2), and takes the place of a marker that is missing (NaN). What was measured is
observed. level, b, c ~ N(0, 2^2), spread ~ HalfNormal(2).

Source: Ibrahim, Chen and Lipsitz (2002), Bayesian methods for generalized linear models with covariates missing at
random.

Data: simulated from the model with level = -0.5, b = (0.5, 1), c = (0, 0.6), spread 0.8; the marker is missing in 30 %
of the rows, more often in the old.
"""

import pyro
import pyro.distributions as dist
import torch

PLATE = "patient"
LEVEL, B, C, SPREAD = -0.5, (0.5, 1.0), (0.0, 0.6), 0.8


def model(age, marker, y=None):
    """Args: age, standardised (patients,); marker, NaN where missing (patients,); y, 0. or 1. (patients,)."""
    level = pyro.sample("level", dist.Normal(age.new_tensor(0.0), 2.0))
    b = pyro.sample("b", dist.Normal(age.new_zeros(2), 2.0).to_event(1))
    c = pyro.sample("c", dist.Normal(age.new_zeros(2), 2.0).to_event(1))
    spread = pyro.sample("spread", dist.HalfNormal(age.new_tensor(2.0)))
    missing = marker.isnan()
    with pyro.plate("patient", len(age)):
        expected = c[0] + c[1] * age
        imputed = pyro.sample("imputed", dist.Normal(expected, spread))
        measured = torch.where(missing, 0.0, marker)
        pyro.sample("marker", dist.Normal(expected, spread).mask(~missing), obs=measured)
        complete = torch.where(missing, imputed, measured)
        pyro.sample("y", dist.Bernoulli(logits=level + b[0] * age + b[1] * complete), obs=y)


def load_data(seed=0, patients=300):
    """(age, marker, y) of simulated patients, float32; there is no test part."""
    generator = torch.Generator().manual_seed(seed)
    age, noise = torch.randn(2, patients, generator=generator)
    marker = C[0] + C[1] * age + SPREAD * noise
    logits = LEVEL + B[0] * age + B[1] * marker
    y = (torch.rand(patients, generator=generator) < logits.sigmoid()).float()
    lost = torch.rand(patients, generator=generator) < (0.6 * age - 1).sigmoid()
    return (age, torch.where(lost, torch.nan, marker), y), None
