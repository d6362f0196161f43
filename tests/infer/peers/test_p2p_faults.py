"""What goes wrong over a graph: who is asleep, links that die, graphs that do not fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conjugate import QUIET, KeptVI, beliefs, data, exact, federation

import pyro_fed as pf
from pyro_fed.errors import GraphError, ModelError, SettingError

DIRECTED = [[0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0.5, 0.5], [0.3, 0.3, 0, 0.4]]
APART = np.kron(np.eye(2), np.full((2, 2), 0.5))


def test_a_graph_cut_in_two_ends_at_the_posteriors_of_its_parts_and_says_so() -> None:
    graph = pf.graph.Partitioned(pf.graph.ring(4), [[0, 1], [2, 3]])
    fed = federation()
    algorithm = KeptVI(num_points=16, gossip_steps=5, tolerance=1e-10, start="local")
    with pytest.warns(UserWarning, match=r"fell apart|not converged|disagree") as caught:
        mean, covariance, _ = beliefs(algorithm, fed, graph, num_rounds=20)
    assert any("2 components [0, 1]; [2, 3]" in str(w.message) for w in caught)
    x, y = data()
    for part in ([0, 1], [2, 3]):
        rows = torch.cat([fed.client_rows[k] for k in part])
        want_mean, want_covariance = exact(x[rows], y[rows])
        torch.testing.assert_close(mean[part], want_mean.expand(2, -1), atol=1e-7, rtol=1e-7)
        torch.testing.assert_close(covariance[part], want_covariance.expand(2, -1, -1), atol=1e-8, rtol=1e-7)


@pytest.mark.parametrize(("start", "stop", "power"), [(40, 80, 1.0), (0, 40, 0.5)])
def test_a_mended_cut(start: int, stop: int, power: float) -> None:
    """A cut loses nothing used before it; rows used during it counted once within their half alone."""
    graph = pf.graph.Partitioned(pf.graph.ring(4), [[0, 1], [2, 3]], start=start, stop=stop)
    algorithm = KeptVI(num_points=16, gossip_steps=1, tolerance=1e-10, start="prior", batch_size=1)
    mean, covariance, _ = beliefs(algorithm, federation(), graph, num_rounds=200)
    want_mean, want_covariance = exact(*data(), power=power)
    torch.testing.assert_close(mean, want_mean.expand(4, -1), atol=1e-7, rtol=1e-7)
    torch.testing.assert_close(covariance, want_covariance.expand(4, -1, -1), atol=1e-8, rtol=1e-7)


def test_agents_that_leave_and_return_lose_nothing() -> None:
    shifts = pf.schedule.Explicit([[0, 1, 2, 3]] * 3 + [[0, 1, 2]] * 20 + [[1, 2, 3]] * 20 + [[0, 1, 2, 3]] * 60)
    algorithm = KeptVI(num_points=16, gossip_steps=1, tolerance=1e-10, start="prior")
    mean, covariance, idata = beliefs(algorithm, federation(), pf.graph.ring(4), schedule=shifts, num_rounds=103)
    want_mean, want_covariance = exact(*data())
    torch.testing.assert_close(mean, want_mean.expand(4, -1), atol=1e-7, rtol=1e-7)
    torch.testing.assert_close(covariance, want_covariance.expand(4, -1, -1), atol=1e-8, rtol=1e-7)
    took_part = idata["federation"]["participated"].values
    assert not took_part[5, 3] and took_part[5, 0] and not took_part[30, 0]


def test_a_dead_agent_that_held_the_graph_together_is_noticed() -> None:
    alone = pf.schedule.Explicit([[1, 2, 3]])
    algorithm = pf.P2PVI(num_points=16, gossip_steps=1, start="prior")
    with pytest.warns(UserWarning, match=r"fell apart|not converged|disagree") as caught:
        pf.run(algorithm, federation(), graph=pf.graph.star(4), schedule=alone, num_rounds=20, **QUIET)
    assert any("4 components [0]; [1]; [2]; [3]" in str(w.message) for w in caught)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (pf.graph.ring(5), "5 agents, but the federation has 4 clients"),
        (pf.graph.from_matrix(APART), r"not strongly connected: 2 components \[0, 1\]; \[2, 3\]"),
        (pf.graph.from_matrix(np.roll(np.eye(4), 1, axis=1)), "period 4"),
    ],
)
def test_graphs_that_do_not_fit_are_refused_before_anything_runs(graph: pf.graph.Graph, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        pf.run(pf.P2PVI(), federation(), graph=graph, **QUIET)


def test_a_server_s_algorithm_takes_no_graph_and_a_serverless_one_needs_it() -> None:
    with pytest.raises(SettingError, match=r"P2PVI has no server: pass graph=.*ring\(4\)"):
        pf.run(pf.P2PVI(), federation(), **QUIET)
    with pytest.raises(SettingError, match="SVGD works with a server and takes no graph"):
        pf.run(pf.infer.SVGD(), federation(), graph=pf.graph.ring(4), **QUIET)


def test_sleepers_on_a_graph_whose_centrality_they_change_are_refused() -> None:
    sleepers = pf.schedule.UniformRandom(3)
    with pytest.raises(GraphError, match=r"not reversible.*metropolis"):
        pf.run(pf.P2PVI(), federation(), graph=pf.graph.from_matrix(DIRECTED), schedule=sleepers, **QUIET)


def test_several_steps_are_refused_where_groups_take_turns() -> None:
    with pytest.raises(GraphError, match="gossip_steps must be 1"):
        pf.run(pf.P2PVI(gossip_steps=2), federation(5), graph=pf.graph.rotating_stars(4, 2), **QUIET)


def test_as_published_an_improper_prior_is_refused() -> None:
    import pyro
    import pyro.distributions as dist
    from pyro.distributions import constraints

    def model(y: torch.Tensor) -> None:
        mu = pyro.sample("mu", dist.ImproperUniform(constraints.real, (), ()))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    fed = pf.Federation(model, (torch.arange(8.0, dtype=torch.float64),), plate="data", num_clients=4)
    with pytest.raises(ModelError, match="proper prior"):
        pf.run(pf.P2PVI(weighting="paper"), fed, graph=pf.graph.ring(4), **QUIET)
    algorithm = KeptVI(num_points=16, tolerance=1e-10)
    mean, covariance, _ = beliefs(algorithm, fed, pf.graph.ring(4))
    torch.testing.assert_close(mean, torch.full((4, 1), 3.5, dtype=torch.float64), atol=1e-8, rtol=0)
    torch.testing.assert_close(covariance, torch.full((4, 1, 1), 1 / 8, dtype=torch.float64), atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    "settings",
    [
        {"damping": 0.0},
        {"damping": 1.5},
        {"gossip_steps": 0},
        {"gossip_tolerance": 1.0},
        {"weighting": "magic"},
        {"update": "magic"},
        {"start": "magic"},
        {"batch_size": 0},
        {"local_steps": 2},
        {"svi_steps": 5},
        {"memory": 3},
        {"start": "draw"},
        {"update": "svi", "start": "consensus"},
        {"weighting": "paper", "start": "local"},
        {"update": "svi", "start": "prior", "batch_size": 5},
    ],
)
def test_settings_out_of_range_are_refused(settings: dict) -> None:
    with pytest.raises(SettingError, match="P2PVI"):
        pf.P2PVI(**settings)


@pytest.mark.parametrize("settings", [{"tilted_points": 1}, {"min_effective": 0.0}])
def test_settings_of_ep_out_of_range_are_refused(settings: dict) -> None:
    with pytest.raises(SettingError, match="P2PEP"):
        pf.infer.P2PEP(**settings)
