"""The arguments that a prediction is made for: in the form that was fitted, and what is said where the model fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from pyro_fed.analysis.predicting.drawing import ModelRun
from pyro_fed.analysis.predicting.finite import not_finite, predicted
from pyro_fed.density.checks.blame import line_of
from pyro_fed.density.rows.arguments import Arguments, flatten, parameter_names, with_held
from pyro_fed.density.rows.leaves import UnknownLabelError
from pyro_fed.errors import DataError, listed
from pyro_fed.federation.federation import Federation
from pyro_fed.results.inference_data import InferenceData
from pyro_fed.results.to_arviz import labels_in


def given_arguments(model: Any, args: Any, kwargs: Mapping[str, Any] | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments, as they were given or as the federation has them.

    Args:
        model: as given to `predict`, likewise the others.
        args: None or empty where the federation's own data are meant.
        kwargs: likewise.

    Raises:
        DataError: there are neither arguments nor a federation.
    """
    if args is not None or kwargs:
        args = () if args is None else args
        args = tuple(args) if isinstance(args, tuple | list) else (args,)
        if isinstance(model, Federation):  # what `functools.partial` held is no part of its model
            kwargs = with_held(model.problem.arguments, model.problem.model, args, kwargs)
        return args, dict(kwargs or {})
    if isinstance(model, Federation):
        return model.problem.arguments.whole()
    raise DataError("predict needs the model's arguments for the new data, or a Federation, whose own data are taken")


def coded(
    model: Federation | Callable[..., Any],
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    idata: InferenceData,
) -> Arguments:
    """The new arguments, text and categories coded as they were when the model was fitted.

    Args:
        model: as given to `predict`.
        function: the Pyro model itself.
        args: the new positional arguments.
        kwargs: the new keyword arguments.
        idata: the result, which may say which codes there were.

    Raises:
        DataError: labels that were not fitted, or text where it is not known which codes it had.
    """
    fitted = model.problem.arguments if isinstance(model, Federation) else None
    known = labels_in(idata) or {} if fitted is None else fitted.labels
    owners: set[str] = set()
    if fitted is not None:
        owners = {owner for owner, *_ in fitted.nested_by_name.values()}
        split = owners | {name for name, _, _ in fitted.columns}
        named = zip(parameter_names(function, len(args)), args, strict=True)
        # A list of one is a column too, where rows are known to be.
        args = tuple(np.asarray(arg, object) if isinstance(arg, list) and name in split else arg for name, arg in named)
    try:
        arguments = flatten(function, args, kwargs, known)
    except UnknownLabelError as error:
        if error.argument not in owners:
            raise
        raise DataError(
            f"{error}. For groups that were not fitted pass numbers from 0 in place of the labels, as many groups as "
            f"there are, and say which they are: groups='new', or a label for each, such as "
            f"groups=[{listed(map(repr, known[error.argument][:1]))}, None], None for a new one"
        ) from error
    if fitted is not None:
        _check_rows(arguments, fitted)
    unknown = sorted(set(arguments.labels) - set(known))
    if fitted is None and unknown:
        raise DataError(
            f"argument '{unknown[0]}' is text or a category, and this result does not say which codes it had when the "
            "model was fitted: pass the federation in place of the model, predict(idata, fed, ...), or the codes"
        )
    return arguments


def _check_rows(arguments: Arguments, fitted: Arguments) -> None:
    """Refuse rows of other dimensions than those that were fitted: one row that was taken out is a column of its own.

    Raises:
        DataError: names the argument, and what was received.
    """
    columns = {name: leaf for name, _, leaf in fitted.columns}
    for name, leaf in zip(arguments.names, arguments.leaves, strict=True):
        before = columns.get(name)
        if isinstance(leaf, Tensor) and before is not None and leaf.dim() < before.dim():
            raise DataError(
                f"predict: argument '{name}' has the shape {tuple(leaf.shape)}, expected rows of the shape "
                f"{tuple(before.shape[1:])}, one after the other: a single row is {name}[:1], not {name}[0]"
            )


def first_run(run: ModelRun, values: dict[str, Tensor], arguments: Arguments) -> dict[str, Any]:
    """The random sites of a first run, whose failures are said with what is likely to cause them.

    Args:
        run: the model on the new arguments.
        values: one draw of its latents.
        arguments: the new ones.

    Raises:
        DataError: the model cannot be run on these arguments.
    """
    named = list(zip(arguments.names, arguments.leaves, strict=True))
    try:
        return run.first(values)
    except ZeroDivisionError as error:  # a plate of no size
        empty = [name for name, leaf in named if 0 in np.shape(leaf)]
        if not empty:
            raise
        raise DataError(f"predict: there are no rows in {listed(empty)}; nothing can be predicted") from error
    except (TypeError, AttributeError) as error:
        nothing = [name for name, leaf in named if leaf is None]
        if not nothing or "NoneType" not in str(error):
            raise
        rows = next((name for name, leaf in named if np.ndim(leaf)), "x")
        raise DataError(
            f"predict: the model cannot do without {listed(nothing)}, which is None{line_of(error)}: {error}. A "
            f"plate's size may be taken from an argument that is given, such as len({rows}); or pass any values of the "
            "right shape in place of None: what is observed is drawn anew"
        ) from error
    except IndexError as error:
        coded = {name: len(labels) for name, labels in arguments.labels.items()}
        if not coded:
            raise
        sizes = listed(f"'{name}' by 0 to {size - 1}" for name, size in coded.items())
        raise DataError(
            f"predict: a code is beyond the sizes of the new data{line_of(error)}: {error}. Text and categories are "
            f"coded as they were when the model was fitted, {sizes}: give the model as many elements as were fitted, "
            "or pass numbers from 0 in place of the labels, and say by groups= whose they are"
        ) from error


def check_shapes(model: Any, arguments: Arguments, cause: Exception) -> None:
    """Say which argument has another shape than at the fit, where the model cannot be run on the new rows.

    Args:
        model: as given to `predict`.
        arguments: the new ones.
        cause: what the model raised on them.

    Raises:
        DataError: names the argument and both shapes.
    """
    if not isinstance(model, Federation):
        return
    fitted = model.problem.bound.arguments
    before = dict(zip(fitted.names, fitted.leaves, strict=True))
    for name, leaf in zip(arguments.names, arguments.leaves, strict=True):
        known = before.get(name)
        if not isinstance(leaf, Tensor) or not isinstance(known, Tensor) or leaf.shape[1:] == known.shape[1:]:
            continue
        raise DataError(
            f"predict: argument '{name}' has shape {tuple(leaf.shape)}, but had {tuple(known.shape)} when the model "
            "was fitted: only the number of rows may differ. The model fails on it: "
            f"{type(cause).__name__}: {str(cause).splitlines()[0] if str(cause) else ''}"
        ) from cause


def check_finite(run: ModelRun, values: dict[str, Tensor], arguments: Arguments, cause: Exception | None) -> None:
    """Refuse new rows that are not finite, where the model cannot be run on them or predicts what is not.

    Args:
        run: the model on the new arguments.
        values: one draw of its latents.
        arguments: the new ones.
        cause: what the model raised on them.

    Raises:
        DataError: names the argument and the row.
    """

    def works(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        try:
            return predicted(run.on(args, kwargs).first(values))
        except (RuntimeError, ValueError):
            return False

    if said := not_finite(arguments, works):
        raise said from cause
