"""The model and its arguments as the user gives them, brought into one form.

- Data that `functools.partial` and `pyro.condition` hold become arguments, to be split over the clients like others.
- Columns of pandas whose indices list the same rows in different orders are refused: rows are matched by position, and
  one of them was sorted or shuffled alone.
- Clients' tables and dictionaries get the same columns, in one order, of one dtype each: a column of counts that is
  whole at one hospital is read as integers there. Columns that differ by name, or are text at one client, are refused.
- The arguments that are split by rows are those the user names, or are guessed from their sizes.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from pyro import poutine
from pyro.poutine.condition_messenger import ConditionMessenger
from pyro.poutine.messenger import _bound_partial
from torch import Tensor
from torch.utils import _pytree as pytree

from pyro_fed.density.rows.arguments import Arguments, parameter_names, positional
from pyro_fed.errors import DataError, ModelError, SettingError, listed, shown
from pyro_fed.federation.partition.base import ByValue, Partition

#: Kinds of dtypes that are promoted to one another.
NUMBERS = "biuf"
#: Type of `shard=`, by which a user names the arguments that are split by rows.
Shard = Collection[int | str] | Mapping[Any, Any] | str | int | None


class Conditioned:
    """A model conditioned on observations that it takes as an argument, from the model without them."""

    #: Arguments whose entries may be left out, one by one: a site that is not observed is drawn.
    separable = ("conditioned",)

    def __init__(self, model: Callable[..., Any]) -> None:
        self.model = model
        self.__name__ = getattr(model, "__name__", "model")
        signature = inspect.signature(getattr(model, "forward", model))
        parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        rest = [p for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD]
        own = inspect.Parameter("conditioned", inspect.Parameter.KEYWORD_ONLY)
        self.__signature__ = signature.replace(parameters=[*parameters, own, *rest])

    def __call__(self, *args: Any, conditioned: Mapping[str, Any], **kwargs: Any) -> Any:
        return poutine.condition(self.model, data=dict(conditioned))(*args, **kwargs)


def taken_apart(
    model: Callable[..., Any], args: Any, kwargs: Mapping[str, Any] | None
) -> tuple[Callable[..., Any], Any, dict[str, Any]]:
    """A model without the data that `functools.partial` or `pyro.condition` hold, and all of its (args, kwargs)."""
    if not isinstance(kwargs, Mapping | None):
        raise DataError(
            f"kwargs must be a dictionary of the model's keyword arguments, received {shown(kwargs)}: pass those by "
            "position as one tuple, Federation(model, (x, y), plate=...)"
        )
    kwargs = dict(kwargs or {})
    _check_runs(model)
    while isinstance(model, functools.partial):
        inner: Any = model
        while isinstance(inner, _bound_partial):
            inner = inner.func
        if not isinstance(inner, functools.partial):
            return inner, args, kwargs
        held = _condition_parts(inner)
        if held is not None:
            model, kwargs = Conditioned(held[0]), {**kwargs, "conditioned": held[1]}
        elif not _of_pyro(inner):
            args = (*inner.args, *positional(inner, args, kwargs))
            kwargs = {**inner.keywords, **kwargs}
            model = inner.func
        else:
            break  # a handler around the model, in the wrapper that has the model's signature
    return model, args, kwargs


def _check_runs(model: Any) -> None:
    body = getattr(model, "forward", model)
    body = body if inspect.isroutine(body) else getattr(body, "__call__", body)  # noqa: B004
    if inspect.isgeneratorfunction(body):
        raise ModelError("the model has a `yield`, so calling it runs none of its lines: remove the `yield`")
    if inspect.iscoroutinefunction(body):
        raise ModelError("the model is an `async def`, so calling it runs none of its lines: write `def`")


def _of_pyro(model: Any) -> bool:
    """Whether a partial function is one of Pyro's handlers around a model."""
    return getattr(model.func, "__module__", "").startswith("pyro.")


def _condition_parts(model: Any) -> tuple[Any, dict[str, Tensor]] | None:
    """The model and the data of `pyro.condition`; None for any other model."""
    if not _of_pyro(model) or len(model.args) != 2 or not isinstance(model.args[0], ConditionMessenger):
        return None
    data = model.args[0].data
    return (model.args[1], dict(data)) if isinstance(data, Mapping) else None


def check_row_labels(
    model: Callable[..., Any],
    args: Any,
    kwargs: Mapping[str, Any] | None,
    where: str = "",
    partition: Partition | None = None,
) -> None:
    """Refuse columns of pandas with the same index in different orders; `where` is a place such as " at client 2"."""
    args = positional(model, args, kwargs)
    named = [*zip(parameter_names(model, len(args)), args, strict=True), *(kwargs or {}).items()]
    first: dict[int, tuple[str, pd.Index]] = {}
    own = partition.row_labels if isinstance(partition, ByValue) else {}
    given = [found for head, value in named for found in _indices(head, value)]
    for place, (name, index) in enumerate([*given, *own.items()]):
        other, known = first.setdefault(len(index), (name, index))
        if index.equals(known):  # of nearly all columns, and sets of a million labels take long
            continue
        if not (index.is_unique and known.is_unique and set(index) == set(known)):
            continue
        whose = where if place < len(given) else f" of {type(partition).__name__}"
        at = next(i for i, (mine, theirs) in enumerate(zip(index, known, strict=True)) if mine != theirs)
        raise DataError(
            f"arguments '{other}' and '{name}'{whose} have the same index in another order: row {at} is called "
            f"{known[at]!r} in the one and {index[at]!r} in the other. Rows are taken by position: put them in one "
            f"order, such as by {name}.loc[{other}.index], or, where positions are right as they are, pass "
            f"{name}.to_numpy()"
        )


def _indices(name: str, value: Any) -> Iterator[tuple[str, pd.Index]]:
    if isinstance(value, pd.DataFrame | pd.Series):
        yield name, value.index
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _indices(f"{name}[{key!r}]", part)


def device_of(named: torch.device | str | None, given: Any) -> torch.device:
    """The device of clients' steps: the user's, or that of the tensors among the model's arguments."""
    if named is not None:
        return _usable_device(named)
    found = {leaf.device for leaf in pytree.tree_leaves(given) if isinstance(leaf, Tensor)}
    away = sorted((device for device in found if device.type != "cpu"), key=str)
    if len(away) > 1:
        raise DataError(f"the data are on several devices, {[str(one) for one in away]}: pass device=")
    return away[0] if away else torch.device("cpu")


def _usable_device(named: torch.device | str) -> torch.device:
    try:
        one = torch.zeros(1, device=named)
        read_back(one)
        return one.device
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        raise SettingError(
            f"device={named!r}: torch has no such device here ({str(error).splitlines()[0]}); "
            "leave it out, or take 'cpu'"
        ) from error


def read_back(value: Tensor) -> Tensor:
    """A tensor's numbers on the CPU; NotImplementedError if the device, as torch's "meta", has shapes only."""
    return value.cpu()


def align_argument(values: Sequence[Any], names: Sequence[str], what: str) -> list[Any]:
    """One argument of all clients, with columns or keys in the order of the first client's; `what` names it."""
    first = values[0]
    if all(isinstance(value, pd.DataFrame) for value in values):
        _check_keys([list(value.columns) for value in values], names, f"{what}, a data frame,", "column")
        return _one_dtype([value[list(first.columns)] for value in values], names, what)
    if all(type(value) is dict for value in values):
        _check_keys([list(value) for value in values], names, f"{what}, a dictionary,", "key")
        parts = [align_argument([value[key] for value in values], names, f"{what}[{key!r}]") for key in first]
        return [dict(zip(first, mine, strict=True)) for mine in zip(*parts, strict=True)]
    tables = [isinstance(value, pd.DataFrame) for value in values]
    if any(tables) and not all(tables):
        other = tables.index(False)
        raise DataError(
            f"{what} is a data frame at client {names[tables.index(True)]} and a {type(values[other]).__name__} at "
            f"client {names[other]}: all clients must pass the same"
        )
    return list(values)


def _check_keys(each: Sequence[list[Any]], names: Sequence[str], what: str, kind: str) -> None:
    for keys, name in zip(each, names, strict=True):
        missing = [str(key) for key in each[0] if key not in keys]
        more = [str(key) for key in keys if key not in each[0]]
        if missing or more:
            parts = [f"not the {kind}(s) {listed(missing)}"] if missing else []
            parts += [f"the {kind}(s) {listed(more)} more"] if more else []
            raise DataError(
                f"{what} has {' and '.join(parts)} at client {name}, compared with client {names[0]}, which has "
                f"{listed([str(key) for key in each[0]])}: all clients must pass the same"
            )


def _one_dtype(frames: list[pd.DataFrame], names: Sequence[str], what: str) -> list[pd.DataFrame]:
    """The frames with each column in the dtype that fits all clients' values; frames of equal dtypes are unchanged."""
    promoted: dict[Any, Any] = {}
    for column in frames[0].columns:
        dtypes = [frame[column].dtype for frame in frames]
        if all(dtype == dtypes[0] for dtype in dtypes):
            continue
        plain = [isinstance(dtype, np.dtype) and dtype.kind in NUMBERS for dtype in dtypes]
        if all(plain):
            # truth values among whole numbers are these; integers of both signs stay integers
            of = [np.dtype(np.int64) if dtype.kind in "biu" else dtype for dtype in dtypes]
            promoted[column] = np.result_type(*of)
        elif all(pd.api.types.is_numeric_dtype(dtype) for dtype in dtypes):
            promoted[column] = np.dtype(np.float64)  # nullable ones among them
        elif any(plain):
            other = next(k for k, numbers in enumerate(plain) if not numbers)
            _check_numbers(frames[other][column], f"{what}[{column!r}]", names[other], names[plain.index(True)])
    return [frame.astype(promoted) for frame in frames] if promoted else frames


def _check_numbers(column: pd.Series, what: str, name: str, other: str) -> None:
    """Refuse a column that is text, or has no value, if other clients have numbers there."""
    if not len(column):
        return
    if bool(column.isna().all()):
        raise DataError(f"{what} has no value at client {name}, and numbers at client {other}: leave it out everywhere")
    texts = [part for part in column.dropna() if isinstance(part, str)]
    if texts:
        decimal = " (with decimal commas?)" if "," in texts[0] else ""
        raise DataError(
            f"{what} is text at client {name}{decimal}, and numbers at client {other}: "
            "convert it, such as by pandas.to_numeric, or pandas.read_csv(..., decimal=',')"
        )


def choose_shards(arguments: Arguments, num_rows: int | None, shard: Shard, where: str = "") -> Arguments:
    """The arguments with the leaves marked that are split by rows, as `shard` names them.

    `shard` may map names to the axis of their rows, or to None for an argument that is not split. Arguments that it
    does not name then, or all if it is None, are split if their first axis has the plate's `num_rows`.
    """
    if isinstance(shard, Mapping):
        return _by_axis(arguments, num_rows, shard, where)
    if shard is None:
        chosen = [i for i, leaf in enumerate(arguments.leaves) if _splits(arguments, i, leaf, num_rows)]
    else:
        chosen = _leaves_by_name(arguments, [shard] if isinstance(shard, (str, int)) else list(shard))
    sizes = {arguments.names[i]: len(arguments.leaves[i]) for i in chosen}
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"'{name}' has {size} rows" for name, size in sizes.items())
        cure = arguments.other_axis_cure(max(num_rows or 0, *sizes.values()))
        raise DataError(
            f"row-sharded arguments must have the same leading dimension, but {listed}{where}. {cure}".rstrip()
        )
    return replace(arguments, sharded=tuple(chosen))


def _by_axis(arguments: Arguments, num_rows: int | None, shard: Mapping[Any, int | None], where: str) -> Arguments:
    """The arguments with rows on the first axis of split leaves: named ones along their axis, the others as guessed."""
    axes: dict[int, int | None] = {}
    for name, axis in shard.items():
        for i in _leaves_by_name(arguments, [name]):
            leaf = arguments.leaves[i]
            if axis is not None and not -leaf.dim() <= axis < leaf.dim():
                raise ModelError(
                    f"shard={{'{name}': {axis}}} names an axis that argument '{arguments.names[i]}' of shape "
                    f"{tuple(leaf.shape)} does not have"
                )
            axes[i] = None if axis is None else axis % leaf.dim()
    moved = arguments.rows_first({i: axis for i, axis in axes.items() if axis})
    rest = [i for i, leaf in enumerate(moved.leaves) if i not in axes and _splits(moved, i, leaf, num_rows)]
    chosen = sorted([i for i, axis in axes.items() if axis is not None] + rest)
    lengths = {f"'{arguments.names[i]}' has {len(moved.leaves[i])} rows": len(moved.leaves[i]) for i in chosen}
    if len(set(lengths.values())) > 1:
        raise DataError(f"row-sharded arguments must have the same number of rows, but {', '.join(lengths)}{where}")
    return replace(moved, sharded=tuple(chosen))


def _splits(arguments: Arguments, i: int, leaf: Any, num_rows: int | None) -> bool:
    if not isinstance(leaf, Tensor) or leaf.dim() == 0 or len(leaf) != num_rows:
        return False
    if list(leaf.shape).count(num_rows) > 1:
        raise ModelError(
            f"argument '{arguments.names[i]}' has shape {tuple(leaf.shape)}: more than one dimension equals the "
            f"plate's size {num_rows}, so it is ambiguous whether it is split by rows. Name the arguments to split, "
            "such as shard=('x', 'y')."
        )
    return True


def _leaves_by_name(arguments: Arguments, wanted: list[int | str]) -> list[int]:
    """Positions of leaves by their own name (`x['age']`), by the name of their argument (`x`), or by its position."""
    heads = [name if name.startswith("args[") else re.split(r"[.\[]", name)[0] for name in arguments.names]
    order = list(dict.fromkeys(heads))
    names = [order[w] if isinstance(w, int) and -len(order) <= w < len(order) else w for w in wanted]
    unknown = [name for name in names if name not in order and name not in arguments.names]
    if unknown:
        raise ModelError(f"shard= names {unknown}, but the model's arguments are {order}")
    chosen = [
        i
        for i, leaf in enumerate(arguments.leaves)
        if (heads[i] in names or arguments.names[i] in names) and isinstance(leaf, Tensor) and leaf.dim()
    ]
    if not chosen:
        raise ModelError(f"shard={wanted} names no tensor with rows, so nothing would be split over the clients")
    return chosen
