"""The flattened arguments of a model: leaves that are split by rows, and leaves that clients share."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._C import DisableTorchFunction
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from pyro_fed.density.checks.points import ROWS_TOGETHER
from pyro_fed.density.rows.containers import Orders, Table, as_tree, in_order, is_column, orders_of
from pyro_fed.density.rows.files import Place, blocks, is_mapped, mapped, picked, place_of, written
from pyro_fed.density.rows.labelled import Labels, labelled
from pyro_fed.density.rows.leaves import LabelsByName, read_leaf
from pyro_fed.errors import DataError
from pyro_fed.ops.entries import all_finite
from pyro_fed.ops.memory import fits_in_memory

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Arguments:
    """A model's `(*args, **kwargs)`, flattened; subclasses have rows of several plates."""

    leaves: tuple[Any, ...]  # arrays are tensors
    names: tuple[str, ...]  # name of each leaf, such as `x` or `x['age']`
    spec: Any  # structure of the arguments, from which the leaves are put together
    sharded: tuple[int, ...] = ()  # positions in `leaves` of the leaves that are split by rows
    labels: LabelsByName = field(default_factory=dict)  # labels of text and categories
    masked: tuple[str, ...] = ()  # names of the arguments that were masked arrays
    #: The axis of rows in the model, by position in `leaves`, which have rows on the first axis.
    axes: Mapping[int, int] = field(default_factory=dict)

    @property
    def rows(self) -> tuple[Tensor, ...]:
        """The row-sharded leaves, each (rows, ...)."""
        return tuple(self.leaves[i] for i in self.sharded)

    @property
    def row_names(self) -> tuple[str, ...]:
        """Names of the row-sharded leaves."""
        return tuple(self.names[i] for i in self.sharded)

    @property
    def num_rows(self) -> int | None:
        """Number of rows of the sharded leaves; None if no leaf is sharded."""
        return len(self.rows[0]) if self.sharded else None

    def edge_of(self, chosen: Tensor, numbers: Tensor | None = None) -> str:
        """A clause on an argument that is zero, negative or not finite in exactly the `chosen` rows (m,); or ""."""
        for name, nested, leaf in self.columns if not bool(chosen.all()) else ():
            if nested is not None or name in self.labels:
                continue
            values = (leaf if numbers is None else leaf[numbers]).reshape(len(chosen), -1)
            conditions = {
                "0": values == 0,
                "negative": values < 0,
                "infinite": values.isinf(),
                "missing": values.isnan(),
            }
            for condition, flags in conditions.items():
                if bool((flags == chosen.unsqueeze(1)).all(0).any()):
                    return f", those in which '{name}' is {condition}"
        return ""

    def other_axis_cure(self, num_rows: int) -> str:
        """The cure if a leaf has this number of rows on another axis than the first; "" if none has."""
        for i, (name, leaf) in enumerate(zip(self.names, self.leaves, strict=True)):
            if not isinstance(leaf, Tensor) or num_rows < 2 or i in self.axes:
                continue
            axes = [axis for axis, size in enumerate(leaf.shape) if size == num_rows]
            if axes and 0 not in axes:
                head = name if name.startswith("args[") else re.split(r"[.\[]", name)[0]
                return (
                    f"Argument '{name}' has shape {tuple(leaf.shape)}: where its rows are on dimension {axes[0]}, say "
                    f"shard={{'{head}': {axes[0]}}}, or transpose it. "
                )
        return ""

    @property
    def split(self) -> tuple[int, ...]:
        """Positions of all leaves that are split, by the partitioned plate or a plate nested in it."""
        return self.sharded

    @property
    def all_rows(self) -> tuple[Any, ...]:
        """All row tensors in the form for one call of the model, in the original order."""
        return self.rows

    @property
    def declared(self) -> dict[str, int] | None:
        """Sizes of the model's plates that are split together; None for a single plate."""
        return None

    @property
    def columns(self) -> list[tuple[str, str | None, Tensor]]:
        """Name, nested plate (None: the partitioned plate) and values of each argument that is split."""
        return [(name, None, leaf) for name, leaf in zip(self.row_names, self.rows, strict=True)]

    @property
    def nested_plates(self) -> tuple[str, ...]:
        """Plates whose rows follow those of the partitioned plate, see `groups`."""
        return ()

    @property
    def nested_by_name(self) -> dict[str, list[str]]:
        """Names of the arguments of each nested plate; the first holds each row's group."""
        return {}

    def members(self, rows: Sequence[Any]) -> dict[str, Any]:
        """Rows of the nested plates that belong to the present rows (row tensors (m, ...)), by plate."""
        return {}

    @property
    def lengths(self) -> tuple[int, ...]:
        """Rows of the partitioned plate and of those nested in it."""
        return (self.num_rows or 0,)

    def shifted(self, i: int, first: int) -> Tensor:
        """Leaf i for pooled arguments in which `first` rows precede its rows."""
        leaf: Tensor = self.leaves[i]
        return leaf

    def pooled(self, leaves: Sequence[Any], num_rows: int) -> Arguments:
        """These arguments with the pooled `leaves` of all clients, of `num_rows` rows."""
        return replace(self, leaves=tuple(leaves))

    def with_client_rows(self, clients: Sequence[Tensor]) -> Arguments:
        """These arguments with known row positions (N_k,) of each client."""
        return self

    def rows_of(self, plate: str | None, rows: Tensor) -> Tensor:
        """Rows of a nested plate (None: the partitioned plate) that belong to the rows at positions (m,)."""
        return rows

    def of_client(self, rows: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments `(args, kwargs)` with only the rows at positions (m,)."""
        return self.rebuild([leaf[rows] for leaf in self.rows])

    def alone(self, rows: Tensor) -> Arguments:
        """These arguments with only the rows at positions (m,), in order; with one row of ones if there are none."""
        leaves = list(self.leaves)
        for i in self.sharded:
            leaves[i] = _take_rows(leaves[i], rows) if len(rows) else torch.ones_like(leaves[i][:1])
        return replace(self, leaves=tuple(leaves))

    def __getstate__(self) -> dict[str, Any]:
        """The pickled state: places in files in place of mapped leaves."""
        leaves = tuple((place_of(leaf) or leaf.clone()) if is_mapped(leaf) else leaf for leaf in self.leaves)
        return {**self.__dict__, "leaves": leaves}

    def __setstate__(self, state: dict[str, Any]) -> None:
        leaves = tuple(mapped(leaf) if isinstance(leaf, Place) else leaf for leaf in state["leaves"])
        self.__dict__.update(state, leaves=leaves)

    def call_arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The pooled arguments `(args, kwargs)`."""
        return self.put_together(list(self.leaves))

    def put_together(self, leaves: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments `(args, kwargs)` from leaves with rows first, with rows on the model's own axes."""
        for i, axis in self.axes.items():
            leaves[i] = leaves[i].movedim(0, axis)
        owners = {owner for owner, *_ in self.nested_by_name.values()}
        for i, name in enumerate(self.names):
            if name in self.labels and isinstance(leaves[i], Tensor):
                # A client numbers its own groups: the argument with each row's group has no labels.
                leaves[i] = labelled(leaves[i], Labels() if name in owners else self.labels[name], name)
        args, kwargs = pytree.tree_unflatten(leaves[: self.spec.num_leaves], self.spec)
        return args, kwargs

    def rows_first(self, axes: Mapping[int, int]) -> Arguments:
        """These arguments with rows on the first axis; `axes` maps a position in `leaves` to the axis of its rows."""
        leaves = list(self.leaves)
        for i, axis in axes.items():
            leaves[i] = leaves[i].movedim(axis, 0)
        return replace(self, leaves=tuple(leaves), axes={**self.axes, **axes})

    @cached_property
    def incomplete(self) -> bool:
        """Whether the arguments contain a NaN or an infinity."""
        # The call may be inside a run of a model or a trace, which must not record these operations.
        with _disable_current_modes(), DisableTorchFunction():
            return any(
                leaf.is_floating_point() and not all(map(all_finite, blocks(leaf)))
                for leaf in self.leaves
                if isinstance(leaf, Tensor)
            )

    @property
    def has_many_rows(self) -> bool:
        """Whether one plate has so many rows that checks use a sample."""
        numbers = sum(leaf.numel() for leaf in self.rows) if type(self) is Arguments else 0
        return exceed_memory(numbers, self.num_rows or 0)

    def rebuild(self, rows: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with other row tensors (m, ...) in place of the sharded leaves."""
        leaves = list(self.leaves)
        for i, leaf in zip(self.sharded, rows, strict=True):
            leaves[i] = leaf
        return self.put_together(leaves)

    def to(self, dtype: torch.dtype, rows: bool = True) -> Arguments:
        """These arguments with floating tensors in `dtype`; without `rows` only those that are not split by rows."""
        unchanged = () if rows else self.split
        casts = tuple(leaf if i in unchanged else _cast(leaf, dtype) for i, leaf in enumerate(self.leaves))
        same = all(one is other for one, other in zip(casts, self.leaves, strict=True))
        return self if same else replace(self, leaves=casts)

    def copy_as(self, dtype: torch.dtype) -> Arguments:
        """Copies of these arguments, with floating tensors in `dtype`; mapped files are not copied."""
        copies = (_cast(leaf, dtype, copy=True) for leaf in self.leaves)
        return replace(self, leaves=tuple(copies))

    def on(self, device: torch.device) -> Arguments:
        """These arguments with every tensor on a device."""
        leaves_on_device = (leaf.to(device) if isinstance(leaf, Tensor) else leaf for leaf in self.leaves)
        return replace(self, leaves=tuple(leaves_on_device))

    def with_leaves_of(self, other: Arguments, dtype: torch.dtype) -> Arguments:
        """These arguments with the values of others, in `dtype`; DataError if anything except the values differs."""
        self.check_structure(other)
        other = other.rows_first(self.axes)
        more = len(other.leaves)  # additional leaves of the federation follow the model's
        other = replace(other, leaves=(*other.leaves, *self.leaves[more:]), names=self.names)
        group_leaves = {part for part in self.split if part not in self.values}
        for i, (name, mine, theirs) in enumerate(zip(self.names, self.leaves, other.leaves, strict=True)):
            _check_like(name, mine, theirs, dtype)
            if i in group_leaves and not torch.equal(mine, theirs):
                raise DataError(
                    f"argument '{name}' holds each row's group, which must not change. Make a new "
                    "Federation for other groups"
                )
        return replace(self, leaves=other.copy_as(dtype).leaves)

    def orders(self, model: Callable[..., Any], kinds: tuple[type, ...] = (Table, dict)) -> dict[str, tuple[Any, ...]]:
        """Columns of tables and keys of dictionaries (`kinds`), by the argument's name."""
        args, kwargs = pytree.tree_unflatten([None] * self.spec.num_leaves, self.spec)
        return orders_of(args, kwargs, parameter_names(model, len(args)), kinds)

    def check_structure(self, other: Arguments) -> None:
        """Refuse arguments of another structure; the DataError names what was expected and received."""
        if other.spec == self.spec:
            return
        more = self.spec.num_leaves  # additional leaves of the federation follow the model's
        expected, received = list(self.names[:more]), list(other.names)
        if expected == received:
            raise DataError(
                f"the arguments {expected} have another structure than before, such as a data frame without one of "
                "its columns, or of one dtype in place of several, or a tuple in place of a list: pass them as before"
            )
        raise DataError(f"expected the arguments {expected}, received {received}")

    @property
    def values(self) -> tuple[int, ...]:
        """Positions of the leaves that are split and hold data, without those with each row's group."""
        return self.split

    def shares_with(self, other: Arguments) -> bool:
        """Whether leaves that all clients share are equal in other arguments of the same structure and shapes."""
        pairs = list(zip(self.leaves, other.leaves, strict=True))
        return all(
            i in self.split or not isinstance(mine, Tensor) or torch.equal(mine, theirs)
            for i, (mine, theirs) in enumerate(pairs)
        )

    def floating_dtype(self) -> torch.dtype:
        """The widest floating dtype of the tensors; the default dtype if there are none."""
        dtypes = [leaf.dtype for leaf in self.leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]
        if not dtypes:
            return torch.get_default_dtype()
        widest = dtypes[0]
        for dtype in dtypes[1:]:
            widest = torch.promote_types(widest, dtype)
        if len(set(dtypes)) > 1:
            logger.info("arguments of dtypes %s are promoted to %s", sorted(map(str, set(dtypes))), widest)
        return widest


def flatten(
    model: Callable[..., Any],
    args: Any,
    kwargs: Mapping[str, Any] | None,
    labels: LabelsByName | None = None,
    orders: Orders | None = None,
) -> Arguments:
    """Flatten a model's arguments; NumPy arrays, pandas and xarray objects, and lists of numbers become tensors.

    `labels` and `orders`, of columns and keys, are known from earlier arguments. DataError if the model cannot be
    called with the arguments, or if they hold values other than numbers, booleans and labels.
    """
    args, kwargs = positional(model, args, kwargs), dict(kwargs or {})
    _check_call(model, args, kwargs)
    heads = parameter_names(model, len(args))
    tree = as_tree((args, kwargs))
    leaves_with_paths, spec = pytree.tree_flatten_with_path(in_order(tree, heads, orders) if orders else tree)
    names = tuple(_leaf_name(path, heads) for path, _ in leaves_with_paths)
    read_leaves = [
        read_leaf(leaf, name, labels or {}) for name, (_, leaf) in zip(names, leaves_with_paths, strict=True)
    ]
    return Arguments(
        tuple(leaf.value for leaf in read_leaves),
        names,
        spec,
        labels={name: leaf.labels for name, leaf in zip(names, read_leaves, strict=True) if leaf.labels is not None},
        masked=tuple(name for name, leaf in zip(names, read_leaves, strict=True) if leaf.masked),
    )


def positional(model: Callable[..., Any], args: Any, kwargs: Mapping[str, Any] | None) -> tuple[Any, ...]:
    """The positional arguments as a tuple; `args` is a tuple, a list, or the only argument.

    A list is several arguments, `[x, y]`, if the model cannot take it as one argument; DataError if both are possible.
    """
    if isinstance(args, tuple) and not hasattr(args, "_fields"):
        return args
    if not isinstance(args, list) or is_column(args):
        return (args,)
    binds_as_one, binds_as_several = _binds(model, (args,), kwargs), _binds(model, tuple(args), kwargs)
    if binds_as_one and binds_as_several and len(args) > 1 and all(np.ndim(part) for part in args):
        raise DataError(
            f"args is a list of {len(args)} arrays, which the model, {_signature(model)}, can take as one argument "
            f"or as {len(args)}: pass a tuple, such as (x, y), or ([x, y],)"
        )
    return tuple(args) if binds_as_several and not binds_as_one else (args,)


def _binds(model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> bool:
    try:
        _signature(model).bind(*args, **(kwargs or {}))
    except TypeError:
        return False
    return True


def rows_like(
    arguments: Arguments, model: Callable[..., Any], args: Any, kwargs: Mapping[str, Any] | None
) -> tuple[Tensor, ...]:
    """The row-sharded leaves (m, ...) of other arguments of the same model, such as test data.

    The federation's values replace missing keyword arguments without rows, such as those in `functools.partial`. A
    DataError names a different structure or row shape.
    """
    positional_args = positional(model, args, kwargs)
    kwargs = with_held(arguments, model, positional_args, kwargs)
    other = flatten(model, positional_args, kwargs, arguments.labels, arguments.orders(model)).to(
        arguments.floating_dtype()
    )
    arguments.check_structure(other)
    if not arguments.sharded:
        raise DataError("the model takes no row-sharded argument: it cannot be run on other rows")
    other = other.rows_first(arguments.axes)
    rows = tuple(other.leaves[i] for i in arguments.sharded)
    for name, mine, theirs in zip(arguments.row_names, arguments.rows, rows, strict=True):
        if mine.shape[1:] != theirs.shape[1:]:
            raise DataError(
                f"argument '{name}' has rows of shape {tuple(theirs.shape[1:])}, expected {tuple(mine.shape[1:])}"
            )
    return rows


def with_held(
    arguments: Arguments, model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    """Keyword arguments for other data: the given ones, and missing ones without rows from the federation."""
    all_kwargs = {**_without_rows(arguments, getattr(model, "separable", ())), **(kwargs or {})}
    return all_kwargs if _binds(model, args, all_kwargs) else kwargs


def _without_rows(arguments: Arguments, separable: Collection[str]) -> dict[str, Any]:
    """Keyword arguments without rows; for `separable` mappings, the entries without rows."""
    _, kwargs = arguments.call_arguments()
    split_names = {re.split(r"[\[.]", name)[0] for name in arguments.row_names}
    without_rows = {name: value for name, value in kwargs.items() if name not in split_names}
    for name in split_names & kwargs.keys() & set(separable):
        entries = {f"{name}[{key!r}]": (key, value) for key, value in kwargs[name].items()}
        without_rows[name] = dict(entry for leaf, entry in entries.items() if leaf not in arguments.row_names)
    return without_rows


def _check_like(name: str, mine: Any, theirs: Any, dtype: torch.dtype) -> None:
    """Refuse a leaf of another kind than `mine` at the same position; floats of `mine` have the dtype `dtype`."""
    if not isinstance(mine, Tensor) or not isinstance(theirs, Tensor):
        if type(mine) is not type(theirs) or mine != theirs:
            raise DataError(
                f"argument '{name}' was {mine!r} and is {theirs!r}: only arrays may have new values. Make a new "
                "Federation"
            )
        return
    if mine.shape != theirs.shape:
        raise DataError(
            f"argument '{name}' has shape {tuple(theirs.shape)}, expected {tuple(mine.shape)}. Make a new Federation "
            "for data of other shapes"
        )
    if not mine.is_floating_point():
        compatible = mine.dtype == theirs.dtype
    else:
        compatible = theirs.is_floating_point() and torch.promote_types(theirs.dtype, dtype) == dtype
    if not compatible:
        raise DataError(
            f"argument '{name}' is {theirs.dtype}, expected {mine.dtype}: convert it, or make a new Federation"
        )


def _check_call(model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    signature = _signature(model)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        only_argument = args[0] if len(args) == 1 else None
        by_name = isinstance(only_argument, Mapping) and set(only_argument) <= set(signature.parameters)
        cure = (
            "these as kwargs={...}, or a client's own arguments in from_clients by position, as a tuple"
            if by_name
            else _keyword_cure(signature, len(args), kwargs)
        )
        count = "one argument" if len(args) == 1 else f"{len(args)} arguments"
        names_clause = f" and {', '.join(sorted(kwargs))} by name" if kwargs else ""
        raise DataError(
            f"the model takes {signature}, but received {count} by position{names_clause}: {error}. Pass {cure}"
        ) from error


def _keyword_cure(signature: inspect.Signature, given: int, kwargs: dict[str, Any]) -> str:
    """The cure for arguments by position: pass them as a tuple, or by name if the model requires names."""
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    num_positional = sum(
        kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD) for kind in kinds
    )
    required_names = [
        p.name
        for p in signature.parameters.values()
        if p.kind is inspect.Parameter.KEYWORD_ONLY and p.default is p.empty and p.name not in kwargs
    ]
    if not required_names or given < num_positional:
        return f"all of its arguments as a tuple, in this order: {signature}"
    pairs, name_list = ", ".join(f"'{name}': ..." for name in required_names), ", ".join(required_names)
    calls = ", ".join(f"{name}={name}" for name in required_names)
    return (
        f"{required_names} by name, as the model requires: kwargs={{{pairs}}}. If each client has its own, as "
        f"in from_clients, use a model that takes them by position: def by_place({name_list}): return model({calls})"
    )


def _signature(model: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(model.forward if isinstance(model, torch.nn.Module) else model)


def parameter_names(model: Callable[..., Any], count: int) -> list[str]:
    """The model's names of its first `count` positional arguments."""
    names = [
        p.name for p in _signature(model).parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    return names[:count] + [f"args[{i}]" for i in range(len(names), count)]


def _leaf_name(path: Any, labels: list[str]) -> str:
    in_kwargs, key, *rest = path
    head = str(key.key) if in_kwargs.idx == 1 else labels[key.idx]
    return head + "".join(pytree.keystr((entry,)) for entry in rest)


def _cast(leaf: Any, dtype: torch.dtype, *, copy: bool = False) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    dtype = dtype if leaf.is_floating_point() else leaf.dtype
    if is_mapped(leaf):
        return leaf if leaf.dtype == dtype else written([leaf], dtype)
    return leaf.to(dtype, copy=copy)


def exceed_memory(numbers: int, rows: int) -> bool:
    """Whether rows with this number of numbers are too many to examine all of them where a sample suffices."""
    return not fits_in_memory(numbers) and rows > 2 * ROWS_TOGETHER


def _take_rows(leaf: Tensor, rows: Tensor) -> Tensor:
    """The rows at ascending positions (m,), m >= 1; without a copy if they are contiguous in a mapped file."""
    first = int(rows[0])
    contiguous = is_mapped(leaf) and int(rows[-1]) == first + len(rows) - 1
    return leaf[first : first + len(rows)] if contiguous else picked(leaf, rows)
