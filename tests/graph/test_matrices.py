"""Mixing matrices, their checks and what they do in the long run, against closed forms."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from scipy import sparse

import pyro_fed as pf
from pyro_fed.errors import GraphError
from pyro_fed.graph.mixing import as_matrix, check_aperiodic, check_connected, period

SECTION_V_A = [[0.5, 0.5, 0, 0], [0.3, 0.1, 0.3, 0.3], [0, 0.5, 0.5, 0], [0, 0.5, 0, 0.5]]
ROUND = np.random.default_rng(0)
BUILT = {
    "ring": pf.graph.ring(7),
    "complete": pf.graph.complete(6),
    "star": pf.graph.star(9, confidence=0.3),
    "grid": pf.graph.grid(3, 4),
    "erdos_renyi": pf.graph.erdos_renyi(12, 0.4, seed=1),
    "small_world": pf.graph.small_world(20, 4, 0.2),
    "regular": pf.graph.random_regular(12, 3),
    "uniform": pf.graph.from_networkx(nx.path_graph(5), mixing="uniform"),
    "max_degree": pf.graph.from_networkx(nx.path_graph(5), mixing="max_degree"),
    "section V-A": pf.graph.from_matrix(SECTION_V_A),
    "directed": pf.graph.from_networkx(nx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 2)]), mixing="uniform"),
}


@pytest.mark.parametrize("name", BUILT)
def test_built_graphs_are_stochastic_and_their_powers_go_to_the_centrality(name: str) -> None:
    graph = BUILT[name]
    graph.check()
    matrix, v = graph.weights(0, ROUND).toarray(), graph.centrality()
    np.testing.assert_allclose(matrix.sum(1), 1, atol=1e-12)
    np.testing.assert_allclose(v @ matrix, v, atol=1e-12)
    assert v.min() > 0 and v.sum() == pytest.approx(1)
    many = np.linalg.matrix_power(matrix, 4000)
    np.testing.assert_allclose(many, np.tile(v, (len(v), 1)), atol=1e-9)


@pytest.mark.parametrize("mixing", ["metropolis", "max_degree"])
def test_symmetric_rules_are_doubly_stochastic(mixing: str) -> None:
    graph = pf.graph.from_networkx(nx.barbell_graph(4, 2), mixing=mixing)
    np.testing.assert_allclose(graph.matrix.sum(axis=0), 1, atol=1e-12)
    np.testing.assert_allclose(graph.centrality(), 1 / 10, atol=1e-14)


def test_uniform_weights_have_centrality_of_degree_plus_one() -> None:
    base = nx.barbell_graph(4, 2)
    graph = pf.graph.from_networkx(base, mixing="uniform")
    degree = np.array([d for _, d in base.degree()])
    np.testing.assert_allclose(graph.centrality(), (degree + 1) / (degree + 1).sum(), atol=1e-14)


@pytest.mark.parametrize(("confidence", "printed"), [(0.1, 0.1), (0.2, 0.18), (0.3, 0.25), (0.5, 0.36), (0.7, 0.44)])
def test_star_has_the_centrality_printed_in_section_v_b2(confidence: float, printed: float) -> None:
    centre = pf.graph.star(9, confidence).centrality()[0]
    assert centre == pytest.approx(confidence / (confidence + 8 / 9), abs=1e-14)
    assert centre == pytest.approx(printed, abs=0.005)


def test_ring_has_the_spectral_gap_of_its_fourier_modes() -> None:
    graph = pf.graph.ring(9)
    modes = np.abs(1 / 3 + 2 / 3 * np.cos(2 * np.pi * np.arange(1, 9) / 9))
    assert graph.gap == pytest.approx(1 - modes.max(), abs=1e-12)
    assert pf.graph.complete(5).gap == pytest.approx(1)
    assert pf.graph.complete(5).consensus_rounds() == 1


def test_consensus_rounds_are_enough_and_not_many_more() -> None:
    graph = pf.graph.ring(11)
    rounds = graph.consensus_rounds(1e-4)
    values = np.random.default_rng(0).standard_normal(11)
    away = values - values.mean()
    left = np.linalg.matrix_power(graph.matrix.toarray(), rounds) @ away
    assert np.linalg.norm(left) <= 1e-4 * np.linalg.norm(away)
    assert (1 - graph.gap) ** (rounds - 1) > 1e-4


def test_lemma_2_bounds_the_sum_of_deviations() -> None:
    for graph in (BUILT["section V-A"], BUILT["star"], BUILT["ring"]):
        matrix, v = graph.matrix.toarray(), graph.centrality()
        powers = [np.linalg.matrix_power(matrix, t) for t in range(1, 300)]
        total = sum(np.abs(p - v).sum(1) for p in powers).max()
        assert total <= pf.graph.mixing_bound(len(v), graph.gap)


def test_sparse_and_dense_analysis_agree() -> None:
    graph = pf.graph.random_regular(600, 6, seed=3)  # above the dense limit
    dense = np.sort(np.abs(np.linalg.eigvalsh(graph.matrix.toarray())))[-2]
    assert graph.gap == pytest.approx(1 - dense, abs=1e-8)
    directed = pf.graph.from_networkx(nx.gnp_random_graph(500, 0.05, seed=1, directed=True), mixing="uniform")
    assert directed.gap == pytest.approx(
        1 - np.sort(np.abs(np.linalg.eigvals(directed.matrix.toarray())))[-2], abs=1e-8
    )
    assert pf.graph.from_matrix(directed.matrix).gap == directed.gap  # no randomness of its own
    np.testing.assert_allclose(directed.centrality() @ directed.matrix, directed.centrality(), atol=1e-12)


def test_lazy_keeps_the_centrality_and_removes_the_period() -> None:
    swap = np.array([[0.0, 1.0], [1.0, 0.0]])
    assert period(as_matrix(swap)) == 2
    with pytest.raises(GraphError, match=r"period 2.*lazy"):
        pf.graph.from_matrix(swap).check()
    kept = pf.graph.from_matrix(pf.graph.lazy(swap, 0.25))
    kept.check()
    np.testing.assert_allclose(kept.matrix.toarray(), [[0.25, 0.75], [0.75, 0.25]])


@pytest.mark.parametrize("length", [2, 3, 5])
def test_period_of_directed_cycles(length: int) -> None:
    cycle = as_matrix(np.roll(np.eye(length), 1, axis=1))
    assert period(cycle) == length
    chord = np.roll(np.eye(length), 1, axis=1)
    chord[0, 0], chord[0, 1 % length] = 0.5, 0.5
    assert period(as_matrix(chord)) == 1


def test_unconnected_graph_lists_its_components() -> None:
    blocks = sparse.block_diag([np.full((3, 3), 1 / 3), np.full((2, 2), 0.5)])
    with pytest.raises(GraphError, match=r"2 components \[0, 1, 2\]; \[3, 4\]"):
        pf.graph.from_matrix(blocks).check()
    with pytest.raises(GraphError, match=r"not strongly connected.*\[0, 1\]; \[2, 3\]"):
        pf.graph.from_networkx(nx.Graph([(0, 1), (2, 3)]))
    with pytest.raises(GraphError, match=r"Erdős-Rényi graph .* is not strongly connected"):
        pf.graph.erdos_renyi(20, 0.01)


def test_one_way_links_are_not_enough() -> None:
    with pytest.raises(GraphError, match="2 components"):
        check_connected(as_matrix([[0.5, 0.5], [0.0, 1.0]]))
    with pytest.raises(GraphError, match=r"agents 0 receive .* nobody receives from them"):
        pf.graph.from_matrix([[0.5, 0.5], [0.0, 1.0]]).centrality()


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([[0.5, 0.5], [0.4, 0.5]], r"row 1 of W sums to 0\.9, expected 1"),
        ([[0.5, 0.5, 0], [0.9, 0.0, 0.2], [0, 0, 1.5]], r"row 2 of W sums to 1\.5.*worst of 2"),
        ([[1.5, -0.5], [0.5, 0.5]], r"W\[0, 1\] is -0\.5"),
        ([[np.nan, 1.0], [0.5, 0.5]], r"W\[0, 0\] is nan"),
        ([[0.5, 0.5]], r"W must be square.*\(1, 2\)"),
    ],
)
def test_invalid_matrices_are_named(matrix: list[list[float]], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        pf.graph.from_matrix(matrix)


@pytest.mark.parametrize(
    "build",
    [
        lambda: pf.graph.star(1),
        lambda: pf.graph.star(5, 0.0),
        lambda: pf.graph.ring(0),
        lambda: pf.graph.erdos_renyi(5, 1.2),
        lambda: pf.graph.small_world(5, 5, 0.1),
        lambda: pf.graph.random_regular(5, 3),
        lambda: pf.graph.lazy(np.eye(2), 1.0),
        lambda: pf.graph.from_networkx(nx.path_graph(3), mixing="magic"),
        lambda: pf.graph.from_networkx(nx.DiGraph([(0, 1), (1, 0)]), mixing="metropolis"),
        lambda: pf.graph.uniform(nx.path_graph(3), self_weight=1.0),
        lambda: pf.graph.consensus_rounds(0.5, 2.0),
    ],
)
def test_settings_out_of_range_are_refused(build: object) -> None:
    with pytest.raises(GraphError, match=r"received|need"):
        build()


def test_self_weight_of_uniform_rows() -> None:
    matrix = pf.graph.uniform(nx.path_graph(3), self_weight=0.4).toarray()
    np.testing.assert_allclose(matrix, [[0.4, 0.6, 0], [0.3, 0.4, 0.3], [0, 0.6, 0.4]])


def test_wrong_number_of_agents_names_both() -> None:
    from pyro_fed.graph.base import require_agents

    with pytest.raises(GraphError, match="5 agents, but the federation has 4 clients"):
        require_agents(pf.graph.ring(5), 4)


def test_aperiodicity_is_checked_by_itself() -> None:
    check_aperiodic(as_matrix(np.eye(1)))
    with pytest.raises(GraphError, match="period 3"):
        check_aperiodic(as_matrix(np.roll(np.eye(3), 1, axis=1)))
