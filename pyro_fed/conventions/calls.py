"""Checks of calls of the public face: names of arguments, and the kinds of their values by type hints.

    @checked                                   a public function or method
    @checked_but("results")                    the same, except for arguments that it checks by itself
    class Schedule(ABC, metaclass=Checked)     classes of settings, and their subclasses

An unknown argument, or a text in place of a number, is one sentence, a `SettingError`, before any work. Ranges are
checked where they are known (`setting_checks`). A hint that cannot be read, or whose class is not loaded, accepts
everything.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import os
import sys
import types
import typing
from abc import ABCMeta
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import numpy as np
import torch

from pyro_fed.conventions.names import closest
from pyro_fed.conventions.setting_checks import is_number, is_whole
from pyro_fed.errors import OURS, PyroFedError, SettingError, shown

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

CPU = torch.device("cpu")
F = TypeVar("F", bound=Callable[..., Any])


def cast_checked(value: object, kind: type[T]) -> T:
    """A value whose kind earlier checks have ensured, with the type of that kind, which may be abstract."""
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
    return (
        isinstance(value, wanted) if isinstance(wanted, type) and not getattr(wanted, "_is_protocol", False) else True
    )


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


def checked_but(*own: str) -> Callable[[F], F]:
    """As `checked`, except for the named arguments, which the function checks by itself, with a cure of its own."""
    return functools.partial(checked, own=frozenset(own))


def checked(function: F, own: frozenset[str] = frozenset()) -> F:
    """Decorator of a public function: its calls are checked by signature and type hints, except arguments `own`."""
    name = function.__name__
    signature = inspect.signature(function)
    is_method = next(iter(signature.parameters), "") in ("self", "cls")

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        who = type(args[0]).__name__ if is_method and name == "__init__" else name
        given = _bound(who, signature, is_method, args, keywords)
        _check_kinds(who, {key: value for key, value in given.items() if key not in own}, _hints(function))
        for key, value in keywords.items():
            if isinstance(value, np.integer):
                keywords[key] = int(value)
        try:
            with _own_modes():
                return function(*args, **keywords)
        except (OverflowError, ZeroDivisionError) as error:
            if getattr(error, "__notes__", None):  # that of a function of the user's, which has been said
                raise
            raise SettingError(f"{who}: a number is too large or too small: {error}") from error

    return cast(F, call)


@contextmanager
def _own_modes() -> Iterator[None]:
    """A context in which torch's global modes, of inference and device, are a run's and not the caller's."""
    with ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        if torch.get_default_device() != CPU:
            stack.enter_context(CPU)
        yield


def explained(kind: type[PyroFedError], what: str) -> Callable[[F], F]:
    """Decorator of a function that runs a user's model: its errors become one sentence of a kind, with their cause."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def call(*args: Any, **keywords: Any) -> Any:
            try:
                return function(*args, **keywords)
            except Exception as error:  # of any kind, as it is the user's code that raised it; it stays the cause
                explain(error, kind, what)

        return cast(F, call)

    return decorate


def explain(error: Exception, kind: type[PyroFedError], what: str) -> NoReturn:
    """Raise an error of a user's code as one sentence of a kind, with its cause; an error of the package unchanged.

    `what` says what could not be done.
    """
    if isinstance(error, PyroFedError):
        raise error
    said = next(iter(str(error).splitlines()), "")
    raise kind(f"{what}: {type(error).__name__}: {said}") from error


def _bound(
    who: str, signature: inspect.Signature, is_method: bool, args: tuple[Any, ...], keywords: dict[str, Any]
) -> dict[str, Any]:
    """Arguments by name, without `self`; SettingError for an unknown name, one that is missing, or too many."""
    parameters = signature.parameters
    own = list(parameters)[1:] if is_method else list(parameters)
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    for key in keywords:
        if key not in own and not takes_any:
            raise SettingError(f"{who} has no argument {key!r}; {closest(key, own)}")
    try:
        bound = signature.bind(*args, **keywords)
    except TypeError as error:
        own = [name for name in own if parameters[name].kind is not inspect.Parameter.VAR_KEYWORD]
        placed = [name for name in own if parameters[name].kind is not inspect.Parameter.KEYWORD_ONLY]
        only = f"; only {', '.join(placed) or 'none'} may be given by position"
        too_many = "too many positional" in str(error) and placed != own
        said = f"{who}: {error}; its arguments are {', '.join(own)}{only if too_many else ''}"
        raise SettingError(said) from error
    return {key: value for key, value in bound.arguments.items() if key in own}


def _check_kinds(who: str, given: dict[str, Any], hints: dict[str, Any]) -> None:
    """Refuse values of another kind than their hints name."""
    for key, value in given.items():
        hint = hints.get(key, Any)
        if isinstance(value, type) and not fits(value, hint):
            is_number = issubclass(value, np.generic | int | float)
            cure = f"pass torch.{value.__name__}" if is_number else f"call it, {value.__name__}(...)"
            raise SettingError(f"{who}: {key} is the class {value.__name__}; expected {in_words(hint)}: {cure}")
        if not fits(value, hint):
            raise SettingError(f"{who}: {key} must be {in_words(hint)}, received {shown(value)}")
        if key == "seed" and is_whole(value) and value < 0:
            raise SettingError(f"{who}: seed must not be negative, received {value}")


@functools.cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Resolved hints of a function's arguments; a hint that cannot be resolved accepts everything."""
    scope = vars(sys.modules.get(getattr(function, "__module__", "") or "", object))
    return {
        name: _resolve_hint(one.annotation, scope)
        for name, one in inspect.signature(function).parameters.items()
        if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD) and one.annotation is not one.empty
    }


def _resolve_hint(hint: Any, scope: dict[str, Any]) -> Any:
    """A hint as a type; Any if it is a name that only type checkers know."""
    if not isinstance(hint, str):
        return hint
    try:
        return eval(hint, dict(scope))  # a hint of this package's own source, as `typing.get_type_hints` reads it
    except (NameError, AttributeError, TypeError):
        return Any


class Checked(ABCMeta):
    """Metaclass of classes of settings: their own checks come first, then the kinds by the hints of their fields."""

    def __call__(cls, *args: Any, **keywords: Any) -> Any:
        try:
            made = super().__call__(*args, **keywords)
        except PyroFedError:
            raise
        except (TypeError, ValueError, AttributeError, ArithmeticError, LookupError, RuntimeError) as error:
            if cls.__module__.startswith(f"{OURS}."):
                cls._check_call(args, keywords)
                raise SettingError(f"{cls.__name__} cannot be made of these settings: {error}") from error
            raise
        if cls.__module__.startswith(f"{OURS}."):
            cls._check_call(args, keywords)
        return made

    @property
    def __signature__(cls) -> inspect.Signature:
        """The signature of the class's `__init__`, which `inspect` would not look for behind this `__call__`."""
        whole = inspect.signature(cls.__init__)  # type: ignore[misc]  # of the class, which is at hand
        return whole.replace(parameters=list(whole.parameters.values())[1:], return_annotation=None)

    def _check_call(cls, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        init = cls.__init__  # type: ignore[misc]  # of the class, which is at hand
        given = _bound(cls.__name__, inspect.signature(init), True, (cls, *args), keywords)
        _check_kinds(cls.__name__, given, _fields(cls))


@functools.cache
def _fields(cls: type) -> dict[str, Any]:
    """Hints of a class's arguments: of its `__init__`, or of its fields if `dataclass` wrote that."""
    found: dict[str, Any] = {}
    for kind in reversed(cls.__mro__):
        scope = vars(sys.modules.get(kind.__module__, object))
        for name, hint in vars(kind).get("__annotations__", {}).items():
            found[name] = _resolve_hint(hint, scope)
    if "__dataclass_fields__" in vars(cls):
        return {name: hint for name, hint in found.items() if typing.get_origin(hint) is not typing.ClassVar}
    return _hints(inspect.unwrap(cls.__init__))  # type: ignore[misc]  # of the class, which is at hand
