"""A run's configuration in Flower: the arguments of `pyro_fed.run`, from `[tool.flwr.app.config]` and `--run-config`.

The keys are the arguments of `run` with "-" for "_", and those of waiting for clients. Flower only takes texts, numbers
and flags, and lets `--run-config` replace only keys that the app's file has. So "none" stands for a key that is not
set, and a schedule, graph or combination with arguments is a table as text, as in `graph = '{name = "star", confidence
= 0.5}'`. Keys that the file does not set come from the app's `server_app`, and then from the recipe:

    run configuration  >  arguments of server_app  >  the recipe's [run]  >  the defaults of `run`
"""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyro_fed.conventions.names import closest
from pyro_fed.conventions.output import check_writable
from pyro_fed.deployment.flower.secure import SecAgg
from pyro_fed.deployment.remote.clients import algorithm_and_options
from pyro_fed.deployment.remote.questions import INFLUENCE, LEFT_OUT, LOO
from pyro_fed.errors import SettingError
from pyro_fed.recipes.recipe import Recipe
from pyro_fed.recipes.values import (
    NONE_WORD,
    Mismatch,
    convert,
    describe,
    import_or_explain,
    public_callables,
    resolve_component,
)
from pyro_fed.runtime.run import run

#: Values that mean "not set": Flower has no null, and an empty text is no value of any key.
UNSET = (None, NONE_WORD, "")
#: What error messages call the configuration.
WHERE = "the run's configuration"
#: Keys for texts, numbers and flags, with their types.
PLAIN: Mapping[str, Any] = {
    "num-clients": int,
    "rounds": int,
    "num-draws": int,
    "seed": int,
    "timeout": float,
    "wait": float,
    "compile": str,
    "min-clients": int,
    "checkpoint": str,
    "resume": bool,
    "start": str,
    "audit": bool,
    "influence": bool,
    "leave-one-client-out": bool,
    "estimands": str,
    "out": str,
}
#: Keys for objects by name, and the modules that have these; the first module's error is given for an unknown name.
OBJECTS: Mapping[str, tuple[str, ...]] = {
    "schedule": ("pyro_fed.algorithm.schedule",),
    "graph": ("pyro_fed.graph",),
    "combination": ("pyro_fed.algorithm.combination", "pyro_fed.algorithm.privacy"),
}
#: The key of secure aggregation, which is no argument of `run`: true, or a table of `SecAgg`'s settings.
SECURE = "secure-aggregation"
#: The types of all keys, and in words where these say more. That of LOO may be the observed site if there are several.
TYPES: Mapping[str, Any] = {**PLAIN, **dict.fromkeys(OBJECTS, str | dict), SECURE: bool | dict, LOO: bool | str}
IN_WORDS: Mapping[str, str] = {
    **dict.fromkeys(OBJECTS, "a name or a table"),
    SECURE: "true, false or a table such as {largest = 1e6}",
    LOO: "true, false or the name of an observed site",
}
#: Arguments of `run` that a deployment sets itself, or that need rows at the server; with the reason.
NOT_TAKEN: Mapping[str, str] = {
    "algorithm": "the recipe sets it",
    "federation": "the clients that have joined make it",
    "executor": "the clients' nodes do the work",
    "log_likelihood": "it needs the rows, which stay at the clients",
    "collect_local": "it needs the rows, which stay at the clients",
}


@dataclass(frozen=True)
class Configuration:
    """A deployment's settings."""

    num_clients: int  # to wait for
    timeout: float = 600.0  # seconds that a client has for a round, and to describe itself
    wait: float = 600.0  # seconds that the server waits for clients
    out: str = "posterior.nc"
    options: dict[str, Any] = field(default_factory=dict)  # arguments of `run` that do not depend on the clients
    specs: dict[str, str | dict[str, Any]] = field(default_factory=dict)  # schedule, graph and combination by name
    secure: SecAgg | None = None  # settings of secure aggregation
    loo: str | None = None  # the observed site of leave-one-out, "" for the only one; None for no leave-one-out
    about_clients: tuple[str, ...] = ()  # questions after the run, by name
    estimands: tuple[str, ...] = ()

    def run_options(self, chosen: Recipe, num_clients: int) -> tuple[Any, dict[str, Any]]:
        """The recipe's algorithm, and the arguments of `run` with a graph over the clients."""
        options = dict(self.options)
        for key, spec in self.specs.items():
            arguments = (num_clients,) if key == "graph" else ()
            options[key] = resolve_component(_module_of(key, spec), spec, Path(WHERE), *arguments)
        return algorithm_and_options(chosen, options, num_clients, WHERE)


def check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `run` that `server_app` is given, if a deployment takes all of them."""
    known = [name for name in inspect.signature(run).parameters if name not in NOT_TAKEN]
    for name in options:
        if name in NOT_TAKEN:
            raise SettingError(f"server_app does not take {name}=: {NOT_TAKEN[name]}")
        if name not in known:
            raise SettingError(f"server_app has no argument {name!r}; {closest(name, known)}")
    return dict(options)


def read_configuration(
    config: Mapping[str, Any], options: Mapping[str, Any] | None = None, secure: SecAgg | None = None
) -> Configuration:
    """The settings of a run: Flower's `run_config` before the app's own `options` and secure aggregation."""
    nested = {key: value for key, value in _nest_tables(config).items() if value not in UNSET}
    given = {key: _converted_value(key, value) for key, value in nested.items()}
    if "num-clients" not in given:
        raise SettingError(f"{WHERE} lacks num-clients, the number of clients to wait for, such as num-clients = 3")
    if given.get("rounds") == 0:
        del given["rounds"]
    timeout = given.pop("timeout", Configuration.timeout)
    wait = given.pop("wait", timeout)
    for name, seconds in (("timeout", timeout), ("wait", wait)):
        if not seconds > 0:
            raise SettingError(f"{WHERE}: {name} must be positive, received {seconds}")
    if given["num-clients"] < 1:
        raise SettingError(f"{WHERE}: num-clients must be at least 1, received {given['num-clients']}")
    out = str(check_writable(given.pop("out", Configuration.out), "out"))
    specs = {key: given.pop(key) for key in OBJECTS if key in given}
    secure, loo = given.pop(SECURE, secure), given.pop(LOO, None)
    num_clients = given.pop("num-clients")
    about_clients = tuple(name for name in (INFLUENCE, LEFT_OUT) if given.pop(name.replace("_", "-"), False))
    estimands = tuple(name.strip() for name in given.pop("estimands", "").split(",") if name.strip())
    if "rounds" in given:
        given["num-rounds"] = given.pop("rounds")
    own = {key: value for key, value in (options or {}).items() if key not in specs}
    merged = own | {key.replace("-", "_"): value for key, value in given.items()}
    return Configuration(num_clients, timeout, wait, out, merged, specs, secure, loo, about_clients, estimands)


def _module_of(key: str, spec: str | dict[str, Any]) -> str:
    """The module that has an object of this name, or else the key's first module."""
    name = spec if isinstance(spec, str) else spec.get("name")
    modules = OBJECTS[key]
    holding = [module for module in modules if name in public_callables(import_or_explain(module, WHERE))]
    return holding[0] if holding else modules[0]


def _nest_tables(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with keys such as `schedule.name` in tables again."""
    found: dict[str, Any] = {key: value for key, value in config.items() if "." not in key}
    for key, value in config.items():
        outer, dot, inner = key.partition(".")
        if dot:
            table = found.setdefault(outer, {})
            if not isinstance(table, dict):
                raise SettingError(f"{WHERE}: {outer!r} is a value and a table, {key!r}, at once")
            table[inner] = value
    return found


def _converted_value(key: str, value: Any) -> Any:
    """A value, converted to its key's type; a text in braces is a table."""
    if key not in TYPES:
        raise SettingError(f"{WHERE}: unknown key {key!r}; {closest(key, TYPES)}")
    if key in (*OBJECTS, SECURE) and isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = tomllib.loads(f"value = {value}")["value"]
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise SettingError(f"{WHERE}: {key} = {value!r:.200} is not a table of TOML: {error}") from error
    try:
        value = convert(value, TYPES[key])
    except Mismatch:
        expected = IN_WORDS.get(key) or describe(TYPES[key])
        raise SettingError(
            f"{WHERE}: {key!r} expects {expected}, received {value!r} ({type(value).__name__})"
        ) from None
    if value is False and key in (SECURE, LOO):
        return None
    if key == SECURE:
        return SecAgg(**({} if value is True else value))
    return "" if key == LOO and value is True else value
