"""Few rows under flat priors: the posterior may be improper, and its doubt says so in place of advising more rounds."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.distributions import constraints

import pyro_fed as pf

QUIET = {"progress": False, "log_likelihood": False, "seed": 0}


def flat(y):
    mu = pyro.sample("mu", dist.ImproperUniform(constraints.real, (), ()))
    scale = pyro.sample("scale", dist.ImproperUniform(constraints.positive, (), ()))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mu, scale).expand([len(y)]), obs=y)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("rows", [(0.1, 0.7), (0.1, 0.5, 1.5)], ids=["improper", "no mean of the scale"])
@pytest.mark.parametrize("algorithm", [pf.FedEP(), pf.DSVGD()], ids=["fedep", "dsvgd"])
def test_tails_that_do_not_fall_are_named(rows, algorithm):
    """Of the scale's logarithm t the density falls as exp(-(n - 2) t): not at all with two rows."""
    fed = pf.Federation(flat, (torch.tensor(rows, dtype=torch.float64),), plate="data", num_clients=2)
    doubts = pf.run(algorithm, fed, **QUIET).attrs["doubts"]
    assert "the posterior may be improper too" in doubts and "'mu', 'scale' is improper" in doubts


def test_many_rows_have_a_posterior():
    y = torch.linspace(-1, 1, 40, dtype=torch.float64)
    fed = pf.Federation(flat, (y,), plate="data", num_clients=2)
    assert pf.run(pf.FedEP(), fed, **QUIET).attrs["doubts"] == ""
