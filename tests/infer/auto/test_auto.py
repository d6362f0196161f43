"""Auto: FedEP alone where it is enough, more where it is not, and what it says of it."""

import math
import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from algorithms import unequal_lines
from late import late
from short_runs import values

import pyro_fed as pf

az = late("arviz")

QUIET = {"progress": False, "compile": "off"}  # the audit has a say


def test_an_easy_posterior_is_fedep_alone():
    found = pf.fit(unequal_lines(), **QUIET)
    alone = pf.run(pf.FedEP(), unequal_lines(), **QUIET)
    np.testing.assert_array_equal(values(found), values(alone))
    steps = pf.metrics.steps(found)
    assert list(steps["algorithm"]) == ["FedEP"] and list(steps["chosen"]) == [True]
    assert list(steps["rounds"]) == [alone.federation.sizes["round"]]
    assert found.attrs["doubts"] == ""


def test_steps_of_one_algorithm_are_none():
    alone = pf.run(pf.FedEP(), unequal_lines(), **QUIET)
    with pytest.raises(pf.errors.SettingError, match="received a result of FedEP alone"):
        pf.metrics.steps(alone)


Y = torch.tensor([1.2, 2.1, 1.7, 0.9, 2.6], dtype=torch.float64)


def squared(y):
    """Two modes, t and -t, which the prior tells apart by a little."""
    t = pyro.sample("t", dist.Normal(y.new_tensor(0.01), 2.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(t.square(), 1.0), obs=y)


def quiet_fit(**options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return pf.fit(pf.Federation(squared, (Y,), plate="data", num_clients=2), progress=False, **options)


def test_where_a_gaussian_is_not_enough_it_goes_on():
    """The SD between two modes, by a sum over a grid; draws, since the particles are weighed."""
    found = quiet_fit()
    steps = pf.metrics.steps(found)
    assert len(steps) > 1 and steps["doubts"][0]
    assert found.attrs["doubts"] == "" and found.attrs["draws_are"] == "independent"
    grid = torch.linspace(-8, 8, 20_001, dtype=torch.float64)
    value = dist.Normal(0.01, 2.0).log_prob(grid) + dist.Normal(grid.square()[:, None], 1.0).log_prob(Y).sum(1)
    weights = (value - value.max()).exp()
    sd = float(((weights * grid.square()).sum() / weights.sum()).sqrt())
    drawn = found.posterior["t"].values
    assert abs(drawn.mean()) < 0.1 * sd
    assert drawn.std() == pytest.approx(sd, rel=0.1)


def flat_regression(x, y):
    beta = pyro.sample("beta", dist.ImproperUniform(dist.constraints.real_vector, (), (7,)))
    sigma = pyro.sample("sigma", dist.ImproperUniform(dist.constraints.positive, (), ()))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)


def test_an_sd_that_chance_may_put_beyond_the_aim_is_bettered():
    """With n rows and p columns sigma^-2 is a Gamma of n - p - 1 degrees of freedom, and FedEP's SD 0.89 times.

    With this seed the audit puts it at 1 / 1.099 ± 0.015, an aim of 1.1 that is missed by less than chance.
    """
    generator = torch.Generator().manual_seed(0)
    x, noise = (torch.randn(46, width, generator=generator).double() for width in (6, 1))
    x = torch.cat([torch.ones(46, 1).double(), x], 1)
    y, freedom = x.sum(1) + noise[:, 0], 46 - 7 - 1
    rest = float((y - x @ torch.linalg.lstsq(x, y[:, None]).solution[:, 0]).square().sum())
    mean = (rest / 2) ** 0.5 * math.gamma((freedom - 1) / 2) / math.gamma(freedom / 2)
    sd = (rest / (freedom - 2) - mean**2) ** 0.5
    fed = pf.Federation(flat_regression, (x, y), plate="data", num_clients=4)
    found = pf.fit(fed, num_draws=4000, seed=1, **QUIET)
    assert list(pf.metrics.steps(found)["algorithm"]) == ["FedEP", "FedAIS(surrogates=FedEP())"]
    assert float(found["posterior"]["sigma"].values.std()) == pytest.approx(sd, rel=0.05)
    assert found.attrs["doubts"] == ""


def test_executors_give_the_same_answer():
    both = [quiet_fit(executor=name, max_rounds=60) for name in ("vectorised", "sequential")]
    np.testing.assert_allclose(values(both[0]), values(both[1]), rtol=1e-9)
    for name in ("algorithm", "rounds", "bytes", "chosen"):
        assert list(pf.metrics.steps(both[0])[name]) == list(pf.metrics.steps(both[1])[name])


def test_on_a_graph_it_takes_what_needs_no_server():
    fed = unequal_lines()
    found = pf.fit(fed, graph=pf.graph.ring(3), **QUIET)
    assert list(pf.metrics.steps(found)["algorithm"]) == ["P2PVI"]
    assert found.posterior.sizes["chain"] == 3


def test_the_result_can_be_written_and_read(tmp_path):
    pf.fit(unequal_lines(), **QUIET).to_netcdf(str(tmp_path / "found.nc"))
    read = az.from_netcdf(str(tmp_path / "found.nc"))
    assert list(pf.metrics.steps(read)["algorithm"]) == ["FedEP"]
