"""Kinds of values, by type hints: whether an argument is of the kind that its hint names, and that kind in words.

The whole public face is checked by it (`calls`), so that a text for a number, a class for an instance or a
fraction for a count is refused before any work, in one style. A hint that cannot be read, or whose class is not
loaded, accepts everything.
"""

from __future__ import annotations

import collections.abc
import os
import types
import typing
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from pyro_fed.conventions.setting_checks import is_number, is_whole

#: How one of a class is written, where a name would be guessed.
EXAMPLES = {
    "Partition": "pf.partition.IID()",
    "Schedule": "pf.schedule.All()",
    "Graph": "pf.graph.ring(5)",
    "Quadrature": "pf.Quadrature(order=11)",
    "Algorithm": "pf.FedEP()",
    "Combination": "pf.combination.Bounded()",
    "dtype": "torch.float64",
}
#: Items of a collection that are looked at.
MAX_CHECKED_ITEMS = 1000

#: Kinds of one number: a list of them has one dimension.
SCALARS = (int, float, bool)

#: Collections that are neither text nor tables.
_LISTS = (collections.abc.Sequence, collections.abc.Collection, collections.abc.Iterable, list)


T = TypeVar("T")


def cast_checked(value: object, kind: type[T]) -> T:
    """A value whose kind earlier checks have ensured, with the type of that kind, which may be abstract.

    Raises:
        TypeError: the value is of another class, so that one of those checks is missing.

    Example:
        >>> cast_checked(context.combination, Private).epsilon(10)
    """
    if not isinstance(value, kind):
        raise TypeError(
            f"expected {kind.__name__} here, received {type(value).__name__}: a check before this line is missing. "
            "Please report it, with this traceback"
        )
    return value


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of the kind that a resolved type hint names."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or hint is object or isinstance(hint, str | typing.TypeVar | typing.ForwardRef):
        return True
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, member) for member in inner)
    if origin is typing.Annotated:
        return fits(value, inner[0])
    if origin is typing.Literal:
        return any(type(value) is type(choice) and value == choice for choice in inner)
    if hint is None or hint is types.NoneType:
        return value is None
    if hint is bool:
        return isinstance(value, bool | np.bool_)
    if hint is int:
        return is_whole(value)
    if hint is float:
        return is_number(value)
    if hint is Path:
        return isinstance(value, os.PathLike)
    return _fits_class(value, hint, origin, inner)


def _fits_class(value: Any, hint: Any, origin: Any, inner: tuple[Any, ...]) -> bool:
    if origin is collections.abc.Callable or hint is Callable:
        return callable(value) and not isinstance(value, type)
    if origin is type:
        return isinstance(value, type)
    if origin in (tuple,) or hint is tuple:
        return isinstance(value, tuple | list) and _fits_items(value, inner)
    if origin in (collections.abc.Mapping, dict) or hint in (Mapping, dict):
        key, item = inner or (Any, Any)
        mapping = isinstance(value, Mapping)
        if not mapping or not isinstance(value, dict):
            return mapping  # results are mappings too, whose groups are not to be read for this
        return all(fits(k, key) and fits(v, item) for k, v in list(value.items())[:MAX_CHECKED_ITEMS])
    if origin in _LISTS or hint in _LISTS:
        listed = (
            not isinstance(value, str | bytes | Mapping) and hasattr(value, "__len__") and hasattr(value, "__iter__")
        )
        listed = listed and getattr(value, "ndim", 1) != 0  # an array of no dimension has a length in name alone
        listed = listed and not getattr(value, "is_sparse", False)  # nor has a sparse one items in order
        if (origin or hint) in (collections.abc.Sequence, list) and isinstance(value, Set):
            return False  # its items have no order that is the same in every process
        if inner and inner[0] in SCALARS and hasattr(value, "dtype") and getattr(value, "ndim", 1) != 1:
            return False
        if inner == (str,) and hasattr(value, "dtype") and not hasattr(value, "astype"):
            return False  # a tensor holds no text, though an empty one has no item that tells
        return listed and (not inner or all(fits(one, inner[0]) for one in _some(value)))
    wanted = origin if isinstance(origin, type) else hint
    if isinstance(value, torch.Tensor) and value.layout != torch.strided:
        return False  # few of torch's functions take sparse ones
    return isinstance(value, wanted) if isinstance(wanted, type) and not _is_protocol(wanted) else True


def _fits_items(value: Any, inner: tuple[Any, ...]) -> bool:
    if not inner:
        return True
    if inner[-1] is Ellipsis:
        return all(fits(one, inner[0]) for one in _some(value))
    return len(value) == len(inner) and all(fits(one, hint) for one, hint in zip(value, inner, strict=True))


def _some(value: Any) -> list[Any]:
    try:
        return list(value[:MAX_CHECKED_ITEMS]) if hasattr(value, "__getitem__") else list(value)[:MAX_CHECKED_ITEMS]
    except Exception:  # whatever a stranger's collection raises, it is no list of items to look at
        return []


def _is_protocol(kind: type) -> bool:
    return bool(getattr(kind, "_is_protocol", False))


def in_words(hint: Any) -> str:
    """A resolved type hint for a message: "a whole number or None"."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        first, *others = dict.fromkeys(in_words(member) for member in inner)
        return first + "".join(f"{',' if ', such as' in first else ''} or {other}" for other in others)
    if origin is typing.Literal:
        return "one of " + ", ".join(repr(choice) for choice in inner)
    if origin is typing.Annotated:
        return in_words(inner[0])
    if hint is Any:
        return "anything"
    if hint is types.NoneType or hint is None:
        return "None"
    if origin is collections.abc.Callable:
        return "a function"
    if origin in (collections.abc.Mapping, dict):
        return f"a dictionary from {in_words(inner[0])} to {in_words(inner[1])}"
    if origin in _LISTS or origin is tuple:
        items = [hint for hint in inner if hint is not Ellipsis]
        return f"a list of ({' and '.join(dict.fromkeys(map(in_words, items)))})"
    words = {bool: "True or False", int: "a whole number", float: "a finite number", str: "a text", Path: "a path"}
    if hint in words:
        return words[hint]
    name = getattr(origin or hint, "__name__", str(hint))
    article = "an" if name[:1] in "AEIOU" else "a"
    return f"{article} {name}" + (f", such as {EXAMPLES[name]}" if name in EXAMPLES else "")
