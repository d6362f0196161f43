"""Rounds that change nothing are not repeated by more of them."""

import json

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf


def below(y):
    theta = pyro.sample("theta", dist.LogNormal(y.new_tensor(0.0), 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Uniform(y.new_tensor(0.0), theta.expand(len(y)), validate_args=False), obs=y)


@pytest.mark.filterwarnings("ignore")
def test_no_more_rounds_are_advised_where_no_message_was_used():
    """The prior's edge moves with theta, so that no client's curvature is one: its site is the one it began with."""
    y = torch.rand(8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    fed = pf.Federation(below, (y,), plate="data", num_clients=4, seed=0)
    idata = pf.run(pf.FedEP(), fed, seed=0, progress=False, log_likelihood=False)
    findings = json.loads(idata.attrs["findings"])
    assert {"sites_not_used", "not_converged_and_stuck"} <= {one["code"] for one in findings}
    assert "run more rounds" not in idata.attrs["doubts"]
