"""Layers in a model's rows, which make it a network, whatever the number of its rows.

    log p(y_i | z) = f(a(W_1, row i) W_2, ...),     a nonlinear in rows and weights W_1,     W_2 weights behind it

The trace of the rows' log-likelihood shows it: a matrix product or a convolution, or an entrywise product that is
summed, of a nonlinear function of rows and parameters with other parameters, which may be those of the row's own group.
Units of a layer are exchangeable, so that the posterior has many modes; and where all weights are zero the score is,
too: that point is stationary, but no maximum. Scales, correlated effects (L u, of no rows) and effects times a
covariate are not layers; nor is a basis with a few learned length scales: at least `MIN_PARAMETERS_BEFORE_ACTIVATION`
parameters and a share `MIN_SHARE_BEFORE_ACTIVATION` of all are in front of the activation.
"""

from __future__ import annotations

from math import prod
from typing import Any

from torch import fx

from pyro_fed.density.compiling.compiler import FAILURES
from pyro_fed.density.compiling.predictors import CHECK_ROWS, LINEAR, SUMS, may_have, rows_graph
from pyro_fed.density.compiling.recording import LIKE
from pyro_fed.density.problem import Problem

#: Operations that multiply matrices or the like, and where their two factors stand.
PRODUCTS = {
    **dict.fromkeys(["mm", "bmm", "mv", "dot", "convolution"], (0, 1)),
    **dict.fromkeys(["addmm", "addmv", "baddbmm"], (1, 2)),
}
#: Operations that are no activations, besides `LINEAR` and `SUMS`.
PRODUCTS_TOO = frozenset([*PRODUCTS, "mul", "div", "_to_copy", "getitem"])
#: Operations that choose entries of their first argument, as the last layer of a row's own group.
CHOICES = frozenset(["index", "index_select", "gather", "embedding"])
#: Share of a model's parameters that is in front of an activation, at least.
MIN_SHARE_BEFORE_ACTIVATION = 0.03
#: So many of them, at least: two units of a weight and a bias. Fewer are a basis whose centre and scale are learned.
MIN_PARAMETERS_BEFORE_ACTIVATION = 4


def has_layers(problem: Problem) -> bool:
    """Whether a model's rows go through layers of weights; found once."""
    found: bool = problem.compiler.find_once(
        ("layers", CHECK_ROWS), lambda: _shows_layers_when_traced(problem), problem
    )
    return found


def _shows_layers_when_traced(problem: Problem) -> bool:
    if not may_have(problem):
        return False
    try:
        return shows_layers(rows_graph(problem, CHECK_ROWS), problem.dim)
    except FAILURES:
        return False


def shows_layers(graph: fx.GraphModule, dim: int) -> bool:
    """Whether a traced graph of the rows' log-likelihoods at z (D,) has a product behind an activation."""
    nodes = list(graph.graph.nodes)
    z, *rows = [node for node in nodes if node.op == "placeholder"]
    parts: dict[fx.Node, frozenset[fx.Node]] = {z: frozenset()}  # of z that a value is made of
    of_rows = _made_of(nodes, rows)
    activated: set[fx.Node] = set()
    chosen: set[fx.Node] = set()  # weights of each row's own
    bends = _bends(nodes)
    for node in nodes:
        before = node.all_input_nodes
        if node.op == "placeholder" or node.op == "output":
            continue
        weights = [one for one in before if one in parts]
        if not weights:
            continue
        parts[node] = frozenset([node]) if z in weights else frozenset().union(*(parts[one] for one in weights))
        name = _name(node)
        mixed = [one for one in weights if one in of_rows]
        if any(one in activated for one in mixed) or (mixed and name not in LINEAR | SUMS | PRODUCTS_TOO):
            activated.add(node)
        if (not mixed and name in CHOICES) or (before == weights and weights[0] in chosen and name in LINEAR):
            chosen.add(node)
        if name in PRODUCTS or _contracts(node, bends):
            factors = [node.args[at] for at in PRODUCTS.get(name, (0, 1))]
            for one, other in (factors, reversed(factors)):
                in_front = sum(_numbers(part) for part in parts[one]) if one in activated else 0
                behind = other in parts and (other not in of_rows or other in chosen)
                if behind and in_front >= max(MIN_PARAMETERS_BEFORE_ACTIVATION, MIN_SHARE_BEFORE_ACTIVATION * dim):
                    return True
    return False


def _made_of(nodes: list[fx.Node], sources: list[fx.Node]) -> set[fx.Node]:
    """The nodes that depend on one of these, and these."""
    found = set(sources)
    for node in nodes:
        if node.target not in LIKE and any(one in found for one in node.all_input_nodes):
            found.add(node)
    return found


def _bends(nodes: list[fx.Node]) -> set[fx.Node]:
    """The nodes that enter the log-likelihoods by some operation that is not linear."""
    found: set[fx.Node] = set()
    for node in reversed(nodes):
        if any(user in found or _name(user) not in LINEAR | SUMS | PRODUCTS_TOO for user in _users(node)):
            found.add(node)
    return found


def _users(node: fx.Node) -> list[fx.Node]:
    return [user for user in node.users if user.op != "output"]


def _contracts(node: fx.Node, bends: set[fx.Node]) -> bool:
    """Whether a node is an entrywise product that is then summed, as a matrix product is: (units * weights).sum."""
    if _name(node) != "mul" or not all(isinstance(one, fx.Node) for one in node.args[:2]):
        return False
    widths = [_shape(one)[-1:] for one in node.args[:2]]
    several = widths[0] == widths[1] and widths[0] > (1,)
    return several and any(_name(user) == "sum" and user in bends for user in _users(node))


def first_products(graph: fx.GraphModule) -> list[tuple[fx.Node, fx.Node]]:
    """Both factors of each product of values of rows alone with values of parameters alone, in a traced graph."""
    z, *rows = [node for node in graph.graph.nodes if node.op == "placeholder"]
    nodes = list(graph.graph.nodes)
    of_z, of_rows = _made_of(nodes, [z]), _made_of(nodes, rows)
    found = []
    for node in nodes:
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
    return prod(_shape(node)) if "tensor_meta" in node.meta else 0


def _shape(node: Any) -> tuple[int, ...]:
    return tuple(node.meta["tensor_meta"].shape) if "tensor_meta" in node.meta else ()
