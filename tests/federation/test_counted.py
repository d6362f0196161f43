"""Counts whose log density float32 rounds are computed in float64, unless somebody has said which."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy.stats import nbinom

import pyro_fed as pf

COUNTS = np.random.default_rng(1).poisson(3, 50)


def counts(kind):
    """A mean, and a dispersion where there is one."""

    def model(x, y):
        m = pyro.sample("m", dist.LogNormal(1.0, 1.0))
        phi = pyro.sample("phi", dist.HalfCauchy(5.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", kind(m, phi), obs=y)

    return model


POISSON, DISPERSED = (
    counts(lambda m, phi: dist.Poisson(m + 0 * phi)),
    counts(lambda m, phi: dist.GammaPoisson(phi, phi / m)),
)
SHARES = counts(lambda m, phi: dist.BetaBinomial(phi, phi * m, 30))


def federation(model, y, x=None, **options):
    return pf.Federation(model, (np.arange(len(y)) if x is None else x, y), plate="data", num_clients=5, **options)


@pytest.mark.parametrize(
    ("model", "y", "dtype"),
    [
        (POISSON, COUNTS, torch.float32),
        (POISSON, COUNTS * 10_000_000, torch.float64),
        (DISPERSED, COUNTS, torch.float64),
        (SHARES, COUNTS, torch.float64),
    ],
    ids=["few", "millions", "dispersed", "shares"],
)
def test_whole_numbers_are_computed_in_what_their_density_asks_for(model, y, dtype):
    assert federation(model, y).problem.dtype == dtype
    clients = [(np.arange(25), part) for part in (y[:25], y[25:])]
    assert pf.Federation.from_clients(model, clients, plate="data").problem.dtype == dtype
    assert federation(model, y, dtype=torch.float32).problem.dtype == torch.float32


def test_so_they_are_beside_columns_in_float32():
    x = np.linspace(0, 1, len(COUNTS), dtype=np.float32)
    assert federation(DISPERSED, COUNTS, x).problem.dtype == torch.float64
    assert federation(POISSON, COUNTS * 10_000_000, x).problem.dtype == torch.float64
    assert federation(POISSON, COUNTS, x).problem.dtype == torch.float32


@pytest.mark.filterwarnings("ignore:a few extreme draws dominate the mean and SD of 'phi'")  # its mean is infinite
def test_a_dispersion_that_counts_do_not_bound_is_that_of_quadrature():
    """In float32 log phi went to 19.5, where all that is left of a row's density is rounding; it is 3.7."""
    idata = pf.run(pf.FedAIS(), federation(DISPERSED, COUNTS), progress=False, log_likelihood=False)
    drawn = np.log(idata.posterior["phi"].values.ravel())
    m, phi = np.meshgrid(np.exp(np.linspace(0.7, 1.5, 81)), np.exp(np.linspace(0, 14, 281)), indexing="ij")
    density = sum(nbinom.logpmf(y, phi, phi / (phi + m)) for y in COUNTS)
    density += -0.5 * (np.log(m) - 1) ** 2 + np.log(phi) - np.log1p((phi / 5) ** 2)
    mass = np.exp(density - density.max())
    mass /= mass.sum()
    mean = (mass * np.log(phi)).sum()
    sd = np.sqrt((mass * (np.log(phi) - mean) ** 2).sum())
    assert not idata.attrs["doubts"]
    assert abs(drawn.mean() - mean) < 0.2 * sd
    assert drawn.std() == pytest.approx(sd, rel=0.15)


def test_a_single_count_outside_the_plate_is_looked_at_too():
    def model(total, y):
        m = pyro.sample("m", dist.LogNormal(1.0, 1.0))
        pyro.sample("total", dist.Poisson(m), obs=total)
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(m, 1.0), obs=y)

    y = torch.arange(10.0)
    for total, dtype in ((3.0, torch.float32), (1e6, torch.float64)):
        fed = pf.Federation(model, (torch.tensor(total), y), plate="data", num_clients=5)
        assert fed.problem.dtype == dtype
