"""Calls of a model on its data that were written for NumPy and pandas, and are answered by tensors while it runs.

A model that is given arrays may make tensors of them, `torch.tensor(df["x"].values)`, `torch.from_numpy(x)`. While it
runs here they are tensors already, mapped over clients perhaps, of which torch would make none. A comparison of numbers
with text, `sex == "male"` of zeros and ones, which torch and pandas take for False everywhere, is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

with torch.device("cpu"):
    torch.empty(0)  # torch keeps which functions heed a default device at the first of them: not those made below


class _Codes:
    """`series.cat.codes` of a column that is its codes."""

    def __init__(self, codes: Tensor) -> None:
        self.codes = codes


def _itself(tensor: Tensor, *_: Any, **__: Any) -> Tensor:
    return tensor


def _values(tensor: Tensor) -> Any:
    """`series.values`, the column itself; a sparse tensor's own method."""
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
                f"numbers are compared with the text {other!r:.40}, which none of them is: pass the column as text or "
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


def _made_of(original: Callable[..., Any], copies: bool) -> Callable[..., Any]:
    """`torch.tensor` and similar functions, which return a tensor that they are given, in the dtype asked for."""

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
    """A context that answers such calls while a model runs."""
    patched: Any = torch
    makers = {"tensor": True, "as_tensor": False, "asarray": False, "from_numpy": False}
    originals = {name: getattr(torch, name) for name in makers}
    missing = [name for name in _METHODS if name not in Tensor.__dict__]
    before = {name: Tensor.__dict__[name] for name in _METHODS if name in Tensor.__dict__}
    for name, method in _METHODS.items():
        setattr(Tensor, name, method)
    for name, copies in makers.items():
        setattr(patched, name, _made_of(originals[name], copies))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(patched, name, original)
        for name, method in before.items():
            setattr(Tensor, name, method)
        for name in missing:
            delattr(Tensor, name)
