"""First sites whose product is no distribution: a small network, whose Newton start has not come to rest."""

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.density.traits_search import ModelTraits
from pyro_fed.infer.peers.peer_sites import _sites_with_proper_sum, sum_of_sites_is_improper
from pyro_fed.ops.gaussian import FullGaussian

AGENTS = 4
QUIET = {"progress": False, "log_likelihood": False, "audit": False, "seed": 1}


def network(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    b = pyro.sample("b", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    v = pyro.sample("v", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    s = pyro.sample("s", dist.HalfNormal(0.5))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(torch.tanh(x[:, None] * w + b) @ v, s), obs=y)


@pytest.fixture(scope="module")
def federation():
    generator = torch.Generator().manual_seed(10)
    x, noise = torch.randn(2, 30, generator=generator, dtype=torch.float64)
    return pf.Federation(network, (x, 0.5 * x.square() + 0.3 * noise), plate="data", num_clients=AGENTS)


def test_a_small_network_has_a_posterior(federation, monkeypatch):
    """From zeros: as long as nobody bent the first sites no belief became proper in 100 rounds: a DivergenceError."""
    monkeypatch.setattr(ModelTraits, "layers", False)
    result = pf.run(pf.P2PVI(covariance="full"), federation, graph=pf.graph.ring(AGENTS), num_rounds=400, **QUIET)
    assert result.attrs["converged"]


def test_bent_sites_have_a_product():
    """One of four has a negative precision, twenty times as large as another's: their product is none."""
    generator = torch.Generator().manual_seed(3)
    root = torch.randn(AGENTS, 3, 3, generator=generator, dtype=torch.float64)
    proper = FullGaussian(root @ root.mT + 0.1 * torch.eye(3, dtype=torch.float64), root[..., 0])
    lacking = torch.where(torch.arange(AGENTS)[:, None, None] == 0, -20.0 * proper.precision, proper.precision)
    sites = FullGaussian(lacking, proper.eta)
    anchor = proper.product_over(0)
    anchors = FullGaussian(anchor.precision.expand(AGENTS, 3, 3), anchor.eta.expand(AGENTS, 3))
    assert not bool(sites.product_over(0).is_proper())
    weight = torch.full((AGENTS,), float(AGENTS), dtype=torch.float64)
    bent = _sites_with_proper_sum(anchors, sites, anchors ** (1 / weight), weight)
    assert bool(bent.product_over(0).is_proper())


def test_a_belief_without_sites_is_not_lost():
    flat = FullGaussian(torch.zeros(2, 1, 1, dtype=torch.float64), torch.zeros(2, 1, dtype=torch.float64))
    site = FullGaussian(-torch.ones(2, 1, 1, dtype=torch.float64), flat.eta)
    assert sum_of_sites_is_improper(flat, flat).tolist() == [False, False]
    assert sum_of_sites_is_improper(site, site).tolist() == [True, True]
