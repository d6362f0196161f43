"""Containers of columns, as trees of arrays: tables, dataclasses, namespaces, record arrays, data sets.

Tuples, lists, dictionaries and named tuples are trees already. Other containers become nodes of the tree, which are
built again around other leaves: an object of the same class, or, if the class cannot hold tensors (pandas, xarray,
record arrays), a table or a set of fields with the same interface. By name a table with its columns in another order
is the same table, as a matrix, `df @ w`, another one: columns and keys are put in the order that the model had before.
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

#: Depth to which containers are taken apart.
MAX_CONTAINER_DEPTH = 4


class Table:
    """A data frame while a model runs, of columns by name, or as one matrix; blocks are that or a tensor each."""

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
            raise ValueError(f"the columns {self._columns} are no matrix: one of them is None")
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
        gone = columns if columns is not None else labels
        gone = [gone] if isinstance(gone, str) else list(gone)
        kept = [name for name in self._columns if name not in gone]
        return Table(kept, [self._column(name) for name in kept])

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
            raise KeyError(self._absent(key))
        return self._column(key) if self._has(key) else self.values[key]

    def _absent(self, name: str) -> str:
        return (
            f"the data frame has no column '{name}': {self._held}. "
            f"What is to be predicted may be a column of None, frame.assign({name}=None)"
        )

    @property
    def _held(self) -> str:
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
                f"the data frame has no '{name}' of pandas: {self._held}. Make the columns that the model needs in the "
                "frame before the federation is made"
            )
        raise AttributeError(self._absent(name))

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
    """Named arrays while a model runs, by attribute and by key, as of a record array or an xarray data set."""

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
    """A data frame; `whole` if its columns, of one dtype, are one leaf."""

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
    """An object with attributes, of any class; it is built without calling its `__init__`."""

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
    """A key that adds nothing to a leaf's name."""

    def __str__(self) -> str:
        return ""


@dataclass(frozen=True)
class Node:
    """A container as a node of the tree; put together again it is the container, not the node."""

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

    A list is an array if it is as long as an array beside it, or, without any array, as the longest list. Others, such
    as the sizes of a network's layers, stay lists.
    """
    leaves = pytree.tree_leaves(_tree(value, frozenset(), 0), is_leaf=is_column)
    lengths = {np.shape(leaf)[0] for leaf in leaves if not isinstance(leaf, str | list) and np.ndim(leaf)}
    lengths = lengths or {max((len(leaf) for leaf in leaves if is_column(leaf)), default=0)}
    return _tree(value, frozenset(lengths), 0)


def is_column(value: Any) -> bool:
    """Whether this is a list of numbers, or of lists of them that are equally long."""
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
        return _frame(value) if hasattr(value, "columns") else None
    if hasattr(value, "data_vars"):  # an xarray data set
        held = {str(name): value[name] for name in [*value.coords, *value.data_vars]}
        return Node(FieldsKind(tuple(held)), list(held.values()))
    if isinstance(value, dict):
        plain = type(value).__module__ in ("collections", "builtins")
        return None if plain else Node(DictKind(type(value), tuple(value)), list(value.values()))
    if hasattr(value, "toarray") and hasattr(value, "nnz"):
        return None  # SciPy's sparse ones, which are refused by name
    attributes = _attributes(value)
    if not any(_is_array(part) for part in attributes.values()):
        return None
    return Node(ObjectKind(type(value), tuple(attributes)), list(attributes.values()))


def _frame(value: Any) -> Node:
    """A data frame: one leaf if all of its columns are numbers of one dtype, else one for each column."""
    names = tuple(value.columns)
    if twice := sorted({str(name) for name in names if names.count(name) > 1}):
        raise DataError(
            f"a data frame has several columns called {', '.join(map(repr, twice))}: which is meant cannot be told; "
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


#: Names of columns or keys, by the name of the argument, or of the part of one, that has them.
Orders = Mapping[str, Sequence[Any]]

#: Name of all keyword arguments together.
KEYWORDS = ""


def orders_of(
    args: Sequence[Any], kwargs: Mapping[str, Any], heads: Sequence[str], kinds: tuple[type, ...] = (Table, dict)
) -> dict[str, tuple[Any, ...]]:
    """Columns and keys of all tables and dictionaries (`kinds`) among a model's arguments, by name."""
    named = [*zip(heads, args, strict=True), *kwargs.items()]
    found = {KEYWORDS: tuple(kwargs)} if kwargs and dict in kinds else {}
    return found | {name: order for head, value in named for name, order in _orders(value, head, kinds)}


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
    """A model's arguments as a tree, columns and keys as before, without new ones; DataError for renamed columns."""
    args, kwargs = tree
    return (
        tuple(_in_known_order(part, head, orders) for head, part in zip(heads, args, strict=True)),
        {name: _in_known_order(kwargs[name], name, orders) for name in _as_before(kwargs, orders.get(KEYWORDS, ()))},
    )


def _in_known_order(value: Any, name: str, orders: Orders) -> Any:
    if isinstance(value, Node):
        if isinstance(value.kind, TableKind):
            return _table(value, value.kind, orders[name], name) if name in orders else value
        held = dict(zip(value.kind.names, value.children, strict=True))
        keys = tuple(_as_before(held, orders.get(name, ())) if isinstance(value.kind, DictKind) else held)
        parts = [_in_known_order(held[key], f"{name}[{key!r}]", orders) for key in keys]
        return Node(replace(value.kind, names=keys), parts)
    if type(value) is dict:
        ordered = _as_before(value, orders.get(name, ()))
        return {key: _in_known_order(value[key], f"{name}[{key!r}]", orders) for key in ordered}
    if isinstance(value, tuple | list):
        parts = [_in_known_order(part, f"{name}[{i!r}]", orders) for i, part in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def _as_before(keys: Collection[Any], known: Sequence[Any]) -> list[Any]:
    """Keys in the order of the known ones; others follow."""
    first = [key for key in known if key in keys]
    return [*first, *(key for key in keys if key not in first)]


def _table(node: Node, kind: TableKind, known: Sequence[Any], name: str) -> Node:
    missing = [str(column) for column in known if column not in kind.columns]
    more = [str(column) for column in kind.columns if column not in known]
    if missing and more:
        raise DataError(
            f"argument '{name}', a data frame, has the column(s) {listed(more)} and not {listed(missing)}, which it "
            "had before: give it the same names"
        )
    kept = [kind.columns.index(column) for column in known if column in kind.columns]
    children = [np.ascontiguousarray(node.children[0][:, kept])] if kind.whole else [node.children[i] for i in kept]
    return Node(TableKind(tuple(kind.columns[i] for i in kept), kind.whole), children)
