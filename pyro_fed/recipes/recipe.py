"""Recipes: an algorithm and its settings as data, in one TOML file.

A recipe names the algorithm's class, so a new algorithm needs no registry::

    description = "DSVGD with the settings of its paper"
    algorithm = "pyro_fed.infer:DSVGD"   # module:class

    [settings]                           # fields of the algorithm's dataclass
    num_particles = 100

    [run]                                # optional: arguments of pyro_fed.run
    num_rounds = 20
    schedule = "round_robin"             # or {name = "uniform_random", clients_per_round = 10}

    [source]                             # optional: where the values come from
    paper = "..."

Whatever is not a key, field or argument by that name is an error: a recipe never half applies.
"""

from __future__ import annotations

import dataclasses
import tomllib
import typing
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pyro_fed.errors import SettingError
from pyro_fed.recipes.components import import_or_explain, resolve_component
from pyro_fed.recipes.library import closest, find_recipe
from pyro_fed.recipes.values import Mismatch, convert, describe

#: What a recipe may hold, and the arguments of `run` among it, with their types.
_TOP_LEVEL: Mapping[str, Any] = {
    "algorithm": str,
    "description": str,
    "settings": dict,
    "run": dict,
    "source": dict,
}
_RUN: Mapping[str, Any] = {
    "num_rounds": int,
    "num_draws": int,
    "schedule": str | dict,
    "graph": str | dict,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """One checked recipe.

    Args:
        name: the file's stem.
        path: the file.
        algorithm: the algorithm's dataclass.
        settings: keyword arguments of that class, checked against its type hints.
        run: ``num_rounds``, ``num_draws``, ``schedule`` and ``graph`` as the file gives them.
        description: what it is, in a line.
        source: where its values come from, by topic.
    """

    name: str
    path: Path
    algorithm: type
    settings: Mapping[str, Any]
    run: Mapping[str, Any]
    description: str
    source: Mapping[str, str]

    def build(self, overrides: Mapping[str, Any] | None = None, where: str = "overrides") -> Any:
        """The algorithm with the recipe's settings.

        Args:
            overrides: settings that replace the recipe's, e.g. from the command line.
            where: where they come from, for the message.

        Raises:
            SettingError: unknown setting, wrong type, or a value that the algorithm refuses.
        """
        changed = check_settings(self.algorithm, overrides or {}, where)
        return self.algorithm(**{**self.settings, **changed})

    def run_options(self, num_clients: int) -> dict[str, Any]:
        """The ``[run]`` table as keyword arguments of `pyro_fed.run`.

        Args:
            num_clients: how many clients there are; a graph is built over as many.

        Raises:
            SettingError: the schedule or graph is unknown, or does not take the arguments given.
        """
        options = dict(self.run)
        if "schedule" in options:
            options["schedule"] = resolve_component("pyro_fed.algorithm.schedule", options["schedule"], self.path)
        if "graph" in options:
            options["graph"] = resolve_component("pyro_fed.graph", options["graph"], self.path, num_clients)
        return options


def load(name_or_path: str | Path) -> Recipe:
    """Read and check a recipe.

    Args:
        name_or_path: a name in the library's ``inference/``, or the path of a ``.toml`` file.

    Returns:
        The recipe; `Recipe.build` gives the algorithm.

    Raises:
        SettingError: no such file, not TOML, an unknown key, a value of the wrong type or an algorithm that
            cannot be imported. The message names the file and the key.
    """
    path = find_recipe(name_or_path)
    content = _checked(read_toml(path), _TOP_LEVEL, str(path))
    if "algorithm" not in content:
        raise SettingError(f"{path}: key 'algorithm' is missing, e.g. algorithm = \"pyro_fed.infer:DSVGD\".")
    algorithm = _import_algorithm(content["algorithm"], path)
    settings, source = content.get("settings", {}), content.get("source", {})
    return Recipe(
        name=path.stem,
        path=path,
        algorithm=algorithm,
        settings=MappingProxyType(check_settings(algorithm, settings, f"{path} [settings]")),
        run=MappingProxyType(_checked(content.get("run", {}), _RUN, f"{path} [run]")),
        description=content.get("description", ""),
        source=MappingProxyType(_checked(source, dict.fromkeys(source, str), f"{path} [source]")),
    )


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file.

    Raises:
        SettingError: the file is not TOML in UTF-8; the message has the line and column.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"{path} is not a TOML file: {error}") from error


def setting_hints(algorithm: type) -> dict[str, Any]:
    """An algorithm's settings, field name to type hint."""
    hints = typing.get_type_hints(algorithm)
    return {field.name: hints[field.name] for field in dataclasses.fields(algorithm) if field.init}


def check_settings(algorithm: type, given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Check settings against the fields of an algorithm's dataclass.

    Args:
        algorithm: the dataclass.
        given: values by field name.
        where: file and table, or the command line, for the message.

    Returns:
        The values in the types that the fields ask for.

    Raises:
        SettingError: a name is no field, or a value does not fit its field.
    """
    return _checked(given, setting_hints(algorithm), where, of=f" of {algorithm.__name__}")


def _checked(given: Mapping[str, Any], hints: Mapping[str, Any], where: str, of: str = "") -> dict[str, Any]:
    checked = {}
    for key, value in given.items():
        if key not in hints:
            raise SettingError(f"{where}: unknown key {key!r}{of}; {closest(key, list(hints))}")
        try:
            checked[key] = convert(value, hints[key])
        except Mismatch:
            raise SettingError(
                f"{where}: {key!r}{of} expects {describe(hints[key])}, received {value!r} ({type(value).__name__})."
            ) from None
    return checked


def _import_algorithm(reference: str, path: Path) -> type:
    module_name, colon, class_name = reference.partition(":")
    if not colon or not class_name:
        raise SettingError(f"{path}: algorithm = {reference!r} is not of the form 'module:Class'.")
    module = import_or_explain(module_name, f"{path}: algorithm = {reference!r}")
    algorithm = getattr(module, class_name, None)
    if algorithm is None:
        near = closest(class_name, [name for name in vars(module) if not name.startswith("_")])
        raise SettingError(f"{path}: module {module_name!r} has no {class_name!r}; {near}")
    if not (isinstance(algorithm, type) and dataclasses.is_dataclass(algorithm)):
        raise SettingError(f"{path}: {reference!r} is not a dataclass of settings, so it is no algorithm.")
    return algorithm
