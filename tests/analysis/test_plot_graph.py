"""plot_graph draws what it says."""

from __future__ import annotations

import numpy as np
import pytest
from late import late

import pyro_fed as pf
from pyro_fed.errors import SettingError

plt, collections = late("matplotlib.pyplot"), late("matplotlib.collections")


def test_node_areas_are_proportional_to_centrality() -> None:
    graph = pf.graph.star(9, 0.7)
    ax = pf.plots.plot_graph(graph)
    areas = next(c.get_sizes() for c in ax.collections if isinstance(c, collections.PathCollection))
    np.testing.assert_allclose(areas / areas[1], graph.centrality() / graph.centrality()[1])
    assert f"{graph.gap:.3g}" in ax.get_title() and "9 agents" in ax.get_title()
    assert {text.get_text() for text in ax.texts} == {str(i) for i in range(9)}
    plt.close(ax.figure)


def test_directed_links_get_arrows_and_names_are_shown() -> None:
    graph = pf.graph.from_matrix([[0.5, 0.5, 0], [0, 0.5, 0.5], [0.5, 0, 0.5]])
    ax = pf.plots.plot_graph(graph, names={0: "Oslo"})
    assert len(ax.patches) == 3
    assert "Oslo" in {text.get_text() for text in ax.texts}
    plt.close(ax.figure)


def test_too_many_agents_are_refused() -> None:
    with pytest.raises(SettingError, match="received a graph of 1200"):
        pf.plots.plot_graph(pf.graph.ring(1200))
