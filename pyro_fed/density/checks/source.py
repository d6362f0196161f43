"""A model's source: its own lines that are running, the lines of its sites, and the data that it holds by itself.

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

#: Depth of calls to which functions are examined for data that a model holds: deeper ones are a library's inner ones.
MAX_DEPTH = 3
#: Longest line that is quoted.
MAX_LINE_LENGTH = 80

Line = tuple[str, int]


def line_text(line: Line) -> str:
    """The text and the place of a line (file and number): `x - x.mean(0)` (model.py:12)."""
    text = linecache.getline(*line).split("  #")[0].strip()
    place = f"{os.path.basename(line[0])}:{line[1]}"
    return f"`{text[:MAX_LINE_LENGTH]}` ({place})" if text else place


def line_of(error: BaseException) -> str:
    """The model's line that raised an error, after a space; "" if it is not in the model."""
    trace: TracebackType | None = error.__traceback__
    inside, found = False, None
    while trace is not None:
        code = trace.tb_frame.f_code
        inside = inside or code is run_model.__code__
        if inside and is_users(code):
            found = code.co_filename, trace.tb_lineno
        trace = trace.tb_next
    return f" at {line_text(found)}" if found else ""


class CallWatcher(TorchFunctionMode):
    """Passes each function of torch that is called, its positional arguments and its result to `note`."""

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
    """The innermost line of the model itself that is running; None outside the model's run."""
    frame: Any = sys._getframe(1)
    found: Line | None = None
    while frame is not None and frame.f_code is not run_model.__code__:
        if found is None and is_users(frame.f_code):
            found = frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return found if frame is not None else None


def is_users(code: CodeType) -> bool:
    """Whether this is code of the model's own, and not of torch, Pyro, the standard library or this package."""
    return is_users_file(code.co_filename)


def is_users_file(path: str) -> bool:
    """Whether a file at this path is the user's, as `is_users`."""
    if path.startswith(_FOREIGN):
        return False
    return not path.startswith(_STANDARD) or "site-packages" in path


class HeldData(NamedTuple):
    """Data that a model holds."""

    name: str  # as the model calls them
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
    if isinstance(value, type):  # such as pandas.DataFrame itself
        return ()
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
