"""One pass over the clients: judged by its draws alone, as its last turn says nothing of a next one."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.conventions.limits import MATTERS

QUIET = {"progress": False, "log_likelihood": False, "num_draws": 2000, "seed": 0}


def logistic(x, y):
    w = pyro.sample("w", dist.Normal(x.new_zeros(3), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def rows(seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(300, 3, generator=generator, dtype=torch.float64)
    w = torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)
    return x, (torch.rand(300, generator=generator, dtype=torch.float64) < (x @ w).sigmoid()).double()


def away(idata, reference):
    """The worst mean, in SDs of FedEP's draws as `FedAIS` weighs them."""
    one, other = (found.posterior["w"].values[0] for found in (idata, reference))
    return np.abs((one.mean(0) - other.mean(0)) / other.std(0)).max()


@pytest.mark.parametrize("seed", range(4))
def test_it_is_not_doubted_where_it_is_right(seed):
    """The last of five clients moves q by 0.9 to 1.1 SDs, as a fifth of all rows does."""
    fed = pf.Federation(logistic, rows(seed), plate="data", num_clients=5, seed=0)
    idata = pf.run(pf.infer.StreamingVB(), fed, **QUIET)
    assert away(idata, pf.run(pf.FedAIS(), fed, **QUIET)) < MATTERS
    assert idata.attrs["doubts"] == ""


@pytest.mark.filterwarnings("ignore:these draws are not the posterior's")
def test_it_is_doubted_where_it_is_wrong_and_told_what_mends_it():
    """One Newton step a turn, from the prior's mean, where ten are the default."""
    fed = pf.Federation(logistic, rows(0), plate="data", num_clients=5, seed=0)
    idata = pf.run(pf.infer.StreamingVB(client=pf.infer.tilted.Newton(steps=1)), fed, **QUIET)
    assert away(idata, pf.run(pf.FedAIS(), fed, **QUIET)) > MATTERS
    assert "not the posterior's" in idata.attrs["doubts"] and "PVI goes on and corrects that" in idata.attrs["doubts"]
    assert "settled" not in idata.attrs["doubts"]
