"""Draws of a guide are independent: a result has each of them once."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.distributions import constraints

import pyro_fed as pf
from pyro_fed.errors import SettingError

QUIET = {"progress": False, "log_likelihood": False, "audit": False, "compile": "off"}


def counts(y):
    rate = pyro.sample("rate", dist.Gamma(2.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Poisson(rate), obs=y)


def guide(y):
    a = pyro.param("a", torch.tensor(3.0, dtype=torch.float64), constraint=constraints.positive)
    b = pyro.param("b", torch.tensor(1.0, dtype=torch.float64), constraint=constraints.positive)
    pyro.sample("rate", dist.Gamma(a, b))


def algorithm(kind, **settings):
    return (
        pf.infer.SVI(guide=guide, num_steps=20, **settings) if kind is pf.infer.SVI else kind(guide=guide, **settings)
    )


@pytest.fixture(scope="module")
def fed():
    return pf.Federation(counts, (torch.tensor([0.0, 3.0, 1.0, 2.0]).double(),), plate="data", num_clients=2)


@pytest.mark.parametrize(
    ("kind", "settings", "found"),
    [
        (pf.infer.SVI, {}, 4500),
        (pf.FedEP, {}, 4500),
        (pf.infer.PVI, {}, 4500),
        (pf.infer.SVI, {"num_guide_draws": 50}, 50),
    ],
)
@pytest.mark.filterwarnings("ignore:.*not converged", "ignore:.*num_rounds")
def test_no_draw_is_there_twice(fed, kind, settings, found):
    """4,500 are asked for, more than are kept by default; repeats would be told as effective ones."""
    idata = pf.run(algorithm(kind, **settings), fed, num_draws=4500, num_rounds=1, **QUIET)
    draws = idata["posterior"]["rate"].values
    assert draws.shape == (1, found)
    assert len(np.unique(draws)) == found


def test_as_many_draws_are_those_of_a_run_that_is_asked_for_fewer(fed):
    """A run's draws begin with those of one that was asked for fewer."""
    few, many = (pf.run(algorithm(pf.FedEP), fed, num_draws=n, **QUIET)["posterior"]["rate"].values for n in (9, 4000))
    np.testing.assert_array_equal(few[0], many[0, :9])


def test_no_draws_at_all_are_refused():
    with pytest.raises(SettingError, match="num_guide_draws must be a whole number of at least 1, received 0"):
        algorithm(pf.infer.SVI, num_guide_draws=0)
