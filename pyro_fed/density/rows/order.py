"""The columns of tables and the keys of dictionaries in the order in which the model had them before.

By name a table whose columns stand in another order is the same table; as a matrix, `df @ w`, it is another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pyro_fed.density.rows.containers import Node, Table, TableKind
from pyro_fed.errors import DataError, listed

#: Names of columns or keys, by that of the argument, or the part of one, that has them.
Orders = Mapping[str, Sequence[Any]]


def orders_of(
    args: Sequence[Any], kwargs: Mapping[str, Any], heads: Sequence[str], kinds: tuple[type, ...] = (Table, dict)
) -> dict[str, tuple[Any, ...]]:
    """Columns and keys of all tables and dictionaries among a model's arguments.

    Args:
        args: the positional ones, as a model gets them.
        kwargs: the others.
        heads: the model's names of the positional ones.
        kinds: of containers that are looked for.
    """
    named = [*zip(heads, args, strict=True), *kwargs.items()]
    return {name: order for head, value in named for name, order in _orders(value, head, kinds)}


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
    """A model's arguments with columns and keys as they were; columns that there were not are left out of a table.

    Args:
        tree: `(args, kwargs)` with containers as nodes.
        heads: the model's names of the positional arguments.
        orders: those that are known, of `orders_of`.

    Raises:
        DataError: a table lacks a column, and has one of another name.
    """
    args, kwargs = tree
    return (
        tuple(_ordered(part, head, orders) for head, part in zip(heads, args, strict=True)),
        {name: _ordered(part, name, orders) for name, part in kwargs.items()},
    )


def _ordered(value: Any, name: str, orders: Orders) -> Any:
    if isinstance(value, Node):
        if isinstance(value.kind, TableKind):
            return _table(value, value.kind, orders[name], name) if name in orders else value
        held = zip(value.kind.names, value.children, strict=True)
        return Node(value.kind, [_ordered(part, f"{name}[{key!r}]", orders) for key, part in held])
    if type(value) is dict:
        first = [key for key in orders.get(name, ()) if key in value]
        keys = [*first, *(key for key in value if key not in first)]
        return {key: _ordered(value[key], f"{name}[{key!r}]", orders) for key in keys}
    if isinstance(value, tuple | list):
        parts = [_ordered(part, f"{name}[{i!r}]", orders) for i, part in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


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
