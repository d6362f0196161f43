"""The arguments for new data: brought into the form that was fitted, and errors where the model fails on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_fed.analysis.predicting.drawing import ModelRun
from pyro_fed.density.checks.source import line_of
from pyro_fed.density.rows.arguments import Arguments, flatten, parameter_names, with_held
from pyro_fed.density.rows.labelled import Labels
from pyro_fed.density.rows.leaves import UnknownLabelError
from pyro_fed.density.running.site_values import mask_of
from pyro_fed.errors import DataError, listed, shown
from pyro_fed.federation.federation import Federation
from pyro_fed.results.data_groups import columns_in, labels_in
from pyro_fed.results.inference_data import InferenceData


def given_arguments(model: Any, args: Any, kwargs: Mapping[str, Any] | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments: the user's, or the federation's own if the user gave none."""
    if args is not None or kwargs:
        args = () if args is None else args
        args = tuple(args) if isinstance(args, tuple | list) else (args,)
        if isinstance(model, Federation):  # its model does not hold the arguments that `functools.partial` has bound
            kwargs = with_held(model.problem.arguments, model.problem.model, args, kwargs)
        return args, dict(kwargs or {})
    if isinstance(model, Federation):
        return model.problem.arguments.call_arguments()
    raise DataError(
        "predict needs the model's arguments for new data, predict(idata, model, args), or a federation, whose own "
        f"data are then predicted, predict(idata, fed); received {shown(model)} without arguments"
    )


def encode_arguments(
    model: Federation | Callable[..., Any],
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    idata: InferenceData,
    present_alone: bool = False,
) -> tuple[Arguments, list[Any] | None]:
    """Encode the new arguments with the text codes and the order of columns of the fit; `idata` may hold the labels.

    An argument whose labels say whose each row is numbers groups: the fitted ones first, in their order, then new ones;
    `present_alone` numbers only those that the new data have. With the arguments come the labels of the groups in the
    order of their numbers, None if they have numbers alone.

    Raises:
        DataError: a label was not fitted, or an argument is text whose codes are not known.
    """
    fitted = model.problem.arguments if isinstance(model, Federation) else None
    known = labels_in(idata) or {} if fitted is None else fitted.labels
    orders = columns_in(idata) if fitted is None else fitted.orders(function)
    owners: set[str] = set()
    if fitted is not None:
        owners = {owner for owner, *_ in fitted.nested_by_name.values()}
        split = owners | {name for name, _, _ in fitted.columns}
        named = zip(parameter_names(function, len(args)), args, strict=True)
        # A list, even of one element, is a column if the argument had rows when it was fitted.
        args = tuple(np.asarray(arg, object) if isinstance(arg, list) and name in split else arg for name, arg in named)
    try:
        arguments = flatten(function, args, kwargs, {k: v for k, v in known.items() if k not in owners}, orders)
    except UnknownLabelError as error:
        raise DataError(
            f"{error}. Comparisons and lookups know the labels of the fit alone: name all of them there, "
            "pandas.Categorical(column, categories=[...]). New groups are drawn from their population if they are "
            f"elements of the partitioned plate, Federation(..., plate=..., rows={{'data': '{error.argument}'}}), and "
            "the federation is passed, predict(idata, fed, ...)"
        ) from error
    present = [
        {labels[code] for code in leaf.unique().tolist()}
        for name, leaf in zip(arguments.names, arguments.leaves, strict=True)
        if name in owners and (labels := arguments.labels.get(name))
    ]
    groups = None
    if isinstance(model, Federation) and fitted is not None:
        if present:
            here, before = set().union(*present), model.coords.get(model.problem.plate)
            if before is None:
                raise DataError(
                    f"argument '{min(owners & arguments.labels.keys())}' has the labels {listed(sorted(here))}, but "
                    "the groups had numbers alone when the model was fitted: name them, Federation(..., coords="
                    f"{{'{model.problem.plate}': names}}), or pass numbers from 0, and say by groups= which they are"
                )
            groups = [label for label in before if label in here or not present_alone]
            groups += sorted(here - set(groups))
            numbers = dict.fromkeys(owners & arguments.labels.keys(), Labels(groups))
            arguments = flatten(function, args, kwargs, {**known, **numbers}, orders)
        arguments = _as_fitted(arguments, fitted)
        _check_rows(arguments, fitted)
    unknown = sorted(set(arguments.labels) - set(known))
    if fitted is None and unknown:
        raise DataError(
            f"argument '{unknown[0]}' is text or a category, and this result does not record its codes from when the "
            "model was fitted: pass the federation in place of the model, predict(idata, fed, ...), or the codes"
        )
    return arguments, groups


def _as_fitted(arguments: Arguments, fitted: Arguments) -> Arguments:
    """Convert whole numbers to floating point where the fitted column held fractions."""
    before = dict(zip(fitted.names, fitted.leaves, strict=True))
    leaves = list(arguments.leaves)
    for i, (name, leaf) in enumerate(zip(arguments.names, arguments.leaves, strict=True)):
        known = before.get(name)
        if isinstance(leaf, Tensor) and isinstance(known, Tensor) and known.is_floating_point():
            leaves[i] = leaf if leaf.is_floating_point() else leaf.to(known.dtype)
    return replace(arguments, leaves=tuple(leaves))


def _check_rows(arguments: Arguments, fitted: Arguments) -> None:
    """Check that arguments with rows have as many dimensions as the fitted ones; `x[0]` for `x[:1]` has one fewer."""
    columns = {name: leaf for name, _, leaf in fitted.columns}
    for name, leaf in zip(arguments.names, arguments.leaves, strict=True):
        before = columns.get(name)
        if isinstance(leaf, Tensor) and before is not None and leaf.dim() < before.dim():
            raise DataError(
                f"predict: argument '{name}' has the shape {tuple(leaf.shape)}, expected rows of the shape "
                f"{tuple(before.shape[1:])} along the first dimension: a single row is {name}[:1], not {name}[0]"
            )


def first_run(run: ModelRun, values: dict[str, Tensor], arguments: Arguments) -> dict[str, Any]:
    """The random sites of a run at one draw. Common errors get a message with their likely cause."""
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
            "right shape in place of None: they are ignored, since observations are drawn anew"
        ) from error
    except IndexError as error:
        coded = {name: len(labels) for name, labels in arguments.labels.items()}
        if not coded:
            raise
        sizes = listed(f"'{name}' of {size}" for name, size in coded.items())
        raise DataError(
            f"predict: the model looks up one of fewer elements than there are labels{line_of(error)}: {error}. The "
            f"new data have the labels {sizes}: give the model as many elements"
        ) from error


def check_shapes(model: Any, arguments: Arguments, cause: Exception) -> None:
    """DataError that names an argument whose rows have another shape than at the fit, after a failure `cause`."""
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
    """DataError that names the NaN or infinity by which the model fails, or predictions are not finite."""

    def works(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        try:
            return has_finite_predictions(replace(run, args=args, kwargs=kwargs, partly={}).first(values))
        except (RuntimeError, ValueError):
            return False

    # Not every NaN is an error: the argument for the observations is ignored, and the model may handle NaN in others.
    # So it is run with each argument as it is, and zeros for the NaN and infinities of all others.
    leaves = arguments.leaves
    doubtful = [i for i, leaf in enumerate(leaves) if not _is_finite_leaf(leaf)]
    for i in doubtful:
        others = [_without_nan(leaf) if at in doubtful and at != i else leaf for at, leaf in enumerate(leaves)]
        if not works(*replace(arguments, leaves=tuple(others)).call_arguments()):
            raise _not_finite_error(arguments.names[i], leaves[i]) from cause


def has_finite_predictions(first: dict[str, Any]) -> bool:
    """Whether the predictions of a run are finite, apart from masked entries."""
    for site in first.values():
        value = site["value"]
        if not site["redrawn"] or not isinstance(value, Tensor) or not value.is_floating_point():
            continue
        finite, mask = torch.isfinite(value), mask_of(site)
        if not bool((finite if mask is None else finite | ~mask.bool()).all()):
            return False
    return True


def _is_finite_leaf(leaf: Any) -> bool:
    if isinstance(leaf, Tensor):
        return not leaf.is_floating_point() or bool(torch.isfinite(leaf).all())
    return not isinstance(leaf, float) or math.isfinite(leaf)


def _without_nan(leaf: Any) -> Any:
    """The argument with zeros for NaN and infinities."""
    return leaf.nan_to_num(0.0, 0.0, 0.0) if isinstance(leaf, Tensor) else 0.0


def _not_finite_error(name: str, leaf: Any) -> DataError:
    value = torch.as_tensor(leaf)
    bad = ~torch.isfinite(value)
    position = bad.nonzero()[0].tolist()
    kind = "NaN" if bool(value[tuple(position)].isnan()) else "infinite"
    where = f"[{', '.join(map(str, position))}]" if position else ""
    rows = (
        f" ({int(bad.flatten(1).any(1).sum() if bad.dim() > 1 else bad.sum())} of {len(bad)} rows)" if position else ""
    )
    return DataError(
        f"predict: argument '{name}'{where} is {kind}{rows}, and the model can predict nothing from it. Drop or impute "
        f"these rows, or let the model handle them: `torch.where(torch.isfinite({name}), {name}, latent)` with a "
        "latent in the plate"
    )
