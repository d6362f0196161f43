"""Products of matrices of which one is the same over a batch: one larger product in place of copies of it.

Mapping a client's rows X over points, and that over clients, makes of X w

    for each client c and point s:    X_c w_cs          X_c copied for every s, (C S, n, k) times (C S, k, h)

which reads and writes S copies of the rows and multiplies each by next to nothing. It is

    for each client c:    X_c [w_c1 ... w_cS]           (C, n, k) times (C, k, S h)

and the rows are read once. Sums are taken in another order, so that last bits differ: it is done only for copies of
at least `LARGE_COPY_NUMBERS`, which those of small models are not.
"""

from __future__ import annotations

from typing import Any, cast

from torch import fx, ops

aten = ops.aten

#: Numbers in a copy from which on it is not made: 32 MB in double precision, more than a processor's cache holds.
LARGE_COPY_NUMBERS = 4_000_000
#: By so much the copy must be larger than those of the other factor and of the product, whose axes change places.
MIN_COPY_RATIO = 2
#: What `matmul` makes a batch of matrices of, from its end.
FLAT = frozenset((aten._unsafe_view.default, aten.view.default))


def spread_products(graph: fx.Graph) -> None:
    """Multiply once what is the same over a batch; the traced graph is changed in place."""
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not aten.bmm.default:
            continue
        first, second = (cast(fx.Node, one) for one in node.args)
        same, other = _copy_source(first), _copy_source(second)
        made = None
        with graph.inserting_before(node):
            if same is not None and other is None:
                made = _of_first(graph, same, second)
            elif other is not None and same is None:
                made = _of_second(graph, first, other)
        if made is not None:
            node.replace_all_uses_with(made)
            graph.erase_node(node)


def _shape(node: fx.Node) -> tuple[int, ...]:
    return tuple(node.meta["tensor_meta"].shape)


def _copy_source(node: Any) -> fx.Node | None:
    """The expanded tensor (C, S, n, k) of which a large batch (C S, n, k) is a copy, the same over S."""
    if not isinstance(node, fx.Node) or node.target not in FLAT or "tensor_meta" not in node.meta:
        return None
    copy: Any = node.args[0]
    if not isinstance(copy, fx.Node) or copy.target is not aten.clone.default or "tensor_meta" not in copy.meta:
        return None
    spread: Any = copy.args[0]
    meta = spread.meta.get("tensor_meta")
    if meta is None or len(meta.shape) != 4 or meta.stride[1] != 0 or meta.shape.numel() < LARGE_COPY_NUMBERS:
        return None
    fits = _shape(node) == (meta.shape[0] * meta.shape[1], *meta.shape[2:])
    return cast(fx.Node, spread) if fits else None


def _of_first(graph: Any, same: fx.Node, other: fx.Node) -> fx.Node | None:
    """X_c times all of (C S, k, h) next to one another: (C S, n, h)."""
    (clients, count, rows, inner), width = _shape(same), _shape(other)[2]
    if MIN_COPY_RATIO * width > min(rows, inner):
        return None
    parts = graph.call_function(aten.reshape.default, (other, [clients, count, inner, width]))
    beside = graph.call_function(aten.permute.default, (parts, [0, 2, 1, 3]))
    flat = graph.call_function(aten.reshape.default, (beside, [clients, inner, count * width]))
    product = graph.call_function(aten.bmm.default, (_first_copy(graph, same), flat))
    apart = graph.call_function(aten.reshape.default, (product, [clients, rows, count, width]))
    back = graph.call_function(aten.permute.default, (apart, [0, 2, 1, 3]))
    made: fx.Node = graph.call_function(aten.reshape.default, (back, [clients * count, rows, width]))
    return made


def _of_second(graph: Any, other: fx.Node, same: fx.Node) -> fx.Node | None:
    """All of (C S, n, k) below one another, times (k, h) of each client: (C S, n, h)."""
    (clients, count, inner, width), rows = _shape(same), _shape(other)[1]
    flat = graph.call_function(aten.reshape.default, (other, [clients, count * rows, inner]))
    product = graph.call_function(aten.bmm.default, (flat, _first_copy(graph, same)))
    made: fx.Node = graph.call_function(aten.reshape.default, (product, [clients * count, rows, width]))
    return made


def _first_copy(graph: Any, same: fx.Node) -> fx.Node:
    """One of the copies, (C, n, k)."""
    one: fx.Node = graph.call_function(aten.select.int, (same, 1, 0))
    return one
