"""Products with rows that are the same at all points: one product for each client, the same numbers."""

import pytest
import torch
from torch.func import grad, vmap
from torch.utils import _pytree as pytree

from pyro_fed.density.compiling import tracing

CLIENTS, POINTS, ROWS, COLUMNS = 3, 5, 7, 6


def units(w, x):
    return (torch.tanh(x @ w) ** 2).sum()


def behind(w, x):
    """The rows are the second factor."""
    return (torch.tanh(w.mT @ x.mT) ** 2).sum()


def copies(step):
    return [node for node in step.graph.nodes if str(node.target).startswith("aten.clone")]


@pytest.mark.parametrize("function", [units, behind])
@pytest.mark.parametrize("width", [1, 3, 6], ids=["one unit", "few units", "too many units"])
def test_one_product_in_the_place_of_copies(function, width, monkeypatch):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(CLIENTS, ROWS, COLUMNS, generator=g, dtype=torch.float64)
    w = torch.randn(CLIENTS, POINTS, COLUMNS, width, generator=g, dtype=torch.float64)

    def step(w, x):
        return vmap(lambda ws, rows: vmap(lambda one: grad(function)(one, rows))(ws))(w, x)

    def traced():
        return tracing.trace(step, pytree.tree_flatten((w, x))[1], [w, x])

    plain = traced()
    monkeypatch.setattr("pyro_fed.ops.memory.RESULT_NUMBERS", 1)
    spread = traced()
    torch.testing.assert_close(spread.run(w, x)[0], step(w, x), rtol=1e-12, atol=1e-12)
    changed = [str(node) for node in spread.graph.nodes] != [str(node) for node in plain.graph.nodes]
    assert changed == (width < 6 or function is behind)
