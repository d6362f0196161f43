"""Checks of an algorithm's settings: frozen, shown, written to a recipe and read again, and checked for their range."""

from __future__ import annotations

import ast
import copy
import dataclasses
import inspect
import sys
import tempfile
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyro_fed.algorithm import Algorithm
from pyro_fed.algorithm.capabilities import check_taken_up
from pyro_fed.conventions.nested_settings import Settings, changed_settings, setting_hints
from pyro_fed.errors import OURS, SettingError
from pyro_fed.recipes.recipe import flat_settings, load
from pyro_fed.testing.case import Case, require

#: Neither a number nor a valid text of any setting.
NO_NUMBER = "no number"
#: A setting that no algorithm has.
UNKNOWN = "no_such_setting"


def check_settings_are_frozen(algorithm: Algorithm, case: Case) -> None:
    """An algorithm is a frozen, keyword-only dataclass; a copy of it is equal to it."""
    kind = type(algorithm)
    is_decorated = "__dataclass_fields__" in vars(kind)
    require(
        is_decorated and kind.__dataclass_params__.frozen,  # type: ignore[attr-defined]  # a dataclass has them
        f"{kind.__name__} to be a frozen dataclass",
        "a class that is not decorated" if not is_decorated else "a dataclass whose fields can be assigned",
        "Decorate it by @dataclass(frozen=True, kw_only=True)",
    )
    positional = [one.name for one in dataclasses.fields(algorithm) if one.init and not one.kw_only]
    require(
        not positional,
        "settings that are given by name",
        f"{', '.join(positional)} by position",
        "Decorate the class by @dataclass(frozen=True, kw_only=True)",
    )
    require(
        copy.copy(algorithm) == algorithm and dataclasses.replace(algorithm) == algorithm,
        "a copy with equal settings to be equal",
        "an unequal one",
        "Keep no state in the algorithm but its settings, and leave `__eq__` to the dataclass",
    )


def check_repr_shows_settings(algorithm: Algorithm, case: Case) -> None:
    """The repr is the class's name and the settings that are not at their defaults."""
    text, names = repr(algorithm), list(changed_settings(algorithm))
    missing = [name for name in names if f"{name}=" not in text]
    require(
        text.startswith(f"{type(algorithm).__name__}(") and not missing,
        f"a repr {type(algorithm).__name__}(...) with {', '.join(names) or 'no settings'}",
        text,
        "Leave `__repr__` to the base class Algorithm",
    )


def check_recipe_round_trip(algorithm: Algorithm, case: Case) -> None:
    """The settings, written to a recipe and read again, give an equal algorithm."""
    lines = [f"algorithm = {_reference(type(algorithm))!r}", "[settings]"]
    lines += [f"{name} = {text}" for name, text in flat_settings(algorithm).items()]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recipe.toml"
        path.write_text("\n".join(lines), encoding="utf-8")
        built = load(path).build()
    require(
        built == algorithm,
        f"the recipe to give {algorithm!r}",
        repr(built),
        "Give each setting a type hint that a recipe can say: a number, text, a choice, or a sequence of these",
    )


def writable(algorithm: Algorithm) -> bool:
    """Whether a recipe can name the class and hold all its settings."""
    kind = type(algorithm)
    home = sys.modules.get(_reference(kind).partition(":")[0])
    return getattr(home, kind.__name__, None) is kind and _plain_fields(algorithm)


def _reference(kind: type) -> str:
    """A class's name in a recipe."""
    module = f"{OURS}.infer" if kind.__module__.startswith(f"{OURS}.infer.") else kind.__module__
    return f"{module}:{kind.__name__}"


def _plain_fields(owner: Algorithm | Settings) -> bool:
    return all(_as_plain(getattr(owner, one.name)) for one in dataclasses.fields(owner) if one.init)


def _as_plain(value: Any) -> bool:
    if isinstance(value, Settings):
        return _plain_fields(value)
    if isinstance(value, list | tuple):
        return all(_as_plain(item) for item in value)
    return value is None or isinstance(value, bool | int | float | str)


def check_settings_are_checked(algorithm: Algorithm, case: Case) -> None:
    """NaN or text in place of a number raises a `SettingError` that names the setting; so does an unknown setting."""
    name = type(algorithm).__name__
    accepted = [
        f"{name}({setting}={value!r})"
        for setting, value in _invalid_numbers(algorithm)
        if _accepts(algorithm, setting, value)
    ]
    require(
        not accepted,
        "a SettingError that names the setting",
        f"no such error from {', '.join(accepted)}",
        "Check each setting in `__post_init__` by pyro_fed.conventions.setting_checks, such as check_positive(self, "
        "'step_size')",
    )
    try:
        dataclasses.replace(algorithm, **{UNKNOWN: 1})
    except (SettingError, TypeError) as error:
        require(
            UNKNOWN in str(error), f"an error that names {UNKNOWN}", str(error), "Leave `__init__` to the dataclass"
        )
    else:
        require(False, f"an error from {name}({UNKNOWN}=1)", "none", "Leave `__init__` to the dataclass")


def _invalid_numbers(algorithm: Algorithm) -> Iterator[tuple[str, Any]]:
    """Settings that are numbers, with values that are not numbers."""
    hints = setting_hints(type(algorithm))
    for one in dataclasses.fields(algorithm):
        kinds = {hints.get(one.name), *typing.get_args(hints.get(one.name))}
        if one.init and {int, float} & kinds:
            yield one.name, float("nan")
            if str not in kinds:
                yield one.name, NO_NUMBER


def _accepts(algorithm: Algorithm, setting: str, value: Any) -> bool:
    try:
        dataclasses.replace(algorithm, **{setting: value})
    except SettingError as error:
        return setting not in str(error)
    except (TypeError, ValueError):
        return True
    return True


def check_settings_have_effect(algorithm: Algorithm, case: Case) -> None:
    """A run reads each setting, or the algorithm's code does somewhere: none is silently ignored."""
    read = case.observation.read
    unread = [one.name for one in dataclasses.fields(algorithm) if one.init and one.name not in read]
    if not unread:
        return
    named = _attributes_in_code(type(algorithm)) | _attributes_in_code(type(algorithm.delegate()))
    ignored = [name for name in unread if name not in named]
    if ignored:
        case.observation.ended()  # a run that failed might have read it later
    require(
        not ignored,
        "settings that have an effect",
        f"{', '.join(ignored)}, which only `__post_init__` reads",
        "Use it, or leave it out: a user who changes it expects a difference",
    )


def _attributes_in_code(kind: type) -> set[str]:
    """Names of attributes in the modules of a class and its bases, outside `__post_init__`."""
    names = set[str]()
    for name in {one.__module__ for one in kind.__mro__}:
        try:
            todo: list[ast.AST] = [ast.parse(inspect.getsource(sys.modules[name]))]
        except (KeyError, OSError, TypeError):  # a class of a notebook or an interpreter
            continue
        while todo:
            node = todo.pop()
            if isinstance(node, ast.FunctionDef) and node.name == "__post_init__":
                continue
            if isinstance(node, ast.Attribute):
                names.add(node.attr)
            todo += ast.iter_child_nodes(node)
    return names


def check_capabilities_are_taken_up(algorithm: Algorithm, case: Case) -> None:
    """Methods of a capability need it as a base class; methods of contributions are not on the algorithm."""
    check_taken_up(algorithm.delegate())
