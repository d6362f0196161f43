"""PushSum on directed graphs, clocks of the agents' own, and beliefs on a finite set: closed forms and recursions."""

from contextlib import nullcontext

import networkx as nx
import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from conjugate import QUIET, data, exact, federation

import pyro_fed as pf
from pyro_fed.errors import DataError, GraphError, SettingError
from pyro_fed.graph.mixing import mix
from pyro_fed.infer.peers.push_sum import sending_shares


def one_way(agents=5):
    """A directed ring with one link across: nobody is heard by as many as it hears."""
    graph = nx.cycle_graph(agents, create_using=nx.DiGraph)
    graph.add_edge(0, 2)
    return pf.graph.from_networkx(graph, mixing="uniform", name="one-way ring")


def test_shares_are_columns_that_sum_to_one_and_ratios_tend_to_the_mean():
    graph = one_way()
    shares = sending_shares(graph.matrix)
    np.testing.assert_allclose(shares.sum(axis=0), 1.0)
    assert not np.allclose(shares.sum(axis=1), 1.0)
    values, mass = torch.tensor([3.0, -1.0, 4.0, 1.0, 5.0], dtype=torch.float64), torch.ones(5, dtype=torch.float64)
    for _ in range(200):
        values, mass = mix(shares, values), mix(shares, mass)
    np.testing.assert_allclose(values / mass, 12 / 5, rtol=1e-12)
    assert float(mass.std()) > 0.1  # without the masses the agents would not agree


@pytest.mark.parametrize("start", ["local", "prior"])
def test_push_sum_ends_at_the_posterior_on_a_directed_graph(start):
    mean, covariance = exact(*data())
    algorithm = pf.infer.P2PPushSum(start=start, tolerance=1e-9, gossip_tolerance=1e-4, trace=True)
    idata = pf.run(algorithm, federation(5), graph=one_way(), **QUIET)
    means = idata["federation"]["belief_mean"].values[-1]
    sds = idata["federation"]["belief_sd"].values[-1]
    np.testing.assert_allclose(means, np.tile(mean, (5, 1)), atol=1e-7)
    np.testing.assert_allclose(sds, np.tile(covariance.diagonal().sqrt(), (5, 1)), rtol=1e-7)


# Without one of its agents a one-way ring is in parts, and the last rounds may be such.
@pytest.mark.filterwarnings("ignore:the graph fell apart")
def test_nothing_is_lost_where_agents_sleep_on_a_directed_graph():
    """`P2PVI` refuses it: its agents' centralities would change."""
    mean, _ = exact(*data())
    options = {**QUIET, "graph": one_way(), "schedule": pf.schedule.UniformRandom(4), "num_rounds": 150}
    with pytest.raises(GraphError, match="change the centrality"):
        pf.run(pf.P2PVI(), federation(5), **options)
    idata = pf.run(pf.infer.P2PPushSum(trace=True, tolerance=1e-6, gossip_steps=10), federation(5), **options)
    last = idata["federation"]["belief_mean"].values
    means = [agent[~np.isnan(agent[:, 0])][-1] for agent in last.transpose(1, 0, 2)]
    np.testing.assert_allclose(means, np.tile(mean, (5, 1)), atol=1e-4)


def test_an_agent_by_itself_cannot_push():
    state = {"eta": torch.zeros(3, 2), "mass": torch.ones(3)}
    with pytest.raises(SettingError, match="P2PPushSum: agents in separate processes"):
        pf.infer.P2PPushSum().combine(state, state, one_way(3).matrix[:1])
    with pytest.raises(SettingError, match="use P2PVI"):
        pf.infer.P2PPushSum(start="consensus")


# -- clocks -----------------------------------------------------------------------------------------------------------
def test_the_expected_matrix_of_clocks_is_that_of_many_rounds():
    """4,000 rounds: entries vary by less than 0.5 from round to round, so that a mean has an error below 0.008."""
    graph = pf.graph.Clocks(pf.graph.ring(5), rates=[0.2, 1.0, 0.5, 2.0, 0.0])
    rng = np.random.default_rng(0)
    found = np.mean([graph.weights(t, rng).toarray() for t in range(4000)], axis=0)
    np.testing.assert_allclose(found, graph.expected(0).toarray(), atol=0.03)
    one = graph.weights(0, rng).toarray()
    np.testing.assert_allclose([one.sum(0), one.sum(1)], 1.0)
    two = pf.graph.Clocks(pf.graph.complete(2), rates=[0.3, 0.5])  # equal after the first tick, none with exp(-0.8)
    np.testing.assert_allclose(two.expected(0).toarray()[0], [(1 + np.exp(-0.8)) / 2, (1 - np.exp(-0.8)) / 2])


def test_clocks_end_at_the_posterior():
    mean, _ = exact(*data())
    graph = pf.graph.Clocks(pf.graph.ring(4), rates=3.0)
    algorithm = pf.P2PVI(trace=True, tolerance=1e-7)
    idata = pf.run(algorithm, federation(), graph=graph, num_rounds=60, seed=2, **QUIET)
    np.testing.assert_allclose(idata["federation"]["belief_mean"].values[-1], np.tile(mean, (4, 1)), atol=1e-4)


@pytest.mark.parametrize("rates", [-1.0, [1.0, 1.0], float("nan")])
def test_rates_that_are_none_are_refused(rates):
    with pytest.raises(GraphError, match="rates must be"):
        pf.graph.Clocks(pf.graph.ring(5), rates=rates)


# -- a finite set -----------------------------------------------------------------------------------------------------
VALUES = torch.tensor([0.0, 0.5, 1.0, -0.4], dtype=torch.float64)
STRENGTH = torch.tensor([1.0, 0.3, 0.2], dtype=torch.float64)


def seen(strength, y):
    theta = pyro.sample("theta", dist.Normal(torch.zeros((), dtype=torch.float64), 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(strength * theta, 1.0), obs=y)


def observations(rows=8):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(3, rows, generator=generator, dtype=torch.float64)


def three_agents():
    parts = [(strength.expand(len(y)), y) for strength, y in zip(STRENGTH, observations(), strict=True)]
    return pf.Federation.from_clients(seen, parts, plate="data")


def log_lik():
    """(agent, row, candidate), with the constant."""
    away = observations()[..., None] - STRENGTH[:, None, None] * VALUES
    return -0.5 * away.square()


def ends(algorithm, **options):
    """The agents' last beliefs, (A, M)."""
    states = []

    class Kept(type(algorithm)):
        def sample(self, shared, num_draws, generator):
            states.append(shared["log_belief"])
            return super().sample(shared, num_draws, generator)

    names = ("candidates", "weighting", "batch_size", "gossip_steps", "temperature")
    settings = {name: getattr(algorithm, name) for name in names}
    with pytest.warns(UserWarning) if algorithm.weighting == "paper" else nullcontext():
        pf.run(Kept(**settings), three_agents(), **{**QUIET, **options})
    return states[-1]


@pytest.mark.parametrize("graph", [pf.graph.complete(3), pf.graph.star(3, 0.4)], ids=["complete", "star"])
def test_on_a_finite_set_the_exact_weighting_is_bayes_rule(graph):
    found = ends(pf.papers.P2PFinite(candidates={"theta": VALUES}, gossip_steps=60), graph=graph, num_rounds=2)
    expected = torch.log_softmax(log_lik().sum((0, 1)), -1)
    np.testing.assert_allclose(found, expected.expand(3, -1), atol=1e-9)


def test_a_temperature_raises_the_likelihood_to_its_inverse():
    tempered = pf.papers.P2PFinite(candidates={"theta": VALUES}, gossip_steps=60, temperature=2.5)
    found = ends(tempered, graph=pf.graph.complete(3), num_rounds=2)
    expected = torch.log_softmax(log_lik().sum((0, 1)) / 2.5, -1)
    np.testing.assert_allclose(found, expected.expand(3, -1), atol=1e-9)


def test_as_published_it_is_the_recursion_of_the_paper():
    """Eq. (6) with one row a round, Eq. (4) with W; on a complete graph Bayes' rule with data to the power 1/A."""
    graph = pf.graph.star(3, 0.4)
    belief = torch.full((3, 4), 0.25, dtype=torch.float64).log()
    for t in range(8):
        public = torch.log_softmax(belief + log_lik()[:, t], -1)
        belief = torch.log_softmax(torch.from_numpy(graph.matrix.toarray()) @ public, -1)
    paper = pf.papers.P2PFinite(candidates={"theta": VALUES}, weighting="paper", batch_size=1, gossip_steps=1)
    np.testing.assert_allclose(ends(paper, graph=graph, num_rounds=8), belief, atol=1e-12)
    whole = ends(paper, graph=pf.graph.complete(3), num_rounds=8)
    np.testing.assert_allclose(whole, torch.log_softmax(log_lik().sum((0, 1)) / 3, -1).expand(3, -1), atol=1e-12)


def test_candidates_must_be_the_models():
    with pytest.raises(DataError, match="as many values of each of the sites"):
        pf.run(pf.papers.P2PFinite(candidates={"mu": VALUES}), three_agents(), graph=pf.graph.ring(3), **QUIET)
    with pytest.raises(SettingError, match="sum to one"):
        pf.papers.P2PFinite(candidates={"theta": VALUES}, probabilities=(0.5, 0.2))
