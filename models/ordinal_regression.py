"""Pain on a scale from 0 to 4: a cumulative logit model.

    P(y_i <= c) = sigmoid(cut_c - x_i . beta),    cut_0 < cut_1 < cut_2 < cut_3

beta ~ N(0, 1); the cut points are the ordered values of four N(0, 3^2).

Source: McCullagh (1980), Regression models for ordinal data.

Data: simulated from the model with beta = (1, -0.5) and cuts (-1.5, 0, 1, 2.5).
"""

import pyro
import pyro.distributions as dist
import torch

PLATE = "patient"
BETA, CUTS = (1.0, -0.5), (-1.5, 0.0, 1.0, 2.5)


def model(x, y=None):
    """Args: x, covariates (patients, 2); y, 0 to 4, int (patients,)."""
    beta = pyro.sample("beta", dist.Normal(x.new_zeros(x.shape[1]), 1.0).to_event(1))
    base = dist.Normal(x.new_zeros(len(CUTS)), 3.0).to_event(1)
    cuts = pyro.sample("cuts", dist.TransformedDistribution(base, [dist.transforms.OrderedTransform()]))
    with pyro.plate("patient", len(x)):
        pyro.sample("y", dist.OrderedLogistic(x @ beta, cuts), obs=y)


def load_data(seed=0, patients=300):
    """(x, y) of simulated patients, float32 and int64; there is no test part."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(patients, 2, generator=generator)
    latent = x @ torch.tensor(BETA) + torch.rand(patients, generator=generator).logit()
    return (x, (latent[:, None] > torch.tensor(CUTS)).sum(-1)), None
