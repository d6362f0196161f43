"""Simplification of traced steps: patterns from mapping and differentiation are replaced by fewer operations.

    the sum of gradients of a flat vector's parts, z[a:b], each padded with zeros
                                                →  the concatenated parts
    x ** 1                                      →  x, in the gradient of a square

Both are exact, so that the same seed gives the same results in any process: a step may have been run by vmap before. In
a network's step 7 to 9 of about 110 operations are of the first kind, with zeros of the length of the parameters; a
step without it takes 1.1 times as long.

Mapping a client's rows X over points, and over clients, copies X for every point. One larger product replaces these
(`spread_products`) and reads the rows once:

    X_c w_cs  of (C S, n, k) and (C S, k, h)    →  X_c [w_c1 ... w_cS]  of (C, n, k) and (C, k, S h)

This changes the order of summation and the last bits, so that it is applied only to copies that do not fit in memory,
which do not occur in small models.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, cast

from torch import Tensor, fx, ops

from pyro_fed.density.compiling.recording import shape_of
from pyro_fed.ops.memory import fits_in_memory

aten = ops.aten

ADD = aten.add.Tensor
PART = aten.slice_backward.default
POWER = aten.pow.Tensor_Scalar


#: Smallest ratio of the copy's size to the sizes of the other factor and of the product, whose axes are permuted.
MIN_COPY_RATIO = 2
#: Views by which `matmul` flattens a batch of matrices.
FLAT = frozenset((aten._unsafe_view.default, aten.view.default))


def simplify(graph: fx.Graph, busy: set[fx.Node]) -> None:
    """Rewrite a traced graph in fewer operations, in place, except for `busy` nodes."""
    for node in reversed(list(graph.nodes)):
        if node.op != "call_function" or node in busy:
            continue
        if node.target is ADD:
            _concatenate_parts(graph, node, busy)
        elif node.target is POWER and _is_itself(node) and node.args[0] not in busy:
            node.replace_all_uses_with(node.args[0])


def looks(node: Any) -> Any:
    """Shape, strides and type of a node's value; None if unknown, or not a tensor."""
    meta = node.meta.get("tensor_meta") if isinstance(node, fx.Node) else None
    return None if meta is None else (tuple(meta.shape), tuple(meta.stride), meta.dtype)


def changes_nothing(node: fx.Node, values: Mapping[fx.Node, Tensor]) -> bool:
    """Whether a node subtracts zeros from a tensor of its own form, such as in the density of a prior around zero."""
    if node.target is not aten.sub.Tensor or node.kwargs:
        return False
    first, second = _arguments(node)
    return second in values and looks(node) == looks(first) is not None and not values[second].any()


def _arguments(node: fx.Node) -> tuple[Any, ...]:
    return node.args


def _is_contiguous(node: Any) -> bool:
    form = looks(node)
    if form is None:
        return False
    shape, strides, _ = form
    return all(size == 1 or strides[at] == prod(shape[at + 1 :]) for at, size in enumerate(shape))


def _is_itself(power: fx.Node) -> bool:
    """Whether a node is x ** 1, of x of its own form; results of a step are excluded, since they need own memory."""
    base, exponent = _arguments(power)
    returned = any(user.op == "output" for user in power.users)
    return bool(exponent == 1 and looks(power) == looks(base) is not None and not returned)


def _concatenate_parts(graph: fx.Graph, root: fx.Node, busy: set[fx.Node]) -> None:
    """Rewrite a sum of padded parts as their concatenation, plus the other terms."""
    if _is_sum(root) and any(_is_sum(user) and _is_sole_user(root, user) for user in root.users):
        return  # a part of a larger sum, which is rewritten instead
    terms = _terms(root)
    parts, overlapping = _disjoint([term for term in terms if term.target is PART and term not in busy])
    others = [term for term in terms if term.target is not PART or term in busy] + overlapping
    if len(parts) < 2:
        return
    with graph.inserting_before(root):
        result = _concatenated(graph, parts)
        for term in others:
            result = graph.call_function(ADD, (result, term))
            result.meta = dict(root.meta)
    root.replace_all_uses_with(result)


def _is_sum(node: Any) -> bool:
    """Whether a node adds two tensors of the same shape, dtype and strides."""
    if node.op != "call_function" or node.target is not ADD or node.kwargs or not _is_contiguous(node):
        return False
    return all(looks(one) == looks(node) for one in _arguments(node))


def _is_sole_user(term: fx.Node, user: fx.Node) -> bool:
    """Whether `user` is the only user of a term."""
    return list(term.users) == [user] and _arguments(user).count(term) == 1


def _terms(root: fx.Node) -> list[fx.Node]:
    """The terms of a sum and of nested sums; empty if the root is not such a sum."""
    if not _is_sum(root):
        return []
    terms: list[fx.Node] = []
    for one in _arguments(root):
        terms += _terms(one) if _is_sum(one) and _is_sole_user(one, root) else [one]
    return terms


def _span(part: fx.Node) -> tuple[int, int]:
    """The start of a part in the whole, and its length."""
    grad, sizes, dim, start = _arguments(part)[:4]
    return start if start >= 0 else start + sizes[dim], looks(grad)[0][dim]


def _disjoint(parts: list[fx.Node]) -> tuple[list[fx.Node], list[fx.Node]]:
    """Parts along one axis that do not overlap, in order, and the other parts."""
    candidates = [part for part in parts if part.args[5] == 1 and _is_contiguous(part.args[0]) and len(part.users) == 1]
    candidates = [part for part in candidates if part.args[2] == candidates[0].args[2]]
    disjoint: list[fx.Node] = []
    end = 0
    for part in sorted(candidates, key=_span):
        begin, length = _span(part)
        if begin >= end and length:
            disjoint.append(part)
            end = begin + length
    return disjoint, [part for part in parts if part not in disjoint]


def _concatenated(graph: fx.Graph, parts: list[fx.Node]) -> fx.Node:
    """The concatenation of parts with zeros between them."""
    like, sizes, dim = _arguments(parts[0])[:3]
    pieces: list[fx.Node] = []
    end = 0

    def zeros(length: int) -> None:
        if length:
            shape = [*sizes[:dim], length, *sizes[dim + 1 :]]
            pieces.append(graph.call_function(aten.new_zeros.default, (like, shape)))

    for part in parts:
        begin, length = _span(part)
        zeros(begin - end)
        pieces.append(_arguments(part)[0])
        end = begin + length
    zeros(sizes[dim] - end)
    if len(pieces) == 1:
        return pieces[0]
    result = graph.call_function(aten.cat.default, (pieces, dim))
    result.meta = dict(parts[0].meta)
    return result


def spread_products(graph: fx.Graph) -> None:
    """Replace batched products with a common factor by one product, in place."""
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not aten.bmm.default:
            continue
        first, second = (cast(fx.Node, one) for one in node.args)
        first_source, second_source = _copy_source(first), _copy_source(second)
        product = None
        with graph.inserting_before(node):
            if first_source is not None and second_source is None:
                product = _product_of_first(graph, first_source, second)
            elif second_source is not None and first_source is None:
                product = _product_of_second(graph, first, second_source)
        if product is not None:
            node.replace_all_uses_with(product)
            graph.erase_node(node)


def _copy_source(node: Any) -> fx.Node | None:
    """The expanded tensor (C, S, n, k), constant over S, of which a large batch (C S, n, k) is a copy."""
    if not isinstance(node, fx.Node) or node.target not in FLAT or "tensor_meta" not in node.meta:
        return None
    copy: Any = node.args[0]
    if not isinstance(copy, fx.Node) or copy.target is not aten.clone.default or "tensor_meta" not in copy.meta:
        return None
    spread: Any = copy.args[0]
    meta = spread.meta.get("tensor_meta")
    if meta is None or len(meta.shape) != 4 or meta.stride[1] != 0 or fits_in_memory(meta.shape.numel()):
        return None
    fits = shape_of(node) == (meta.shape[0] * meta.shape[1], *meta.shape[2:])
    return cast(fx.Node, spread) if fits else None


def _product_of_first(graph: Any, same: fx.Node, other: fx.Node) -> fx.Node | None:
    """X_c times the horizontally concatenated matrices of (C S, k, h): (C S, n, h)."""
    (clients, count, rows, inner), width = shape_of(same), shape_of(other)[2]
    if MIN_COPY_RATIO * width > min(rows, inner):
        return None
    parts = graph.call_function(aten.reshape.default, (other, [clients, count, inner, width]))
    side_by_side = graph.call_function(aten.permute.default, (parts, [0, 2, 1, 3]))
    flat = graph.call_function(aten.reshape.default, (side_by_side, [clients, inner, count * width]))
    product = graph.call_function(aten.bmm.default, (_first_copy(graph, same), flat))
    by_point = graph.call_function(aten.reshape.default, (product, [clients, rows, count, width]))
    permuted = graph.call_function(aten.permute.default, (by_point, [0, 2, 1, 3]))
    result: fx.Node = graph.call_function(aten.reshape.default, (permuted, [clients * count, rows, width]))
    return result


def _product_of_second(graph: Any, other: fx.Node, same: fx.Node) -> fx.Node | None:
    """The vertically concatenated matrices of (C S, n, k), times (k, h) of each client: (C S, n, h)."""
    (clients, count, inner, width), rows = shape_of(same), shape_of(other)[1]
    flat = graph.call_function(aten.reshape.default, (other, [clients, count * rows, inner]))
    product = graph.call_function(aten.bmm.default, (flat, _first_copy(graph, same)))
    result: fx.Node = graph.call_function(aten.reshape.default, (product, [clients * count, rows, width]))
    return result


def _first_copy(graph: Any, same: fx.Node) -> fx.Node:
    """One of the copies, (C, n, k)."""
    one: fx.Node = graph.call_function(aten.select.int, (same, 1, 0))
    return one
