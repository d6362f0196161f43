"""Detection of layers in a model's rows, which make it a network.

    log p(y_i | z) = f(a(W_1, row i) W_2, ...),     a nonlinear in rows and weights W_1,     W_2 weights after it

The trace of the rows' log-likelihood shows a layer: a matrix product, a convolution, or a summed entrywise product, of
a nonlinear function of rows and parameters with other parameters, possibly those of the row's own group. Units of a
layer are exchangeable, so that the posterior has many modes. At weights of zero the score is zero: this point is
stationary, but not a maximum. Scales, correlated effects (L u, without rows) and effects times a covariate are not
layers, nor is a basis with a few length scales: at least `MIN_PARAMETERS_BEFORE_ACTIVATION` parameters and a share of
`MIN_SHARE_BEFORE_ACTIVATION` of all must precede the activation.
"""

from __future__ import annotations

from torch import fx

from pyro_fed.density.compiling.compiler import FAILURES
from pyro_fed.density.compiling.predictors import CHECK_ROWS, LINEAR, SUMS, may_have, numbers_of, rows_graph
from pyro_fed.density.compiling.recording import LIKE, Recorder, dependent_nodes, operation_of, shape_of
from pyro_fed.density.problem import Problem

#: Matrix products and similar operations, and the positions of their two factors.
PRODUCTS = {
    **dict.fromkeys(["mm", "bmm", "mv", "dot", "convolution"], (0, 1)),
    **dict.fromkeys(["addmm", "addmv", "baddbmm"], (1, 2)),
}
#: Operations other than `LINEAR` and `SUMS` that are not activations.
PRODUCTS_TOO = frozenset([*PRODUCTS, "mul", "div", "_to_copy", "getitem"])
#: Operations that select entries of their first argument, such as the last layer of a row's group.
CHOICES = frozenset(["index", "index_select", "gather", "embedding"])
#: Smallest share of a model's parameters that precedes an activation.
MIN_SHARE_BEFORE_ACTIVATION = 0.03
#: Smallest number of parameters before an activation: two units of a weight and a bias. Fewer are a basis with a centre
#: and a scale.
MIN_PARAMETERS_BEFORE_ACTIVATION = 4


def has_layers(problem: Problem) -> bool:
    """Whether a model's rows pass through layers of weights; computed once."""
    layered: bool = problem.compiler.find_once(
        ("layers", CHECK_ROWS), lambda: _shows_layers_when_traced(problem), problem
    )
    return layered


def _shows_layers_when_traced(problem: Problem) -> bool:
    if not may_have(problem):
        return False
    try:
        return shows_layers(rows_graph(problem, CHECK_ROWS), problem.dim)
    except FAILURES:
        return False


def shows_layers(graph: Recorder, dim: int) -> bool:
    """Whether a traced graph of the rows' log-likelihoods at z (D,) has a product after an activation."""
    nodes = list(graph.graph.nodes)
    z, *rows = [node for node in nodes if node.op == "placeholder"]
    parts: dict[fx.Node, frozenset[fx.Node]] = {z: frozenset()}  # of z that a value is made of
    of_rows = dependent_nodes(nodes, rows, LIKE)
    activated: set[fx.Node] = set()
    selected: set[fx.Node] = set()  # weights of each row's own
    bends = _nonlinear_inputs(nodes)
    for node in nodes:
        inputs = node.all_input_nodes
        if node.op == "placeholder" or node.op == "output":
            continue
        weights = [one for one in inputs if one in parts]
        if not weights:
            continue
        parts[node] = frozenset([node]) if z in weights else frozenset().union(*(parts[one] for one in weights))
        name = operation_of(node)
        with_rows = [one for one in weights if one in of_rows]
        if any(one in activated for one in with_rows) or (with_rows and name not in LINEAR | SUMS | PRODUCTS_TOO):
            activated.add(node)
        if (not with_rows and name in CHOICES) or (inputs == weights and weights[0] in selected and name in LINEAR):
            selected.add(node)
        if name in PRODUCTS or _contracts(node, bends):
            factors = [node.args[at] for at in PRODUCTS.get(name, (0, 1))]
            for one, other in (factors, reversed(factors)):
                num_before = numbers_of(parts[one]) if one in activated else 0
                is_after = other in parts and (other not in of_rows or other in selected)
                if is_after and num_before >= max(MIN_PARAMETERS_BEFORE_ACTIVATION, MIN_SHARE_BEFORE_ACTIVATION * dim):
                    return True
    return False


def _nonlinear_inputs(nodes: list[fx.Node]) -> set[fx.Node]:
    """The nodes that enter the log-likelihoods by a nonlinear operation."""
    nonlinear: set[fx.Node] = set()
    for node in reversed(nodes):
        if any(user in nonlinear or operation_of(user) not in LINEAR | SUMS | PRODUCTS_TOO for user in _users(node)):
            nonlinear.add(node)
    return nonlinear


def _users(node: fx.Node) -> list[fx.Node]:
    return [user for user in node.users if user.op != "output"]


def _contracts(node: fx.Node, bends: set[fx.Node]) -> bool:
    """Whether a node is an entrywise product that is summed, such as (units * weights).sum."""
    if operation_of(node) != "mul" or not all(isinstance(one, fx.Node) for one in node.args[:2]):
        return False
    widths = [shape_of(one)[-1:] for one in node.args[:2]]
    equal_widths = widths[0] == widths[1] and widths[0] > (1,)
    return equal_widths and any(operation_of(user) == "sum" and user in bends for user in _users(node))


def first_products(graph: Recorder) -> list[tuple[fx.Node, fx.Node]]:
    """Both factors of each product of values of rows alone with values of parameters alone, in a traced graph."""
    z, *rows = [node for node in graph.graph.nodes if node.op == "placeholder"]
    nodes = list(graph.graph.nodes)
    of_z, of_rows = dependent_nodes(nodes, [z], LIKE), dependent_nodes(nodes, rows, LIKE)
    factor_pairs = []
    for node in nodes:
        factors = [node.args[at] for at in PRODUCTS.get(operation_of(node), ())]
        for x, w in (factors, factors[::-1]) if factors else ():
            if x in of_rows and x not in of_z and w in of_z and w not in of_rows:
                factor_pairs.append((x, w))
    return factor_pairs
