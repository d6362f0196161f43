"""Centralised SVI with automatic and hand-written guides against the exact Gaussian posterior."""

import functools

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoMultivariateNormal

import pyro_fed as pf
from models import linear_regression

QUIET = {"progress": False, "log_likelihood": False, "audit": False}


@functools.cache
def train():
    """Body mass, blood pressure and the intercept: moderate correlation, so that Adam is fast."""
    x, y = (part.double() for part in linear_regression.load_data()[0])
    return x[:, [2, 3, 10]], y


def sds(covariance):
    """Of the posterior, and of a Gaussian of its full family."""
    return covariance.diagonal().sqrt()


def mean_field_sds(covariance):
    """Of the nearest Gaussian of independent coordinates."""
    return torch.linalg.inv(covariance).diagonal().rsqrt()


def diagonal_guide(x, y):
    loc = pyro.param("loc", x.new_zeros(x.shape[1]))
    scale = pyro.param("scale", x.new_full((x.shape[1],), 0.1), constraint=dist.constraints.positive)
    pyro.sample("w", dist.Normal(loc, scale).to_event(1))


@pytest.fixture(scope="module")
def federation():
    return pf.Federation(linear_regression.model, train(), plate="data", num_clients=3)


@pytest.mark.parametrize(
    ("guide", "expected"),
    [(AutoMultivariateNormal, sds), (diagonal_guide, mean_field_sds)],
)
def test_svi_comes_near_the_exact_posterior(federation, guide, expected):
    """Seeded; 400 draws alone have errors of 0.05 SDs. The user's param store is as it was."""
    pyro.clear_param_store()
    mean, covariance = linear_regression.exact_posterior(train())
    mine = pyro.param("mine", torch.ones(2))
    algorithm = pf.infer.SVI(guide=guide, num_steps=400, step_size=0.05, num_guide_draws=400)
    idata = pf.run(algorithm, federation, num_draws=400, **QUIET)
    draws = torch.tensor(idata["posterior"]["w"].values[0])
    assert float(((draws.mean(0) - mean) / sds(covariance)).abs().max()) < 0.3
    assert float((draws.std(0) / expected(covariance) - 1).abs().max()) < 0.2
    assert list(pyro.get_param_store().keys()) == ["mine"]
    assert pyro.param("mine") is mine
    pyro.clear_param_store()


def test_a_guide_that_lacks_a_site_is_refused_before_it_is_fitted(federation):
    def other(x, y):
        pyro.sample("other", dist.Normal(0.0, 1.0))

    with pytest.raises(pf.errors.SettingError, match=r"the guide lacks the sites \['w'\]: the model's are \['w'\]"):
        pf.run(pf.infer.SVI(guide=other), federation, progress=False)


def below_a_latent(y):
    width = pyro.sample("width", dist.HalfNormal(1.0))
    place = pyro.sample("place", dist.Uniform(0.0, 2 * width).expand([2]).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(place.sum(), 1.0), obs=y)


def own_guide(y):
    width = pyro.sample("width", dist.LogNormal(pyro.param("loc", torch.tensor(0.0)), 0.1))
    pyro.sample("place", dist.Uniform(torch.zeros(2), 2 * width).to_event(1))


def test_an_automatic_guide_is_refused_where_a_support_moves():
    """It would take the support as it was at its first draw."""
    fed = pf.Federation(below_a_latent, (torch.ones(4),), plate="data", num_clients=2)
    for guide in (AutoMultivariateNormal, AutoMultivariateNormal(below_a_latent)):
        with pytest.raises(
            pf.errors.SettingError,
            match=r"support of 'place' at its first draw, .* depends on \['width'\].*GVI or FedEP",
        ):
            pf.run(pf.infer.SVI(guide=guide), fed, **QUIET)
    pf.run(pf.infer.SVI(guide=own_guide, num_steps=2, num_guide_draws=10), fed, num_draws=10, **QUIET)


def counts(y):
    u = pyro.sample("u", dist.Normal(0.0, 1e3))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Poisson(u.exp()), obs=y)


@pytest.mark.filterwarnings("ignore:Encountered NaN")
def test_an_elbo_that_is_no_number_names_step_and_sites():
    fed = pf.Federation(counts, (torch.ones(4),), plate="data", num_clients=2)
    said = r"first not finite in step \d+ of 20;.*of \['u', 'y'\] is not finite"
    with pytest.raises(pf.errors.DivergenceError, match=said):
        pf.run(pf.infer.SVI(step_size=1e3, num_steps=20), fed, **QUIET)
