"""Layers in a model's rows: what makes it a network, whatever the number of its rows.

    log p(y_i | z) = f(a(W_1, row i) W_2, ...),     a nonlinear in what rows and weights W_1 make, W_2 weights behind it

The trace of the rows' log-likelihood shows it: a matrix product or a convolution of a value that a nonlinear operation
has made of rows and parameters, with other parameters. Units of a layer are exchangeable, so that the posterior has
many modes, and where all weights are zero the score is, too: that point is stationary, and no maximum. What a model has
of scales, of correlated effects (L u, of no rows), of effects times a covariate is no layer; nor is a basis whose few
length scales are learned: at least `FEWEST` parameters and a share `LEAST` of them are in front of the activation.
"""

from __future__ import annotations

from math import prod

from torch import fx

from pyro_fed.density.compiling.compiler import FAILURES
from pyro_fed.density.compiling.predictors import CHECK_ROWS, LINEAR, SUMS, may_have, rows_graph
from pyro_fed.density.problem import Problem

#: Operations that multiply matrices or the like, and where their two factors stand.
PRODUCTS = {
    **dict.fromkeys(["mm", "bmm", "mv", "dot", "convolution"], (0, 1)),
    **dict.fromkeys(["addmm", "addmv", "baddbmm"], (1, 2)),
}
#: Operations that are no activations, besides `LINEAR` and `SUMS`.
PRODUCTS_TOO = frozenset([*PRODUCTS, "mul", "div", "_to_copy", "getitem"])
#: Share of a model's parameters that is in front of an activation, at least.
LEAST = 0.03
#: So many of them, at least: two units of a weight and a bias. Fewer are a basis whose centre and scale are learned.
FEWEST = 4


def has_layers(problem: Problem) -> bool:
    """Whether a model's rows go through layers of weights; found once.

    Args:
        problem: the model's densities.
    """
    found: bool = problem.compiler.kept(("layers", CHECK_ROWS), lambda: _found(problem), problem)
    return found


def _found(problem: Problem) -> bool:
    if not may_have(problem):
        return False
    try:
        return shows_layers(rows_graph(problem, CHECK_ROWS), problem.dim)
    except FAILURES:
        return False


def shows_layers(graph: fx.GraphModule, dim: int) -> bool:
    """Whether a graph of log-likelihoods, of z (D,) and of rows, has a product behind an activation.

    Args:
        graph: traced, of the rows' log-likelihoods.
        dim: D.
    """
    nodes = list(graph.graph.nodes)
    z, *rows = [node for node in nodes if node.op == "placeholder"]
    parts: dict[fx.Node, frozenset[fx.Node]] = {z: frozenset()}  # of z that a value is made of
    of_rows: set[fx.Node] = set(rows)
    activated: set[fx.Node] = set()
    for node in nodes:
        before = node.all_input_nodes
        if node.op == "placeholder" or node.op == "output":
            continue
        if any(one in of_rows for one in before):
            of_rows.add(node)
        weights = [one for one in before if one in parts]
        if not weights:
            continue
        parts[node] = frozenset([node]) if z in weights else frozenset().union(*(parts[one] for one in weights))
        name = _name(node)
        mixed = [one for one in weights if one in of_rows]
        if any(one in activated for one in mixed) or (mixed and name not in LINEAR | SUMS | PRODUCTS_TOO):
            activated.add(node)
        if name in PRODUCTS:
            factors = [node.args[at] for at in PRODUCTS[name]]
            for one, other in (factors, reversed(factors)):
                in_front = sum(_numbers(part) for part in parts[one]) if one in activated else 0
                if other in parts and other not in of_rows and in_front >= max(FEWEST, LEAST * dim):
                    return True
    return False


def first_products(graph: fx.GraphModule) -> list[tuple[fx.Node, fx.Node]]:
    """Where a graph multiplies what rows alone make by what parameters alone make: both factors of each product.

    Args:
        graph: traced, of the rows' log-likelihoods at z (D,).
    """
    z, *rows = [node for node in graph.graph.nodes if node.op == "placeholder"]
    of_z, of_rows = {z}, set(rows)
    found = []
    for node in graph.graph.nodes:
        before = node.all_input_nodes
        if any(one in of_rows for one in before):
            of_rows.add(node)
        if any(one in of_z for one in before):
            of_z.add(node)
        factors = [node.args[at] for at in PRODUCTS.get(_name(node), ())]
        for x, w in (factors, factors[::-1]) if factors else ():
            if x in of_rows and x not in of_z and w in of_z and w not in of_rows:
                found.append((x, w))
    return found


def _name(node: fx.Node) -> str:
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return str(getattr(node.target, "__name__", ""))
    return str(schema.name).removeprefix("aten::")


def _numbers(node: fx.Node) -> int:
    return prod(node.meta["tensor_meta"].shape) if "tensor_meta" in node.meta else 0
