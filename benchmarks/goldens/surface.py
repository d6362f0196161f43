"""The public face as records: names, arguments, every algorithm's settings with their defaults, recipes' settings.

`codes` and `phases` are all that the goldens read of the package's inside.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import torch

import pyro_fed as pf
from pyro_fed.density.running.handlers import default_of
from pyro_fed.policy import chain_of, stages_of
from pyro_fed.recipes import load
from pyro_fed.recipes.library import list_recipes
from pyro_fed.results import InferenceData

#: The names of the public face.
PUBLIC: list[str] = sorted(vars(pf)["__all__"])
#: Where an object is in memory, in its `repr`.
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
#: Where a new word begins in the name of a class.
WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@dataclass(frozen=True)
class Fact:
    """A part of the public face."""

    name: str
    fact: Callable[[], dict[str, Any]]

    def record(self) -> dict[str, Any]:
        """Its record."""
        return {"case": self.name, **self.fact()}


def names() -> list[Fact]:
    """Every public name and every recipe."""
    facts = [Fact("pyro_fed", lambda: {"names": PUBLIC})]
    facts += [Fact(f"pf.{name}", partial(_of_object, getattr(pf, name))) for name in PUBLIC]
    for name in PUBLIC:
        module = getattr(pf, name)
        if isinstance(module, ModuleType):
            facts += [
                Fact(f"pf.{name}.{inner}", partial(_of_object, getattr(module, inner)))
                for inner in sorted(getattr(module, "__all__", ()))
            ]
    facts += [Fact(f"recipe {name}", partial(_of_recipe, name)) for name in sorted(list_recipes())]
    return facts


def _of_object(value: Any) -> dict[str, Any]:
    if isinstance(value, ModuleType):
        return {"kind": "module", "names": sorted(getattr(value, "__all__", ()))}
    if dataclasses.is_dataclass(value) and isinstance(value, type):
        fields = {field.name: _default(field) for field in dataclasses.fields(value) if field.init}
        return {"kind": "settings", "settings": fields}
    if isinstance(value, type):
        bases = [base.__name__ for base in value.__mro__[1:-1] if issubclass(base, BaseException)]
        return {"kind": "class", "arguments": _arguments(value), "errors": bases}
    if callable(value):
        return {"kind": "function", "arguments": _arguments(value)}
    return {"kind": "value", "value": plain(value)}


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return plain(field.default_factory())
    return "(required)" if field.default is dataclasses.MISSING else plain(field.default)


def _arguments(value: Any) -> list[str]:
    """Names with their defaults, and * and ** as they are written."""
    try:
        parameters = inspect.signature(value).parameters.values()
    except ValueError:  # a class of C has none
        return []
    stars: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return [
        f"{stars.get(p.kind, '')}{p.name}" + ("" if p.default is p.empty else f"={plain(p.default)!r}")
        for p in parameters
    ]


def _of_recipe(name: str) -> dict[str, Any]:
    recipe = load(name)
    return {
        "kind": "recipe",
        "algorithm": recipe.algorithm.__name__,
        "settings": settings_of(recipe.build()),
        "run": plain(dict(recipe.run)),
        "source": plain(dict(recipe.source)),
    }


def settings_of(settings: Any) -> dict[str, Any]:
    """All fields of a dataclass as plain values, by name."""
    return {field.name: plain(getattr(settings, field.name)) for field in dataclasses.fields(settings)}


def snake_case(name: str) -> str:
    """The name of a class as recipes and results write it: `step_control`."""
    return WORD.sub("_", name).lower()


def plain(value: Any) -> Any:
    """A value as JSON has it, without the modules in which classes and functions stand."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, type) or hasattr(value, "__qualname__"):
        return value.__qualname__
    if dataclasses.is_dataclass(value):
        return {"name": snake_case(type(value).__name__), **settings_of(value)}
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(value.shape)} {value.tolist()}"
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return ADDRESS.sub("", repr(value))


def codes(idata: InferenceData) -> list[str] | None:
    """The codes of a result's findings, in their order; None of a package whose findings have no codes."""
    findings = idata.attrs.get("findings")
    return None if findings is None else [finding["code"] for finding in json.loads(findings)]


def phases(algorithm: Any, federation: pf.Federation, graph: pf.graph.Graph | None) -> list[list[Any]]:
    """A run's phases with their settings, by stage of a plan; one of an earlier stage is its algorithm's name alone."""
    problem = federation.problem
    found: list[list[Any]] = []
    with default_of(problem.dtype), torch.no_grad():
        for stage in stages_of(algorithm, problem, graph):
            parts = [_phase(part) for part in chain_of(stage.algorithm, problem)]
            before = [part for one in found for part in one]
            found.append([part["algorithm"] if part in before else part for part in parts])
            if stage.noncentred:
                found[-1].append("noncentred")
    return found


def _phase(algorithm: Any) -> dict[str, Any]:
    """An algorithm's settings for a model; `structure` is what covariance="auto" has become."""
    phase = {"algorithm": type(algorithm).__name__, "settings": settings_of(algorithm)}
    if hasattr(algorithm, "structure"):
        phase["structure"] = algorithm.structure
    return phase
