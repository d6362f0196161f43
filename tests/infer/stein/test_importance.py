"""Adaptive importance sampling: mixtures, weights, and particles where no mode is near; references by quadrature."""

import math
import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.infer.stein.survey import whitened_resample
from pyro_fed.ops.importance import flattened
from pyro_fed.ops.student import Mixture, fitted

D64 = torch.float64


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def mixture():
    factors = torch.tensor([[[1.0, 0.0], [0.5, 0.3]], [[2.0, 0.0], [0.0, 0.1]]], dtype=D64)
    centres = torch.tensor([[0.0, 0.0], [6.0, -1.0]], dtype=D64)
    return Mixture(torch.tensor([0.3, 0.7], dtype=D64), centres, factors)


def test_densities_are_those_of_torch():
    points = torch.randn(20, 2, generator=generator(), dtype=D64)
    found, weights = mixture(), mixture().counts.log()
    gaussians = torch.distributions.MultivariateNormal(found.centres, scale_tril=found.factors)
    expected = torch.logsumexp(gaussians.log_prob(points[:, None]) + weights, 1)
    torch.testing.assert_close(found.log_density(points, math.inf), expected)
    one = Mixture(torch.ones(1, dtype=D64), torch.full((1, 1), 2.0, dtype=D64), torch.full((1, 1, 1), 3.0, dtype=D64))
    line = torch.randn(20, 1, generator=generator(), dtype=D64)
    expected = torch.distributions.StudentT(5.0, torch.tensor(2.0, dtype=D64), 3.0).log_prob(line[:, 0])
    torch.testing.assert_close(one.log_density(line, 5), expected)


def test_draws_have_the_density_that_they_are_weighed_by():
    """Importance weights of a Gaussian with a mixture around it as proposal: its normalising constant and its mean."""
    proposal = mixture().wider(1.5).shared_out(20000)
    assert float(proposal.counts.sum()) == 20000
    draws = proposal.draws(5, generator())
    log_q = (proposal.log_density(draws, 5) - math.log(20000)).exp()
    ratio = mixture().log_density(draws, math.inf).exp() / log_q
    assert float(ratio.mean()) == pytest.approx(1.0, abs=5 * float(ratio.std()) / 20000**0.5)
    torch.testing.assert_close((ratio @ draws) / ratio.sum(), 0.7 * mixture().centres[1], rtol=0, atol=0.1)


def test_fits_find_clusters():
    truth = mixture()
    gaussians = torch.distributions.MultivariateNormal(truth.centres, scale_tril=truth.factors)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        points = gaussians.sample((2000,))
    weights = truth.counts.expand(2000, 2).reshape(-1) / 2000
    found = fitted(points.reshape(-1, 2), weights, 2, 30, generator())
    order = found.centres[:, 0].argsort()
    torch.testing.assert_close(found.counts[order], truth.counts, rtol=0, atol=0.01)
    torch.testing.assert_close(found.centres[order], truth.centres, rtol=0, atol=0.15)
    covariance = found.factors[order] @ found.factors[order].mT
    torch.testing.assert_close(covariance, truth.factors @ truth.factors.mT, rtol=0.15, atol=0.05)


@pytest.mark.parametrize("worth", [5.0, 50.0])
def test_flattened_weights_are_worth_what_was_asked(worth):
    logs = 20 * torch.randn(200, generator=generator(), dtype=D64)
    weights = flattened(logs, worth)
    assert float(weights.sum()) == pytest.approx(1.0)
    assert float(1 / weights.square().sum()) == pytest.approx(worth, rel=0.01)
    even = torch.zeros(200, dtype=D64)
    torch.testing.assert_close(flattened(even, worth), torch.softmax(even, 0))


def test_resampled_points_have_its_moments_and_do_not_coincide():
    points = mixture().shared_out(2000).draws(30, generator())
    weights = torch.softmax(torch.randn(2000, generator=generator(1), dtype=D64), 0)
    coordinates, drawn = whitened_resample(points, weights, 100, generator(2))
    white = coordinates.white(drawn)
    assert float(white.mean(0).abs().max()) < 0.1
    assert float((torch.cov(white.T) - torch.eye(2)).abs().max()) < 0.15
    assert len(drawn.unique(dim=0)) == 100
    mean = weights @ points
    torch.testing.assert_close(coordinates.model(coordinates.white(points)), points)
    torch.testing.assert_close(coordinates.mean, mean)


def funnel(y):
    v = pyro.sample("v", dist.Normal(y.new_zeros(()), 3.0))
    x = pyro.sample("x", dist.Normal(y.new_zeros(y.shape[1]), torch.exp(v / 2)).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x, 1.0).to_event(1), obs=y)


def test_a_funnel_is_entered_from_its_mass():
    """Its one mode is 17 SDs down the neck. Given v the data's means are N(0, exp(v) + 1/n): quadrature in v."""
    y = 0.6 * torch.randn(4, 3, generator=generator(1), dtype=D64)
    fed = pf.Federation(funnel, (y,), plate="data", num_clients=2)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="not converged", category=UserWarning)
        idata = pf.run(pf.DSVGD(), fed, progress=False, log_likelihood=False, audit=False)
    grid = torch.linspace(-20, 12, 4001, dtype=D64)
    marginal = torch.distributions.Normal(0.0, (grid.exp() + 1 / len(y)).sqrt())
    weight = torch.softmax(-grid.square() / 18 + sum(marginal.log_prob(mean) for mean in y.mean(0)), 0)
    mean = weight @ grid
    sd = (weight @ (grid - mean).square()).sqrt()
    v = torch.as_tensor(idata.posterior["v"].values[0])
    assert float((v.mean() - mean).abs() / sd) < 0.25
    assert 0.8 < float(v.std(correction=0) / sd) < 1.25


def test_points_that_the_data_rule_out_weigh_nothing():
    """A Gumbel density overflows far out: the sampler goes on with the other points, and so does DSVGD."""

    def extremes(y):
        loc = pyro.sample("loc", dist.Normal(0.0, 10.0))
        s = pyro.sample("s", dist.LogNormal(0.0, 2.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Gumbel(loc, s), obs=y)

    weights = flattened(torch.tensor([0.0, -torch.inf, -900.0, -torch.inf], dtype=D64), 1.5)
    assert weights.isfinite().all() and weights[1] == weights[3] == 0.0
    assert flattened(torch.tensor([0.0, -torch.inf, -torch.inf], dtype=D64), 1.5).tolist() == [1.0, 0.0, 0.0]
    y = torch.tensor([2.1, 3.0, 3.9, 4.4, 5.2, 2.7, 9.5, 4.8, 6.1])
    idata = pf.run(pf.DSVGD(), pf.Federation(extremes, (y,), plate="data", num_clients=3), progress=False)
    loc, s = (idata["posterior"][name].values for name in ("loc", "s"))
    grid = torch.cartesian_prod(torch.linspace(-6, 16, 401, dtype=D64), torch.linspace(-2, 3.5, 401, dtype=D64))
    value = dist.Gumbel(grid[:, :1], grid[:, 1:].exp()).log_prob(y.double()).sum(1)
    value += dist.Normal(0.0, 10.0).log_prob(grid[:, 0]) + dist.Normal(0.0, 2.0).log_prob(grid[:, 1])
    mass = torch.softmax(value, 0)
    mean, second = mass @ grid, mass @ grid.square()
    sd = (second - mean.square()).sqrt()
    assert abs(loc.mean() - float(mean[0])) < 0.1 * float(sd[0])
    assert abs(math.log(loc.std() / float(sd[0]))) < math.log(1.15)
    assert abs(torch.as_tensor(s).log().mean() - mean[1]) < 0.1 * sd[1]
