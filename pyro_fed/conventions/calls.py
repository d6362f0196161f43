"""The one place where calls of the public face are checked: names of arguments, and the kinds of their values.

    @checked                                   a public function or method
    @checked_but("results")                    the same, except for arguments that it checks by itself
    class Schedule(ABC, metaclass=Checked)     classes of settings, and their subclasses

Python's own answer to an unknown argument, or to a text in place of a number, is a traceback from somewhere within.
Here it is one sentence, a `SettingError`, before any work: which argument, what it must be, what it is, and for an
unknown name the nearest known one. Ranges are checked where they are known (`setting_checks`).
"""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from abc import ABCMeta
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn, TypeVar, cast

import numpy as np
import torch

from pyro_fed.conventions.kinds import fits, in_words
from pyro_fed.conventions.setting_checks import is_whole
from pyro_fed.conventions.spelling import closest
from pyro_fed.errors import PyroFedError, SettingError, shown

CPU = torch.device("cpu")
F = TypeVar("F", bound=Callable[..., Any])

#: The package whose own classes' hints are checked; those of a user's subclass are the user's.
OURS = __name__.partition(".")[0] + "."


def checked_but(*own: str) -> Callable[[F], F]:
    """As `checked`, except for the named arguments, which the function checks by itself, with a cure of its own."""
    return functools.partial(checked, own=frozenset(own))


def checked(function: F, own: frozenset[str] = frozenset()) -> F:
    """Decorator of a public function or method, whose calls are checked against its signature and type hints.

    `own` are arguments that it checks by itself.

    Example:
        >>> pf.run(pf.FedEP(), fed, rounds=5)
        SettingError: run has no argument 'rounds'; did you mean 'num_rounds'?
        >>> pf.run(pf.FedEP(), fed, num_rounds="3")
        SettingError: run: num_rounds must be a whole number or None, received '3' (str)
    """
    name = function.__name__
    signature = inspect.signature(function)
    is_method = next(iter(signature.parameters), "") in ("self", "cls")

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        who = _class_name(args[0]) if is_method and name == "__init__" else name
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
    """A context in which torch's global modes are those of a run, not of the caller.

    Tensors of inference mode have no derivatives, which a run takes. A run's tensors lie on the CPU, except for
    clients' steps, whose device is the federation's and not torch's default.
    """
    with ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        if torch.get_default_device() != CPU:
            stack.enter_context(CPU)
        yield


def explained(kind: type[PyroFedError], what: str) -> Callable[[F], F]:
    """Decorator of a function that runs a user's model: its errors become one sentence of a kind, with their cause.

    `what` says what could not be done.
    """

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


def _class_name(owner: Any) -> str:
    return owner.__name__ if isinstance(owner, type) else type(owner).__name__


def _bound(
    who: str, signature: inspect.Signature, is_method: bool, args: tuple[Any, ...], keywords: dict[str, Any]
) -> dict[str, Any]:
    """Arguments by name, without `self`.

    Raises:
        SettingError: an unknown name, one that is missing, or too many.
    """
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
        only = f", of which {', '.join(placed) or 'none'} alone may be given by position"
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
    """Metaclass of classes of settings: the arguments of their construction are checked, whatever `__init__` they get.

    A class's own checks come first, as they know ranges and cures; then the kinds by the hints of its fields; and any
    other error of construction becomes an error of its settings.
    """

    def __call__(cls, *args: Any, **keywords: Any) -> Any:
        try:
            made = super().__call__(*args, **keywords)
        except PyroFedError:
            raise
        except (TypeError, ValueError, AttributeError, ArithmeticError, LookupError, RuntimeError) as error:
            if cls.__module__.startswith(OURS):
                cls._check_call(args, keywords)
                raise SettingError(f"{cls.__name__} cannot be made of these settings: {error}") from error
            raise
        if cls.__module__.startswith(OURS):
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
