"""A step as a graph of tensor operations: traced from a function of flat leaves, compiled by Inductor.

Parts of torch that take long to import are avoided: its own elimination of common operations brings Inductor, one to
two seconds.
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

#: Operations whose binding in Python, of the same name, takes the same arguments: in the module, and of a tensor.
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
#: Views; of the same numbers in another shape or order, those of the same shape and strides show the same.
VIEW = torch.ops.aten.view.default
#: A view that does not say so.
UNSAFE = torch.ops.aten._unsafe_view.default
RESHAPED = frozenset(
    (
        *(VIEW, UNSAFE, torch.ops.aten.alias.default, torch.ops.aten.t.default),
        *(torch.ops.aten.permute.default, torch.ops.aten.transpose.int, torch.ops.aten.unsqueeze.default),
        *(torch.ops.aten.squeeze.default, torch.ops.aten.squeeze.dim, torch.ops.aten.squeeze.dims),
    )
)
#: Others, of which that is so where they are of a tensor as large.
VIEWS = RESHAPED | {torch.ops.aten.expand.default, torch.ops.aten.slice.Tensor}
#: A copy, which is of all where it looks the same.
WHOLE = torch.ops.aten.slice_backward.default
#: Operations that are methods of tensors, which take the same arguments, and what they are called there.
METHODS: dict[str, str] = {name: name for name in ("view", "expand", "masked_fill")} | {
    f"{name}_": f"{name}_" for name in ("add", "sub", "mul", "div", "neg", "exp", "log", "fill", "clamp_min", "copy")
}
#: Told apart only where a graph is differentiated.
METHODS["_unsafe_view"] = "view"
#: Views that ask for the strides that were traced.
STRIDED = frozenset((VIEW, UNSAFE))


@dataclass
class Step:
    """A function of flat leaves, its graph if it was traced, and the structure of its result."""

    run: Any  # the function, or the graph
    spec: Callable[[], Any]  # the structure of the result, once it has been run or traced
    # the graph with the operations that make its constants, see `unfolded_graph`; None if there is none
    graph: torch.fx.Graph | None = None
    root: torch.nn.Module = field(default_factory=torch.nn.Module)  # has the constants that the graph takes besides
    # Inductor's code for the graph, by the number of threads that it was made for
    inductor: dict[int, Callable[..., Any]] = field(default_factory=dict)

    @property
    def num_nodes(self) -> int:
        """Number of operations in the whole graph; zero without a graph."""
        return 0 if self.graph is None else len(self.graph.nodes)

    def unfolded_graph(self) -> torch.fx.GraphModule:
        """A copy of the graph before constants were computed: Inductor has its own ways with them."""
        return torch.fx.GraphModule(self.root, deepcopy(cast_checked(self.graph, torch.fx.Graph)))


@contextmanager
def resizing_quietly() -> Iterator[None]:
    """A context without torch's warning that it resizes some second derivatives (of softplus), rightly, when mapped."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "An output with one or more elements was resized", UserWarning)
        yield


def eager(batched: Callable[..., Any], spec: Any) -> Step:
    """The function of pytrees as one of their leaves, whose structure is `spec`."""
    found: dict[str, Any] = {}

    def flat(*flat_args: Tensor) -> list[Tensor]:
        with resizing_quietly():
            out = batched(*pytree.tree_unflatten(list(flat_args), spec))
        out_leaves, found["spec"] = pytree.tree_flatten(out)
        return [leaf.contiguous() for leaf in out_leaves]

    return Step(flat, lambda: found["spec"])


def to_graph(function: Callable[..., Any], leaves: Sequence[Tensor]) -> torch.fx.GraphModule:
    """The operations of a function of flat leaves like these, as a module that can be run."""
    recorder = record(function, leaves)
    return torch.fx.GraphModule(recorder.root, recorder.graph)


def trace(batched: Callable[..., Any], spec: Any, leaves: list[Tensor], exact: bool = False) -> Step:
    """A step as a graph, for leaves with the shapes and strides of `leaves`; `exact` keeps numbers to the last bit."""
    step = eager(batched, spec)
    recorder = record(step.run, [copy_strided(leaf) for leaf in leaves])  # inputs are told apart by identity
    graph = recorder.graph
    pin_dtypes(graph)
    straighten(graph)
    tick()
    spread_products(graph)
    share_subexpressions(graph)  # distances that two kernels need, say, are computed once
    tick()
    simplify(graph, _written_over(graph), exact)
    tick()
    drop_dead(graph)
    run = fold_constants(recorder)
    tick()
    call_bindings(run)
    release(recorder.root, graph, run)
    return Step(torch.fx.GraphModule(recorder.root, run), step.spec, graph, recorder.root)


def release(root: torch.nn.Module, *graphs: torch.fx.Graph) -> None:
    """Forget the constants of `root` that no graph takes: rows that a model looked up, say, as large as all data."""
    needed = {str(node.target) for graph in graphs for node in graph.nodes if node.op == "get_attr"}
    held = [name for name, value in vars(root).items() if isinstance(value, Tensor)]
    for name in {*held, *dict(root.named_parameters())} - needed:
        delattr(root, name)


def copy_strided(leaf: Tensor, change: Callable[[Tensor], Tensor] = torch.clone) -> Tensor:
    """A copy of the same strides, by `change` of the numbers in memory; rows of data, beyond memory, are not copied."""
    if not leaf.numel():
        return leaf.clone()
    if not fits_in_memory(leaf.numel()) and leaf.is_contiguous() and leaf.storage_offset() == 0:
        return leaf.detach()
    extent = 1 + sum((size - 1) * stride for size, stride in zip(leaf.shape, leaf.stride(), strict=True))
    return change(leaf.as_strided((extent,), (1,))).as_strided(leaf.shape, leaf.stride(), 0)


def straighten(graph: torch.fx.Graph) -> None:
    """Leave out views that change nothing, and views of views, in place: mapping and differentiating leave many."""
    written = _written_over(graph)
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if node.target is VIEW and _is_view(node.args[0]):
            node.args = (node.args[0].args[0], *node.args[1:])
        if node.target in VIEWS or (node.target is WHOLE and written.isdisjoint((node, node.args[0]))):
            same = _viewed_node(node)
            if same is not None:
                node.replace_all_uses_with(same)


def _viewed_node(view: torch.fx.Node) -> torch.fx.Node | None:
    """The source of a view, also by way of others, that it shows unchanged; None if there is none."""
    shown, inner = looks(view), view.args[0]
    while shown is not None and isinstance(inner, torch.fx.Node):
        if looks(inner) == shown:
            return inner
        if view.target not in RESHAPED or inner.op != "call_function" or inner.target not in RESHAPED:
            return None
        inner = inner.args[0]
    return None


def _is_view(node: Any) -> bool:
    return isinstance(node, torch.fx.Node) and node.op == "call_function" and node.target is VIEW


def share_subexpressions(graph: torch.fx.Graph) -> None:
    """Compute common subexpressions once, unless one is written over, in place; torch has this behind a slow import."""
    written = _written_over(graph)
    found: dict[Any, torch.fx.Node] = {}
    for node in [node for node in graph.nodes if node.op == "call_function"]:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            continue
        if node in written or not written.isdisjoint(node.all_input_nodes):
            continue
        key = (node.target, _key(node.args), _key(node.kwargs))
        if key in found:
            node.replace_all_uses_with(found[key])
            graph.erase_node(node)
        else:
            found[key] = node


def _key(given: Any) -> Any:
    """An operation's arguments as a value that is equal if they are: nodes are themselves."""
    if isinstance(given, torch.fx.Node):
        return given
    if isinstance(given, list | tuple):
        return (type(given), *map(_key, given))
    if isinstance(given, dict):
        return (dict, *((name, _key(value)) for name, value in given.items()))
    return type(given), str(given)


def _written_over(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Nodes whose memory some operation writes over: the node, the source of its view, and all other views of that."""
    root, writes = _memory(graph)
    roots = {root(node) for targets in writes.values() for node in targets}
    return {node for node in graph.nodes if root(node) in roots}


def _memory(
    graph: torch.fx.Graph,
) -> tuple[Callable[[torch.fx.Node], torch.fx.Node], dict[torch.fx.Node, list[torch.fx.Node]]]:
    """The nodes that show the same memory, by one representative; and the memory that each operation writes over."""
    owner: dict[torch.fx.Node, torch.fx.Node] = {}

    def root(node: torch.fx.Node) -> torch.fx.Node:
        while (above := owner.get(node, node)) is not node:
            node = above
        return node

    writes: dict[torch.fx.Node, list[torch.fx.Node]] = {}
    for node in graph.nodes:
        if not hasattr(node.target, "_schema"):
            shared = node.all_input_nodes if node.op == "call_function" else []  # a part of what an operation returns
        else:
            aliases, returned = _aliases(node.target)
            held = [(one, is_write) for place, name, is_write in aliases for one in _argument_nodes(node, place, name)]
            if written := [one for one, is_write in held if is_write]:
                writes[node] = written
            shared = [one for one, _ in held] if returned else []
            if node.target is UNSAFE:
                shared = node.all_input_nodes
        for one in shared:
            owner[root(node)] = root(one)
    return root, writes


def drop_dead(graph: torch.fx.Graph) -> None:
    """Leave out dead operations, in place, also writes into memory that nobody reads, which torch keeps."""
    # The density of a half-Cauchy prior, say, writes into a tensor of its own, which would keep the whole prior.
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
    """The recorder's graph with constants, a third of a small step, in place of the operations that make them."""
    graph, root = recorder.graph, recorder.root
    of, writes = _memory(graph)
    [output] = [node for node in graph.nodes if node.op == "output"]
    busy = {of(node) for nodes in (*writes.values(), output.all_input_nodes) for node in nodes}
    values = _values(recorder, {node for node in graph.nodes if node in recorder.known and of(node) not in busy})
    found, env = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    for node in graph.nodes:
        if node in values and any(user not in values for user in node.users) and _is_light(values[node]):
            name = f"_folded_{node.name}"
            setattr(root, name, values[node])
            env[node] = found.get_attr(name)
        elif changes_nothing(node, values) and not {of(one) for one in (node, *node.all_input_nodes)} & busy:
            env[node] = env[node.all_input_nodes[0]]
        else:
            env[node] = found.node_copy(node, lambda one: env[one])
    drop_dead(found)
    return found


def _values(recorder: Recorder, constant: set[torch.fx.Node]) -> dict[torch.fx.Node, Tensor]:
    """The values of nodes that depend on no input, and of those before them."""
    values: dict[torch.fx.Node, Tensor] = {}

    def value_of(node: torch.fx.Node) -> Tensor:
        if node.op == "get_attr":
            constant: Tensor = getattr(recorder.root, str(node.target))
            return constant
        if node in values:
            return values[node]
        shape, strides, dtype = looks(node)  # of which `LIKE` takes no more
        return torch.empty_strided(shape, strides, dtype=dtype, device=recorder.known[user])

    for user in recorder.graph.nodes:
        if user in constant and (user.target in LIKE or all(_has(one, values) for one in user.all_input_nodes)):
            values[user] = user.target(*map_arg(user.args, value_of), **map_arg(user.kwargs, value_of))
    return values


def _has(node: torch.fx.Node, values: Mapping[torch.fx.Node, Tensor]) -> bool:
    return node.op == "get_attr" or node in values


def _is_light(value: Tensor) -> bool:
    """Whether a constant may be kept."""
    return value.untyped_storage().nbytes() <= CACHE_NUMBERS * value.itemsize


@lru_cache(maxsize=1024)
def _aliases(target: Any) -> tuple[tuple[tuple[int, str, bool], ...], bool]:
    """An operation's arguments whose memory it shows (place, name, written), and whether it returns some."""
    schema = target._schema
    arguments = [(place, one.name, one.alias_info) for place, one in enumerate(schema.arguments)]
    shown = tuple((place, name, bool(alias.is_write)) for place, name, alias in arguments if alias)
    return shown, any(part.alias_info for part in schema.returns)


def _argument_nodes(node: torch.fx.Node, place: int, name: str) -> list[torch.fx.Node]:
    """The nodes that an operation takes as one of its arguments."""
    given = node.args[place] if place < len(node.args) else node.kwargs.get(name)
    return [one for one in (given if isinstance(given, list | tuple) else [given]) if isinstance(one, torch.fx.Node)]


def call_bindings(graph: torch.fx.Graph) -> None:
    """Call `torch.add` in place of `torch.ops.aten.add.Tensor`, in place: the same kernels in half the time or less."""
    for node in graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        name = node.target._schema.name.removeprefix("aten::")
        if name in FUNCTIONS:
            node.target = getattr(torch, name)
        elif name in METHODS and not node.kwargs:
            node.op, node.target = "call_method", METHODS[name]


def free_strides(graph: torch.fx.Graph) -> None:
    """Let a graph take tensors of other strides than traced, in place: reshapes where nothing is written over."""
    written = _written_over(graph)
    for node in graph.nodes:
        if node.op == "call_function" and node.target in STRIDED and node not in written:
            node.target = torch.ops.aten.reshape.default


def pin_dtypes(graph: torch.fx.Graph) -> None:
    """Give `torch.ones(3)` and similar calls the dtype of tracing, not the default when they run."""
    for node in graph.nodes:
        if node.op != "call_function" or node.all_input_nodes or "dtype" in node.kwargs:
            continue
        takes = {argument.name for argument in node.target._schema.arguments}
        if "dtype" in takes and "tensor_meta" in node.meta:
            node.kwargs = {**node.kwargs, "dtype": node.meta["tensor_meta"].dtype}
