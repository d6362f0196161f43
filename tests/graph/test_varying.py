"""Graphs that change: every round is stochastic, nothing is lost, and the centrality is what it says."""

from __future__ import annotations

import numpy as np
import pytest

import pyro_fed as pf
from pyro_fed.errors import GraphError

DIRECTED = [[0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0.5, 0.5], [0.3, 0.3, 0, 0.4]]


def rng_of(round: int) -> np.random.Generator:
    return np.random.default_rng([7, round])


GRAPHS = {
    "failures": pf.graph.LinkFailures(pf.graph.ring(6), 0.3),
    "failures on a star": pf.graph.LinkFailures(pf.graph.star(5, 0.3), 0.5),
    "gossip": pf.graph.GossipPairs(pf.graph.ring(6), num_pairs=2),
    "stars": pf.graph.rotating_stars(6, 2),
    "periodic": pf.graph.Periodic([pf.graph.from_matrix(DIRECTED), pf.graph.star(4, 0.3), pf.graph.ring(4)]),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_what_is_put_in_ends_everywhere_with_its_centrality(name: str) -> None:
    graph = GRAPHS[name]
    graph.check()
    for start in range(4):
        product = np.eye(graph.num_agents)
        for t in range(start, start + 600):
            product = graph.weights(t, rng_of(t)) @ product
        np.testing.assert_allclose(product, np.tile(graph.centrality(start), (graph.num_agents, 1)), atol=1e-8)


@pytest.mark.parametrize("name", GRAPHS)
def test_every_round_is_stochastic(name: str) -> None:
    graph = GRAPHS[name]
    for t in range(20):
        matrix = graph.weights(t, rng_of(t)).toarray()
        assert matrix.min() >= 0
        np.testing.assert_allclose(matrix.sum(1), 1, atol=1e-12)


def test_draws_are_a_function_of_the_round_alone() -> None:
    graph = GRAPHS["failures"]
    twice = [graph.weights(3, rng_of(3)).toarray() for _ in range(2)]
    np.testing.assert_array_equal(*twice)
    assert np.abs(graph.weights(4, rng_of(4)).toarray() - twice[0]).max() > 0


def test_links_fail_as_often_as_they_should() -> None:
    graph = pf.graph.LinkFailures(pf.graph.complete(20), 0.3)
    alive = [(graph.weights(t, rng_of(t)).toarray() > 0).sum() - 20 for t in range(100)]
    # 19000 draws of a link: the rate's standard error is 0.0033, so 0.03 is nine of them.
    assert np.mean(alive) / (20 * 19) == pytest.approx(0.7, abs=0.03)


@pytest.mark.parametrize("name", ["failures", "failures on a star"])
def test_expected_weights_are_the_mean_of_the_draws(name: str) -> None:
    graph = GRAPHS[name]
    mean = sum(graph.weights(t, rng_of(t)).toarray() for t in range(1500)) / 1500
    # Entries lie in [0, 1], so the standard error is at most 0.013; 0.08 is six of them.
    np.testing.assert_allclose(mean, graph.expected(0).toarray(), atol=0.08)


def test_one_gossip_pair_has_the_expected_weights_it_says() -> None:
    graph = pf.graph.GossipPairs(pf.graph.ring(5))
    mean = sum(graph.weights(t, rng_of(t)).toarray() for t in range(1500)) / 1500
    np.testing.assert_allclose(mean, graph.expected(0).toarray(), atol=0.08)
    one = graph.weights(0, rng_of(0)).toarray()
    np.testing.assert_array_equal(np.sort(one[one > 0]), [*[0.5] * 4, *[1.0] * 3])  # the mean of two agents


def test_rotating_stars_are_those_of_section_v_b3() -> None:
    graph = pf.graph.rotating_stars(25, 5)
    assert graph.num_agents == 26 and graph.window == 5
    assert graph.active(1) == [0, 6, 7, 8, 9, 10] and graph.active(6) == graph.active(1)
    first = graph.weights(0, rng_of(0)).toarray()
    np.testing.assert_allclose(first[0, :6], 1 / 6)
    np.testing.assert_allclose(first[3, [0, 3]], 0.5)
    np.testing.assert_allclose(first[20], np.eye(26)[20])


def test_a_cut_graph_has_the_centrality_of_its_parts() -> None:
    graph = pf.graph.Partitioned(pf.graph.ring(6), [[0, 1, 2], [3, 4, 5]], start=2, stop=5)
    graph.check()
    np.testing.assert_allclose(graph.centrality(0), 1 / 6)
    np.testing.assert_allclose(graph.centrality(3), 1 / 3)
    assert graph.labels(0).max() == 0 and sorted(set(graph.labels(3))) == [0, 1]
    assert graph.labels(5).max() == 0
    cut = graph.weights(2, rng_of(2)).toarray()
    assert cut[2, 3] == 0 and cut[2, 2] == pytest.approx(2 / 3) and cut[0, 5] == 0


def test_gap_over_a_window_is_the_rate_a_round() -> None:
    graph = GRAPHS["periodic"]
    product = np.eye(4)
    for t in range(3):
        product = graph.weights(t, rng_of(t)) @ product
    second = np.sort(np.abs(np.linalg.eigvals(product)))[-2]
    assert graph.gap == pytest.approx(1 - second ** (1 / 3), abs=1e-10)


def test_unconnected_over_the_window_lists_components() -> None:
    apart = pf.graph.from_matrix(np.kron(np.eye(2), np.full((2, 2), 0.5)))
    with pytest.raises(GraphError, match=r"union of W over 2 rounds .* \[0, 1\]; \[2, 3\]"):
        pf.graph.Periodic([apart, apart]).check()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: pf.graph.LinkFailures(pf.graph.ring(5), 1.0), r"\[0, 1\), received 1.0"),
        (lambda: pf.graph.LinkFailures(pf.graph.from_matrix(DIRECTED), 0.1), "reversible"),
        (lambda: pf.graph.GossipPairs(pf.graph.ring(5), 0), "received 0"),
        (lambda: pf.graph.GossipPairs(pf.graph.from_matrix(np.eye(2))), "at least one link"),
        (lambda: pf.graph.rotating_stars(25, 4), "divide the 25"),
        (lambda: pf.graph.rotating_stars(25, 5, 0.0), "received 0.0"),
        (lambda: pf.graph.Periodic([pf.graph.ring(5), pf.graph.ring(4)]), r"\[4, 5\]"),
        (lambda: pf.graph.Periodic([pf.graph.ring(5)], [[0], [1]]), "as many groups"),
        (lambda: pf.graph.Partitioned(pf.graph.ring(4), [[0, 1], [2]]), "each of the 4 agents once"),
        (lambda: pf.graph.Partitioned(pf.graph.from_matrix(DIRECTED), [[0, 1], [2, 3]]), "reversible"),
    ],
)
def test_settings_out_of_range_are_refused(build: object, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        build()
