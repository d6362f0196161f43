"""A step as a graph of tensor operations: traced from a function of flat leaves, compiled by Inductor.

What of torch takes long to import is not: its own elimination of common operations brings Inductor, one to two seconds.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch.utils import _pytree as pytree

from pyro_fed.density.compiling.products import spread_products
from pyro_fed.density.compiling.recording import record

#: Inductor's options: sizes are not checked on each call, for steps are found by them; what reads several tensors (the
#: rows of a minibatch, say) is computed once and kept, not again for each of the sums it goes into.
INDUCTOR = {"size_asserts": False, "realize_reads_threshold": 2, "realize_acc_reads_threshold": 5}

#: Operations whose binding in Python, of the same name, takes the same arguments: in the module, and of a tensor.
FUNCTIONS = frozenset(
    (
        *("add", "sub", "rsub", "mul", "div", "pow", "neg", "reciprocal", "square", "sqrt", "rsqrt", "abs", "sign"),
        *("exp", "expm1", "log", "log1p", "sigmoid", "tanh", "erf", "erfc", "lgamma", "digamma", "logit", "sin", "cos"),
        *("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not", "bitwise_and", "bitwise_not"),
        *("where", "clamp", "clamp_min", "clamp_max", "maximum", "minimum", "isnan", "isfinite"),
        *("sum", "mean", "amax", "amin", "logsumexp", "cumsum", "any", "all"),
        *("unsqueeze", "squeeze", "permute", "transpose", "t", "select", "cat", "stack", "clone", "diagonal"),
        *("detach", "zeros", "zeros_like", "ones_like", "scalar_tensor", "constant_pad_nd"),
        *("mm", "bmm", "addmm", "baddbmm", "mv", "dot", "gather", "index_select"),
    )
)
#: Views; those of the same shape and strides show the same.
VIEW = torch.ops.aten.view.default
VIEWS = frozenset(
    (
        *(VIEW, torch.ops.aten.expand.default, torch.ops.aten.permute.default, torch.ops.aten.alias.default),
        *(torch.ops.aten.transpose.int, torch.ops.aten.t.default, torch.ops.aten.slice.Tensor),
    )
)
METHODS = frozenset(("view", "expand", "masked_fill"))
#: Views that ask for the strides that were traced.
STRIDED = frozenset((VIEW, torch.ops.aten._unsafe_view.default))


@dataclass
class Step:
    """A function of flat leaves, its graph where it was traced, and the structure of what it returns.

    Attributes:
        run: the function, or the graph.
        spec: the structure of what it returns, once it has been run or traced.
        inductor: Inductor's code for the graph, by the number of threads that it was made for.
    """

    run: Any
    spec: Callable[[], Any]
    inductor: dict[int, Callable[..., Any]] = field(default_factory=dict)

    @property
    def num_nodes(self) -> int:
        """Operations in the graph."""
        return len(self.run.graph.nodes)


@contextmanager
def resizing_quietly() -> Iterator[None]:
    """Mapped, torch makes some second derivatives (of softplus) larger than it meant to, rightly, and warns of it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "An output with one or more elements was resized", UserWarning)
        yield


def eager(batched: Callable[..., Any], spec: Any) -> Step:
    """The function of pytrees as one of their leaves.

    Args:
        batched: takes arguments with structure `spec`, returns a pytree of tensors.
        spec: of all its arguments.
    """
    found: dict[str, Any] = {}

    def flat(*flat_args: Tensor) -> list[Tensor]:
        with resizing_quietly():
            out = batched(*pytree.tree_unflatten(list(flat_args), spec))
        out_leaves, found["spec"] = pytree.tree_flatten(out)
        return [leaf.contiguous() for leaf in out_leaves]

    return Step(flat, lambda: found["spec"])


def to_graph(function: Callable[..., Any], leaves: Sequence[Tensor]) -> torch.fx.GraphModule:
    """The operations of a function, as a module that can be run.

    Args:
        function: of flat leaves.
        leaves: tensors of the shapes that it is traced for.
    """
    recorder = record(function, leaves)
    return torch.fx.GraphModule(recorder.root, recorder.graph)


def trace(batched: Callable[..., Any], spec: Any, leaves: list[Tensor]) -> Step:
    """The same as a graph, which fits leaves with the shapes and strides of `leaves`.

    Args:
        batched: as for `eager`.
        spec: as for `eager`.
        leaves: tensors of the shapes that it is traced for.
    """
    step = eager(batched, spec)
    recorder = record(step.run, [copied(leaf) for leaf in leaves])  # inputs are told apart by identity
    graph = recorder.graph
    pin_dtypes(graph)
    straighten(graph)
    spread_products(graph)
    once(graph)  # distances that two kernels need, say, are computed once
    drop_dead(graph)
    call_bindings(graph)
    return Step(torch.fx.GraphModule(recorder.root, graph), step.spec)


def copied(leaf: Tensor) -> Tensor:
    """A copy of the same strides, which `clone` makes smaller where a tensor is a part of another: its views differ.

    Args:
        leaf: any tensor.
    """
    if not leaf.numel():
        return leaf.clone()
    extent = 1 + sum((size - 1) * stride for size, stride in zip(leaf.shape, leaf.stride(), strict=True))
    return leaf.as_strided((extent,), (1,)).clone().as_strided(leaf.shape, leaf.stride(), 0)


def straighten(graph: torch.fx.Graph) -> None:
    """Leave out views that show a tensor as it is, and go through no view that another is made of.

    Mapping and differentiating leave many: of a step a third of the operations were such views. The memory that is seen
    is the same, and so are the bits.

    Args:
        graph: traced; changed in place.
    """
    for node in graph.nodes:
        if node.op != "call_function" or node.target not in VIEWS:
            continue
        inner = node.args[0]
        if node.target is VIEW and inner.op == "call_function" and inner.target is VIEW:
            node.args = (inner.args[0], *node.args[1:])
            inner = node.args[0]
        if _looks(inner) is not None and _looks(inner) == _looks(node):
            node.replace_all_uses_with(inner)


def _looks(node: torch.fx.Node) -> Any:
    """Shape, strides and type of what a node makes; None where it is not known, or not a tensor."""
    meta = node.meta.get("tensor_meta")
    return None if meta is None else (meta.shape, meta.stride, meta.dtype)


def once(graph: torch.fx.Graph) -> None:
    """Compute once what is computed again from the same values, where none of these is written over.

    Torch has this, behind an import of one to two seconds.

    Args:
        graph: traced; changed in place.
    """
    written = _written_over(graph)
    found: dict[Any, torch.fx.Node] = {}
    for node in [node for node in graph.nodes if node.op == "call_function"]:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            continue
        if node in written or not written.isdisjoint(node.all_input_nodes):
            continue
        leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
        key = (node.target, str(spec), tuple((type(leaf), str(leaf)) for leaf in leaves))
        if key in found:
            node.replace_all_uses_with(found[key])
            graph.erase_node(node)
        else:
            found[key] = node


def _written_over(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Nodes whose memory some operation writes over: it, what it is a view of, and all other views of that.

    A Bernoulli's density, say, is written into a sum of its own making; all else of such a graph is as if it were not.
    """
    root, writes = _memory(graph)
    roots = {root(node) for targets in writes.values() for node in targets}
    return {node for node in graph.nodes if root(node) in roots}


def _memory(
    graph: torch.fx.Graph,
) -> tuple[Callable[[torch.fx.Node], torch.fx.Node], dict[torch.fx.Node, list[torch.fx.Node]]]:
    """Which nodes show the same memory, by one of them that stands for all; and what each operation writes over."""
    owner: dict[torch.fx.Node, torch.fx.Node] = {}

    def root(node: torch.fx.Node) -> torch.fx.Node:
        while (above := owner.get(node, node)) is not node:
            node = above
        return node

    writes: dict[torch.fx.Node, list[torch.fx.Node]] = {}
    for node in graph.nodes:
        schema = _schema(node)
        if schema is None:
            shared = node.all_input_nodes if node.op == "call_function" else []  # a part of what an operation returns
        else:
            held = [(one, argument.alias_info) for one, argument in _tensors_of(node, schema) if argument.alias_info]
            if written := [one for one, alias in held if alias.is_write]:
                writes[node] = written
            shared = [one for one, _ in held] if any(part.alias_info for part in schema.returns) else []
        for one in shared:
            owner[root(node)] = root(one)
    return root, writes


def drop_dead(graph: torch.fx.Graph) -> None:
    """Leave out what nothing needs, writes into memory that nobody looks at among it, which torch keeps.

    The density of a half-Cauchy prior writes into a tensor of its own; where likelihoods alone are asked for, such a
    write would keep the whole prior.

    Args:
        graph: traced; changed in place.
    """
    root, writes = _memory(graph)
    outside = {root(node) for node in graph.nodes if node.op in ("placeholder", "get_attr")}
    writers: dict[torch.fx.Node, list[torch.fx.Node]] = {}
    for node, targets in writes.items():
        for one in targets:
            writers.setdefault(root(one), []).append(node)
    waiting = [node for node in graph.nodes if node not in writes and (node.op == "output" or node.is_impure())]
    waiting += [node for place in outside for node in writers.get(place, [])]
    needed: set[torch.fx.Node] = set()
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting += [*node.all_input_nodes, *writers.get(root(node), [])]
    for node in reversed(list(graph.nodes)):
        if node not in needed and node.op != "placeholder":
            graph.erase_node(node)


def _tensors_of(node: torch.fx.Node, schema: Any) -> Iterator[tuple[torch.fx.Node, Any]]:
    """The nodes that an operation is given, each with the argument of its schema."""
    for number, argument in enumerate(schema.arguments):
        given = node.args[number] if number < len(node.args) else node.kwargs.get(argument.name)
        for one in given if isinstance(given, list | tuple) else [given]:
            if isinstance(one, torch.fx.Node):
                yield one, argument


def call_bindings(graph: torch.fx.Graph) -> None:
    """Call `torch.add` in the place of `torch.ops.aten.add.Tensor`: the same kernels in half the time or less.

    What `torch.ops` calls takes its arguments apart one by one, which costs more than to add a hundred numbers.

    Args:
        graph: traced; changed in place. Its nodes keep what they called in `meta["aten"]`.
    """
    for node in graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        name = node.target._schema.name.removeprefix("aten::")
        if name in FUNCTIONS:
            node.meta["aten"], node.target = node.target, getattr(torch, name)
        elif name in METHODS and not node.kwargs:
            node.meta["aten"], node.op, node.target = node.target, "call_method", name


def call_operations(graph: torch.fx.Graph) -> None:
    """The opposite: what the graph called when it was traced.

    Args:
        graph: changed in place.
    """
    for node in graph.nodes:
        if "aten" in node.meta:
            node.op, node.target = "call_function", node.meta.pop("aten")


def _schema(node: torch.fx.Node) -> Any:
    return getattr(node.target, "_schema", None)


def inductor(graph: torch.fx.GraphModule, leaves: list[Tensor]) -> Callable[..., Any]:
    """Inductor's code for the graph; that of an equal graph, of an earlier run too, comes from its cache on disk.

    Args:
        graph: a traced step.
        leaves: tensors of the shapes that it was traced for.
    """
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = FakeTensorMode(shape_env=ShapeEnv())  # without a shape environment Inductor passes its cache by
    with tracing(TracingContext(mode)):
        inputs: list[Any] = [mode.from_tensor(leaf, static_shapes=True) for leaf in leaves]
        own = deepcopy(graph)
        call_operations(own.graph)
        own.recompile()
        code: Callable[..., Any] = torch._inductor.compile(own, inputs, options=INDUCTOR)
        return code


def free_strides(graph: torch.fx.Graph) -> None:
    """Let a graph take tensors of other strides than it was traced with: reshapes in the place of views.

    What is mapped, or given by another part of a model, is laid out as that part has made it. Where memory is written
    over, a view stays one.

    Args:
        graph: traced; changed in place.
    """
    written = _written_over(graph)
    for node in graph.nodes:
        if node.op == "call_function" and node.target in STRIDED and node not in written:
            node.target = torch.ops.aten.reshape.default


def pin_dtypes(graph: torch.fx.Graph) -> None:
    """Give `torch.ones(3)` and its like the dtype they were traced in, not the default when they run."""
    for node in graph.nodes:
        if node.op != "call_function" or node.all_input_nodes or "dtype" in node.kwargs:
            continue
        takes = {argument.name for argument in node.target._schema.arguments}
        if "dtype" in takes and "tensor_meta" in node.meta:
            node.kwargs = {**node.kwargs, "dtype": node.meta["tensor_meta"].dtype}
