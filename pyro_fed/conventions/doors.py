"""Doors of rooms: the public names of a package, each loaded when it is first used (PEP 562, SPEC 1).

A door is a stub, `__init__.pyi`, which type checkers read unchanged, one line a name::

    from .fedep import FedEP as FedEP       a class or function of a module below this package
    from .algorithm import schedule as schedule     a module
    from .infer import *                    all names of that room's own door, itself a stub

The package's `__init__.py` is then `__getattr__, __dir__, __all__ = door(__name__, __file__)`. A module that is a
public name itself, such as `pf.schedule`, is imported by that name, too: `import pyro_fed.schedule`. The library
lazy-loader does the loading; its own `attach_stub` reads neither `*` nor modules of other packages.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import lazy_loader


class PublicModules(MetaPathFinder, Loader):
    """Imports modules by the names under which doors offer them; they are the same modules, wherever they stand."""

    def __init__(self) -> None:
        self.places: dict[str, str] = {}

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in self.places else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self.places[spec.name])
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It has been executed under its own name, which it keeps."""
        module.__spec__ = getattr(module.__spec__, "loader_state", None)


#: Asked last of all: files have precedence.
PUBLIC_MODULES = PublicModules()
sys.meta_path.append(PUBLIC_MODULES)


class Declared(NamedTuple):
    """The contents of a stub: public names by the module that has them, and the modules that are names themselves."""

    names: dict[str, list[str]]
    modules: dict[str, str]


def door(
    package: str, file: str, *, moved: Mapping[str, str] | None = None, removed_in: str = ""
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """A package's `__getattr__`, `__dir__` and `__all__`, from the stub beside its `__file__`.

    Packages beside the file that have doors of their own are attributes, too, which `dir` does not list. Names that
    have `moved`, each to a module or such a package, are given with a DeprecationWarning until the version
    `removed_in`.

    Raises:
        FileNotFoundError: there is no stub, or none in a room that a `*` names.
        SyntaxError: the stub is no Python.
    """
    found = stub_names(Path(file).parent)
    places_of_modules = {f"{package}.{name}": f"{package}.{place}" for name, place in found.modules.items()}
    PUBLIC_MODULES.places |= {name: place for name, place in places_of_modules.items() if name != place}
    attribute, _, names = lazy_loader.attach(package, submod_attrs=found.names)
    public = sorted([*names, *found.modules])
    places = {name: name for name in public} | {name: f"{module}.{name}" for name, module in (moved or {}).items()}

    unlisted = {stub.parent.name for stub in Path(file).parent.glob("*/__init__.pyi")} - {*public}

    def load(name: str) -> Any:
        if name in found.modules or name in unlisted:
            return importlib.import_module(f"{package}.{found.modules.get(name, name)}")
        if name not in names and name in places:
            now = f"{package}.{places[name]}"
            said = f"{package}.{name} is {now} now; version {removed_in} gives it under that name alone"
            warnings.warn(said, DeprecationWarning, stacklevel=2)
            return getattr(load(places[name].partition(".")[0]), name)
        if name not in names and not name.startswith("_") and (near := difflib.get_close_matches(name, places)):
            meant = " or ".join(repr(places[one]) for one in near)
            raise AttributeError(f"{package} has no {name!r}; did you mean {meant}?")
        return attribute(name)

    return load, lambda: list(public), public


def public_dir(names: Sequence[str]) -> Callable[[], list[str]]:
    """A module's `__dir__` for its `__all__`: the public names alone, where tab completion would show all imports.

    Example:
        >>> __dir__ = public_dir(__all__)
    """
    return lambda: sorted(names)


def stub_names(folder: Path) -> Declared:
    """The public names of the package in a folder, read from its `__init__.pyi` without importing anything."""
    found = Declared({}, {})
    for node in ast.parse((folder / "__init__.pyi").read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.ImportFrom):
            continue
        room = node.module or ""
        where = folder.joinpath(*room.split("."))
        for name in (alias.name for alias in node.names):
            if name == "*":
                below = stub_names(where)
                for names in below.names.values():
                    found.names.setdefault(room, []).extend(names)
                found.modules.update({module: f"{room}.{place}" for module, place in below.modules.items()})
            elif (where / name).is_dir() or (where / f"{name}.py").is_file():
                found.modules[name] = f"{room}.{name}" if room else name
            else:
                found.names.setdefault(room, []).append(name)
    return found
