"""float32 is used where it is enough, and where it is not that is said; against exact posteriors."""

import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.algorithm.record import Record
from pyro_fed.audit import Evidence
from pyro_fed.audit.densities import precision

PRIOR, NOISE = 100.0, 0.5


def linear(x, y):
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), PRIOR).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x @ w, NOISE), obs=y)


def data(condition, count=200):
    """Three columns of this condition number, in float64 but with values that float32 has too."""
    generator = torch.Generator().manual_seed(0)
    u = torch.linalg.qr(torch.randn(count, 3, generator=generator, dtype=torch.float64)).Q * count**0.5
    x = u @ torch.diag(torch.tensor([1.0, 0.5, 1 / condition]).double())
    x = (x @ torch.linalg.qr(torch.randn(3, 3, generator=generator, dtype=torch.float64)).Q).float().double()
    y = x @ torch.tensor([1.0, -1.0, 0.5]).double() + NOISE * torch.randn(count, generator=generator).double()
    return x, y.float().double()


def exact(x, y):
    """The posterior's mean and covariance."""
    covariance = torch.linalg.inv(x.T @ x / NOISE**2 + torch.eye(3).double() / PRIOR**2)
    return covariance @ x.T @ y / NOISE**2, covariance


def error(idata, x, y):
    """How many SDs the mean is off in the direction that is worst."""
    mean, covariance = exact(x, y)
    found = torch.as_tensor(idata.posterior["w"].values).double().flatten(0, 1).mean(0)
    factor = torch.linalg.cholesky(covariance)
    return float(torch.linalg.solve_triangular(factor, (found - mean)[:, None], upper=False).norm())


def evidence(x, y):
    """Draws of the exact posterior, in float32."""
    fed = pf.Federation(linear, (x.float(), y.float()), plate="data", num_clients=3, dtype=torch.float32)
    mean, covariance = exact(x, y)
    noise = torch.randn(500, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    draws = mean + noise @ torch.linalg.cholesky(covariance).T
    return Evidence(pf.FedEP(), fed, fed.problem, {}, draws.float()[None], Record(fed.client_names), 0)


@pytest.mark.parametrize("condition", [1.0, 10.0, 100.0])
def test_float32_is_enough(condition):
    assert precision(evidence(*data(condition))) == []


@pytest.mark.parametrize("condition", [1e4, 1e5])
def test_float32_is_too_little(condition):
    (said,) = precision(evidence(*data(condition)))
    assert said.code == "float32_is_not_enough" and "dtype=torch.float64" in said.text


def test_columns_that_float32_cannot_take_are_computed_in_float64():
    x, y = data(1e4)
    with pytest.warns(UserWarning, match=r"computed in float64: column \d of argument 'x'"):
        fed = pf.Federation(linear, (x.float(), y.float()), plate="data", num_clients=3)
    assert fed.problem.dtype == torch.float64
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = pf.run(pf.FedEP(), fed, progress=False)
    assert error(found, x, y) < 0.25


def test_what_is_asked_for_is_done_and_judged():
    x, y = data(1e4)
    fed = pf.Federation(linear, (x.float(), y.float()), plate="data", num_clients=3, dtype=torch.float32)
    with pytest.warns(UserWarning, match=r"float32 is not enough for this posterior.*dtype=torch\.float64"):
        pf.run(pf.FedEP(), fed, progress=False)


def trend(year, y):
    a = pyro.sample("a", dist.Normal(0.0, 1000.0))
    b = pyro.sample("b", dist.Normal(0.0, 10.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(a + b * year, 1.0), obs=y)


def test_a_year_that_is_not_centred():
    year = torch.linspace(1990, 2009, 200)
    y = 0.1 * (year - 2000) + torch.randn(200, generator=torch.Generator().manual_seed(0))
    with pytest.warns(UserWarning, match="computed in float64: argument 'year'"):
        fed = pf.Federation(trend, (year, y), plate="data", num_clients=2)
    assert fed.problem.dtype == torch.float64
    assert pf.Federation(trend, (year - 2000, y), plate="data", num_clients=2).problem.dtype == torch.float32


def test_dates_of_a_season_are_no_constant():
    """Julian dates, whose mean is 80,000 times their SD: float32 keeps them apart, and not their squares."""
    date = torch.linspace(2_460_000, 2_460_100, 200)
    with pytest.warns(UserWarning, match="computed in float64: argument 'year'"):
        assert pf.Federation(trend, (date, torch.ones(200)), plate="data", num_clients=2).problem.dtype == torch.float64


def test_columns_that_depend_on_one_another_stay():
    """Levels of a factor with a constant beside them: what the data do not know, rounding does not change."""
    level = torch.arange(60) % 3
    x = torch.cat([torch.nn.functional.one_hot(level, 3).float(), torch.ones(60, 1)], 1)
    x = torch.cat([x, (x[:, :1] * 0.3 + x[:, 1:2] * 0.7)], 1)
    fed = pf.Federation(linear, (x, x[:, 0]), plate="data", num_clients=2)
    assert fed.problem.dtype == torch.float32
