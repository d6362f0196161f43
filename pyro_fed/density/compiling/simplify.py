"""A traced step in fewer operations: what mapping and differentiating leave behind, as one operation.

    the gradient of a flat vector's parts, z[a:b], each laid into zeros of the whole, and these added
                                                →  the parts one after another
    x - logsumexp(x)                            →  log_softmax(x), one kernel for six
    x ** 1                                      →  x, of the gradient of a square

The first and the last give the same numbers; the second may change last bits, so that it is left alone in a step that
may have been run by vmap before it was traced: the same seed gives the same answer, whatever has run. A network's step
had 7 to 9 operations of the first kind, whose zeros are as long as its parameters, of some 110, and a sixth of its
time was the second.

Mapping a client's rows X over points, and that over clients, copies X for every point. One larger product takes their
place (`spread_products`), where the rows are read once:

    X_c w_cs  of (C S, n, k) and (C S, k, h)    →  X_c [w_c1 ... w_cS]  of (C, n, k) and (C, k, S h)

Sums are taken in another order, so that last bits differ: it is done only for copies beyond memory,
which those of small models are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, cast

from torch import Tensor, fx, ops

from pyro_fed.ops.memory import fits_in_memory

aten = ops.aten

ADD = aten.add.Tensor
PART = aten.slice_backward.default
POWER = aten.pow.Tensor_Scalar


#: By so much the copy must be larger than those of the other factor and of the product, whose axes change places.
MIN_COPY_RATIO = 2
#: What `matmul` makes a batch of matrices of, from its end.
FLAT = frozenset((aten._unsafe_view.default, aten.view.default))


def simplify(graph: fx.Graph, busy: set[fx.Node], exact: bool) -> None:
    """Rewrite a traced graph in fewer operations, in place, without `busy` nodes; `exact` keeps all bits."""
    for node in reversed(list(graph.nodes)):
        if node.op != "call_function" or node in busy:
            continue
        if node.target is ADD:
            _join(graph, node, busy)
        elif node.target is POWER and _is_itself(node) and node.args[0] not in busy:
            node.replace_all_uses_with(node.args[0])
        elif node.target is aten.sub.Tensor and not exact:
            _log_softmax(graph, node)


def looks(node: Any) -> Any:
    """Shape, strides and type of a node's value; None if unknown, or not a tensor."""
    meta = node.meta.get("tensor_meta") if isinstance(node, fx.Node) else None
    return None if meta is None else (tuple(meta.shape), tuple(meta.stride), meta.dtype)


def changes_nothing(node: fx.Node, values: Mapping[fx.Node, Tensor]) -> bool:
    """Whether a node subtracts zeros from a tensor of its own form, as the density of a prior around zero does."""
    if node.target is not aten.sub.Tensor or node.kwargs:
        return False
    first, second = _arguments(node)
    return second in values and looks(node) == looks(first) is not None and not values[second].any()


def _arguments(node: fx.Node) -> tuple[Any, ...]:
    return node.args


def _is_contiguous(node: Any) -> bool:
    found = looks(node)
    if found is None:
        return False
    shape, strides, _ = found
    return all(size == 1 or strides[at] == prod(shape[at + 1 :]) for at, size in enumerate(shape))


def _is_itself(power: fx.Node) -> bool:
    """Whether a node is x ** 1, of x of its own form; what a step returns is memory of its own."""
    base, exponent = _arguments(power)
    returned = any(user.op == "output" for user in power.users)
    return bool(exponent == 1 and looks(power) == looks(base) is not None and not returned)


def _log_softmax(graph: fx.Graph, node: fx.Node) -> None:
    """x - logsumexp(x, [d], keepdim) as log_softmax(x, d)."""
    whole, total = _arguments(node)
    if node.kwargs or not isinstance(total, fx.Node) or total.target is not aten.logsumexp.default:
        return
    given, axes, kept = (*_arguments(total), False)[:3]
    if given is not whole or len(axes) != 1 or not kept or not _is_contiguous(whole):
        return
    with graph.inserting_before(node):
        made = graph.call_function(aten._log_softmax.default, (whole, axes[0], False))
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made)


def _join(graph: fx.Graph, root: fx.Node, busy: set[fx.Node]) -> None:
    """Rewrite a sum of parts among zeros as these parts one after another, with the other terms added to that."""
    if _is_sum(root) and any(_is_sum(user) and _is_sole_user(root, user) for user in root.users):
        return  # a part of a larger sum, which comes first
    terms = _terms(root)
    parts, rest = _disjoint([term for term in terms if term.target is PART and term not in busy])
    others = [term for term in terms if term.target is not PART or term in busy] + rest
    if len(parts) < 2:
        return
    with graph.inserting_before(root):
        made = _in_order(graph, parts)
        for term in others:
            made = graph.call_function(ADD, (made, term))
            made.meta = dict(root.meta)
    root.replace_all_uses_with(made)


def _is_sum(node: Any) -> bool:
    """Whether a node adds two tensors of one shape, type and, in memory, order."""
    if node.op != "call_function" or node.target is not ADD or node.kwargs or not _is_contiguous(node):
        return False
    return all(looks(one) == looks(node) for one in _arguments(node))


def _is_sole_user(term: fx.Node, user: fx.Node) -> bool:
    """Whether a term has no other user."""
    return list(term.users) == [user] and _arguments(user).count(term) == 1


def _terms(root: fx.Node) -> list[fx.Node]:
    """The terms of a sum, also by way of other sums; empty if the root is no such sum."""
    if not _is_sum(root):
        return []
    found: list[fx.Node] = []
    for one in _arguments(root):
        found += _terms(one) if _is_sum(one) and _is_sole_user(one, root) else [one]
    return found


def _span(part: fx.Node) -> tuple[int, int]:
    """The beginning of a part in the whole, and its length."""
    grad, sizes, dim, start = _arguments(part)[:4]
    return start if start >= 0 else start + sizes[dim], looks(grad)[0][dim]


def _disjoint(parts: list[fx.Node]) -> tuple[list[fx.Node], list[fx.Node]]:
    """Parts of one axis that do not overlap, in order, and the others."""
    fits = [part for part in parts if part.args[5] == 1 and _is_contiguous(part.args[0]) and len(part.users) == 1]
    fits = [part for part in fits if part.args[2] == fits[0].args[2]]
    taken: list[fx.Node] = []
    end = 0
    for part in sorted(fits, key=_span):
        begin, length = _span(part)
        if begin >= end and length:
            taken.append(part)
            end = begin + length
    return taken, [part for part in parts if part not in taken]


def _in_order(graph: fx.Graph, parts: list[fx.Node]) -> fx.Node:
    """Parts, with zeros between them, one after another."""
    first, sizes, dim = _arguments(parts[0])[:3]
    pieces: list[fx.Node] = []
    end = 0

    def zeros(length: int) -> None:
        if length:
            shape = [*sizes[:dim], length, *sizes[dim + 1 :]]
            pieces.append(graph.call_function(aten.new_zeros.default, (first, shape)))

    for part in parts:
        begin, length = _span(part)
        zeros(begin - end)
        pieces.append(_arguments(part)[0])
        end = begin + length
    zeros(sizes[dim] - end)
    if len(pieces) == 1:
        return pieces[0]
    made = graph.call_function(aten.cat.default, (pieces, dim))
    made.meta = dict(parts[0].meta)
    return made


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
    if meta is None or len(meta.shape) != 4 or meta.stride[1] != 0 or fits_in_memory(meta.shape.numel()):
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
