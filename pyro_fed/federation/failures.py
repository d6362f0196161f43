"""Errors for a model that fails on its data: its line, its arguments, and the cure."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pyro
import torch
from pyro.nn import PyroModule
from torch import Tensor
from torch.distributions import Distribution

from pyro_fed.density.checks.source import as_arguments, held_data, in_a_plate, line_of, line_text, observed_lines
from pyro_fed.density.checks.undefined import AWAY_FROM_EDGE
from pyro_fed.density.rows.arguments import Arguments
from pyro_fed.errors import ModelError, PyroFedError, listed

_NO_FLOATS = re.compile(r"same dtype|scalar type|result type|can't be cast|two bool tensors|dtype|Long", re.IGNORECASE)

#: Errors of a model by kind and message, each with its cure.
_HINTS = (
    (
        IndexError,
        "used as indices",
        "Codes of groups are whole numbers: pass them as .long() (of an array .astype(int)).",
    ),
    (
        RuntimeError,
        r"(?i)doesn't have storage|call numpy\(\)|\.numpy\(\)",
        "While the model runs its arguments are tensors that NumPy cannot read: take torch's functions, such as "
        "torch.log1p in place of np.log1p, or compute the column before the model.",
    ),
    (
        RuntimeError,
        "(?i)in-place operation|in-place arithmetic",
        "The line writes to its arguments, so each run would start from what the previous one left: make a new "
        "tensor, such as x = x * 2 in place of x *= 2, torch.where in place of x[mask] = 0, or x.clamp in "
        "place of x.clamp_.",
    ),
    (
        TypeError,
        "'Table' object.*assignment",
        "While the model runs a data frame is read only: compute the column before the model, or as a variable.",
    ),
    (
        AttributeError,
        "Tensor",
        "While the model runs its arguments are tensors: convert and summarise data before the model.",
    ),
)

_OUT_OF_BOUNDS = re.compile(r"index (-?\d+) is out of bounds for dimension \d+ with size (\d+)")

#: An entry of an argument that is a list, or of one of its items.
_ITEM = re.compile(r"^(\w+)\[(\d+)\]")


@contextmanager
def explained_failures(
    arguments: Arguments, model: Callable[..., Any], plate: str, place: Callable[[int], str] = lambda row: f"row {row}"
) -> Iterator[None]:
    """Raise the errors of the model's own lines as a `ModelError` that names the line and the arguments."""
    try:
        yield
    except PyroFedError:
        raise
    except Exception as error:  # of any kind, as the user's model has raised it; it stays the cause
        line = line_of(error)
        if not line:
            raise
        first = next((text for text in str(error).splitlines() if text.strip()), "")
        raise ModelError(
            f"the model fails{line}: {type(error).__name__}: {first}. Its arguments: {_shapes_text(arguments)}. "
            f"{_codes(arguments, error, place)}{_parameter(arguments, error, place)}"
            f"{_hint(arguments, model, plate, error)}".rstrip()
        ) from error


def is_failure(error: Exception) -> bool:
    """Whether `explained_failures` has raised the error in place of one from the model's own lines."""
    return error.__cause__ is not None and not isinstance(error.__cause__, PyroFedError)


def _shapes_text(arguments: Arguments) -> str:
    parts = []
    for name, leaf in zip(arguments.names, arguments.leaves, strict=True):
        shape = f"{str(leaf.dtype).removeprefix('torch.')} {tuple(leaf.shape)}" if isinstance(leaf, Tensor) else None
        parts.append(f"'{name}' is {shape or repr(leaf)[:40]}")
    return ", ".join(parts[:12]) or "none"


def _codes(arguments: Arguments, error: Exception, place: Callable[[int], str]) -> str:
    """A sentence on the argument that holds a number out of bounds, and its place; "" if there is none."""
    match = _OUT_OF_BOUNDS.search(str(error)) if isinstance(error, IndexError) else None
    if match is None:
        return ""
    number, size = int(match[1]), int(match[2])
    for name, leaf in zip(arguments.names, arguments.leaves, strict=True):
        if not isinstance(leaf, Tensor) or not leaf.dim() or leaf.is_floating_point():
            continue
        at = (leaf == number).reshape(len(leaf), -1).any(1).nonzero()
        if len(at):
            meant = f" ({arguments.labels[name][number]!r})" if name in arguments.labels else ""
            return (
                f"'{name}' is {number}{meant} at {place(int(at[0]))}, where the model knows 0 to {size - 1}: number "
                "groups from 0, alike at all clients, or tell the model how many there are. "
            )
    return ""


def _parameter(arguments: Arguments, error: Exception, place: Callable[[int], str]) -> str:
    """A sentence on the rows that put a distribution's parameter beyond its constraint; "" if all rows do, or none."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if not isinstance(error, ValueError) or frames[-1].f_code is not Distribution.__init__.__code__:
        return ""
    valid = frames[-1].f_locals.get("valid")  # of torch's check of one parameter
    if not isinstance(valid, Tensor) or not valid.dim() or len(valid) != arguments.num_rows:
        return ""
    bad = ~valid.bool().reshape(len(valid), -1).all(1)
    if not bool(bad.any()) or bool(bad.all()):
        return ""
    return (
        f"This is so in {int(bad.sum())} of the {len(bad)} rows{arguments.edge_of(bad)} (first: "
        f"{place(int(bad.nonzero()[0]))}): {AWAY_FROM_EDGE}. "
    )


def _hint(arguments: Arguments, model: Callable[..., Any], plate: str, error: Exception) -> str:
    whole = [
        name
        for name, leaf in zip(arguments.names, arguments.leaves, strict=True)
        if isinstance(leaf, Tensor) and not leaf.is_floating_point()
    ]
    if whole and _NO_FLOATS.search(str(error)):
        first = whole[0]
        return (
            f"Where real numbers are wanted, pass them: {first}.double() or {first}.float() (of an array "
            f"{first}.astype(float))."
        )
    if ragged := _first_ragged_argument(arguments):
        name, sizes = ragged
        return (
            f"'{name}' is a list whose items have different lengths ({sizes}) and became no tensor: fill them up to "
            "one length, with a second argument that says which entries count (obs_mask), or pass all entries in one "
            "column and which item each belongs to in another."
        )
    for kind, message, cure in _HINTS:
        if isinstance(error, kind) and re.search(message, str(error), re.DOTALL):
            return cure
    if weights := _weights_of_rows(arguments, model, plate, error):
        return (
            f"Sites {listed(weights)} are drawn by a module that is called inside plate '{plate}', so that each row "
            f'has weights of its own: call the module before `with pyro.plate("{plate}", ...)`, and use what it '
            "returns inside."
        )
    if arguments.num_rows:
        held = held_data(model, arguments.num_rows)
        return as_arguments(model, list(arguments.names), held, plate) if held else ""
    return ""


def _weights_of_rows(arguments: Arguments, model: Callable[..., Any], plate: str, error: Exception) -> list[str]:
    """Latent sites inside the plate, if a module that samples its weights has failed; else none."""
    frames = (frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__))
    if not any(isinstance(one, PyroModule) and getattr(one, "_pyro_samples", {}) for one in frames):
        return []
    args, kwargs = arguments.call_arguments()
    tracer = pyro.poutine.trace()
    with torch.random.fork_rng(devices=[]), suppress(Exception), tracer:  # it fails again
        model(*args, **kwargs)
    return [
        name
        for name, site in tracer.trace.nodes.items()
        if site["type"] == "sample" and not site["is_observed"] and plate in [f.name for f in site["cond_indep_stack"]]
    ]


def _first_ragged_argument(arguments: Arguments) -> tuple[str, str] | None:
    """The first argument that is a list of items of different lengths, with these lengths; None if there is none."""
    found: dict[str, dict[str, int]] = {}
    for name, leaf in zip(arguments.names, arguments.leaves, strict=True):
        if match := _ITEM.match(name):
            items, item = found.setdefault(match[1], {}), match[2]
            whole = name == f"{match[1]}[{item}]"
            length = len(leaf) if whole and isinstance(leaf, Tensor) and leaf.dim() else 1
            items[item] = length if whole else items.get(item, 0) + 1
    for name, items in found.items():
        sizes = list(dict.fromkeys(items.values()))
        if len(sizes) > 1:
            return name, ", ".join(map(str, sizes[:3])) + (", ..." if len(sizes) > 3 else "")
    return None


def no_such_plate(plate: str, declared: list[str], run: Callable[[], Any]) -> ModelError:
    """The error for a model without the plate, with the declared ones and the user's lines; `run` returns a trace."""
    lines = observed_lines(run)
    observed = f" Site '{lines[0][0]}' is observed by {line_text(lines[0][1])}." if lines else ""
    if declared:
        cure = f" Pass plate='{declared[0]}'." if len(declared) == 1 else " Pass one of them as plate=..."
        return ModelError(f"the model has no plate '{plate}'; its plates are {declared}.{cure}{observed}")
    cure = in_a_plate(plate, lines[0][1]) if lines else "put its observed site inside `with pyro.plate(...)`"
    return ModelError(f"the model has no plate, whose rows could be split over the clients.{observed} {cure}")
