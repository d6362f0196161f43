"""Growth curves of children: a Gaussian process each, whose length scale and noise are common.

    y_c ~ N(0, amplitude^2 exp(-(t_ci - t_cj)^2 / (2 length^2)) + noise^2 I)

for the ages t_c at which child c was measured, its own. amplitude, length ~ LogNormal(0, 1), noise ~ LogNormal(-1, 1).
A child's curve, a vector of its own, is integrated out in closed form.

Source: Rasmussen and Williams, Gaussian processes for machine learning (2006), Section 5.4.

Data: simulated from the model, 30 children at 8 ages in [0, 4] each, with amplitude 1, length 0.8 and noise 0.3.
"""

import pyro
import pyro.distributions as dist
import torch

PLATE = "child"
AMPLITUDE, LENGTH, NOISE = 1.0, 0.8, 0.3


def model(age, y=None):
    """Args: age, in years (children, times); y (children, times)."""
    zero = age.new_tensor(0.0)
    amplitude = pyro.sample("amplitude", dist.LogNormal(zero, 1.0))
    length = pyro.sample("length", dist.LogNormal(zero, 1.0))
    noise = pyro.sample("noise", dist.LogNormal(zero - 1, 1.0))
    with pyro.plate("child", len(age)):
        cover = covariance(age, amplitude, length, noise)
        pyro.sample("y", dist.MultivariateNormal(torch.zeros_like(age), cover), obs=y)


def covariance(age, amplitude, length, noise):
    """Of each child's measurements, (children, times, times)."""
    apart = age[..., :, None] - age[..., None, :]
    eye = torch.eye(age.shape[-1], dtype=age.dtype, device=age.device)
    return amplitude**2 * (-0.5 * (apart / length) ** 2).exp() + noise**2 * eye


def load_data(seed=0, children=30, times=8):
    """(age, y) of simulated children, float64; there is no test part."""
    generator = torch.Generator().manual_seed(seed)
    age = 4 * torch.rand(children, times, generator=generator, dtype=torch.float64)
    root = torch.linalg.cholesky(covariance(age, AMPLITUDE, LENGTH, NOISE))
    z = torch.randn(children, times, 1, generator=generator, dtype=torch.float64)
    return (age, (root @ z)[..., 0]), None
