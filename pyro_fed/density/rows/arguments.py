"""The arguments of a model, flattened: leaves that are split by rows, and leaves that are shared."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._C import DisableTorchFunction
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from pyro_fed.density.checks.points import ROWS_TOGETHER
from pyro_fed.density.rows.containers import Orders, Table, as_tree, in_order, is_column, orders_of
from pyro_fed.density.rows.files import Place, blocks, is_mapped, mapped, picked, place_of, written
from pyro_fed.density.rows.labelled import Labels, labelled
from pyro_fed.density.rows.leaves import LabelsByName, read_leaf
from pyro_fed.errors import DataError
from pyro_fed.ops.entries import all_finite
from pyro_fed.ops.memory import fits_in_memory

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Arguments:
    """A model's `(*args, **kwargs)`, flattened; subclasses have rows of several plates."""

    leaves: tuple[Any, ...]  # tensors where they were arrays
    names: tuple[str, ...]  # of each leaf, such as `x` or `x['age']`
    spec: Any  # how to put the leaves together again
    sharded: tuple[int, ...] = ()  # positions in `leaves` of those that are split by rows
    labels: LabelsByName = field(default_factory=dict)  # of text and categories
    masked: tuple[str, ...] = ()  # names of the arguments that were masked arrays
    #: The axis of the rows in the model's own form, by position in `leaves`, which have them first.
    axes: Mapping[int, int] = field(default_factory=dict)

    @property
    def rows(self) -> tuple[Tensor, ...]:
        """The row-sharded leaves, each (rows, ...)."""
        return tuple(self.leaves[i] for i in self.sharded)

    @property
    def row_names(self) -> tuple[str, ...]:
        """Names of the row-sharded leaves."""
        return tuple(self.names[i] for i in self.sharded)

    @property
    def num_rows(self) -> int | None:
        """Number of rows of the sharded leaves, None if nothing is sharded."""
        return len(self.rows[0]) if self.sharded else None

    def edge_of(self, chosen: Tensor, numbers: Tensor | None = None) -> str:
        """A clause on an argument of one sign, or not finite, in the `chosen` (m,) of some rows alone; or ""."""
        for name, nested, leaf in self.columns if not bool(chosen.all()) else ():
            if nested is not None or name in self.labels:
                continue
            values = (leaf if numbers is None else leaf[numbers]).reshape(len(chosen), -1)
            kinds = {"0": values == 0, "negative": values < 0, "infinite": values.isinf(), "missing": values.isnan()}
            for what, flags in kinds.items():
                if bool((flags == chosen.unsqueeze(1)).all(0).any()):
                    return f", those in which '{name}' is {what}"
        return ""

    @property
    def split(self) -> tuple[int, ...]:
        """Positions of all leaves that are split, with the partitioned plate or one nested in it."""
        return self.sharded

    @property
    def all_rows(self) -> tuple[Any, ...]:
        """All row tensors in the form in which the model takes them at once, in the original order."""
        return self.rows

    @property
    def declared(self) -> dict[str, int] | None:
        """Sizes of the model's plates that are split together; None if it is one."""
        return None

    @property
    def columns(self) -> list[tuple[str, str | None, Tensor]]:
        """Name, nested plate (None: the partitioned one) and values of each argument that is split."""
        return [(name, None, leaf) for name, leaf in zip(self.row_names, self.rows, strict=True)]

    @property
    def nested_plates(self) -> tuple[str, ...]:
        """Plates whose rows follow those of the partitioned plate, see `groups`."""
        return ()

    @property
    def nested_by_name(self) -> dict[str, list[str]]:
        """Names of the arguments of each nested plate, first the one that holds each row's group."""
        return {}

    def members(self, rows: Sequence[Any]) -> dict[str, Any]:
        """The nested plates' rows, by plate, that belong to the rows at hand (row tensors (m, ...))."""
        return {}

    @property
    def lengths(self) -> tuple[int, ...]:
        """Rows of the partitioned plate and of those nested in it."""
        return (self.num_rows or 0,)

    def shifted(self, i: int, first: int) -> Tensor:
        """Leaf i, once `first` rows stand before its rows."""
        leaf: Tensor = self.leaves[i]
        return leaf

    def pooled(self, leaves: Sequence[Any], num_rows: int) -> Arguments:
        """These arguments with `leaves` of all clients together, of `num_rows` rows."""
        return replace(self, leaves=tuple(leaves))

    def with_client_rows(self, clients: Sequence[Tensor]) -> Arguments:
        """These arguments, once each client's row positions (N_k,) are known."""
        return self

    def rows_of(self, plate: str | None, rows: Tensor) -> Tensor:
        """Rows of a nested plate (None: the partitioned one) that belong to the rows at positions (m,)."""
        return rows

    def of_client(self, rows: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments `(args, kwargs)` with the rows at positions (m,) alone."""
        return self.rebuild([leaf[rows] for leaf in self.rows])

    def alone(self, rows: Tensor) -> Arguments:
        """These arguments with the rows at positions (m,) alone, in order; with one row of ones if there are none."""
        leaves = list(self.leaves)
        for i in self.sharded:
            leaves[i] = _some_rows(leaves[i], rows) if len(rows) else torch.ones_like(leaves[i][:1])
        return replace(self, leaves=tuple(leaves))

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: of leaves in files that stay, the places."""
        leaves = tuple((place_of(leaf) or leaf.clone()) if is_mapped(leaf) else leaf for leaf in self.leaves)
        return {**self.__dict__, "leaves": leaves}

    def __setstate__(self, state: dict[str, Any]) -> None:
        leaves = tuple(mapped(leaf) if isinstance(leaf, Place) else leaf for leaf in state["leaves"])
        self.__dict__.update(state, leaves=leaves)

    def call_arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The pooled arguments `(args, kwargs)`."""
        return self.put_together(list(self.leaves))

    def put_together(self, leaves: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments `(args, kwargs)` of these leaves, rows first, with rows on the model's own axes."""
        for i, axis in self.axes.items():
            leaves[i] = leaves[i].movedim(0, axis)
        owners = {owner for owner, *_ in self.nested_by_name.values()}
        for i, name in enumerate(self.names):
            if name in self.labels and isinstance(leaves[i], Tensor):
                # A client numbers its own groups: the argument that holds each row's group has no labels there.
                leaves[i] = labelled(leaves[i], Labels() if name in owners else self.labels[name], name)
        args, kwargs = pytree.tree_unflatten(leaves[: self.spec.num_leaves], self.spec)
        return args, kwargs

    def rows_first(self, axes: Mapping[int, int]) -> Arguments:
        """These arguments with rows on the first axis, by position in `leaves` → axis of its rows in the model."""
        leaves = list(self.leaves)
        for i, axis in axes.items():
            leaves[i] = leaves[i].movedim(axis, 0)
        return replace(self, leaves=tuple(leaves), axes={**self.axes, **axes})

    @cached_property
    def incomplete(self) -> bool:
        """Whether there is a NaN or an infinity in the arguments."""
        # It may be called within a run of a model or a trace, which must not see these values.
        with _disable_current_modes(), DisableTorchFunction():
            return any(
                leaf.is_floating_point() and not all(map(all_finite, blocks(leaf)))
                for leaf in self.leaves
                if isinstance(leaf, Tensor)
            )

    @property
    def has_many_rows(self) -> bool:
        """Whether rows of one plate are so many that what a few of them tell is not asked of all."""
        numbers = sum(leaf.numel() for leaf in self.rows) if type(self) is Arguments else 0
        return exceed_memory(numbers, self.num_rows or 0)

    def rebuild(self, rows: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with other row tensors (m, ...) in place of the sharded leaves."""
        leaves = list(self.leaves)
        for i, leaf in zip(self.sharded, rows, strict=True):
            leaves[i] = leaf
        return self.put_together(leaves)

    def to(self, dtype: torch.dtype, rows: bool = True) -> Arguments:
        """These arguments with every floating tensor in `dtype`, or those alone that are not split by rows."""
        kept = () if rows else self.split
        cast = tuple(leaf if i in kept else _cast(leaf, dtype) for i, leaf in enumerate(self.leaves))
        same = all(one is other for one, other in zip(cast, self.leaves, strict=True))
        return self if same else replace(self, leaves=cast)

    def copy_as(self, dtype: torch.dtype) -> Arguments:
        """Copies of these arguments, floating ones in `dtype`, apart from the caller's arrays; files stay files."""
        owned = (_cast(leaf, dtype, copy=True) for leaf in self.leaves)
        return replace(self, leaves=tuple(owned))

    def on(self, device: torch.device) -> Arguments:
        """These arguments with every tensor on a device."""
        moved = (leaf.to(device) if isinstance(leaf, Tensor) else leaf for leaf in self.leaves)
        return replace(self, leaves=tuple(moved))

    def with_leaves_of(self, other: Arguments, dtype: torch.dtype) -> Arguments:
        """These arguments with the values of others, in `dtype`; DataError where these differ in any other respect."""
        self.check_structure(other)
        other = other.rows_first(self.axes)
        more = len(other.leaves)  # leaves of this layer's own follow the model's
        other = replace(other, leaves=(*other.leaves, *self.leaves[more:]), names=self.names)
        kept = {part for part in self.split if part not in self.values}
        for i, (name, mine, theirs) in enumerate(zip(self.names, self.leaves, other.leaves, strict=True)):
            _check_like(name, mine, theirs, dtype)
            if i in kept and not torch.equal(mine, theirs):
                raise DataError(
                    f"argument '{name}' says which group a row belongs to: that must stay as it was. Make a new "
                    "Federation for other groups"
                )
        return replace(self, leaves=other.copy_as(dtype).leaves)

    def orders(self, model: Callable[..., Any], kinds: tuple[type, ...] = (Table, dict)) -> dict[str, tuple[Any, ...]]:
        """Columns of tables and keys of dictionaries, or of one of these kinds, by the argument's name."""
        args, kwargs = pytree.tree_unflatten([None] * self.spec.num_leaves, self.spec)
        return orders_of(args, kwargs, parameter_names(model, len(args)), kinds)

    def check_structure(self, other: Arguments) -> None:
        """Refuse arguments of another structure; the DataError names what was expected and received."""
        if other.spec == self.spec:
            return
        more = self.spec.num_leaves  # leaves of this layer's own follow the model's
        expected, received = list(self.names[:more]), list(other.names)
        if expected == received:
            raise DataError(
                f"the arguments {expected} are held in another way than before, such as a data frame without one of "
                "its columns, or of one dtype in place of several, or a tuple in place of a list: pass them as before"
            )
        raise DataError(f"expected the arguments {expected}, received {received}")

    @property
    def values(self) -> tuple[int, ...]:
        """Positions of the leaves that are split and hold data, without those that hold each row's group."""
        return self.split

    def shares_with(self, other: Arguments) -> bool:
        """Whether the leaves that all clients share equal those of arguments of the same structure and shapes."""
        pairs = list(zip(self.leaves, other.leaves, strict=True))
        return all(
            i in self.split or not isinstance(mine, Tensor) or torch.equal(mine, theirs)
            for i, (mine, theirs) in enumerate(pairs)
        )

    def floating_dtype(self) -> torch.dtype:
        """The widest floating dtype of the tensors, the default one without any."""
        found = [leaf.dtype for leaf in self.leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]
        if not found:
            return torch.get_default_dtype()
        widest = found[0]
        for dtype in found[1:]:
            widest = torch.promote_types(widest, dtype)
        if len(set(found)) > 1:
            logger.info("arguments of dtypes %s are promoted to %s", sorted(map(str, set(found))), widest)
        return widest


def flatten(
    model: Callable[..., Any],
    args: Any,
    kwargs: Mapping[str, Any] | None,
    labels: LabelsByName | None = None,
    orders: Orders | None = None,
) -> Arguments:
    """Flatten a model's arguments; NumPy arrays, pandas and xarray objects, and lists of numbers become tensors.

    `labels` and `orders`, of columns and keys, are those that are known already. DataError where the model cannot be
    called with them, or they hold values other than numbers, booleans and labels.
    """
    args, kwargs = positional(model, args, kwargs), dict(kwargs or {})
    _check_call(model, args, kwargs)
    heads = parameter_names(model, len(args))
    tree = as_tree((args, kwargs))
    keyed, spec = pytree.tree_flatten_with_path(in_order(tree, heads, orders) if orders else tree)
    names = tuple(_leaf_name(path, heads) for path, _ in keyed)
    read = [read_leaf(leaf, name, labels or {}) for name, (_, leaf) in zip(names, keyed, strict=True)]
    return Arguments(
        tuple(leaf.value for leaf in read),
        names,
        spec,
        labels={name: leaf.labels for name, leaf in zip(names, read, strict=True) if leaf.labels is not None},
        masked=tuple(name for name, leaf in zip(names, read, strict=True) if leaf.masked),
    )


def positional(model: Callable[..., Any], args: Any, kwargs: Mapping[str, Any] | None) -> tuple[Any, ...]:
    """The positional arguments as a tuple; `args` is a tuple, a list, or the only argument.

    A list is several arguments, `[x, y]`, if the model cannot take it as one; DataError if it can take it either way.
    """
    if isinstance(args, tuple) and not hasattr(args, "_fields"):
        return args
    if not isinstance(args, list) or is_column(args):
        return (args,)
    one, several = _binds(model, (args,), kwargs), _binds(model, tuple(args), kwargs)
    if one and several and len(args) > 1 and all(np.ndim(part) for part in args):
        raise DataError(
            f"args is a list of {len(args)} arrays, which the model, {_signature(model)}, can take as one argument "
            f"or as {len(args)}: pass a tuple, such as (x, y), or ([x, y],)"
        )
    return tuple(args) if several and not one else (args,)


def _binds(model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> bool:
    try:
        _signature(model).bind(*args, **(kwargs or {}))
    except TypeError:
        return False
    return True


def rows_like(
    arguments: Arguments, model: Callable[..., Any], args: Any, kwargs: Mapping[str, Any] | None
) -> tuple[Tensor, ...]:
    """The row-sharded leaves (m, ...) of other arguments of the same model, such as test data.

    Missing keyword arguments that have no rows, such as those held by `functools.partial`, are the federation's. A
    DataError names another structure or row shape.
    """
    given = positional(model, args, kwargs)
    kwargs = with_held(arguments, model, given, kwargs)
    other = flatten(model, given, kwargs, arguments.labels, arguments.orders(model)).to(arguments.floating_dtype())
    arguments.check_structure(other)
    if not arguments.sharded:
        raise DataError("the model takes no row-sharded argument: it cannot be given other rows")
    other = other.rows_first(arguments.axes)
    rows = tuple(other.leaves[i] for i in arguments.sharded)
    for name, mine, theirs in zip(arguments.row_names, arguments.rows, rows, strict=True):
        if mine.shape[1:] != theirs.shape[1:]:
            raise DataError(
                f"argument '{name}' has rows of shape {tuple(theirs.shape[1:])}, expected {tuple(mine.shape[1:])}"
            )
    return rows


def with_held(
    arguments: Arguments, model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    """Keyword arguments for other data: those given, and the federation's own that have no rows and are not given."""
    held = {**_without_rows(arguments, getattr(model, "separable", ())), **(kwargs or {})}
    return held if _binds(model, args, held) else kwargs


def _without_rows(arguments: Arguments, separable: Collection[str]) -> dict[str, Any]:
    """Keyword arguments without leaves that are split by rows; for `separable` mappings, the entries without them."""
    _, kwargs = arguments.call_arguments()
    split = {re.split(r"[\[.]", name)[0] for name in arguments.row_names}
    kept = {name: value for name, value in kwargs.items() if name not in split}
    for name in split & kwargs.keys() & set(separable):
        entries = {f"{name}[{key!r}]": (key, value) for key, value in kwargs[name].items()}
        kept[name] = dict(entry for leaf, entry in entries.items() if leaf not in arguments.row_names)
    return kept


def _check_like(name: str, mine: Any, theirs: Any, dtype: torch.dtype) -> None:
    """Refuse a leaf that differs in kind from `mine`, in its place, whose floats are in `dtype` already."""
    if not isinstance(mine, Tensor) or not isinstance(theirs, Tensor):
        if type(mine) is not type(theirs) or mine != theirs:
            raise DataError(
                f"argument '{name}' was {mine!r} and is {theirs!r}: only arrays may have new values. Make a new "
                "Federation"
            )
        return
    if mine.shape != theirs.shape:
        raise DataError(
            f"argument '{name}' has shape {tuple(theirs.shape)}, expected {tuple(mine.shape)}. Make a new Federation "
            "for data of other shapes"
        )
    if not mine.is_floating_point():
        fits = mine.dtype == theirs.dtype
    else:
        fits = theirs.is_floating_point() and torch.promote_types(theirs.dtype, dtype) == dtype
    if not fits:
        raise DataError(
            f"argument '{name}' is {theirs.dtype}, expected {mine.dtype}: convert it, or make a new Federation"
        )


def _check_call(model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    signature = _signature(model)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        given = args[0] if len(args) == 1 else None
        by_name = isinstance(given, Mapping) and set(given) <= set(signature.parameters)
        cure = (
            "these as kwargs={...}, or, a client's own in from_clients, by place, as a tuple"
            if by_name
            else _keyword_cure(signature, len(args), kwargs)
        )
        count = "one argument" if len(args) == 1 else f"{len(args)} arguments"
        named = f" and {', '.join(sorted(kwargs))} by name" if kwargs else ""
        raise DataError(
            f"the model takes {signature}, but was given {count} by position{named}: {error}. Pass {cure}"
        ) from error


def _keyword_cure(signature: inspect.Signature, given: int, kwargs: dict[str, Any]) -> str:
    """The cure if arguments were given by place: pass them as a tuple, or by name if the model requires names."""
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    places = sum(kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD) for kind in kinds)
    named = [
        p.name
        for p in signature.parameters.values()
        if p.kind is inspect.Parameter.KEYWORD_ONLY and p.default is p.empty and p.name not in kwargs
    ]
    if not named or given < places:
        return f"all of its arguments as a tuple, in this order: {signature}"
    pairs, passed = ", ".join(f"'{name}': ..." for name in named), ", ".join(named)
    calls = ", ".join(f"{name}={name}" for name in named)
    return (
        f"{named} by name, which the model takes them by alone: kwargs={{{pairs}}}. Where each client has its own, as "
        f"in from_clients, give it a model that takes them by place: def by_place({passed}): return model({calls})"
    )


def _signature(model: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(model.forward if isinstance(model, torch.nn.Module) else model)


def parameter_names(model: Callable[..., Any], count: int) -> list[str]:
    """The model's names of its first `count` positional arguments."""
    names = [
        p.name for p in _signature(model).parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    return names[:count] + [f"args[{i}]" for i in range(len(names), count)]


def _leaf_name(path: Any, labels: list[str]) -> str:
    in_kwargs, key, *rest = path
    head = str(key.key) if in_kwargs.idx == 1 else labels[key.idx]
    return head + "".join(pytree.keystr((entry,)) for entry in rest)


def _cast(leaf: Any, dtype: torch.dtype, *, copy: bool = False) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    dtype = dtype if leaf.is_floating_point() else leaf.dtype
    if is_mapped(leaf):
        return leaf if leaf.dtype == dtype else written([leaf], dtype)
    return leaf.to(dtype, copy=copy)


def exceed_memory(numbers: int, rows: int) -> bool:
    """Whether rows with so many numbers are too many to be looked at all at once where some tell the same."""
    return not fits_in_memory(numbers) and rows > 2 * ROWS_TOGETHER


def _some_rows(leaf: Tensor, rows: Tensor) -> Tensor:
    """The rows at ascending positions (m,), m >= 1: in the file they lie in, if they follow each other there."""
    first = int(rows[0])
    together = is_mapped(leaf) and int(rows[-1]) == first + len(rows) - 1
    return leaf[first : first + len(rows)] if together else picked(leaf, rows)
