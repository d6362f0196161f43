"""SFVI over a graph: the server's answer where a round's consensus is exact, and the posterior where it is not."""

import itertools

import hierarchies
import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import scipy
import torch
from pyro.infer.autoguide import AutoDelta, AutoIAFNormal, AutoMultivariateNormal

import pyro_fed as pf
from pyro_fed.algorithm.contract import Start
from pyro_fed.density.derivatives import clients_likelihood_scores
from pyro_fed.errors import GraphError, SettingError
from pyro_fed.ops.gaussian import ImproperGaussianError

F64 = torch.float64
QUIET = {"progress": False, "log_likelihood": False, "audit": False, "compile": "off"}
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(30, 2, generator=GENERATOR, dtype=F64)
Y = X @ torch.tensor([1.0, -0.5], dtype=F64) + torch.randn(30, generator=GENERATOR, dtype=F64)


def lines(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(2, dtype=F64), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def federation(sizes):
    edges = torch.tensor([0, *sizes]).cumsum(0).tolist()
    parts = pf.partition.Explicit([list(range(a, b)) for a, b in itertools.pairwise(edges)])
    return pf.Federation(lines, (X, Y), plate="data", partition=parts, dtype=F64)


@pytest.mark.filterwarnings("ignore:not converged after")  # six steps are few
@pytest.mark.parametrize(
    ("guide", "bound", "graph"),
    [
        (AutoMultivariateNormal, "elbo", pf.graph.complete),
        (AutoMultivariateNormal, "iwae", pf.graph.star),
        (AutoIAFNormal, "elbo", pf.graph.star),
        (AutoIAFNormal, "iwae", pf.graph.complete),
    ],
)
def test_where_consensus_is_exact_it_is_the_servers_run(guide, bound, graph):
    """Clients of 3, 7 and 20 rows; the star's agents have unequal centralities."""
    settings = {
        "guide": guide,
        "bound": bound,
        "num_steps": 6,
        "num_particles": 3,
        "step_size": 0.1,
        "surrogates": None,
    }
    fed = federation([3, 7, 20])
    server = pf.run(pf.infer.SFVI(**settings), fed, num_draws=50, **QUIET)
    peers = pf.run(pf.infer.P2PSFVI(**settings), fed, graph=graph(3), num_draws=50, **QUIET)
    expected = torch.as_tensor(server.posterior["w"].values)
    found = torch.as_tensor(peers.posterior["w"].values)
    assert len(found) == 3
    torch.testing.assert_close(found, expected.expand_as(found), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("guide", [AutoMultivariateNormal, AutoIAFNormal])
def test_agents_steps_towards_their_gaussians_are_the_servers(guide):
    """Of the exact posterior's Gaussian: the guide, Adam's state, and half as many rounds as steps."""
    settings = {"guide": guide, "num_steps": 8, "num_particles": 3, "step_size": 0.1}
    fed, rows = federation([3, 7, 20]), [slice(0, 3), slice(3, 10), slice(10, 30)]
    given = pf.infer.Given(torch.stack([X[p].T @ X[p] for p in rows]), torch.stack([X[p].T @ Y[p] for p in rows]))
    beliefs = {"precision": X.T @ X + torch.eye(2, dtype=F64), "eta": X.T @ Y}
    start = Start({name: value.expand(3, *value.shape) for name, value in beliefs.items()}, {})
    server, peers = pf.infer.SFVI(surrogates=given, **settings), pf.infer.P2PSFVI(surrogates="p2pvi", **settings)
    expected, found = (
        algorithm.init(fed.problem, 3, torch.Generator().manual_seed(1), given_start)[0]
        for algorithm, given_start in ((server, None), (peers, start))
    )
    for name in {"params", "step", "seed", *(name for name in expected if name.startswith("adam"))}:
        torch.testing.assert_close(found[name], expected[name].expand_as(found[name]), rtol=1e-9, atol=1e-9)
    assert int(found["step"][0]) == peers.default_rounds(3) == 4


def test_a_start_that_is_no_gaussian_is_refused():
    """An agent without a belief kept the guide's own start, at other random numbers than the others'."""
    with pytest.raises(SettingError, match="surrogates must leave a Gaussian at every agent"):
        pf.infer.P2PSFVI(surrogates=pf.P2PVI(guide=encoder))
    beliefs = {"precision": torch.eye(2, dtype=F64).repeat(3, 1, 1), "eta": torch.zeros(3, 2, dtype=F64)}
    beliefs["precision"][1, 0, 0] = -1.0
    algorithm = pf.infer.P2PSFVI(surrogates="p2pvi", num_steps=2)
    with pytest.raises(ImproperGaussianError, match="belief of agent 1"):
        algorithm.init(federation([3, 7, 20]).problem, 3, torch.Generator(), Start(beliefs, {}))


def test_on_a_ring_every_agent_has_the_posterior():
    """Within 0.15 SDs and 15 %: 200 steps, each with one of consensus, which leaves 45 % of what agents differ by."""
    fed = federation([2, 3, 5, 8, 12])
    algorithm = pf.infer.P2PSFVI(num_steps=200, step_size=0.1, gossip_tolerance=0.5, surrogates=None)
    idata = pf.run(algorithm, fed, graph=pf.graph.ring(5), num_draws=4000, **QUIET)
    covariance = (X.T @ X + torch.eye(2, dtype=F64)).inverse()
    mean, sd = covariance @ X.T @ Y, covariance.diagonal().sqrt()
    draws = torch.as_tensor(idata.posterior["w"].values)
    assert ((draws.mean(1) - mean) / sd).abs().max() < 0.15
    assert (draws.std(1) / sd - 1).abs().max() < 0.15
    assert float(idata.federation["distance"].values[-1]) < 0.02


@pytest.mark.parametrize(
    ("graph", "options"),
    [(pf.graph.complete(3), {"schedule": pf.schedule.UniformRandom(2)}), (pf.graph.rotating_stars(2, 1), {})],
    ids=["schedule", "turns"],
)
def test_agents_that_sleep_are_refused(graph, options):
    with pytest.raises(GraphError, match="a step needs the scores of all agents, and some are asleep"):
        pf.run(pf.infer.P2PSFVI(num_steps=2), federation([3, 7, 20]), graph=graph, **options, **QUIET)


def test_agents_track_the_sum_of_scores_that_consensus_reaches_in_no_round():
    """At points that stand still, each round halves what agents differ by."""
    fed, algorithm = federation([3, 7, 20]), pf.infer.P2PSFVI(num_particles=2, surrogates=None)
    problem, data = fed.problem, fed.client_data()
    shared, local = algorithm.init(problem, 3, torch.Generator().manual_seed(0), None)
    shared = {**algorithm.prepare(problem, shared), "centrality": torch.full((3,), 1 / 3, dtype=F64)}
    halves = scipy.sparse.csr_array(0.5 * np.eye(3) + 0.5 / 3)
    for _ in range(40):
        messages, local, _ = algorithm.local_step(problem, shared, local, data, ())
        shared |= algorithm.combine(shared, messages, halves)
    expected = clients_likelihood_scores(problem, shared["points"], data).sum(0).flatten()
    torch.testing.assert_close(shared["tracked"], expected.expand(3, -1), rtol=1e-9, atol=1e-9)


def encoder(sd, y=None):
    """Effects by parameters of each agent's own."""
    mu = pyro.sample("mu", dist.Normal(pyro.param("loc", torch.tensor(0.0, dtype=F64)), 0.5))
    gain = torch.sigmoid(pyro.param("shift", torch.tensor(0.0, dtype=F64)) + sd.log())
    with pyro.plate(hierarchies.PLATE, len(sd)):
        pyro.sample("effect", dist.Normal(gain * y + (1 - gain) * mu, gain.sqrt() * sd))


def test_parts_of_a_guide_inside_the_plate_are_each_agents_own():
    settings = {"guide": encoder, "num_steps": 3, "num_particles": 2, "step_size": 0.1, "surrogates": None}
    fed, options = hierarchies.CASES["means"].federation(), {"num_draws": 20, **QUIET}
    server = pf.run(pf.infer.SFVI(**settings), fed, **options)
    peers = pf.run(pf.infer.P2PSFVI(**settings), fed, graph=pf.graph.complete(3), **options)
    expected = torch.as_tensor(server.posterior["mu"].values)
    found = torch.as_tensor(peers.posterior["mu"].values)
    torch.testing.assert_close(found, expected.expand_as(found), rtol=1e-9, atol=1e-9)


def test_draws_of_such_a_guide_are_not_weighted():
    with pytest.raises(SettingError, match="P2PSFVI: bound='iwae' moves parameters of global sites alone"):
        fed = hierarchies.CASES["means"].federation()
        pf.run(pf.infer.P2PSFVI(guide=encoder, bound="iwae", num_steps=2), fed, graph=pf.graph.complete(3), **QUIET)


def test_a_point_is_no_guide_of_agents():
    with pytest.raises(SettingError, match="AutoDelta is a point, which P2PFedAvg finds"):
        pf.infer.P2PSFVI(guide=AutoDelta)


def test_what_a_server_takes_is_named():
    with pytest.raises(SettingError, match=r"local_steps.*steps by their own rows do not lead to the posterior"):
        pf.infer.P2PSFVI(local_steps=3)
