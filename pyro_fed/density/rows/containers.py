"""Containers of columns, as trees of arrays: tables, dataclasses, namespaces, record arrays, data sets.

Tuples, lists, dictionaries and named tuples are trees already. Other containers become nodes of the tree, which are
rebuilt around other leaves: an object of the same class, or, if the class cannot hold tensors (pandas, xarray, record
arrays), a table or a set of fields with the same interface. A table whose columns have another order is equal by name,
but different as a matrix, `df @ w`: columns and keys are put in the order of the federation's arguments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pyro_fed.errors import DataError, listed

#: Largest depth of containers that are converted to nodes.
MAX_CONTAINER_DEPTH = 4


class Table:
    """A data frame during a run, with columns by name or as a matrix; `blocks` is one matrix or a tensor per column."""

    def __init__(self, columns: Sequence[Any], blocks: Sequence[Tensor]) -> None:
        self._columns, self._blocks = list(columns), list(blocks)

    @property
    def columns(self) -> list[Any]:
        """The columns' names."""
        return self._columns

    @property
    def values(self) -> Tensor:
        """All columns as a matrix, (rows, columns)."""
        if len(self._blocks) == 1 and self._blocks[0].dim() == 2:
            return self._blocks[0]
        if any(block is None for block in self._blocks):
            raise ValueError(f"the columns {self._columns} do not form a matrix: one of them is None")
        dtypes = [block.dtype for block in self._blocks]
        widest = dtypes[0]
        for dtype in dtypes[1:]:
            widest = torch.promote_types(widest, dtype)
        return torch.stack([block.to(widest) for block in self._blocks], -1)

    def to_numpy(self, *_: Any, **__: Any) -> Tensor:
        """All columns as a matrix, as `values`."""
        return self.values

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns."""
        return len(self), len(self._columns)

    @property
    def index(self) -> range:
        """The rows' numbers."""
        return range(len(self))

    @property
    def loc(self) -> Table:
        """Itself: `table.loc[:, "x"]`."""
        return self

    def copy(self, *_: Any, **__: Any) -> Table:
        """Itself; a column cannot be assigned."""
        return self

    def drop(self, labels: Any = None, *, columns: Any = None, **_: Any) -> Table:
        """The table without the named columns (`labels` or `columns`)."""
        dropped = columns if columns is not None else labels
        dropped = [dropped] if isinstance(dropped, str) else list(dropped)
        names = [name for name in self._columns if name not in dropped]
        return Table(names, [self._column(name) for name in names])

    def keys(self) -> list[Any]:
        """The columns' names."""
        return self._columns

    def __len__(self) -> int:
        return len(next(block for block in self._blocks if block is not None))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._columns)

    def __contains__(self, name: Any) -> bool:
        return name in self._columns

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, tuple) and len(key) == 2 and key[0] == slice(None) and not isinstance(key[1], int):
            key = key[1]
        if isinstance(key, list) and all(self._has(name) for name in key):
            return Table(key, [self._column(name) for name in key])
        if isinstance(key, str) and not self._has(key):
            raise KeyError(self._missing_column_message(key))
        return self._column(key) if self._has(key) else self.values[key]

    def _missing_column_message(self, name: str) -> str:
        return (
            f"the data frame has no column '{name}': {self._held_columns}. "
            f"A column to be predicted may be None, frame.assign({name}=None)"
        )

    @property
    def _held_columns(self) -> str:
        return f"while the model runs it holds the columns {self._columns} as tensors"

    def _has(self, name: Any) -> bool:
        return isinstance(name, str | int) and name in self._columns

    def _column(self, name: Any) -> Tensor:
        at = self._columns.index(name)
        return self._blocks[0][:, at] if self._blocks[0].dim() == 2 else self._blocks[at]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_columns", "_blocks"):
            raise AttributeError(name)
        if name in self._columns:
            return self._column(name)
        if hasattr(Tensor, name):
            return getattr(self.values, name)
        if hasattr(pd.DataFrame, name):
            raise AttributeError(
                f"the data frame has no '{name}' of pandas: {self._held_columns}. Add the columns that the model needs "
                "to the frame before the federation is made"
            )
        raise AttributeError(self._missing_column_message(name))

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        matrix = pytree.tree_map(_as_matrix, (args, dict(kwargs or {})), is_leaf=_is_table)
        return func(*matrix[0], **matrix[1])


def _is_table(value: Any) -> bool:
    return isinstance(value, Table)


def _as_matrix(value: Any) -> Any:
    return value.values if _is_table(value) else value


def _operator(name: str) -> Callable[..., Any]:
    def apply(self: Table, *args: Any) -> Any:
        return getattr(self.values, name)(*map(_as_matrix, args))

    return apply


_ARITHMETIC = "add radd sub rsub mul rmul truediv rtruediv matmul rmatmul pow rpow neg gt lt ge le"
for _name in _ARITHMETIC.split():
    setattr(Table, f"__{_name}__", _operator(f"__{_name}__"))


class Fields:
    """Named arrays of a record array or an xarray data set during a run, by attribute and by key."""

    def __init__(self, names: Sequence[str], values: Sequence[Any]) -> None:
        self.__dict__.update(zip(names, values, strict=True))

    def __getitem__(self, name: str) -> Any:
        return self.__dict__[name]

    def __contains__(self, name: str) -> bool:
        return name in self.__dict__

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dict__)

    def keys(self) -> Any:
        """The fields' names."""
        return self.__dict__.keys()

    def __len__(self) -> int:
        return len(next(iter(self.__dict__.values())))


@dataclass(frozen=True)
class TableKind:
    """A data frame; `whole` if its columns, of one dtype, form one leaf."""

    columns: tuple[Any, ...]
    whole: bool

    def made(self, leaves: Sequence[Any]) -> Any:
        return Table(self.columns, leaves)

    def keys(self) -> list[Any]:
        return [_Unnamed()] if self.whole else [pytree.MappingKey(name) for name in self.columns]


@dataclass(frozen=True)
class FieldsKind:
    """Named arrays of a class that cannot hold tensors."""

    names: tuple[str, ...]

    def made(self, leaves: Sequence[Any]) -> Any:
        return Fields(self.names, leaves)

    def keys(self) -> list[Any]:
        return [pytree.MappingKey(name) for name in self.names]


@dataclass(frozen=True)
class ObjectKind:
    """An object with attributes, of any class; it is rebuilt without a call of its `__init__`."""

    of: type
    names: tuple[str, ...]

    def made(self, leaves: Sequence[Any]) -> Any:
        made: Any = object.__new__(self.of)
        for name, leaf in zip(self.names, leaves, strict=True):
            object.__setattr__(made, name, leaf)
        return made

    def keys(self) -> list[Any]:
        return [pytree.GetAttrKey(name) for name in self.names]


@dataclass(frozen=True)
class DictKind:
    """A class derived from `dict`, such as scikit-learn's `Bunch`."""

    of: type
    names: tuple[Any, ...]

    def made(self, leaves: Sequence[Any]) -> Any:
        of: Any = self.of
        made = of.__new__(of)
        dict.update(made, zip(self.names, leaves, strict=True))
        return made

    def keys(self) -> list[Any]:
        return [pytree.MappingKey(name) for name in self.names]


class _Unnamed:
    """A key without a part in a leaf's name."""

    def __str__(self) -> str:
        return ""


@dataclass(frozen=True)
class Node:
    """A container as a node of the tree; unflattening returns the container, not the node."""

    kind: TableKind | FieldsKind | ObjectKind | DictKind
    children: list[Any]


pytree.register_pytree_node(
    Node,
    lambda node: (node.children, node.kind),
    lambda leaves, kind: kind.made(list(leaves)),
    flatten_with_keys_fn=lambda node: (list(zip(node.kind.keys(), node.children, strict=True)), node.kind),
)


def as_tree(value: Any) -> Any:
    """A model's arguments with containers as nodes of the tree, and lists of numbers or texts as arrays.

    A list is an array if its length is that of an array among the arguments, or, without arrays, of the longest list.
    Other lists, such as the sizes of a network's layers, stay lists.
    """
    leaves = pytree.tree_leaves(_tree(value, frozenset(), 0), is_leaf=is_column)
    lengths = {np.shape(leaf)[0] for leaf in leaves if not isinstance(leaf, str | list) and np.ndim(leaf)}
    lengths = lengths or {max((len(leaf) for leaf in leaves if is_column(leaf)), default=0)}
    return _tree(value, frozenset(lengths), 0)


def is_column(value: Any) -> bool:
    """Whether a value is a list of numbers, or of lists of numbers of equal length."""
    if not isinstance(value, list) or len(value) < 2:
        return False
    if all(isinstance(part, list) for part in value):
        return len({len(part) for part in value}) == 1 and all(is_column(part) for part in value)
    return all(isinstance(part, bool | int | float | str | np.generic | Decimal | None) for part in value)


def _tree(value: Any, lengths: frozenset[int], depth: int) -> Any:
    if depth > MAX_CONTAINER_DEPTH or isinstance(value, Tensor | torch.nn.Module | str | type):
        return value
    if is_column(value):
        return np.asarray(value, dtype=object) if len(value) in lengths else value
    if type(value) is dict:
        return {name: _tree(part, lengths, depth + 1) for name, part in value.items()}
    if isinstance(value, tuple | list):
        parts = [_tree(part, lengths, depth + 1) for part in value]
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*parts)
        return type(value)(parts) if type(value) in (tuple, list) else value
    node = _node(value)
    return value if node is None else Node(node.kind, [_tree(child, lengths, depth + 1) for child in node.children])


def _node(value: Any) -> Node | None:
    """A container as a node; None for other values."""
    if isinstance(value, np.ndarray):
        names = value.dtype.names
        return Node(FieldsKind(names), [np.asarray(value[name]) for name in names]) if names else None
    if hasattr(value, "to_numpy"):
        return _node_of_frame(value) if hasattr(value, "columns") else None
    if hasattr(value, "data_vars"):  # an xarray data set
        fields = {str(name): value[name] for name in [*value.coords, *value.data_vars]}
        return Node(FieldsKind(tuple(fields)), list(fields.values()))
    if isinstance(value, dict):
        plain = type(value).__module__ in ("collections", "builtins")
        return None if plain else Node(DictKind(type(value), tuple(value)), list(value.values()))
    if hasattr(value, "toarray") and hasattr(value, "nnz"):
        return None  # SciPy's sparse arrays, which are refused by name
    attributes = _attributes(value)
    if not any(_is_array(part) for part in attributes.values()):
        return None
    return Node(ObjectKind(type(value), tuple(attributes)), list(attributes.values()))


def _node_of_frame(value: Any) -> Node:
    """A data frame: one leaf if all columns are numbers of one dtype, otherwise one leaf for each column."""
    names = tuple(value.columns)
    if repeated := sorted({str(name) for name in names if names.count(name) > 1}):
        raise DataError(
            f"a data frame has several columns called {', '.join(map(repr, repeated))}, which are ambiguous; "
            "rename them, such as by df.columns = [...]"
        )
    if isinstance(value, Table):  # a client's own arguments
        return Node(TableKind(names, False), [value[name] for name in names])
    dtypes = {str(value[name].dtype) for name in names}
    if len(dtypes) == 1 and isinstance(value.to_numpy(), np.ndarray) and value.to_numpy().dtype.kind in "biuf":
        return Node(TableKind(names, True), [value.to_numpy()])
    return Node(TableKind(names, False), [value[name] for name in names])


def _attributes(value: Any) -> dict[str, Any]:
    """An object's own attributes, unless it is a function, distribution or class."""
    if callable(value) or isinstance(value, torch.distributions.Distribution):
        return {}
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return fields | dict(getattr(value, "__dict__", {}))
    return dict(getattr(value, "__dict__", {}))


def _is_array(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return any(_is_array(part) for part in value)
    return isinstance(value, Tensor | np.ndarray) or hasattr(value, "to_numpy")


#: Names of columns or keys, by the name of their argument or part of an argument.
Orders = Mapping[str, Sequence[Any]]

#: Name of the dictionary of all keyword arguments.
KEYWORDS = ""


def orders_of(
    args: Sequence[Any], kwargs: Mapping[str, Any], heads: Sequence[str], kinds: tuple[type, ...] = (Table, dict)
) -> dict[str, tuple[Any, ...]]:
    """Columns and keys of all tables and dictionaries (`kinds`) among a model's arguments, by name."""
    named_values = [*zip(heads, args, strict=True), *kwargs.items()]
    keyword_order = {KEYWORDS: tuple(kwargs)} if kwargs and dict in kinds else {}
    return keyword_order | {name: order for head, value in named_values for name, order in _orders(value, head, kinds)}


def _orders(value: Any, name: str, kinds: tuple[type, ...]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    if isinstance(value, Table | dict) and isinstance(value, kinds):
        yield name, tuple(value.keys())
    if isinstance(value, Table):
        return
    parts: Any = value.items() if isinstance(value, dict) else getattr(value, "__dict__", {}).items()
    if isinstance(value, tuple | list):
        parts = enumerate(value)
    for key, part in parts:
        yield from _orders(part, f"{name}[{key!r}]", kinds)


def in_order(tree: tuple[tuple[Any, ...], dict[str, Any]], heads: Sequence[str], orders: Orders) -> Any:
    """A model's arguments as a tree with columns and keys in known order; DataError for renamed columns."""
    args, kwargs = tree
    return (
        tuple(_reordered_part(part, head, orders) for head, part in zip(heads, args, strict=True)),
        {name: _reordered_part(kwargs[name], name, orders) for name in _in_order_of(kwargs, orders.get(KEYWORDS, ()))},
    )


def _reordered_part(value: Any, name: str, orders: Orders) -> Any:
    if isinstance(value, Node):
        if isinstance(value.kind, TableKind):
            return _reordered_table(value, value.kind, orders[name], name) if name in orders else value
        parts_by_key = dict(zip(value.kind.names, value.children, strict=True))
        keys = tuple(
            _in_order_of(parts_by_key, orders.get(name, ())) if isinstance(value.kind, DictKind) else parts_by_key
        )
        parts = [_reordered_part(parts_by_key[key], f"{name}[{key!r}]", orders) for key in keys]
        return Node(replace(value.kind, names=keys), parts)
    if type(value) is dict:
        keys_in_order = _in_order_of(value, orders.get(name, ()))
        return {key: _reordered_part(value[key], f"{name}[{key!r}]", orders) for key in keys_in_order}
    if isinstance(value, tuple | list):
        parts = [_reordered_part(part, f"{name}[{i!r}]", orders) for i, part in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def _in_order_of(keys: Collection[Any], known: Sequence[Any]) -> list[Any]:
    """Keys in the order of the known keys, followed by other keys."""
    known_keys = [key for key in known if key in keys]
    return [*known_keys, *(key for key in keys if key not in known_keys)]


def _reordered_table(node: Node, kind: TableKind, known: Sequence[Any], name: str) -> Node:
    missing = [str(column) for column in known if column not in kind.columns]
    new_columns = [str(column) for column in kind.columns if column not in known]
    if missing and new_columns:
        raise DataError(
            f"argument '{name}', a data frame, has the column(s) {listed(new_columns)} and not the earlier column(s) "
            f"{listed(missing)}: give it the same names"
        )
    kept_indices = [kind.columns.index(column) for column in known if column in kind.columns]
    children = (
        [np.ascontiguousarray(node.children[0][:, kept_indices])]
        if kind.whole
        else [node.children[i] for i in kept_indices]
    )
    return Node(TableKind(tuple(kind.columns[i] for i in kept_indices), kind.whole), children)
