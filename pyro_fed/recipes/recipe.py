"""Recipes: an algorithm and its settings as data, in one TOML file.

A recipe names the algorithm's class, so a new algorithm needs no registry::

    description = "DSVGD with the settings of its paper"
    algorithm = "pyro_fed.infer:DSVGD"   # module:class, of pyro_fed.infer or of a module that is imported already

    [settings]                           # fields of the algorithm's dataclass
    num_particles = 100

    [settings.client]                    # a setting with settings of its own, of the kind `name`; or client = "mcmc"
    name = "mcmc"
    steps = 500

    [run]                                # optional: arguments of pyro_fed.run
    num_rounds = 20
    schedule = "round_robin"             # or {name = "uniform_random", clients_per_round = 10}

    [source]                             # optional: where the values come from
    paper = "..."

Whatever is not a key, field or argument by that name is an error: a recipe never half applies.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pyro_fed.conventions.names import closest
from pyro_fed.conventions.nested_settings import (
    Settings,
    Variant,
    by_name,
    default_of,
    recipe_place,
    setting_hints,
    settings_in,
)
from pyro_fed.conventions.toml_files import read_toml
from pyro_fed.errors import OURS, SettingError
from pyro_fed.recipes.library import find_recipe
from pyro_fed.recipes.values import (
    NONE_WORD,
    Mismatch,
    convert,
    describe,
    import_or_explain,
    resolve_component,
    to_toml,
)

#: The module that a recipe's text may have imported; all others are looked up among those that are there already.
ALGORITHMS = f"{OURS}.infer"
#: What a recipe may hold, and the arguments of `run` among it, with their types.
_TOP_LEVEL: Mapping[str, Any] = {"algorithm": str, "description": str, "settings": dict, "run": dict, "source": dict}
_RUN: Mapping[str, Any] = {"num_rounds": int, "num_draws": int, "schedule": str | dict, "graph": str | dict}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """One checked recipe.

    Args:
        name: the file's stem.
        path: the file.
        algorithm: the algorithm's dataclass.
        settings: keyword arguments of that class, checked against its type hints.
        given: the settings that the file says, those of other settings as ``client.steps``.
        run: ``num_rounds``, ``num_draws``, ``schedule`` and ``graph`` as the file gives them.
        description: a description in a line.
        source: where its values come from, by topic.

    Example:
        >>> load("svgd").algorithm.__name__
        'SVGD'
    """

    name: str
    path: Path
    algorithm: type
    settings: Mapping[str, Any]
    given: frozenset[str]
    run: Mapping[str, Any]
    description: str
    source: Mapping[str, str]

    def build(self, overrides: Mapping[str, Any] | None = None, where: str = "overrides") -> Any:
        """The algorithm with the recipe's settings.

        Args:
            overrides: settings that replace the recipe's, e.g. from the command line; ``client.steps`` is one setting
                of the setting ``client`` as it stands, or of what ``client`` says among the overrides.
            where: where they come from, for the message.

        Raises:
            SettingError: unknown setting, wrong type, or a value that the algorithm refuses.

        Example:
            >>> load("fedep_m").build({"client.steps": 100, "damping": 0.1})
        """
        present = {field.name: default_of(field) for field in dataclasses.fields(self.algorithm)}
        changed = check_settings(self.algorithm, _nest(overrides or {}), where, {**present, **self.settings})
        try:
            return self.algorithm(**{**self.settings, **changed})
        except SettingError as error:
            also = f" and {where}" if changed else ""
            raise SettingError(f"{self.path} [settings]{also}: {error}") from None
        except TypeError as error:
            raise SettingError(f"{self.path}: {self.algorithm.__name__} cannot be made of this: {error}") from error

    def left_out(self) -> dict[str, str]:
        """The settings that the file leaves at their defaults, and these, as TOML writes them."""
        return {name: text for name, text in flat_settings(self.build()).items() if name not in self.given}

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
        SettingError: no such file, not TOML, an unknown key, a value of the wrong type, or an algorithm that is
            neither in `pyro_fed.infer` nor in a module that is imported already. The message names the file and
            the key.

    Example:
        >>> load("dsvgd").build({"num_particles": 50}).num_particles
        50
    """
    path = find_recipe(name_or_path)
    content = _checked_settings(read_toml(path), _TOP_LEVEL, str(path))
    if "algorithm" not in content:
        raise SettingError(f"{path}: key 'algorithm' is missing, e.g. algorithm = \"pyro_fed.infer:DSVGD\".")
    algorithm = _algorithm_of(content["algorithm"], path)
    settings, source = content.get("settings", {}), content.get("source", {})
    return Recipe(
        name=path.stem,
        path=path,
        algorithm=algorithm,
        settings=MappingProxyType(check_settings(algorithm, settings, f"{path} [settings]")),
        given=_explicit_settings(settings),
        run=MappingProxyType(_checked_settings(content.get("run", {}), _RUN, f"{path} [run]")),
        description=content.get("description", ""),
        source=MappingProxyType(_checked_settings(source, dict.fromkeys(source, str), f"{path} [source]")),
    )


def check_settings(
    owner: type, given: Mapping[str, Any], where: str, present: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Settings in the types of a dataclass's fields; a table without a name changes the `present` setting."""
    hints = setting_hints(owner)
    known = (present or {}).get
    return {key: _value(owner, hints, key, value, where, known(key)) for key, value in given.items()}


def _value(owner: type, hints: Mapping[str, Any], key: str, value: Any, where: str, present: Any) -> Any:
    """One setting in its field's type."""
    family = settings_in(hints.get(key))
    if family is not None and isinstance(value, Mapping):
        return _table(owner, key, family, value, where, present)
    if family is not None and issubclass(family, Variant) and isinstance(value, str) and value != NONE_WORD:
        return _resolve_name(owner, key, family, value, where)
    if key not in hints and (place := recipe_place(owner, key)):
        raise SettingError(f"{where}: unknown key {key!r} of {owner.__name__}; {place}")
    return _checked_settings({key: value}, hints, where, of=f" of {owner.__name__}")[key]


def _table(owner: type, key: str, family: type[Settings], table: Mapping[str, Any], where: str, present: Any) -> Any:
    """A setting's own settings: those of the kind that the table names, or of the present kind."""
    inner = f"{where[:-1]}.{key}]" if where.endswith("]") else f"{where} {key}"
    values = dict(table)
    base: Settings | None = None
    if issubclass(family, Variant) and "name" in values:
        base = _resolve_name(owner, key, family, values.pop("name"), inner)
    elif isinstance(present, family):
        base = present
    elif issubclass(family, Variant):
        raise SettingError(f"{inner}: the name is missing, e.g. name = {next(iter(family.kinds()))!r}")
    checked = check_settings(family if base is None else type(base), values, inner)
    try:
        return family(**checked) if base is None else dataclasses.replace(base, **checked)
    except SettingError as error:
        raise SettingError(f"{inner}: {error}") from None


def _resolve_name(owner: type, key: str, family: type[Variant], name: Any, where: str) -> Variant:
    """The class or function that a name in a recipe stands for."""
    try:
        return by_name(owner, key, family, str(name))
    except SettingError as error:
        raise SettingError(f"{where}: {error}") from None


def _nest(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """``{"client": "mcmc", "client.steps": 5}`` as ``{"client": {"name": "mcmc", "steps": 5}}``."""
    nested = {key: value for key, value in overrides.items() if "." not in key}
    for key, value in overrides.items():
        outer, dot, inner = key.partition(".")
        if dot:
            table = nested.get(outer, {})
            nested[outer] = {**(table if isinstance(table, Mapping) else {"name": table}), inner: value}
    return nested


def _explicit_settings(settings: Mapping[str, Any]) -> frozenset[str]:
    """The settings that a file sets: ``client.steps`` in a table, ``client.name`` by a name alone."""
    names = set()
    for key, value in settings.items():
        names |= {f"{key}.{inner}" for inner in value} if isinstance(value, Mapping) else {key, f"{key}.name"}
    return frozenset(names)


def flat_settings(owner: Any) -> dict[str, str]:
    """All settings as TOML writes them, those of a setting under ``client.steps``, its kind under ``client.name``."""
    flat: dict[str, str] = {}
    for field in dataclasses.fields(owner):
        value = getattr(owner, field.name)
        if not isinstance(value, Settings):
            flat[field.name] = to_toml(value)
            continue
        if isinstance(value, Variant):
            flat[f"{field.name}.name"] = to_toml(value.kind())
        flat |= {f"{field.name}.{inner}": text for inner, text in flat_settings(value).items()}
    return flat


def changed_settings(owner: Any) -> str:
    """The settings that are not their class's defaults, in a line; all of them if the class has required settings."""
    needed = [one for one in dataclasses.fields(owner) if one.default is one.default_factory is dataclasses.MISSING]
    usual = {} if needed else flat_settings(type(owner)())
    changed = [f"{name}={text}" for name, text in flat_settings(owner).items() if usual.get(name) != text]
    if not changed:
        return "all at their defaults"
    return ", ".join(changed) + ("; the others at their defaults" if usual else "")


def _checked_settings(given: Mapping[str, Any], hints: Mapping[str, Any], where: str, of: str = "") -> dict[str, Any]:
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


def _algorithm_of(reference: str, path: Path) -> type:
    module_name, colon, class_name = reference.partition(":")
    if not colon or not class_name:
        raise SettingError(f"{path}: algorithm = {reference!r} is not of the form 'module:Class'.")
    if module_name == ALGORITHMS:
        module = import_or_explain(module_name, f"{path}: algorithm = {reference!r}")
        algorithm = getattr(module, class_name, None) if class_name.isidentifier() else None
    elif module_name in sys.modules:
        module = sys.modules[module_name]
        algorithm = vars(module).get(class_name)
    else:
        raise SettingError(
            f"{path}: algorithm = {reference!r:.200}: a recipe imports nothing but {ALGORITHMS}, since an import runs "
            "code. Import the module of an algorithm of your own in the model file, or before the recipe is read"
        )
    if algorithm is None:
        near = closest(class_name, [name for name in vars(module) if not name.startswith("_")])
        raise SettingError(f"{path}: module {module_name!r} has no {class_name!r}; {near}")
    if not (isinstance(algorithm, type) and dataclasses.is_dataclass(algorithm)):
        raise SettingError(f"{path}: {reference!r} is not a dataclass of settings, so it is not an algorithm.")
    if inspect.isabstract(algorithm):
        raise SettingError(f"{path}: {reference!r} is a base class of algorithms, and not an algorithm itself.")
    return algorithm
