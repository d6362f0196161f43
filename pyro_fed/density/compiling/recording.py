"""Recording of the operations of a running function: a graph of torch's own operations, below `vmap` and `grad`.

This replaces `make_fx` for existing tensors and fixed shapes, in a fifth of the time, without symbols and fake tensors.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.fx.passes.shape_prop import TensorMetadata
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from pyro_fed.conventions.resources import tick

aten = torch.ops.aten

#: Prefixes of the names of constants, before their number.
TENSOR, PARAMETER = "_tensor_constant", "_param_constant"
#: Operations that use only the shape, dtype and device of their tensors.
LIKE = frozenset(
    (
        *(aten.zeros_like.default, aten.ones_like.default, aten.full_like.default),
        *(aten.new_zeros.default, aten.new_ones.default, aten.new_full.default),
    )
)
#: Classes of tensors whose operations are recorded directly; other classes override them.
PLAIN = (Tensor, torch.nn.Parameter)


class _Value(NamedTuple):
    """A tensor's node, and its value if it does not depend on an input: `torch.tensor(2.0)`."""

    node: fx.Node
    constant: Tensor | None = None


class Recorder(TorchDispatchMode):
    """Runs operations, and adds them to a graph, whose nodes describe their values in `meta["tensor_meta"]`.

    A tensor that no recorded operation has made becomes a constant of the graph, in `root`. `known` nodes do not depend
    on an input, unless an operation overwrites them.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of torch
        self.graph, self.root = fx.Graph(), torch.nn.Module()
        self.known: dict[fx.Node, torch.device] = {}
        self._values: Any = WeakIdKeyDictionary()
        self._constants = dict.fromkeys((TENSOR, PARAMETER), 0)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: Dynamo is never active here, and operations are faster without this check."""
        return False

    def input(self, number: int, leaf: Tensor) -> None:
        """Record a tensor as an input of the graph, by its number."""
        self._note(leaf, self.graph.placeholder(f"arg{number}_1"), None)

    def node_of(self, tensor: Tensor) -> fx.Node:
        """The node of a recorded tensor or of a constant."""
        return self._value_of(tensor).node

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        tick()
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default:
            return func(*args, **kwargs)
        tensors = list(_tensors((args, kwargs)))
        if not all(type(tensor) in PLAIN or tensor in self._values for tensor in tensors):
            return NotImplemented
        operation = _OPERATIONS.get(func) or _look_up(func)
        if operation.composite and not _has_kernel(func, tensors):
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if func is aten.is_nonzero.default:
            with self:
                return (args[0] != 0).item()
        if func is aten.log_sigmoid_backward.default and args[0].shape != args[1].shape:
            with self:  # torch allocates the result in the shape of the first argument, and warns if it is too small
                args = (args[0].expand(torch.broadcast_shapes(args[0].shape, args[1].shape)), *args[1:])
            tensors = list(_tensors((args, kwargs)))
        values = [self._value_of(tensor) for tensor in tensors]
        constants = [value.constant for value in values]
        all_constant = bool(constants) and all(one is not None for one in constants)
        if operation.reads:
            if not all_constant:
                raise RuntimeError(
                    f"the value of a tensor is read while the step is traced ({func}): an `if` or `float(...)` "
                    "of a value that depends on its inputs cannot be part of a graph"
                )
            args, kwargs = _replace_tensors(constants, args, kwargs)
            return func(*args, **kwargs)
        if func is aten.lift_fresh.default:  # later operations may write into the result, not into the constant
            func = aten.lift_fresh_copy.default
            operation = _OPERATIONS.get(func) or _look_up(func)
        node = self.graph.create_node("call_function", func, name=operation.name)
        # Set afterwards: `create_node` looks through its arguments for symbolic numbers, half of its time.
        node.args, node.kwargs = _replace_tensors([value.node for value in values], args, kwargs)
        result = func(*args, **kwargs)
        if isinstance(result, Tensor) and self._is_known(operation, func, values):
            self.known[node] = result.device  # not the tensor: autograd adds into tensors without another reference
        constant = None
        if func is aten.lift_fresh_copy.default:
            constant = args[0].clone() if result.numel() <= 1 else None
        elif all_constant and not operation.random and all(tensor.numel() <= 1 for tensor in _tensors(result)):
            args, kwargs = _replace_tensors(constants, args, kwargs)
            constant = func(*args, **kwargs)
        self._note(result, node, constant)
        return result

    def _is_known(self, operation: _Operation, func: Any, inputs: Sequence[_Value]) -> bool:
        """Whether the result of an operation does not depend on inputs or random numbers."""
        if operation.random or operation.writes:
            return False
        return func in LIKE or all(one.node.op == "get_attr" or one.node in self.known for one in inputs)

    def _note(self, made: Any, node: fx.Node, constant: Any) -> None:
        if isinstance(made, Tensor):
            stride = made.stride() if made.layout is torch.strided else ()
            node.meta["tensor_meta"] = TensorMetadata(made.shape, made.dtype, False, stride, None, False, {})
            self._values[made] = _Value(node, constant)
        elif isinstance(made, (tuple, list)):
            for number, part in enumerate(made):
                one = self.graph.call_function(operator.getitem, (node, number))
                self._note(part, one, None if constant is None else constant[number])

    def _value_of(self, tensor: Tensor) -> _Value:
        value: _Value | None = self._values.get(tensor)
        if value is None:
            kind = PARAMETER if isinstance(tensor, torch.nn.Parameter) else TENSOR
            name = f"{kind}{self._constants[kind]}"
            self._constants[kind] += 1
            setattr(self.root, name, tensor)
            value = _Value(self.graph.create_node("get_attr", name))
            self._values[tensor] = value
        return value


def record(function: Callable[..., Any], leaves: Sequence[Tensor]) -> Recorder:
    """The operations of a function of flat leaves, in order; all leaves must be different objects."""
    recorder = Recorder()
    for number, leaf in enumerate(leaves):
        recorder.input(number, leaf)
    with recorder:
        made = function(*leaves)
    recorder.graph.output(_map_tensors(made, recorder.node_of))
    return recorder


def operation_of(node: fx.Node) -> str:
    """The name of a node's operation, such as "add"; "" for inputs and outputs of a graph."""
    schema = getattr(node.target, "_schema", None)
    return str(getattr(node.target, "__name__", "") if schema is None else schema.name).removeprefix("aten::")


def shape_of(node: Any) -> torch.Size:
    """The shape of a node's value; () if it is not a tensor."""
    return node.meta["tensor_meta"].shape if "tensor_meta" in node.meta else torch.Size()


def dependent_nodes(
    nodes: Iterable[fx.Node], sources: Iterable[fx.Node], besides: Collection[Any] = ()
) -> set[fx.Node]:
    """The source nodes and the nodes that depend on them, except by the operations `besides`."""
    dependent = set(sources)
    for node in nodes:
        if node.target not in besides and not dependent.isdisjoint(node.all_input_nodes):
            dependent.add(node)
    return dependent


def _tensors(args: Any) -> Iterator[Tensor]:
    """All tensors among the arguments of an operation, in order."""
    if isinstance(args, Tensor):
        yield args
    elif isinstance(args, (tuple, list)):
        for one in args:
            yield from _tensors(one)
    elif isinstance(args, dict):
        for one in args.values():
            yield from _tensors(one)


def _replace_tensors(
    parts: Iterable[Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of an operation with its tensors replaced by `parts`, in order."""
    rest = iter(parts)
    return _map_tensors(tuple(args), lambda _: next(rest)), _map_tensors(dict(kwargs), lambda _: next(rest))


def _map_tensors(args: Any, to: Callable[[Tensor], Any]) -> Any:
    """The arguments of an operation with each tensor replaced."""
    if isinstance(args, Tensor):
        return to(args)
    if isinstance(args, (tuple, list)):
        return type(args)([_map_tensors(one, to) for one in args])
    if isinstance(args, dict):
        return {name: _map_tensors(one, to) for name, one in args.items()}
    return args


class _Operation(NamedTuple):
    """What the recorder asks of each of torch's operations, whose answers never change."""

    name: str  # of its nodes, before their number
    composite: bool  # composed of others
    reads: bool  # returns the value of a tensor to Python
    random: bool
    writes: bool  # into its arguments


_OPERATIONS: dict[OpOverload, _Operation] = {}


def _look_up(func: Any) -> _Operation:
    found = _OPERATIONS[func] = _Operation(
        fx.Graph()._target_to_str(func.overloadpacket.__name__),
        isinstance(func, OpOverload) and func._can_decompose(),
        torch.Tag.data_dependent_output in func.tags,
        torch.Tag.nondeterministic_seeded in func.tags,
        func._schema.is_mutable,
    )
    return found


def _has_kernel(func: Any, tensors: list[Tensor]) -> bool:
    """Whether a composite operation has its own kernel on its tensors' device, as autograd would record it."""
    if not tensors:
        return False
    key = torch._C._parse_dispatch_key(torch._C._dispatch_key_for_device(tensors[0].device.type))
    return key is not None and torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)
