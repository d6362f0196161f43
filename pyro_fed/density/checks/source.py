"""A model's source: the lines of its sites, and the data that it holds by itself instead of as arguments."""

from __future__ import annotations

import dis
import functools
import inspect
import linecache
import re
from collections.abc import Callable, Iterator, Mapping
from types import CodeType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_fed.density.checks.blame import Line, Statements, is_users
from pyro_fed.errors import listed

#: Depth of calls to which a model's functions are examined.
MAX_DEPTH = 3


class HeldData(NamedTuple):
    """Data that a model holds.

    Attributes:
        name: as the model calls them.
        kind: "global", "enclosing variable" or "attribute".
        value: the data.
    """

    name: str
    kind: str
    value: Any


def observed_lines(run: Callable[[], Any]) -> list[tuple[str, Line]]:
    """The observed sites of a model and their lines, in order; `run` runs the model and returns its trace."""
    statements: dict[str, Line] = {}
    with Statements(statements):
        trace = run()
    return [
        (name, statements[name])
        for name, site in trace.nodes.items()
        if site["type"] == "sample" and site["is_observed"] and name in statements
    ]


def in_a_plate(plate: str, line: Line) -> str:
    """The statement of an observed site, on this line, as it is written inside the plate."""
    text = linecache.getline(*line).strip()
    loop = linecache.getline(line[0], line[1] - 1).strip().startswith("for ")
    value = re.search(r"obs\s*=\s*([A-Za-z_][\w.]*)", text)
    rows = value.group(1) if value else "y"
    instead = " in place of the loop, with all rows in one statement" if loop else ""
    return (
        f"Put it inside a plate over the rows{instead}: `with pyro.plate('{plate}', len({rows})):` before "
        f"`pyro.sample(..., obs={rows})`, with a distribution of one value a row"
    )


def held_data(model: Any, num_rows: int) -> list[HeldData]:
    """Arrays with as many rows as the plate that the model has from elsewhere than its arguments."""
    found: dict[str, HeldData] = {}
    for held in _held_data(model, 0, set()):
        shape = np.shape(held.value) if isinstance(held.value, Tensor | np.ndarray) else _shape(held.value)
        if num_rows in shape:
            found.setdefault(held.name, held)
    return list(found.values())


def held_sizes(model: Any, num_rows: int) -> list[str]:
    """Names of whole numbers that the model has from elsewhere and that are the number of all rows."""
    return [held.name for held in _held_data(model, 0, set()) if type(held.value) is int and held.value == num_rows]


def as_arguments(model: Any, names: list[str], held: list[HeldData], plate: str) -> str:
    """The sentence that asks a user to make arguments of held data, with the call; `names` are the arguments."""
    kinds = {
        kind: [f"'{one.name}'" for one in held if one.kind == kind] for kind in dict.fromkeys(h.kind for h in held)
    }
    what = ", ".join(f"the {kind}{'s' if len(of) > 1 else ''} {listed(of)}" for kind, of in kinds.items())
    new = [one.name.rsplit(".", 1)[-1] for one in held]
    heads = list(dict.fromkeys(re.split(r"[.\[]", name)[0] for name in names))
    call = ", ".join([*heads, *(name for name in new if name not in heads)])
    function = getattr(model, "__name__", "model")
    function = function if function.isidentifier() else "model"
    tuple_of = f"({call})" if "," in call else f"({call},)"
    return (
        f"The model has rows from elsewhere than its arguments: {what}. All data must be arguments, so that each "
        f"client has its own: `def {function}({call}): ...` and `pf.Federation({function}, {tuple_of}, "
        f"plate='{plate}', ...)`. "
    )


def _shape(value: Any) -> tuple[int, ...]:
    if hasattr(value, "to_numpy"):
        return tuple(getattr(value, "shape", ()))
    if isinstance(value, list | tuple) and value and isinstance(value[0], int | float | Tensor):
        return (len(value),)
    return ()


def _held_data(model: Any, depth: int, seen: set[int]) -> Iterator[HeldData]:
    """Data that a model and the functions that it calls have by enclosing variables, globals and attributes."""
    if depth > MAX_DEPTH or id(model) in seen:
        return
    seen.add(id(model))
    if isinstance(model, functools.partial):
        for part in (model.func, *model.args, *model.keywords.values()):
            if callable(part) and not isinstance(part, Tensor):
                yield from _held_data(part, depth, seen)
        return
    owner = getattr(model, "__self__", None)
    if not inspect.isfunction(model) and not inspect.ismethod(model):
        owner, model = model, getattr(model, "forward", None) or vars(type(model)).get("__call__")
    if owner is not None and not isinstance(owner, type):
        yield from _attributes(owner)
    function = inspect.unwrap(getattr(model, "__func__", model)) if model is not None else None
    if not inspect.isfunction(function) or not is_users(function.__code__):
        return
    for name, value in _variables(function):
        if inspect.isfunction(value.value) or isinstance(value.value, functools.partial):
            yield from _held_data(value.value, depth + 1, seen)
        else:
            yield HeldData(name, value.kind, value.value)


def _variables(function: Any) -> Iterator[tuple[str, HeldData]]:
    """Enclosing variables and globals in the code of a function and of functions inside it."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, HeldData(name, "enclosing variable", cell.cell_contents)
        except ValueError:  # not assigned yet
            continue
    for name in _global_names(function.__code__):
        if name in function.__globals__:
            yield name, HeldData(name, "global", function.__globals__[name])


def _global_names(code: CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname == "LOAD_GLOBAL":
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)


def _attributes(owner: Any) -> Iterator[HeldData]:
    values: Mapping[str, Any] = getattr(owner, "__dict__", {})
    if isinstance(owner, torch.nn.Module):
        values = {**values, **dict(owner.named_buffers())}
    for name, value in values.items():
        yield HeldData(f"self.{name}", "attribute", value)
