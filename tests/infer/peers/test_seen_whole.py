"""Changes of agents' sites go to the consensus once, and to what each agent sends 1 / v times."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.infer.peers.peer_sites import complete_consensus_belief, public_belief
from pyro_fed.ops.gaussian import STRUCTURES

AGENTS, DIM = 10, 4


def sites(seed, count=AGENTS, structure="full"):
    """Proper ones of a different scale in each direction."""
    g = torch.Generator().manual_seed(seed)
    a = (
        torch.randn(count, DIM, 2 * DIM, generator=g, dtype=torch.float64)
        * torch.logspace(-1, 1, DIM).double()[:, None]
    )
    precision = a @ a.mT
    if structure == "diag":
        precision = precision.diagonal(dim1=-2, dim2=-1)
    return STRUCTURES[structure](precision, torch.randn(count, DIM, generator=g, dtype=torch.float64))


@pytest.mark.parametrize("structure", ["full", "diag"])
def test_a_change_of_proper_sites_is_made_whole_where_beliefs_would_be_improper(structure):
    """Half of the agents lose nine tenths of their precision: each belief that is sent would lose several times q's."""
    old, weight = sites(0, structure=structure), torch.full((AGENTS,), float(AGENTS), dtype=torch.float64)
    scale = torch.where(torch.arange(AGENTS) < 5, 0.1, 1.5).double()
    new = old.power(scale)
    q = type(old)(
        *(part.expand(AGENTS, *part.shape) for part in (old.product_over().precision, old.product_over().eta))
    )
    known = torch.ones(AGENTS, dtype=torch.bool)
    belief, share = complete_consensus_belief(q, old, new, weight, known, ~known)
    _, cut = public_belief(q, (new / old) ** weight, known, 1.0)
    assert bool((share == 1).all()) and float(cut.min()) < 0.5
    held, part = complete_consensus_belief(
        q, old, new, weight, known, known
    )  # once the product has been no distribution
    assert bool(held.is_proper().all()) and torch.equal(part, cut)
    assert not bool(belief.is_proper().all())
    together = (belief ** (1 / weight)).product_over()
    torch.testing.assert_close(together.precision, new.product_over().precision)
    torch.testing.assert_close(together.eta, new.product_over().eta)
    assert bool(together.is_proper())


def test_agents_whose_sites_are_indefinite_send_proper_beliefs():
    old, weight = sites(1), torch.full((AGENTS,), float(AGENTS), dtype=torch.float64)
    new = type(old)(old.precision.clone(), old.eta)
    new.precision[0] -= 2 * old.precision[0]
    q = type(old)(
        *(part.expand(AGENTS, *part.shape) for part in (old.product_over().precision, old.product_over().eta))
    )
    known = torch.ones(AGENTS, dtype=torch.bool)
    belief, share = complete_consensus_belief(q, old, new, weight, known, ~known)
    assert bool(belief.is_proper()[0]) and 0 < float(share[0]) < 1
    assert bool((share[1:] == 1).all())


def separated(x, y):
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), 2.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def test_sorted_agents_need_not_many_more_rounds_than_a_server():
    """And end where its clients do, but for chance in the means of 1,000 draws and more, 0.03 SDs."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(400, 8, generator=g, dtype=torch.float64)
    y = torch.bernoulli(torch.sigmoid(x @ torch.linspace(-2, 2, 8).double()), generator=g)
    order = y.argsort(stable=True)
    parts = pf.partition.Explicit([part.tolist() for part in order.chunk(20)])
    fed = pf.Federation(separated, (x, y), plate="data", partition=parts)
    quiet = {"seed": 0, "progress": False, "audit": False, "log_likelihood": False}
    server = pf.run(pf.FedEP(), fed, **quiet)
    agents = pf.run(pf.P2PVI(), fed, graph=pf.graph.ring(20), **quiet)
    rounds = [int(np.isfinite(one.federation["change"].values).sum()) for one in (server, agents)]
    assert rounds[1] <= rounds[0] + 6
    means = [one.posterior["w"].values.mean((0, 1)) for one in (server, agents)]
    sd = server.posterior["w"].values.std((0, 1))
    assert float(np.abs((means[0] - means[1]) / sd).max()) < 0.2


def test_where_the_product_was_no_distribution_beliefs_are_kept_proper_again():
    """Only a b is seen, on two hyperbolas: sites have negative precision, and whole changes undo the beliefs."""

    def product(y):
        a = pyro.sample("a", dist.Normal(y.new_tensor(0.0), 1.0))
        b = pyro.sample("b", dist.Normal(y.new_tensor(0.0), 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(a * b, 1.0), obs=y)

    y = torch.from_numpy(1.0 + np.random.default_rng(51).normal(size=20))
    fed = pf.Federation(product, (y.sort().values,), plate="data", num_clients=4, partition=pf.partition.SortedBy(by=y))
    with pytest.warns(UserWarning, match="all 2 images"):  # changes of both signs
        idata = pf.run(pf.P2PVI(), fed, graph=pf.graph.ring(4), seed=0, progress=False, log_likelihood=False)
    assert idata.posterior.attrs["converged"] == 1 and not idata.posterior.attrs["doubts"]
    axis = torch.linspace(-5, 5, 501, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    log_density = dist.Normal(0.0, 1.0).log_prob(grid).sum(1)
    log_density += dist.Normal(grid.prod(1)[:, None], 1.0).log_prob(y).sum(1)
    sd = float((log_density.softmax(0) @ grid.square()).sqrt()[0])
    for name in "ab":
        assert abs(float(idata.posterior[name].mean())) < 0.1 * sd
        assert float(idata.posterior[name].std()) == pytest.approx(sd, rel=0.2)
