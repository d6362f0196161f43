"""Ranks of simulation-based calibration against the exact posterior's quantiles, and what cannot be simulated."""

import arviz as az
import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
import xarray as xr
from scipy import stats

import pyro_fed as pf
from pyro_fed.analysis.criticism.sbc import _rank

ROWS = 60
X = torch.linspace(-1.0, 1.0, ROWS, dtype=torch.float64)
NOISE = 0.5
QUIET = {"audit": False}


def line(x, y):
    b = pyro.sample("b", dist.Normal(torch.tensor([1.0, -2.0], dtype=x.dtype), 1.0).to_event(1))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Normal(b[0] + b[1] * x, NOISE), obs=y)


@pytest.fixture(scope="module")
def fed():
    return pf.Federation(line, (X, 0 * X), plate="rows", num_clients=3, dims={"b": ["effect"]})


def test_ranks_are_the_exact_posterior_s_quantiles_at_the_truth(fed):
    """u = F(truth); a rank of 99 independent draws is Binomial(99, u): 5.5 SDs and one, a false alarm of 1e-6."""
    exact = []

    def simulate(rng):
        b = np.array([1.0, -2.0]) + rng.normal(size=2)
        design = np.column_stack([np.ones(ROWS), X.numpy()])
        y = design @ b + NOISE * rng.normal(size=ROWS)
        precision = np.eye(2) + design.T @ design / NOISE**2
        mean = np.linalg.solve(precision, np.array([1.0, -2.0]) + design.T @ y / NOISE**2)
        exact.append(stats.norm(mean, np.linalg.inv(precision).diagonal() ** 0.5).cdf(b))
        return {"b": b}, (X, torch.as_tensor(y))

    found = pf.sbc(fed, 6, algorithm=pf.FedEP(), simulate=simulate, seed=1, **QUIET)
    ranks, u = found["prior_sbc"]["b"], np.array(exact)
    assert ranks.dims == ("chain", "draw", "effect") and ranks.shape == (1, 6, 2) and ranks.dtype.kind == "i"
    assert (np.abs(ranks[0] - 99 * u) < 5.5 * np.sqrt(99 * u * (1 - u)) + 1).all()
    assert np.ptp(u) > 0.5  # a rank that ignores the truth, or counts the draws above it, is far off


def test_the_model_s_own_data_belong_to_its_own_draws(fed):
    """The posterior is 15 times as narrow as the prior: of other data, or another truth, nearly all ranks are 0 or 99.

    Of right ones each of 24 is extreme with 0.02; six of them, a false alarm of 5e-6.
    """
    found = pf.sbc(fed, 12, algorithm=pf.FedEP(), seed=2, **QUIET)
    ranks = found["prior_sbc"]["b"].values
    assert ((ranks == 0) | (ranks == 99)).sum() < 6
    assert abs(ranks.mean() - 49.5) < 5 * 28.9 / 24**0.5  # of the uniform distribution
    assert not found["sample_stats"]["doubted"].any()
    assert float(found["prior"]["b"].sel(effect=1).mean()) == pytest.approx(-2.0, abs=5 / 12**0.5)
    fewer = pf.sbc(fed, 2, algorithm=pf.FedEP(), seed=2, **QUIET)
    np.testing.assert_array_equal(fewer["prior_sbc"]["b"], ranks[:, :2])
    az.plot_ecdf((ranks[..., 0] + 0.5).ravel() / 100, cdf=stats.uniform.cdf, eval_points=np.linspace(0, 1, 20))


def test_ranks_of_fewer_draws_are_spread_over_all():
    rng = np.random.default_rng(0)
    draws, truth = xr.DataArray(np.zeros((1, 4)), dims=("chain", "draw")), xr.DataArray(1.0)
    found = {int(_rank(draws, truth, 9, rng)) for _ in range(50)}
    assert found == {8, 9}  # the last of five places is the last two of ten


def improper(y):
    a = pyro.sample("a", dist.ImproperUniform(dist.constraints.real, (), ()))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(a, 1.0), obs=y)


def with_factor(y):
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(y)):
        pyro.factor("target", -((y - a) ** 2))


def of_logarithms(y):
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(a, 1.0), obs=(y + 2).log())


def by_itself(y):
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(a * (y > 0), 1.0), obs=y)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (improper, "sites a have improper priors"),
        (with_factor, "sites target are pyro.factor"),
        (of_logarithms, "observations of 'y' are not an unchanged argument of the model"),
        (by_itself, "uses the observations of 'y' for more than its likelihood"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_cannot_be_simulated_is_refused_by_name(model, message):
    with pytest.raises(pf.errors.DataError, match=message):
        pf.sbc(pf.Federation(model, (X,), plate="rows", num_clients=2), 1, algorithm=pf.FedEP(), **QUIET)


def test_points_and_wrong_settings_are_refused(fed):
    with pytest.raises(pf.errors.SettingError, match="FedAvg gives a single point"):
        pf.sbc(fed, 1, algorithm=pf.FedAvg())
    with pytest.raises(pf.errors.SettingError, match="rounds"):
        pf.sbc(fed, 1, algorithm=pf.FedEP(), rounds=3)
