"""The API pages' lists of names, read from the doors of the package: what a door offers is on its page by itself.

A line of a page in `docs/api/` such as

    % names: pyro_fed.infer.ep as pyro_fed
    % names: pyro_fed.schedule but Schedule

becomes one entry for each public class and function of that module, in alphabetical order, under the name by which
users know it (`pyro_fed.FedEP`, `pyro_fed.infer.SVGD`). Public is what stands in `__all__`, and in a module without one
what it defines itself under a name without an underscore. `but` leaves names out, such as base classes that the
contributors' page shows. An entry is the docstring and the signature; methods are shown where a page names them.
"""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import pyro_fed as pf

LINE = re.compile(r"^% names: (?P<module>\S+)(?: as (?P<shown>\S+))?(?: but (?P<but>.+))?$", re.MULTILINE)


def names_of(module: str, but: str | None = None) -> list[str]:
    """The public classes and functions of a module."""
    home: Any = importlib.import_module(module)
    left_out = re.split(r",\s*", but) if but else []
    own = [name for name, value in vars(home).items() if getattr(value, "__module__", None) == home.__name__]
    listed = getattr(home, "__all__", [name for name in own if not name.startswith("_")])
    unknown = sorted(set(left_out) - set(listed))
    if unknown:
        raise ValueError(f"{module} has no {unknown} to be left out; it offers {sorted(listed)}")
    return [n for n in sorted(set(listed) - set(left_out), key=str.lower) if _documented(getattr(home, n))]


def _documented(value: Any) -> bool:
    return inspect.isclass(value) or inspect.isfunction(value)


def entries(module: str, shown: str | None, but: str | None) -> dict[str, str]:
    """Name as users write it → the directive that documents it."""
    home = importlib.import_module(module)
    kinds = {}
    for name in names_of(module, but):
        value = getattr(home, name)
        is_error = inspect.isclass(value) and issubclass(value, BaseException)
        kind = "autoexception" if is_error else "autoclass" if inspect.isclass(value) else "autofunction"
        kinds[f"{_place_of(name) if shown == 'pyro_fed' else shown or module}.{name}"] = kind
    return kinds


def _place_of(name: str) -> str:
    """Where `pyro_fed` offers a name: itself, or the smallest of its public modules that have the name."""
    if name in pf.__all__:
        return "pyro_fed"
    modules = {module: getattr(pf, module) for module in pf.__all__ if inspect.ismodule(getattr(pf, module))}
    having = {module: len(home.__all__) for module, home in modules.items() if name in home.__all__}
    return f"pyro_fed.{min(having, key=having.__getitem__)}"


def filled(text: str) -> str:
    """A page with its `% names:` lines replaced."""

    def block(found: re.Match[str]) -> str:
        listed = entries(found["module"], found["shown"], found["but"])
        return "\n".join(["```{eval-rst}", *(f".. {kind}:: {name}\n" for name, kind in listed.items()), "```"])

    return LINE.sub(block, text)
