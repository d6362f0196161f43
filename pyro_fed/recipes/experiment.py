"""What the commands share: a model's file and the command line's options, made into a federation."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any, NamedTuple

from pyro_fed.conventions.names import DEFAULT_CLIENTS
from pyro_fed.density.rows.arguments import rows_like
from pyro_fed.errors import DataError, ModelError, PyroFedError
from pyro_fed.federation import partition
from pyro_fed.federation.federation import Federation
from pyro_fed.recipes.library import labels_in


class Experiment(NamedTuple):
    """A model with its training data over clients, and its arguments for test data; None if there are none."""

    federation: Federation
    test: tuple[Any, ...] | None


def build_federation(
    module: ModuleType, clients: int | None, partition_text: str, seed: int, device: str | None = None
) -> Experiment:
    """The model's training data over clients, by default of groups or `DEFAULT_CLIENTS`, and its test data."""
    train, test = _load_data(module)
    how = partition.parse(partition_text, columns=train[0], named=_column_names(module.model, train))
    rows = getattr(module, "ROWS", None)
    count = DEFAULT_CLIENTS if clients is None and not isinstance(how, partition.ByGroup) else clients
    options: dict[str, Any] = {"seed": seed, "device": device} | labels_in(module)
    fed = Federation(module.model, train, plate=module.PLATE, rows=rows, num_clients=count, partition=how, **options)
    if test is not None:
        _check_test(fed, test, f"model file {module.__file__}")
    return Experiment(fed, test)


def _check_test(fed: Federation, test: Any, where: str) -> None:
    """Refuse test data that are no arguments of the model, before the run whose predictions they are to measure."""
    try:
        rows_like(fed.problem.arguments, fed.problem.model, test, None)
    except PyroFedError as error:
        raise DataError(f"{where}: load_data() returns test data that cannot be used: {error}") from error


def _column_names(model: Any, train: tuple[Any, ...]) -> dict[str, Any]:
    """Columns of the data by name: those of data frames, and arguments that are a column."""
    found: dict[str, Any] = {}
    for name, value in zip(inspect.signature(model).parameters, train, strict=False):
        if hasattr(value, "columns") and hasattr(value, "dtypes"):
            found |= {str(column): value[column] for column in value.columns}
        elif len(getattr(value, "shape", ())) == 1:
            found[name] = value
    return found


def _load_data(module: ModuleType) -> tuple[tuple[Any, ...], tuple[Any, ...] | None]:
    """Training and test data of a model file; ModelError if `load_data` fails, or returns something else."""
    where = f"model file {module.__file__}"
    try:
        found = module.load_data()
    except PyroFedError:
        raise
    except (Exception, SystemExit) as error:  # the file is the user's code, which may raise anything
        raise ModelError(f"{where}: load_data() raised {type(error).__name__}: {error}") from error
    if not isinstance(found, tuple | list) or len(found) != 2 or not isinstance(found[0], tuple | list):
        raise ModelError(f"{where}: load_data() must return (train, test), two tuples of arguments of model")
    return tuple(found[0]), found[1]
