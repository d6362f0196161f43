"""Centralised SVI with automatic and hand-written guides against the exact Gaussian posterior."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoMultivariateNormal

import pyro_fed as pf
from models import linear_regression

X, Y = (part.double() for part in linear_regression.load_data()[0])
TRAIN = X[:, [2, 3, 10]], Y  # body mass, blood pressure and the intercept: moderate correlation, so that Adam is fast
MEAN, COVARIANCE = linear_regression.exact_posterior(TRAIN)
SDS = COVARIANCE.diagonal().sqrt()


def diagonal_guide(*args):
    loc = pyro.param("loc", torch.zeros_like(MEAN))
    scale = pyro.param("scale", 0.1 * torch.ones_like(MEAN), constraint=dist.constraints.positive)
    pyro.sample("w", dist.Normal(loc, scale).to_event(1))


@pytest.fixture(scope="module")
def federation():
    return pf.Federation(linear_regression.model, TRAIN, plate="data", num_clients=3)


@pytest.mark.parametrize(
    ("guide", "expected"),
    [(AutoMultivariateNormal, SDS), (diagonal_guide, torch.linalg.inv(COVARIANCE).diagonal().rsqrt())],
)
def test_svi_comes_near_the_exact_posterior(federation, guide, expected):
    """Seeded; 400 draws alone have errors of 0.05 SDs. The user's param store is as it was."""
    pyro.clear_param_store()
    mine = pyro.param("mine", torch.ones(2))
    algorithm = pf.SVI(guide=guide, num_steps=600, step_size=0.05, num_guide_draws=400)
    idata = pf.run(algorithm, federation, progress=False, num_draws=400, log_likelihood=False)
    draws = torch.tensor(idata["posterior"]["w"].values[0])
    assert float(((draws.mean(0) - MEAN) / SDS).abs().max()) < 0.3
    assert float((draws.std(0) / expected - 1).abs().max()) < 0.2
    assert list(pyro.get_param_store().keys()) == ["mine"]
    assert pyro.param("mine") is mine
    pyro.clear_param_store()
