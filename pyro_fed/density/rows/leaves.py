"""Conversion of an array to a tensor: masked and nullable arrays, categories, text.

Masked and missing values become NaN, which is refused, or handled by the model. Text and categories become codes
0, 1, ..., with labels, see `labelled`. A column that contains only None is None.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from pyro_fed.density.rows.files import mapped_array
from pyro_fed.density.rows.labelled import Labelled, Labels, plain
from pyro_fed.errors import DataError, listed

#: Labels of codes, by the argument's name.
LabelsByName = Mapping[str, Labels]
#: Pattern of a date at the beginning of a text: 2024-03-01, 2024/3/1, 1.3.2024, 03/01/24.
DATE = re.compile(r"\s*(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2}))(?!\d)")


class Leaf(NamedTuple):
    """A leaf of the arguments, a tensor for an array; labels of its codes; whether it is a masked array."""

    value: Any
    labels: Labels | None = None
    masked: bool = False


class UnknownLabelError(DataError):
    """A label that is not among the known labels of the argument with the name `argument`."""

    def __init__(self, argument: str, unknown: list[str], known: Labels) -> None:
        super().__init__(f"argument '{argument}' has the labels {listed(unknown)}, which are not among {listed(known)}")
        self.argument = argument


def read_leaf(leaf: Any, name: str, known: LabelsByName) -> Leaf:
    """A leaf, as a tensor if it is an array; `known` has earlier labels. DataError if it cannot be converted."""
    if isinstance(leaf, Labelled):
        return _recoded(plain(leaf), leaf.labels, name, known)
    if isinstance(leaf, Tensor) and name in known:
        raise DataError(_numbers_for_labels(name, known[name]))
    if isinstance(leaf, Tensor):
        return Leaf(_dense(leaf, name).cpu())  # checks run on the CPU; for runs see `Problem.placed`
    if hasattr(leaf, "toarray") and hasattr(leaf, "nnz"):
        raise DataError(f"argument '{name}' is sparse: pass {name}.toarray()")
    if isinstance(getattr(leaf, "dtype", None), pd.CategoricalDtype):
        return _categories(pd.Series(leaf), name, known)
    if isinstance(leaf, np.ma.MaskedArray):
        return _leaf_of_masked_array(leaf, name)
    if hasattr(leaf, "to_numpy"):
        leaf = _of_pandas(leaf) if isinstance(leaf, pd.Series | pd.Index) else leaf.to_numpy()
    elif isinstance(leaf, pd.api.extensions.ExtensionArray):
        leaf = _of_pandas(pd.Series(leaf))
    if isinstance(leaf, np.generic):
        leaf = np.asarray(leaf)
    if isinstance(leaf, Iterator | set | frozenset):
        raise DataError(
            f"argument '{name}' is a {type(leaf).__name__}, whose order is not fixed or which can be read only once: "
            f"pass a tensor or an array, such as numpy.array(list({name}))"
        )
    if not isinstance(leaf, np.ndarray):
        return Leaf(leaf)
    if leaf.dtype.kind in "OUST" or name in known:
        return _text(leaf, name, known)
    if leaf.dtype.kind in "mM":
        raise DataError(
            f"argument '{name}' is an array of times ({leaf.dtype}): pass numbers, such as the days since a date "
            f"that is the same for all clients, ({name} - numpy.datetime64('2020-01-01')) / numpy.timedelta64(1, 'D'), "
            "or omit the column if the model does not read it"
        )
    return Leaf(_tensor(leaf, name))


def _dense(leaf: Tensor, name: str) -> Tensor:
    if type(leaf).__name__ == "MaskedTensor":
        raise DataError(
            f"argument '{name}' is a MaskedTensor: pass its values with NaN where they are masked, such as "
            f"{name}.to_tensor(float('nan'))"
        )
    if leaf.layout is not torch.strided:
        raise DataError(f"argument '{name}' is a sparse tensor ({leaf.layout}): pass {name}.to_dense()")
    if leaf.is_complex():
        raise DataError(f"argument '{name}' is complex: pass its real and imaginary parts as two arguments")
    return leaf.detach()


def _leaf_of_masked_array(leaf: Any, name: str) -> Leaf:
    if leaf.dtype.kind not in "biuf":
        raise DataError(f"argument '{name}' is a masked array of dtype {leaf.dtype}: expected numbers or truth values")
    mask = np.ma.getmaskarray(leaf)
    if not mask.any():
        return Leaf(_tensor(np.asarray(leaf.data), name))
    floats = leaf.data.astype(leaf.dtype if leaf.dtype.kind == "f" else float)
    return Leaf(_tensor(np.where(mask, np.nan, floats).astype(floats.dtype), name), masked=True)


def _of_pandas(series: Any) -> np.ndarray:
    """A column as a NumPy array; nullable numbers with missing values become floats with NaN."""
    if isinstance(series.dtype, pd.StringDtype) or series.dtype == object:
        return np.asarray(series.to_numpy(dtype=object))
    missing = bool(series.isna().any())
    if pd.api.types.is_extension_array_dtype(series.dtype):
        if missing and series.dtype.kind in "biuf":
            return np.asarray(series.to_numpy(dtype=float, na_value=np.nan))
        if series.dtype.kind in "biuf":
            return np.asarray(series.to_numpy(dtype=getattr(series.dtype, "numpy_dtype", None)))
    return np.asarray(series.to_numpy())


def _categories(series: Any, name: str, known: LabelsByName) -> Leaf:
    labels = Labels(series.cat.categories.tolist(), ordered=bool(series.cat.ordered))
    codes = series.cat.codes.to_numpy()
    if (codes < 0).any():
        raise DataError(_missing_label(name, int(np.argmax(codes < 0))))
    return _recoded(torch.as_tensor(codes.astype(np.int64)), labels, name, known)


def _recoded(codes: Tensor, labels: Labels, name: str, known: LabelsByName) -> Leaf:
    """A column with the codes of the known labels if these differ from its own."""
    if name not in known:
        return Leaf(codes, labels)
    if known[name] == labels:
        return Leaf(codes, known[name])
    values = np.empty(len(labels), dtype=object)
    values[:] = labels
    return _leaf_of_labels(values[codes.numpy()], name, known[name])


def _text(leaf: np.ndarray, name: str, known: LabelsByName) -> Leaf:
    flat = leaf.ravel()
    if leaf.dtype.kind == "O":
        missing = pd.isna(flat)
        present = flat[~missing]
        if len(flat) and not len(present):
            return Leaf(None)
        if (
            name not in known
            and len(present)
            and all(isinstance(part, bool | int | float | np.number | np.bool_) for part in present)
        ):
            numbers = np.where(missing, np.nan, np.where(missing, 0, flat).astype(float)) if missing.any() else flat
            is_integer = all(isinstance(part, int | np.integer) for part in flat)  # bools too
            return Leaf(
                _tensor(np.asarray(numbers.tolist() if is_integer else numbers.astype(float)).reshape(leaf.shape), name)
            )
        if missing.any():
            raise DataError(_missing_label(name, int(np.argmax(missing))))
    if name in known and not any(isinstance(label, str) for label in known[name]):
        return _leaf_of_labels(leaf, name, known[name])  # categories that are numbers
    if not len(flat) and name not in known:
        raise DataError(
            f"argument '{name}' is text, or of dtype object, and has no rows, so that its labels are not known: omit "
            f"a client without rows, or pass pandas.Categorical({name}, categories=[...])"
        )
    other_types = {type(part).__name__ for part in flat.tolist() if not isinstance(part, str)}  # NumPy's texts are text
    if other_types and name in known:
        raise DataError(_numbers_for_labels(name, known[name]))
    if other_types:
        raise DataError(
            f"argument '{name}' is an array of dtype {leaf.dtype} that holds {listed(sorted(other_types))}; expected "
            "numbers, truth values or text. Encode it as numbers, such as by `pandas.factorize`"
        )
    labels = known.get(name) or Labels(sorted({str(part) for part in flat.tolist()}))
    if all(_reads_as_number(label) for label in labels):
        raise DataError(
            f"argument '{name}' is text that reads as numbers: convert it, "
            f"pandas.to_numeric({name}), or make it a category, pandas.Categorical({name}), if they are labels"
        )
    if all(DATE.match(label) for label in labels):
        raise DataError(
            f"argument '{name}' is text that reads as dates, whose codes would not be "
            f"times: pass numbers, such as (pandas.to_datetime({name}) - pandas.Timestamp('2020-01-01')).dt.days, with "
            f"a date that is the same for all clients, make it a category, pandas.Categorical({name}), if they are "
            "labels, or omit the column if the model does not read it"
        )
    return _leaf_of_labels(leaf, name, labels)


def _reads_as_number(label: str) -> bool:
    try:
        float(label)
    except ValueError:
        return False
    return True


def _leaf_of_labels(leaf: np.ndarray, name: str, labels: Labels) -> Leaf:
    code = {label: number for number, label in enumerate(labels)}
    unknown = sorted({str(part) for part in leaf.ravel().tolist() if part not in code})
    if unknown:
        raise UnknownLabelError(name, unknown, labels)
    codes = [code[part] for part in leaf.ravel().tolist()]
    return Leaf(torch.tensor(codes, dtype=torch.int64).reshape(leaf.shape), labels)


def _numbers_for_labels(name: str, labels: Labels) -> str:
    return (
        f"argument '{name}' holds numbers here, and text or categories elsewhere, [{listed(labels)}]: pass labels "
        f"everywhere, such as {name} = {labels[0]!r} for the rows of that label"
    )


def _missing_label(name: str, row: int) -> str:
    return (
        f"argument '{name}'[{row}] has no label: it is missing. Drop these rows, give missing values their own "
        "label, such as 'unknown', or omit the column if the model does not read it"
    )


def _tensor(leaf: np.ndarray, name: str) -> Tensor:
    if leaf.dtype.kind == "c":
        raise DataError(f"argument '{name}' is complex: pass its real and imaginary parts as two arguments")
    if leaf.dtype.kind not in "biuf":
        raise DataError(
            f"argument '{name}' is an array of dtype {leaf.dtype}; expected numbers, truth values or text. Encode it "
            "as numbers, such as by `pandas.factorize`"
        )
    if leaf.dtype.kind == "f" and leaf.dtype.itemsize > 8:
        leaf = leaf.astype(np.float64)  # torch has no long doubles
    if leaf.dtype.kind == "u" and leaf.dtype.itemsize > 1:
        leaf = leaf.astype(np.int64)  # torch has few operations for these
    leaf = leaf.astype(leaf.dtype.newbyteorder("="), copy=False)
    if (tensor := mapped_array(leaf)) is not None:
        return tensor
    return torch.as_tensor(np.require(leaf, requirements=["C", "W"]))  # arrays of pandas may be read-only
