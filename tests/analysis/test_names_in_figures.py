"""Names in figures: long ones stay apart, none hides another, and what is far off flattens nothing."""

import matplotlib.pyplot as plt
import pytest

import pyro_fed as pf
from pyro_fed.analysis.plots.style import short_names

WARDS = [f"University Hospital of the Northern Region {number} (Cardiology)" for number in range(12)]


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def test_names_that_differ_in_their_middle_stay_apart():
    found = short_names(WARDS)
    assert len(set(found)) == 12 and all("…" in name and len(name) <= 26 for name in found)
    assert short_names(["a", "b", "a"]) == ["a", "b", "a"]


def test_names_of_agents_hide_neither_each_other_nor_leave_the_figure():
    ax = pf.plots.plot_graph(pf.graph.ring(12), names=dict(enumerate(WARDS)))
    ax.figure.draw_without_rendering()
    boxes = [words.get_window_extent() for words in ax.texts if words.get_text().startswith("…")]
    assert len(boxes) == 12
    assert not [1 for i, box in enumerate(boxes) for other in boxes[:i] if box.overlaps(other)]
