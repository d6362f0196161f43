"""Steps as graphs of tensor operations, traced from functions of flat leaves.

Slow imports are avoided: torch's own elimination of common subexpressions imports Inductor, which takes one to two
seconds.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from pyro_fed.conventions.calls import cast_checked
from pyro_fed.conventions.resources import tick
from pyro_fed.density.compiling.recording import LIKE, Recorder, record
from pyro_fed.density.compiling.simplify import changes_nothing, looks, simplify, spread_products
from pyro_fed.ops.memory import CACHE_NUMBERS, fits_in_memory

#: Operations with a Python function of the same name and arguments in the module `torch`.
FUNCTIONS = frozenset(
    (
        *("add", "sub", "rsub", "mul", "div", "pow", "neg", "reciprocal", "square", "sqrt", "rsqrt", "abs", "sign"),
        *("exp", "expm1", "log", "log1p", "sigmoid", "tanh", "erf", "erfc", "lgamma", "digamma", "logit", "sin", "cos"),
        *("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not", "bitwise_and", "bitwise_not"),
        *("where", "clamp", "clamp_min", "clamp_max", "maximum", "minimum", "isnan", "isfinite"),
        *("sum", "mean", "amax", "amin", "logsumexp", "cumsum", "any", "all"),
        *("unsqueeze", "squeeze", "permute", "transpose", "t", "select", "cat", "stack", "clone", "diagonal"),
        *("detach", "zeros", "zeros_like", "ones_like", "empty_like", "scalar_tensor", "constant_pad_nd"),
        *("mm", "bmm", "addmm", "baddbmm", "mv", "dot", "gather", "index_select"),
    )
)
#: View operations; views of all numbers of a tensor with equal shape and strides are equal.
VIEW = torch.ops.aten.view.default
#: A view without alias information.
UNSAFE = torch.ops.aten._unsafe_view.default
RESHAPED = frozenset(
    (
        *(VIEW, UNSAFE, torch.ops.aten.alias.default, torch.ops.aten.t.default),
        *(torch.ops.aten.permute.default, torch.ops.aten.transpose.int, torch.ops.aten.unsqueeze.default),
        *(torch.ops.aten.squeeze.default, torch.ops.aten.squeeze.dim, torch.ops.aten.squeeze.dims),
    )
)
#: Views that are equal to their tensor only if they have its shape and strides.
VIEWS = RESHAPED | {torch.ops.aten.expand.default, torch.ops.aten.slice.Tensor}
#: A padded copy, which is a copy of the whole tensor if shape and strides are equal.
WHOLE = torch.ops.aten.slice_backward.default
#: Operations with a tensor method of the same arguments, and the method's name.
METHODS: dict[str, str] = {name: name for name in ("view", "expand", "masked_fill")} | {
    f"{name}_": f"{name}_" for name in ("add", "sub", "mul", "div", "neg", "exp", "log", "fill", "clamp_min", "copy")
}
#: Different from `view` only in differentiation.
METHODS["_unsafe_view"] = "view"
#: Views that require the traced strides.
STRIDED = frozenset((VIEW, UNSAFE))


@dataclass
class Step:
    """A function of flat leaves, its graph if traced, and the structure of its result."""

    run: Any  # the function, or the graph
    spec: Callable[[], Any]  # structure of the result, known after a run or a trace
    # graph including the operations that compute its constants, see `unfolded_graph`; None if not traced
    graph: torch.fx.Graph | None = None
    root: torch.nn.Module = field(default_factory=torch.nn.Module)  # module with the constants of the graph
    # Inductor's code for the graph, by number of threads
    inductor: dict[int, Callable[..., Any]] = field(default_factory=dict)

    @property
    def num_nodes(self) -> int:
        """Number of operations in the whole graph; zero without a graph."""
        return 0 if self.graph is None else len(self.graph.nodes)

    def unfolded_graph(self) -> torch.fx.GraphModule:
        """A copy of the graph before constant folding, which Inductor does itself."""
        return torch.fx.GraphModule(self.root, deepcopy(cast_checked(self.graph, torch.fx.Graph)))


@contextmanager
def resizing_quietly() -> Iterator[None]:
    """A context without torch's warning that it resizes some mapped second derivatives (of softplus), correctly."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "An output with one or more elements was resized", UserWarning)
        yield


def eager(batched: Callable[..., Any], spec: Any) -> Step:
    """A step that runs a function of pytrees of the structure `spec` on their leaves."""
    result: dict[str, Any] = {}

    def flat(*flat_args: Tensor) -> list[Tensor]:
        with resizing_quietly():
            out = batched(*pytree.tree_unflatten(list(flat_args), spec))
        out_leaves, result["spec"] = pytree.tree_flatten(out)
        return [leaf.contiguous() for leaf in out_leaves]

    return Step(flat, lambda: result["spec"])


def to_graph(function: Callable[..., Any], leaves: Sequence[Tensor]) -> torch.fx.GraphModule:
    """The operations of a function of flat leaves with these shapes, as an executable module."""
    recorder = record(function, leaves)
    return torch.fx.GraphModule(recorder.root, recorder.graph)


def trace(batched: Callable[..., Any], spec: Any, leaves: list[Tensor]) -> Step:
    """A step as a graph, for leaves with the shapes and strides of `leaves`."""
    step = eager(batched, spec)
    recorder = record(step.run, [copy_strided(leaf) for leaf in leaves])  # the recorder needs different objects
    graph = recorder.graph
    pin_dtypes(graph)
    straighten(graph)
    tick()
    spread_products(graph)
    share_subexpressions(graph)  # such as the distances in two kernels
    tick()
    simplify(graph, _written_over(graph))
    tick()
    drop_dead(graph)
    run = fold_constants(recorder)
    tick()
    call_bindings(run)
    release(recorder.root, graph, run)
    return Step(torch.fx.GraphModule(recorder.root, run), step.spec, graph, recorder.root)


def release(root: torch.nn.Module, *graphs: torch.fx.Graph) -> None:
    """Delete the constants of `root` that no graph uses, such as rows that a model looked up, as large as all data."""
    used_names = {str(node.target) for graph in graphs for node in graph.nodes if node.op == "get_attr"}
    stored_names = [name for name, value in vars(root).items() if isinstance(value, Tensor)]
    for name in {*stored_names, *dict(root.named_parameters())} - used_names:
        delattr(root, name)


def copy_strided(leaf: Tensor, change: Callable[[Tensor], Tensor] = torch.clone) -> Tensor:
    """A copy with the same strides, by `change` of the numbers in memory; large rows of data are not copied."""
    if not leaf.numel():
        return leaf.clone()
    if not fits_in_memory(leaf.numel()) and leaf.is_contiguous() and leaf.storage_offset() == 0:
        return leaf.detach()
    extent = 1 + sum((size - 1) * stride for size, stride in zip(leaf.shape, leaf.stride(), strict=True))
    return change(leaf.as_strided((extent,), (1,))).as_strided(leaf.shape, leaf.stride(), 0)


def straighten(graph: torch.fx.Graph) -> None:
    """Remove views without an effect, and views of views, in place; mapping and differentiation make many."""
    written = _written_over(graph)
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if node.target is VIEW and _is_view(node.args[0]):
            node.args = (node.args[0].args[0], *node.args[1:])
        if node.target in VIEWS or (node.target is WHOLE and written.isdisjoint((node, node.args[0]))):
            source = _viewed_node(node)
            if source is not None:
                node.replace_all_uses_with(source)


def _viewed_node(view: torch.fx.Node) -> torch.fx.Node | None:
    """The source that a view, or a chain of views, shows unchanged; None if there is none."""
    form, source = looks(view), view.args[0]
    while form is not None and isinstance(source, torch.fx.Node):
        if looks(source) == form:
            return source
        if view.target not in RESHAPED or source.op != "call_function" or source.target not in RESHAPED:
            return None
        source = source.args[0]
    return None


def _is_view(node: Any) -> bool:
    return isinstance(node, torch.fx.Node) and node.op == "call_function" and node.target is VIEW


def share_subexpressions(graph: torch.fx.Graph) -> None:
    """Compute common subexpressions once, unless one is overwritten, in place; torch's function has a slow import."""
    written = _written_over(graph)
    nodes_by_key: dict[Any, torch.fx.Node] = {}
    for node in [node for node in graph.nodes if node.op == "call_function"]:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            continue
        if node in written or not written.isdisjoint(node.all_input_nodes):
            continue
        key = (node.target, _key(node.args), _key(node.kwargs))
        if key in nodes_by_key:
            node.replace_all_uses_with(nodes_by_key[key])
            graph.erase_node(node)
        else:
            nodes_by_key[key] = node


def _key(argument: Any) -> Any:
    """An operation's arguments as a key that is equal for equal arguments."""
    if isinstance(argument, torch.fx.Node):
        return argument
    if isinstance(argument, list | tuple):
        return (type(argument), *map(_key, argument))
    if isinstance(argument, dict):
        return (dict, *((name, _key(value)) for name, value in argument.items()))
    return type(argument), str(argument)


def _written_over(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Nodes whose memory an operation overwrites: the node, the source of its view, and other views of the source."""
    root, writes = _memory(graph)
    roots = {root(node) for targets in writes.values() for node in targets}
    return {node for node in graph.nodes if root(node) in roots}


def _memory(
    graph: torch.fx.Graph,
) -> tuple[Callable[[torch.fx.Node], torch.fx.Node], dict[torch.fx.Node, list[torch.fx.Node]]]:
    """A representative of the nodes with the same memory; and the nodes that each operation overwrites."""
    owner: dict[torch.fx.Node, torch.fx.Node] = {}

    def root(node: torch.fx.Node) -> torch.fx.Node:
        while (parent := owner.get(node, node)) is not node:
            node = parent
        return node

    writes: dict[torch.fx.Node, list[torch.fx.Node]] = {}
    for node in graph.nodes:
        if not hasattr(node.target, "_schema"):
            shared = node.all_input_nodes if node.op == "call_function" else []  # a part of what an operation returns
        else:
            aliases, returned = _aliases(node.target)
            argument_nodes = [
                (one, is_write) for place, name, is_write in aliases for one in _argument_nodes(node, place, name)
            ]
            if overwritten := [one for one, is_write in argument_nodes if is_write]:
                writes[node] = overwritten
            shared = [one for one, _ in argument_nodes] if returned else []
            if node.target is UNSAFE:
                shared = node.all_input_nodes
        for one in shared:
            owner[root(node)] = root(one)
    return root, writes


def drop_dead(graph: torch.fx.Graph) -> None:
    """Remove dead operations, in place, including writes into memory that is not read, which torch keeps."""
    # For example, the density of a half-Cauchy prior writes into its own tensor, which would keep the whole prior.
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


def fold_constants(recorder: Recorder) -> torch.fx.Graph:
    """The recorder's graph with constants in place of the operations that compute them, a third of a small step."""
    graph, root = recorder.graph, recorder.root
    representative, writes = _memory(graph)
    [output] = [node for node in graph.nodes if node.op == "output"]
    excluded = {representative(node) for nodes in (*writes.values(), output.all_input_nodes) for node in nodes}
    values = _values(
        recorder, {node for node in graph.nodes if node in recorder.known and representative(node) not in excluded}
    )
    folded, env = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    for node in graph.nodes:
        if node in values and any(user not in values for user in node.users) and _is_small(values[node]):
            name = f"_folded_{node.name}"
            setattr(root, name, values[node])
            env[node] = folded.get_attr(name)
        elif (
            changes_nothing(node, values)
            and not {representative(one) for one in (node, *node.all_input_nodes)} & excluded
        ):
            env[node] = env[node.all_input_nodes[0]]
        else:
            env[node] = copied = folded.create_node(node.op, node.target, name=node.name, type_expr=node.type)
            copied.args, copied.kwargs = map_arg((node.args, node.kwargs), env.__getitem__)
            copied.meta = dict(node.meta)
    drop_dead(folded)
    return folded


def _values(recorder: Recorder, constant: set[torch.fx.Node]) -> dict[torch.fx.Node, Tensor]:
    """The values of nodes that do not depend on inputs."""
    values: dict[torch.fx.Node, Tensor] = {}

    def value_of(node: torch.fx.Node) -> Tensor:
        if node.op == "get_attr":
            constant: Tensor = getattr(recorder.root, str(node.target))
            return constant
        if node in values:
            return values[node]
        shape, strides, dtype = looks(node)  # sufficient for operations in `LIKE`
        return torch.empty_strided(shape, strides, dtype=dtype, device=recorder.known[user])

    for user in recorder.graph.nodes:
        if user in constant and (user.target in LIKE or all(_has_value(one, values) for one in user.all_input_nodes)):
            values[user] = user.target(*map_arg(user.args, value_of), **map_arg(user.kwargs, value_of))
    return values


def _has_value(node: torch.fx.Node, values: Mapping[torch.fx.Node, Tensor]) -> bool:
    return node.op == "get_attr" or node in values


def _is_small(value: Tensor) -> bool:
    """Whether a constant is small enough to be stored."""
    return value.untyped_storage().nbytes() <= CACHE_NUMBERS * value.itemsize


@lru_cache(maxsize=1024)
def _aliases(target: Any) -> tuple[tuple[tuple[int, str, bool], ...], bool]:
    """The arguments (place, name, is written) whose memory an operation uses, and whether it returns such memory."""
    schema = target._schema
    arguments = [(place, one.name, one.alias_info) for place, one in enumerate(schema.arguments)]
    aliases = tuple((place, name, bool(alias.is_write)) for place, name, alias in arguments if alias)
    return aliases, any(part.alias_info for part in schema.returns)


def _argument_nodes(node: torch.fx.Node, place: int, name: str) -> list[torch.fx.Node]:
    """The nodes in one of an operation's arguments."""
    argument = node.args[place] if place < len(node.args) else node.kwargs.get(name)
    return [
        one
        for one in (argument if isinstance(argument, list | tuple) else [argument])
        if isinstance(one, torch.fx.Node)
    ]


def call_bindings(graph: torch.fx.Graph) -> None:
    """Call `torch.add` instead of `torch.ops.aten.add.Tensor`, in place: the same kernels in at most half the time."""
    for node in graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        name = node.target._schema.name.removeprefix("aten::")
        if name in FUNCTIONS:
            node.target = getattr(torch, name)
        elif name in METHODS and not node.kwargs:
            node.op, node.target = "call_method", METHODS[name]


def free_strides(graph: torch.fx.Graph) -> None:
    """Allow tensors of other strides than traced, in place, by reshapes of memory that is not overwritten."""
    written = _written_over(graph)
    for node in graph.nodes:
        if node.op == "call_function" and node.target in STRIDED and node not in written:
            node.target = torch.ops.aten.reshape.default


def pin_dtypes(graph: torch.fx.Graph) -> None:
    """Give `torch.ones(3)` and similar calls the dtype at tracing, not the default dtype at run time."""
    for node in graph.nodes:
        if node.op != "call_function" or node.all_input_nodes or "dtype" in node.kwargs:
            continue
        argument_names = {argument.name for argument in node.target._schema.arguments}
        if "dtype" in argument_names and "tensor_meta" in node.meta:
            node.kwargs = {**node.kwargs, "dtype": node.meta["tensor_meta"].dtype}
