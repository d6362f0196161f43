"""What a recipe's or the command line's text stands for: values by type hints, schedules and graphs by their names.

TOML has no null: the string ``"none"`` means ``None`` where the setting allows ``None``.
"""

from __future__ import annotations

import importlib
import json
import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from pyro_fed.conventions.names import closest, snake_case
from pyro_fed.conventions.nested_settings import Settings
from pyro_fed.errors import SettingError

#: What stands for None.
NONE_WORD = "none"


class Mismatch(Exception):
    """A value does not fit a type hint; the caller knows which setting and file, and says so."""


def convert(value: Any, hint: Any) -> Any:
    """A value from TOML as the type that a resolved type hint asks for; Mismatch if it does not fit."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return None if value == NONE_WORD else value
    if origin in (typing.Union, types.UnionType):
        return _convert_union(value, inner)
    if origin is typing.Literal:
        return _require(any(value == choice and type(value) is type(choice) for choice in inner), value)
    if origin in (tuple, list) or hint in (tuple, list):
        return _convert_sequence(value, origin or hint, inner)
    if hint is float:
        return float(_require(isinstance(value, int | float) and not isinstance(value, bool), value))
    if hint is int:  # bool is an int to Python, but not to a person
        return _require(isinstance(value, int) and not isinstance(value, bool), value)
    return _require(isinstance(hint, type) and isinstance(value, hint), value)


def _require(fits: bool, value: Any) -> Any:
    if not fits:
        raise Mismatch
    return value


def _convert_union(value: Any, members: tuple[Any, ...]) -> Any:
    if types.NoneType in members and (value is None or value == NONE_WORD):
        return None
    for member in members:
        try:
            return convert(value, member)
        except Mismatch:
            continue
    raise Mismatch


def _convert_sequence(value: Any, kind: Any, inner: tuple[Any, ...]) -> Any:
    if not isinstance(value, list | tuple):
        raise Mismatch
    of_one_type = kind is list or not inner or inner[-1] is Ellipsis
    hints = [inner[0] if inner else Any] * len(value) if of_one_type else list(inner)
    if len(hints) != len(value):
        raise Mismatch
    return kind(convert(item, hint) for item, hint in zip(value, hints, strict=True))


def describe(hint: Any) -> str:
    """A type hint in words for an error message, e.g. ``int or 'none'``."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is types.NoneType:
        return repr(NONE_WORD)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(describe(member) for member in inner)
    if origin is typing.Literal:
        return "one of " + ", ".join(repr(choice) for choice in inner)
    if origin is None and isinstance(hint, type):
        return "a table" if issubclass(hint, Settings) else hint.__name__
    return str(hint).replace("typing.", "")


def parse_assignment(text: str) -> tuple[str, Any]:
    """One ``key=value`` of the command line as key and value, in TOML's syntax; what is not TOML is a string."""
    key, equals, raw = text.partition("=")
    key, raw = key.strip(), raw.strip()
    if not equals or not key or not raw:
        raise SettingError(f"--set {text!r}: expected key=value, for example --set num_particles=50.")
    try:
        return key, tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        return key, raw
    except RecursionError as error:
        raise SettingError(f"--set {key}: the value is nested too deeply") from error


def to_toml(value: Any) -> str:
    """A value as TOML writes it; ``None`` as ``"none"``, and a value that TOML cannot express by its repr."""
    if value is None:
        return f'"{NONE_WORD}"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list | tuple):
        return f"[{', '.join(to_toml(item) for item in value)}]"
    return repr(value)


def import_or_explain(module_name: str, where: str) -> ModuleType:
    """A module that a recipe names; ``where`` begins the message of the SettingError."""
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise SettingError(f"{where}: {module_name!r} is not the name of a module, such as 'pyro_fed.infer'")
    try:
        return importlib.import_module(module_name)
    except Exception as error:  # the module's own code may raise anything
        raise SettingError(f"{where}: cannot import {module_name!r}: {type(error).__name__}: {error}") from error


def resolve_component(module_name: str, spec: str | Mapping[str, Any], path: Path, *args: Any) -> Any:
    """A schedule or a graph of a module from its name in snake case, or a table with ``name`` and keyword arguments."""
    keywords = {"name": spec} if isinstance(spec, str) else dict(spec)
    name = keywords.pop("name", None)
    if not isinstance(name, str):
        raise SettingError(f"{path} [run]: {keywords!r} lacks a name, e.g. {{name = 'round_robin'}}.")
    module = import_or_explain(module_name, f"{path} [run]")
    known = public_callables(module)
    if name not in known:
        raise SettingError(f"{path} [run]: {module_name} has no {name!r}; {closest(name, list(known))}")
    try:
        return known[name](*args, **keywords)
    except TypeError as error:
        raise SettingError(f"{path} [run]: {name!r} does not take {keywords!r}: {error}") from error


def public_callables(module: ModuleType) -> dict[str, Any]:
    """The callables that a module or package defines itself, by name in snake case."""
    public = {name: value for name, value in vars(module).items() if not name.startswith("_") and callable(value)}
    home = module.__name__
    return {snake_case(n): v for n, v in public.items() if f"{v.__module__}.".startswith(f"{home}.")}
