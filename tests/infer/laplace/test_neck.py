"""A density that rises into the neck of a funnel, in single precision too, where a climb into it overflows."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf

GROUP = torch.arange(5).repeat_interleave(4)


def groups(group, y):
    """Centred: as tau goes to zero the effects may go to mu, and the density goes to infinity as tau⁻⁴."""
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfNormal(2.0))
    with pyro.plate("groups", 5):
        theta = pyro.sample("theta", dist.Normal(mu, tau))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(theta[group], 1.0), obs=y)


@pytest.fixture(scope="module", params=[torch.float32, torch.float64], ids=["single", "double"])
def centred(request):
    """Group means that are nearly equal."""
    effects = torch.tensor([0.6, 1.4, 1.0, 1.5, 0.7])[GROUP]
    noise = torch.randn(20, generator=torch.Generator().manual_seed(12))
    args = GROUP, (effects + noise).to(request.param)
    return pf.Federation(groups, args, plate="data", num_clients=5, dtype=request.param)


@pytest.mark.parametrize(("algorithm", "graph"), [(pf.FedEP(), None), (pf.P2PVI(), pf.graph.complete(5))])
@pytest.mark.filterwarnings("ignore::UserWarning")  # no Gaussian has the shape of a funnel, and the runs say so
def test_what_starts_from_it_has_an_answer(centred, algorithm, graph):
    idata = pf.run(algorithm, centred, graph=graph, progress=False, log_likelihood=False)
    assert idata.attrs["doubts"]
    assert -5 < float(np.log(idata["posterior"]["tau"].values).mean()) < 2
    assert abs(float(idata["posterior"]["mu"].mean()) - 1.04) < 1.5
