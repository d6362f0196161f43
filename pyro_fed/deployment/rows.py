"""A site's rows from a file: arrays or columns named like the model's arguments, or a Python file that loads them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pyro_fed.errors import DataError
from pyro_fed.recipes.library import import_file


def load_rows(path: Path, model: Callable[..., Any], *given: Any, option: str = "--data") -> tuple[Any, ...]:
    """The model's positional arguments with one site's rows.

    Args:
        path: a .npz file of arrays named like the model's arguments (never pickled objects); a .csv file with columns
            of these names, or, for a model of one argument, the table that it takes; or a .py file with `load_rows`,
            which returns the arguments; it is executed.
        model: the Pyro model.
        *given: the arguments of `load_rows` in a .py file, if it takes any.
        option: the option that names the file, in errors.

    Raises:
        DataError: no such file, arrays that are missing or too many, or an error while the file was read.

    Example:
        >>> numpy.savez("north.npz", x=x, y=y)
        >>> x, y = load_rows(Path("north.npz"), model)
    """
    if not path.is_file():
        raise DataError(f"{option} {path}: there is no such file; expected a .npz, .csv or .py file")
    if path.suffix == ".py":
        return _from_python(path, given, option)
    parameters = list(inspect.signature(model).parameters.values())
    names, needed = [one.name for one in parameters], sum(one.default is one.empty for one in parameters)
    if path.suffix == ".csv":
        return _from_table(path, names, needed, option)
    if path.suffix != ".npz":
        raise DataError(f"{option} {path}: expected a .npz file of arrays, a .csv file, or a .py file with load_rows()")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"{option} {path} cannot be read: {error}") from error
    _check_names(arrays, names, needed, f"{option} {path} has arrays")
    values = [arrays[name] for name in names[: len(arrays)]]
    # A whole number as Python's own, so that a plate's size may be one.
    return tuple(one.item() if one.ndim == 0 and one.dtype.kind in "iu" else one for one in values)


def _check_names(found: Sequence[str] | dict[str, Any], names: list[str], needed: int, what: str) -> None:
    """Refuse names that are not those of the model's first arguments; DataError."""
    given = names[: len(found)]  # they are positional: none in between can be left out
    if set(found) != set(given) or len(given) < needed:
        raise DataError(
            f"{what} {sorted(found)}, and the model's arguments are {names}, and the first {needed} are required: "
            f"name the {what.rpartition(' ')[2]} like the arguments"
        )


def _from_table(path: Path, names: list[str], needed: int, option: str) -> tuple[Any, ...]:
    """The table of a .csv file for a model of one argument, else its columns as arrays."""
    try:
        table = pd.read_csv(path)
    except (ValueError, OSError) as error:
        raise DataError(f"{option} {path} cannot be read as a table: {error}") from error
    if len(names) == 1:
        return (table,)
    _check_names(list(map(str, table.columns)), names, needed, f"{option} {path} has columns")
    return tuple(table[name].to_numpy() for name in names[: len(table.columns)])


def _from_python(path: Path, given: tuple[Any, ...], option: str) -> tuple[Any, ...]:
    try:
        module = import_file(path, "rows")
        takes = inspect.signature(module.load_rows).parameters
        found = module.load_rows(*given) if takes else module.load_rows()
    except Exception as error:  # the file is the user's code, which may raise anything
        raise DataError(f"{option} {path}: load_rows() failed: {type(error).__name__}: {error}") from error
    if not isinstance(found, tuple | list):
        raise DataError(
            f"{option} {path}: load_rows() must return a tuple of the model's arguments, received "
            f"{type(found).__name__}"
        )
    return tuple(found)
