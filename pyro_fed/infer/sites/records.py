"""Conversion between typed records and states, the flat dictionaries that are sent and saved.

    a tensor        the entry with the field's name; it may be missing if the field may be None
    a Gaussian      `{name}_precision` and `{name}_eta`
    a record        its entries
    a `State`       all entries that belong to no other field

`Annotated[Tensor, "other"]` is the entry named "other". For a Gaussian, a record or a `State`, the annotation is a
prefix of the entries.
"""

from __future__ import annotations

import types
from dataclasses import is_dataclass
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from pyro_fed.algorithm.states import State
from pyro_fed.infer.sites.gaussian_sites import as_state, gaussian
from pyro_fed.ops.gaussian import Gaussian

#: A kind of record: a NamedTuple or a dataclass.
Record = TypeVar("Record")


class _Field(NamedTuple):
    """A field: its name, the name or prefix of its entries, its kind if it has several, and whether it may be None."""

    name: str
    entry: str
    kind: Any
    optional: bool


def entries_as(kind: type[Record], state: State, prefix: str = "") -> Record:
    """The record of a kind whose entries are in a state."""
    if issubclass(kind, Gaussian):
        return gaussian(state, prefix)  # type: ignore[return-value]  # of its structure, whatever the kind
    parts: dict[str, Any] = {}
    for name, entry, part, optional in _fields(kind):  # type: ignore[arg-type]  # classes are hashable
        start = prefix + entry
        if part is State:
            prefixed_entries = {key.removeprefix(start): value for key, value in state.items() if key.startswith(start)}
            own, prefixes = (frozenset(), ()) if entry else _names(kind)  # type: ignore[arg-type]
            parts[name] = {
                key: value for key, value in prefixed_entries.items() if key not in own and not key.startswith(prefixes)
            }
        elif part is not None:
            parts[name] = entries_as(part, state, start)
        elif not optional or start in state:
            parts[name] = state[start]
    return kind(**parts)


def as_entries(record: Any, prefix: str = "") -> State:
    """A record's entries of a state."""
    if isinstance(record, Gaussian):
        return as_state(record, prefix)
    if isinstance(record, dict):
        return {prefix + name: value for name, value in record.items()}
    entries: State = {}
    for name, entry, part, _ in _fields(type(record)):  # type: ignore[arg-type]
        value = getattr(record, name)
        if part is not None:
            entries |= as_entries(value, prefix + entry)
        elif value is not None:
            entries[prefix + entry] = value
    return entries


@cache
def _names(kind: Any) -> tuple[frozenset[str], tuple[str, ...]]:
    """The names of entries that belong to the fields of a record, and the prefixes of its prefixed states."""
    if issubclass(kind, Gaussian):
        return frozenset({"precision", "eta"}), ()
    names, prefixes = set[str](), list[str]()
    for field in _fields(kind):
        if field.kind is None:
            names.add(field.entry)
        elif field.kind is State:
            prefixes += [field.entry] * bool(field.entry)
        else:
            inner, further = _names(field.kind)
            names |= {field.entry + name for name in inner}
            prefixes += [field.entry + prefix for prefix in further]
    return frozenset(names), tuple(prefixes)


@cache
def _fields(kind: Any) -> tuple[_Field, ...]:
    def field(name: str, hint: Any) -> _Field:
        hint, other = get_args(hint) if get_origin(hint) is Annotated else (hint, None)
        if isinstance(hint, types.UnionType):
            return _Field(name, other or name, None, type(None) in get_args(hint))
        if hint == State:
            return _Field(name, other or "", State, False)
        if issubclass(hint, Gaussian):
            return _Field(name, f"{name}_" if other is None else other, hint, False)
        if hasattr(hint, "_fields") or is_dataclass(hint):
            return _Field(name, other or "", hint, False)
        return _Field(name, other or name, None, False)

    return tuple(field(name, hint) for name, hint in get_type_hints(kind, include_extras=True).items())
