"""Replacements for calls of a model during a run: on its data, on its plates, and `pf.shared`.

A model of arrays may convert them to tensors, `torch.tensor(df["x"].values)`, `torch.from_numpy(x)`. During a run they
are tensors already, possibly mapped over clients. A comparison of numbers with text, such as `sex == "male"` of zeros
and ones, which is False everywhere in torch and pandas, is refused. The partitioned plate runs on the present rows, and
nested plates run on the rows that belong to these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from pyro.poutine.indep_messenger import IndepMessenger
from pyro.poutine.messenger import Messenger
from pyro.poutine.subsample_messenger import SubsampleMessenger
from torch import Tensor
from torch.utils import _pytree as pytree

from pyro_fed.conventions.calls import checked, explained
from pyro_fed.density.running.trace_sites import Message, frame_of
from pyro_fed.errors import ModelError

with torch.device("cpu"):
    torch.empty(0)  # torch now lists the functions that use a default device, without the replacements below


class _Codes:
    """`series.cat.codes` of a column that is its codes."""

    def __init__(self, codes: Tensor) -> None:
        self.codes = codes


def _itself(tensor: Tensor, *_: Any, **__: Any) -> Tensor:
    return tensor


def _values(tensor: Tensor) -> Any:
    """`series.values`, the column itself; the own method of a sparse tensor."""
    return tensor if tensor.layout is torch.strided else _SPARSE_VALUES.__get__(tensor)


def _astype(tensor: Tensor, dtype: Any, *_: Any, **__: Any) -> Tensor:
    name = getattr(dtype, "__name__", None) or str(dtype)
    kinds = {"float": torch.get_default_dtype(), "int": torch.int64, "bool": torch.bool}
    return tensor.to(kinds[name] if name in kinds else getattr(torch, name))


def _fillna(tensor: Tensor, value: Any, *_: Any, **__: Any) -> Tensor:
    return torch.where(tensor.isnan(), value, tensor) if tensor.is_floating_point() else tensor


def _isna(tensor: Tensor) -> Tensor:
    return torch.isnan(tensor)


def _notna(tensor: Tensor) -> Tensor:
    return ~torch.isnan(tensor)


def _comparison(original: Callable[..., Any]) -> Callable[..., Any]:
    """An operator for `torch.eq` or `torch.ne` that refuses text."""

    def compare(tensor: Tensor, other: Any) -> Any:
        if isinstance(other, str):
            raise ValueError(
                f"numbers are compared with the text {other!r:.40}, which is never equal: pass the column as text or "
                "categories, or compare with a number"
            )
        try:
            return original(tensor, other)
        except TypeError:
            return NotImplemented

    return compare


_SPARSE_VALUES = Tensor.values
_METHODS: dict[str, Any] = {
    "values": property(_values),
    "cat": property(_Codes),
    "to_numpy": _itself,
    "astype": _astype,
    "fillna": _fillna,
    "isna": _isna,
    "isnull": _isna,
    "notna": _notna,
    "notnull": _notna,
    "__eq__": _comparison(torch.eq),
    "__ne__": _comparison(torch.ne),
}


def _tensor_maker(original: Callable[..., Any], copies: bool) -> Callable[..., Any]:
    """A replacement of `torch.tensor` or a similar function that returns its tensor argument in the given dtype."""

    def make(data: Any, *args: Any, dtype: torch.dtype | None = None, **options: Any) -> Any:
        data = data.values if hasattr(type(data), "__torch_function__") and not isinstance(data, Tensor) else data
        if not isinstance(data, Tensor):
            options |= {} if dtype is None else {"dtype": dtype}
            return original(data, *args, **options)
        if dtype is not None and dtype != data.dtype:
            return data.to(dtype)
        return data.clone() if copies else data

    return make


@contextmanager
def data_calls() -> Iterator[None]:
    """A context that replaces calls on data while a model runs."""
    patched: Any = torch
    makers = {"tensor": True, "as_tensor": False, "asarray": False, "from_numpy": False}
    originals = {name: getattr(torch, name) for name in makers}
    missing = [name for name in _METHODS if name not in Tensor.__dict__]
    before = {name: Tensor.__dict__[name] for name in _METHODS if name in Tensor.__dict__}
    for name, method in _METHODS.items():
        setattr(Tensor, name, method)
    for name, copies in makers.items():
        setattr(patched, name, _tensor_maker(originals[name], copies))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(patched, name, original)
        for name, method in before.items():
            setattr(Tensor, name, method)
        for name in missing:
            delattr(Tensor, name)


@contextmanager
def pinned_plates(
    plate: str, indices: Tensor | None, nested: Mapping[str, int], declared: dict[str, int]
) -> Iterator[None]:
    """Run the partitioned plate on rows `indices` (m,), None for all, and nested plates on `nested` rows, unscaled.

    This overrides a plate's `subsample_size` and `subsample`. `declared` receives the sizes that the model declares.
    """

    def subsample(name: str, size: int | None = None, *_args: Any, **_kwargs: Any) -> tuple[int, int, Tensor | None]:
        if size is None:
            return -1, -1, None
        declared[name] = int(size)
        if name == plate and indices is not None:
            return len(indices), len(indices), indices
        num_rows = nested.get(name, int(size))
        return num_rows, num_rows, torch.arange(num_rows)

    def iterate(self: Any) -> Iterator[int | float]:
        self._indices = range(self.size)  # Python numbers: a traced tensor has no `.item()`
        return IndepMessenger.__iter__(self)

    patched: Any = SubsampleMessenger
    original = patched.__dict__["_subsample"]
    patched._subsample = staticmethod(subsample)
    patched.__iter__ = iterate
    try:
        yield
    finally:
        patched._subsample = original
        del patched.__iter__


class Subsample(Messenger):
    """`pyro.subsample(data, event_dim)`: the present rows, unless the data consist of these rows already."""

    def __init__(self, plate: str, declared: dict[str, int], indices: Tensor | None) -> None:
        super().__init__()
        self.plate, self.declared, self.indices = plate, declared, indices

    def _pyro_subsample(self, msg: Message) -> None:
        frame = frame_of(msg, self.plate)
        if frame is None or self.indices is None:
            return
        data = msg["args"][0]
        dim = frame.dim - msg["kwargs"]["event_dim"]
        if data.shape[dim] == self.declared[self.plate] != len(self.indices):
            msg["value"], msg["done"] = data.index_select(dim, self.indices), True


#: Prefix of the names of shared values among a model's constants.
SHARED_PREFIX = "shared: "

_STORED_VALUES: ContextVar[MutableMapping[str, Any] | None] = ContextVar("kept", default=None)


@checked
def shared(name: str, value: Any | Callable[[], Any]) -> Any:
    """A value that depends on all rows and is the same for all clients.

    A federation computes it once, from the pooled data; all clients then know it, as an argument that is not split.
    Clients with local data cannot pool them: over Flower a model with shared values is refused, and its values have to
    be arguments.

    Args:
        name: name of the value, unique in a model.
        value: the value, or a function without arguments that computes it, which is called on all rows only.

    Returns:
        The value: numbers, tensors, or tuples, lists and dictionaries of them.

    Raises:
        ModelError: the function fails.

    Example:
        >>> def model(g, y):
        ...     num_groups = pf.shared("groups", lambda: int(g.max()) + 1)
        ...     with pyro.plate("groups", num_groups):
        ...         a = pyro.sample("a", dist.Normal(0.0, 1.0))
        ...     with pyro.plate("data", len(y)):
        ...         pyro.sample("y", dist.Normal(a[g], 1.0), obs=y)
    """
    stored_values = _STORED_VALUES.get()
    if stored_values is not None and SHARED_PREFIX + name in stored_values:
        return stored_values[SHARED_PREFIX + name]
    shared_value = value
    if callable(value) and not isinstance(value, Tensor):
        shared_value = explained(ModelError, f"shared({name!r}): its function fails")(value)()
    if stored_values is not None:
        stored_values[SHARED_PREFIX + name] = pytree.tree_map_only(Tensor, lambda leaf: leaf.detach(), shared_value)
    return shared_value


@contextmanager
def keeping(kept: MutableMapping[str, Any] | None) -> Iterator[None]:
    """Store shared values in a model's constants, and read them from there, during a run; None recomputes them."""
    token = _STORED_VALUES.set(kept)
    try:
        yield
    finally:
        _STORED_VALUES.reset(token)


def is_shared(name: str) -> bool:
    """Whether a model's constant of this name is a shared value, not a `pyro.param`."""
    return name.startswith(SHARED_PREFIX)
