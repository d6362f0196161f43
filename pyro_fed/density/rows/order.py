"""The columns of tables and the keys of dictionaries in the order in which the model had them before.

By name a table with its columns in another order is the same table; as a matrix, `df @ w`, it is another one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pyro_fed.density.rows.containers import DictKind, Node, Table, TableKind
from pyro_fed.errors import DataError, listed

#: Names of columns or keys, by the name of the argument, or of the part of one, that has them.
Orders = Mapping[str, Sequence[Any]]

#: Name of all keyword arguments together.
KEYWORDS = ""


def orders_of(
    args: Sequence[Any], kwargs: Mapping[str, Any], heads: Sequence[str], kinds: tuple[type, ...] = (Table, dict)
) -> dict[str, tuple[Any, ...]]:
    """Columns and keys of all tables and dictionaries (`kinds`) among a model's arguments, as it receives them.

    `heads` are the model's names of the positional ones.
    """
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
    """A model's arguments with columns and keys in their former order; new columns are left out of a table.

    `tree` is `(args, kwargs)` with containers as nodes, `heads` the model's names of the positional arguments.

    Raises:
        DataError: a table lacks a column, and has one of another name.
    """
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
