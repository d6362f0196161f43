"""Robust losses: integrals of powers by quadrature, posteriors by quadrature, and what is refused."""

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import integrate

import pyro_fed as pf
from pyro_fed.density.running.losses import (
    DensityPower,
    GeneralisedCrossEntropy,
    RobustObservation,
    log_integral,
    with_loss,
)

DOUBLE = torch.float64
CONTINUOUS = {
    "normal": (dist.Normal(torch.tensor(0.3, dtype=DOUBLE), 0.7), -12, 12),
    "laplace": (dist.Laplace(torch.tensor(0.3, dtype=DOUBLE), 0.7), -30, 30),
    "exponential": (dist.Exponential(torch.tensor(1.7, dtype=DOUBLE)), 0, 40),
    "gamma": (dist.Gamma(torch.tensor(2.4, dtype=DOUBLE), torch.tensor(1.7, dtype=DOUBLE)), 0, 40),
}
FINITE = {
    "bernoulli": dist.Bernoulli(logits=torch.tensor(0.8, dtype=DOUBLE)),
    "categorical": dist.Categorical(logits=torch.tensor([0.3, -1.0, 0.5], dtype=DOUBLE)),
    "binomial": dist.Binomial(4, torch.tensor(0.3, dtype=DOUBLE)),
}


@pytest.mark.parametrize("power", [1.0, 1.3, 2.0])
@pytest.mark.parametrize("name", CONTINUOUS)
def test_the_integral_of_a_power_is_that_of_quadrature(name, power):
    fn, low, high = CONTINUOUS[name]

    def density(z):
        return float((power * fn.log_prob(torch.tensor(z, dtype=DOUBLE))).exp())

    expected = integrate.quad(density, low, high, limit=200, points=[0.3])[0]
    assert float(log_integral(fn, power)) == pytest.approx(math.log(expected), abs=1e-7)


@pytest.mark.parametrize("power", [1.0, 1.3])
@pytest.mark.parametrize("name", FINITE)
def test_the_integral_over_finitely_many_values_is_their_sum(name, power):
    values = FINITE[name].enumerate_support()
    expected = (power * FINITE[name].log_prob(values)).exp().sum()
    assert float(log_integral(FINITE[name], power).exp()) == pytest.approx(float(expected), rel=1e-12)


def test_the_integral_over_vectors_is_the_product_or_the_determinant():
    scale = torch.tensor([0.5, 2.0], dtype=DOUBLE)
    apart = dist.Normal(torch.zeros(2, dtype=DOUBLE), scale).to_event(1)
    both = dist.MultivariateNormal(torch.zeros(2, dtype=DOUBLE), torch.diag(scale**2))
    each = log_integral(dist.Normal(torch.zeros(2, dtype=DOUBLE), scale), 1.4).sum()
    assert torch.allclose(log_integral(apart, 1.4), each, rtol=1e-12)
    assert torch.allclose(log_integral(both, 1.4), each, rtol=1e-12)


def test_a_power_of_a_gamma_density_that_cannot_be_integrated_has_no_density():
    steep = dist.Gamma(torch.tensor(0.1, dtype=DOUBLE), torch.tensor(1.0, dtype=DOUBLE))
    scored = RobustObservation(steep, DensityPower(beta=0.3))
    assert float(scored.log_prob(torch.tensor(1.0, dtype=DOUBLE))) == -math.inf


@pytest.mark.parametrize("loss", [DensityPower(beta=1e-6), GeneralisedCrossEntropy(delta=1e-6)])
def test_small_powers_are_the_log_density(loss):
    fn, values = FINITE["categorical"], torch.arange(3)
    scores = RobustObservation(fn, loss).log_prob(values) - fn.log_prob(values)
    assert torch.allclose(scores, scores[0].expand(3), atol=1e-5)


def test_the_density_power_is_a_proper_score_and_the_generalised_cross_entropy_has_larger_logits():
    """Of Bernoulli rows with π = 0.7 the mean score is largest at the true logit, and at 1/(1 - δ) times that."""
    logits = torch.linspace(-1, 4, 5001, dtype=DOUBLE)
    true = math.log(0.7 / 0.3)
    for loss, factor in [(DensityPower(beta=0.5), 1.0), (GeneralisedCrossEntropy(delta=0.5), 2.0)]:
        scores = [RobustObservation(dist.Bernoulli(logits=logits), loss).log_prob(torch.tensor(y)) for y in (0.0, 1.0)]
        best = logits[(0.3 * scores[0] + 0.7 * scores[1]).argmax()]
        assert float(best) == pytest.approx(factor * true, abs=2e-3)


def contaminated():
    """90 values about 1 and ten at 12."""
    y = 1.0 + torch.randn(100, generator=torch.Generator().manual_seed(3), dtype=DOUBLE)
    y[::10] = 12.0 + 0.01 * torch.arange(10)
    return y


def location(y):
    m = pyro.sample("m", dist.Normal(0.0, 10.0))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(m, 1.0), obs=y)


def test_the_posterior_is_that_of_the_loss_and_outliers_do_not_move_it():
    y, loss = contaminated(), DensityPower(beta=0.3)
    fed = pf.Federation(with_loss(location, loss), (y,), plate="rows", num_clients=4)
    idata = pf.run(pf.FedEP(), fed, progress=False, num_draws=4000)
    grid = torch.linspace(-1, 3, 2001, dtype=DOUBLE)
    fit = torch.expm1(0.3 * dist.Normal(grid[:, None], 1.0).log_prob(y)).sum(1) / 0.3  # the integral is constant in m
    weight = torch.softmax(dist.Normal(0.0, 10.0).log_prob(grid) + fit, 0).numpy()
    mean = float(weight @ grid.numpy())
    sd = float(np.sqrt(weight @ (grid.numpy() - mean) ** 2))
    draws = idata.posterior["m"].values
    assert idata.attrs["doubts"] == ""
    assert abs(draws.mean() - mean) < 5 * sd / math.sqrt(4000) + 0.02 * sd  # five standard errors: below 1e-6
    assert draws.std() == pytest.approx(sd, rel=0.08)
    assert abs(mean - 1) < 0.5 < abs(float(y.mean()) - 1)  # ordinary Bayes has the mean of all rows


def test_masks_and_factors_stay_and_predictions_are_the_models():
    y, seen = contaminated(), torch.arange(100) % 10 != 0

    def model(y, seen):
        m = pyro.sample("m", dist.Normal(0.0, 10.0))
        with pyro.plate("rows", len(y)):
            pyro.factor("bend", -0.001 * m * torch.ones(len(y)))
            pyro.sample("y", dist.Normal(m, 1.0).mask(seen), obs=y)

    fed = pf.Federation(with_loss(model, DensityPower(beta=0.3)), (y, seen), plate="rows", num_clients=2)
    trace = pyro.poutine.trace(with_loss(model, DensityPower(beta=0.3))).get_trace(y, seen)
    trace.compute_log_prob()
    assert bool((trace.nodes["y"]["log_prob"][~seen] == 0).all())
    assert torch.allclose(trace.nodes["bend"]["log_prob"], -0.001 * trace.nodes["m"]["value"])
    idata = pf.run(pf.FedEP(), fed, progress=False, num_draws=200)
    predicted = pf.predict(idata, fed).posterior_predictive["y"].values
    assert abs(predicted.mean() - 1) < 0.5
    assert 0.8 < predicted.std() < 1.3


def test_what_a_loss_cannot_take_is_refused_by_name():
    y = torch.arange(6.0)

    def counts(y):
        rate = pyro.sample("rate", dist.Gamma(1.0, 1.0))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Poisson(rate), obs=y)

    def nothing(y):
        pyro.sample("m", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(y)):
            pyro.factor("f", torch.zeros(len(y)))

    for model, loss, words in [
        (counts, DensityPower(), "DensityPower has no closed form for Poisson"),
        (location, GeneralisedCrossEntropy(), "received Normal. Use pf.losses.DensityPower"),
        (nothing, DensityPower(), "observes nothing within a plate"),
    ]:
        with pytest.raises(pf.errors.ModelError, match=words):
            pf.Federation(with_loss(model, loss), (y,), plate="rows", num_clients=2)
    with pytest.raises(pf.errors.SettingError, match="expected loss to be a"):
        with_loss(location, 0.3)
    for wrong in ({"beta": 0.0}, {"beta": math.nan}):
        with pytest.raises(pf.errors.SettingError, match="beta"):
            DensityPower(**wrong)
    with pytest.raises(pf.errors.SettingError, match="delta"):
        GeneralisedCrossEntropy(delta=1.5)
