"""An agent's rows from a file: arrays named like the model's arguments, or a Python file that loads them."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pyro_fed.errors import DataError


def load_rows(path: Path, model: Callable[..., Any]) -> tuple[Any, ...]:
    """The model's positional arguments with one agent's rows.

    Args:
        path: a .npz file of arrays named like the model's arguments (never pickled objects), or a .py file with
            `load_rows()`, which returns the arguments; it is executed.
        model: the Pyro model.

    Raises:
        DataError: no such file, arrays that are missing or too many, or an error while the file was read.

    Example:
        >>> numpy.savez("north.npz", x=x, y=y)
        >>> x, y = load_rows(Path("north.npz"), model)
    """
    if not path.is_file():
        raise DataError(f"--rows {path}: there is no such file; expected a .npz or .py file")
    if path.suffix == ".py":
        return _from_python(path)
    if path.suffix != ".npz":
        raise DataError(f"--rows {path}: expected a .npz file of arrays, or a .py file with load_rows()")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"--rows {path} cannot be read: {error}") from error
    parameters = list(inspect.signature(model).parameters.values())
    names, needed = [one.name for one in parameters], sum(one.default is one.empty for one in parameters)
    given = names[: len(arrays)]  # they are positional: none in between can be left out
    if set(arrays) != set(given) or len(given) < needed:
        raise DataError(
            f"--rows {path} has arrays {sorted(arrays)}, and the model's arguments are {names}, of which the first "
            f"{needed} are needed: name the arrays like the arguments"
        )
    return tuple(_number(arrays[name]) for name in given)


def _number(array: np.ndarray) -> Any:
    """A whole number as Python's own, so that a plate's size may be one."""
    return array.item() if array.ndim == 0 and array.dtype.kind in "iu" else array


def _from_python(path: Path) -> tuple[Any, ...]:
    spec = importlib.util.spec_from_file_location(f"pyro_fed_rows_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise DataError(f"--rows {path} cannot be imported as a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        found = module.load_rows()
    except Exception as error:  # the file is the user's code, which may raise anything
        raise DataError(f"--rows {path}: load_rows() failed: {type(error).__name__}: {error}") from error
    if not isinstance(found, tuple | list):
        raise DataError(
            f"--rows {path}: load_rows() must return a tuple of the model's arguments, received {type(found).__name__}"
        )
    return tuple(found)
