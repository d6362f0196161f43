"""Schedules and graphs by name: ``"round_robin"`` is ``pf.schedule.RoundRobin``, without a registry."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from pyro_fed.conventions.spelling import closest, snake_case
from pyro_fed.errors import SettingError


def import_or_explain(module_name: str, where: str) -> ModuleType:
    """Import a module that a recipe names.

    Raises:
        SettingError: it cannot be imported; ``where`` begins the message.
    """
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise SettingError(f"{where}: {module_name!r} is no module's name, such as 'pyro_fed.infer'")
    try:
        return importlib.import_module(module_name)
    except Exception as error:  # the module's own code may raise anything
        raise SettingError(f"{where}: cannot import {module_name!r}: {type(error).__name__}: {error}") from error


def resolve_component(module_name: str, spec: str | Mapping[str, Any], path: Path, *args: Any) -> Any:
    """Build a schedule or a graph of a module from its name, or a table with ``name`` and keyword arguments.

    ``"round_robin"`` is the class ``RoundRobin`` or the function ``round_robin`` of the module: names are
    converted, not registered, so a new one is found as soon as it is written. Positional arguments ``args`` come before
    those of the table; ``path`` is the recipe, for the message.

    Raises:
        SettingError: unknown name, or arguments that it does not take.
    """
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
