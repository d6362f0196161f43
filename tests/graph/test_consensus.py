"""Polynomials of W: mass is kept to rounding in every step, and what is left is what T_k's closed form says."""

import networkx as nx
import numpy as np
import pytest
import torch

import pyro_fed as pf
from pyro_fed.graph.consensus import AlongCircuit, Consensus, chebyshev_shifts, circuit, left_of, shifted_weights
from pyro_fed.graph.mixing import mix
from pyro_fed.graph.varying import without_links

GRAPHS = {
    "ring": pf.graph.ring(10),
    "even ring of 40": pf.graph.ring(40),
    "random": pf.graph.erdos_renyi(10, 0.4, seed=1),
    "random, larger": pf.graph.erdos_renyi(30, 0.2, seed=3),
    "grid": pf.graph.grid(4, 5),
    "star": pf.graph.star(9, 0.3),
    "complete": pf.graph.complete(6),
}


def steps_of(graph, consensus, values):
    """The values after each step."""
    for step in range(consensus.steps):
        values = mix(consensus.of_step(step, graph.matrix), values)
        yield values


@pytest.mark.parametrize("tolerance", [1e-1, 1e-2, 1e-6, 1e-10])
@pytest.mark.parametrize("name", GRAPHS)
def test_sums_are_kept_and_the_disagreement_that_is_left_is_the_tolerance(name, tolerance):
    graph = GRAPHS[name]
    v = torch.from_numpy(graph.centrality())
    values = torch.from_numpy(np.random.default_rng(0).normal(size=(graph.num_agents, 7)))
    mean = (v[:, None] * values).sum(0)
    consensus = graph.consensus(tolerance)
    assert consensus.steps <= graph.consensus_rounds(tolerance)
    for after in steps_of(graph, consensus, values):
        largest = float(after.abs().max())
        torch.testing.assert_close((v[:, None] * after).sum(0), mean, rtol=0.0, atol=1e-14 * max(1.0, largest))
    root = v.sqrt()[:, None]  # in this norm a reversible W is symmetric, and the bound is that of its eigenvalues
    assert float((root * (after - mean)).norm()) <= (1.001 * tolerance + 1e-13) * float((root * (values - mean)).norm())


@pytest.mark.parametrize("name", GRAPHS)
def test_sums_up_and_down_a_tree_are_the_same_bits_everywhere_and_take_two_messages_a_link_of_it(name):
    graph = GRAPHS[name]
    values, v = np.random.default_rng(0).normal(size=(graph.num_agents, 7)), graph.centrality()
    sums, found, messages = graph.sums(1e-10), torch.from_numpy(values), 0
    for step in range(sums.steps):
        mixing = sums.of_step(step, graph.matrix).tocoo()
        away = mixing.row != mixing.col
        assert (graph.matrix.toarray()[mixing.row, mixing.col][away] > 0).all()
        found, messages = mix(mixing.tocsr(), found), messages + int(away.sum())
    np.testing.assert_array_equal(found, found[:1].expand(graph.num_agents, -1))
    np.testing.assert_allclose(found[0], v @ values, rtol=0.0, atol=1e-14)
    assert messages == 2 * (graph.num_agents - 1)


def test_sums_over_links_of_one_direction_are_those_of_consensus():
    one_way = pf.graph.from_matrix([[0.5, 0.5, 0], [0, 0.5, 0.5], [0.5, 0, 0.5]])
    assert one_way.sums(1e-2) == one_way.consensus(1e-2)


@pytest.mark.parametrize("lowest, highest", [(-1 / 3, 0.873), (-0.24, 0.76), (0.1, 0.9), (-0.9, -0.2)])
def test_the_zeros_leave_one_over_chebyshev_s_polynomial(lowest, highest):
    for tolerance in (0.3, 1e-2, 1e-5):
        shifts = chebyshev_shifts(lowest, highest, tolerance)
        ratio = (2 - lowest - highest) / (highest - lowest)
        closed = 1 / np.cosh(len(shifts) * np.arccosh(ratio))
        found = np.abs(left_of(shifts, np.linspace(lowest, highest, 20_001))).max()
        assert found == pytest.approx(closed, rel=1e-6) and closed <= tolerance
        assert len(shifts) == 1 or 1 / np.cosh((len(shifts) - 1) * np.arccosh(ratio)) > tolerance


def test_a_ring_of_ten_agrees_in_five_steps_and_long_rings_in_the_square_root_of_the_plain_ones():
    assert pf.graph.ring(10).consensus(1e-10).steps == 5
    assert pf.graph.ring(10).consensus_rounds(1e-10) == 170
    assert pf.graph.complete(10).consensus(1e-10).steps == 1
    large = pf.graph.ring(500)  # of which the eigenvalues at the ends alone are known
    assert large.consensus(1e-2).steps ** 2 < 3 * large.consensus_rounds(1e-2)


def among(consensus, step, weights, missing):
    """A step's matrix without the links of agents that are missing."""
    matrix, shift = consensus.mixing(step, weights)
    links = matrix.tocoo()
    return shifted_weights(without_links(matrix, np.isin(links.row, missing) | np.isin(links.col, missing)), shift)


def test_agents_that_are_asleep_slow_consensus_and_keep_the_sum():
    """Two of ten are missing: no disagreement grows among the others."""
    for graph in (GRAPHS["ring"], GRAPHS["random"]):
        values = torch.from_numpy(np.random.default_rng(0).normal(size=(10, 7)))
        consensus = graph.consensus(1e-2)
        after = values
        for step in range(consensus.steps):
            after = mix(among(consensus, step, graph.matrix, (2, 7)), after)
        torch.testing.assert_close(after.mean(0), values.mean(0))
        torch.testing.assert_close(after[[2, 7]], values[[2, 7]])
        assert float((after - values.mean(0)).norm()) <= float((values - values.mean(0)).norm())


@pytest.mark.parametrize(
    "graph, most", [(GRAPHS["random"], 136), (pf.graph.erdos_renyi(30, 0.2, seed=1), 1100), (GRAPHS["grid"], 520)]
)
def test_a_circuit_takes_fewer_messages_over_links_that_are_there(graph, most):
    consensus = graph.consensus(1e-4)
    assert isinstance(consensus, AlongCircuit)
    away = [
        step.row != step.col for step in (consensus.of_step(s, graph.matrix).tocoo() for s in range(consensus.steps))
    ]
    assert sum(int(one.sum()) for one in away) <= most < consensus.over_all.steps * graph.links()
    order = circuit(graph.matrix)
    assert sorted(order) == list(range(graph.num_agents))
    assert all(graph.matrix[i, j] > 0 for i, j in zip(order, np.roll(order, -1), strict=True))
    assert consensus.among_some is consensus.over_all


def test_agents_that_are_left_agree_though_two_that_are_missing_cut_the_circuit_in_two():
    graph = GRAPHS["random"]
    consensus, order = graph.consensus(1e-4), circuit(graph.matrix)
    missing = [order[0], order[5]]
    rest = [i for i in range(10) if i not in missing]
    values = torch.from_numpy(np.random.default_rng(0).normal(size=(10, 7)))
    after = values
    for _ in range(60):
        for step in range(consensus.steps):
            after = mix(among(consensus, step, graph.matrix, missing), after)
    torch.testing.assert_close(after[rest], values[rest].mean(0).expand(8, -1), rtol=0.0, atol=1e-8)


def test_no_circuit_is_taken_where_there_is_none_or_it_saves_less_than_it_adds():
    leaf = nx.complete_graph(8)
    leaf.add_edge(0, 8)
    assert circuit(pf.graph.from_networkx(leaf).matrix) is None
    assert circuit(GRAPHS["star"].matrix) is None and circuit(pf.graph.grid(3, 3).matrix) is None
    for graph in (
        pf.graph.from_networkx(leaf),
        GRAPHS["ring"],
        GRAPHS["complete"],
        pf.graph.random_regular(100, 4, seed=0),
    ):
        assert type(graph.consensus(1e-4)) is Consensus
    unequal = pf.graph.erdos_renyi(10, 0.4, seed=1, mixing="uniform")
    assert np.ptp(unequal.centrality()) > 0.01 and type(unequal.consensus(1e-4)) is Consensus


def test_circuits_are_found_wherever_random_graphs_are_likely_to_have_them():
    """Of biconnected random graphs of 8 to 47 agents just dense enough; the search itself draws nothing."""
    found, tried = 0, 0
    for seed in range(60):
        agents = 8 + seed % 40
        graph = nx.gnp_random_graph(agents, min(1.0, (np.log(agents) + np.log(np.log(agents)) + 2) / agents), seed=seed)
        if nx.is_biconnected(graph):
            tried, order = tried + 1, circuit(pf.graph.from_networkx(graph).matrix)
            found += order is not None
            assert order is None or all(
                graph.has_edge(i, j) for i, j in zip(order, [*order[1:], order[0]], strict=True)
            )
    assert tried > 40 and found >= 0.95 * tried


def test_graphs_that_change_or_are_not_reversible_keep_the_plain_form():
    directed = pf.graph.from_matrix([[0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0.5, 0.5], [0.3, 0.3, 0, 0.4]])
    for graph in (directed, pf.graph.LinkFailures(pf.graph.ring(6), 0.2), pf.graph.rotating_stars(8, 4)):
        assert graph.consensus(1e-2) == Consensus((0.0,) * int(graph.consensus_rounds(1e-2)))
