"""A model's source: its running lines, the lines of its sites, and data that it holds outside its arguments.

Data that a model holds instead of taking them as arguments are the same at every client.
"""

from __future__ import annotations

import dis
import functools
import inspect
import linecache
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType, TracebackType
from typing import Any, NamedTuple

import numpy as np
import pyro
import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pyro_fed.density.running.handlers import run_model
from pyro_fed.errors import listed

#: Paths of code that is not the user's.
_FOREIGN = tuple(
    os.path.dirname(os.path.abspath(path)) + os.sep
    for path in (torch.__file__, pyro.__file__, os.path.join(os.path.dirname(__file__), "..", "..", "x"))
)
_STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + os.sep

#: Largest depth of calls in the search for held data; deeper functions are internal to a library.
MAX_DEPTH = 3
#: Longest line that is quoted.
MAX_LINE_LENGTH = 80

Line = tuple[str, int]


def line_text(line: Line) -> str:
    """The text and place of a line (file and number): `x - x.mean(0)` (model.py:12)."""
    text = linecache.getline(*line).split("  #")[0].strip()
    place = f"{os.path.basename(line[0])}:{line[1]}"
    return f"`{text[:MAX_LINE_LENGTH]}` ({place})" if text else place


def line_of(error: BaseException) -> str:
    """The model's line that raised an error, after " at "; "" if it is not in the model."""
    trace: TracebackType | None = error.__traceback__
    inside, line = False, None
    while trace is not None:
        code = trace.tb_frame.f_code
        inside = inside or code is run_model.__code__
        if inside and is_users(code):
            line = code.co_filename, trace.tb_lineno
        trace = trace.tb_next
    return f" at {line_text(line)}" if line else ""


class CallWatcher(TorchFunctionMode):
    """Passes each called torch function, its positional arguments and its result to `note`."""

    def note(self, function: Any, args: Sequence[Any], value: Any) -> None:
        """Record a call."""
        raise NotImplementedError

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        value = func(*args, **(kwargs or {}))
        self.note(func, args, value)
        return value


class Statements(Messenger):
    """Records the line of each `pyro.sample` in `statements`, by the site's name."""

    def __init__(self, statements: dict[str, Line]) -> None:
        super().__init__()
        self.statements = statements

    def _pyro_sample(self, msg: Any) -> None:
        line = current_line()
        if line is not None:
            self.statements[msg["name"]] = line


def current_line() -> Line | None:
    """The innermost running line of the model itself; None outside a run of the model."""
    frame: Any = sys._getframe(1)
    line: Line | None = None
    while frame is not None and frame.f_code is not run_model.__code__:
        if line is None and is_users(frame.f_code):
            line = frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return line if frame is not None else None


def is_users(code: CodeType) -> bool:
    """Whether code belongs to the user, not to torch, Pyro, the standard library or this package."""
    return is_users_file(code.co_filename)


def is_users_file(path: str) -> bool:
    """Whether the file at a path belongs to the user, see `is_users`."""
    if path.startswith(_FOREIGN):
        return False
    return not path.startswith(_STANDARD) or "site-packages" in path


class HeldData(NamedTuple):
    """Data that a model holds."""

    name: str  # name in the model
    kind: str  # "global", "enclosing variable" or "attribute"
    value: Any  # the data


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
    """A sentence that shows the statement of an observed site, on this line, inside the plate."""
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
    """Arrays outside the arguments with as many rows as the plate."""
    data_by_name: dict[str, HeldData] = {}
    for data in _held_data(model, 0, set()):
        shape = np.shape(data.value) if isinstance(data.value, Tensor | np.ndarray) else _shape(data.value)
        if num_rows in shape:
            data_by_name.setdefault(data.name, data)
    return list(data_by_name.values())


def held_sizes(model: Any, num_rows: int) -> list[str]:
    """Names of integers outside the arguments that equal the number of all rows."""
    return [held.name for held in _held_data(model, 0, set()) if type(held.value) is int and held.value == num_rows]


def as_arguments(model: Any, names: list[str], held: list[HeldData], plate: str) -> str:
    """A sentence that asks the user to make held data arguments, with the call; `names` are the arguments."""
    kinds = {
        kind: [f"'{one.name}'" for one in held if one.kind == kind] for kind in dict.fromkeys(h.kind for h in held)
    }
    held_names = ", ".join(f"the {kind}{'s' if len(of) > 1 else ''} {listed(of)}" for kind, of in kinds.items())
    new_names = [one.name.rsplit(".", 1)[-1] for one in held]
    heads = list(dict.fromkeys(re.split(r"[.\[]", name)[0] for name in names))
    call = ", ".join([*heads, *(name for name in new_names if name not in heads)])
    function = getattr(model, "__name__", "model")
    function = function if function.isidentifier() else "model"
    tuple_of = f"({call})" if "," in call else f"({call},)"
    return (
        f"The model has rows outside its arguments: {held_names}. All data must be arguments, so that each "
        f"client has its own: `def {function}({call}): ...` and `pf.Federation({function}, {tuple_of}, "
        f"plate='{plate}', ...)`. "
    )


def _shape(value: Any) -> tuple[int, ...]:
    if isinstance(value, type):  # such as pandas.DataFrame itself
        return ()
    if hasattr(value, "to_numpy"):
        return tuple(getattr(value, "shape", ()))
    if isinstance(value, list | tuple) and value and isinstance(value[0], int | float | Tensor):
        return (len(value),)
    return ()


def _held_data(model: Any, depth: int, visited: set[int]) -> Iterator[HeldData]:
    """Data in enclosing variables, globals and attributes of a model and of the functions that it calls."""
    if depth > MAX_DEPTH or id(model) in visited:
        return
    visited.add(id(model))
    if isinstance(model, functools.partial):
        for component in (model.func, *model.args, *model.keywords.values()):
            if callable(component) and not isinstance(component, Tensor):
                yield from _held_data(component, depth, visited)
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
            yield from _held_data(value.value, depth + 1, visited)
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
