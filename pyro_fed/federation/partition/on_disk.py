"""Rows of Parquet files and of PyTorch's map-style datasets, written once as NumPy files that are then read as used."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from pyro_fed.conventions.calls import checked, explained
from pyro_fed.errors import DataError, SettingError, listed
from pyro_fed.ops.memory import count_in_cache


@checked
@explained(DataError, "the rows cannot be read")
def rows_on_disk(
    source: Any, folder: str | os.PathLike[str], columns: Mapping[str, str | Sequence[str]] | None = None
) -> Any:
    """Rows of a Parquet file, or of a map-style dataset, as memory-mapped arrays: for a client's rows beyond memory.

    They are read once, chunk by chunk, and written into `folder` as `NAME.npy`, which takes as much room on disk as the
    numbers do uncompressed, and is replaced if it is there. A `Federation` reads a memory-mapped array as it is used:
    neither it nor a worker process holds a copy of all rows. The files must stay as they are while it is in use.

    Args:
        source: path of a Parquet file, which needs `pip install 'pyro_fed[arrow]'`; or an object with `len(source)` and
            `source[i]`, a tensor, array or number, or a tuple or dictionary of them, of the same shapes for all i.
        folder: of the files; it is made if it is not there.
        columns: of a Parquet file: an argument's name → its column, or the columns of its matrix (rows, columns); all
            columns, each by itself, by default.

    Returns:
        Memory-mapped arrays (rows, ...) in the form of an item, which is one array, a tuple of them, or a dictionary
        from names. A Parquet file gives a dictionary.

    Raises:
        DataError: no rows; an item of another shape or form than the first; a column that is not there, holds other
            values than numbers and truth values, or whole numbers with missing ones.
        SettingError: `columns` of a dataset; pyarrow is not installed.

    Example:
        >>> data = pf.partition.rows_on_disk("north.parquet", "north", {"x": ["age", "dose"], "y": "died"})
    """
    for name in columns or ():
        _check_name(name)
    Path(folder).mkdir(parents=True, exist_ok=True)
    if isinstance(source, str | os.PathLike):
        return _from_parquet(Path(source), Path(folder), columns)
    if columns is not None:
        raise SettingError("columns= names those of a Parquet file; a dataset's items have a form of their own")
    return _from_dataset(source, Path(folder))


def _check_name(name: str) -> None:
    """Refuse a name of which no file can be named."""
    if not name or name in (".", "..") or {"/", os.sep, chr(0)} & set(name):
        raise DataError(
            f"no file can have the name {name!r}: name the columns by columns=, or the dataset's entries anew"
        )


class _Writer:
    """A NumPy file that is written row by row, and closed with a stack of files."""

    def __init__(self, files: ExitStack, path: Path, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        self.path, self.dtype = path, dtype
        self.file = files.enter_context(path.open("wb"))
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self.file, header)

    def add(self, rows: np.ndarray) -> None:
        """Write rows; refuse another kind of numbers than the file's."""
        if not np.can_cast(rows.dtype, self.dtype, "same_kind"):
            raise DataError(
                f"{self.path.name}: the first row has {self.dtype} numbers, and a later one {rows.dtype}: make them of "
                "one kind, such as float32"
            )
        self.file.write(np.ascontiguousarray(rows, self.dtype).data)


def _from_dataset(source: Any, folder: Path) -> Any:
    if not hasattr(source, "__len__") or not hasattr(source, "__getitem__"):
        raise DataError(
            f"source is a {type(source).__name__}, expected a path, or a dataset with len(source), source[i]"
        )
    count = len(source)
    if not count:
        raise DataError("the dataset has no rows")
    form = source[0]
    first_item = _parts(form)
    if others := [name for name, part in first_item.items() if part.dtype.kind not in "biuf"]:
        raise DataError(
            f"items of the dataset hold values other than numbers in {listed(others)}: write them as numbers"
        )
    for name in first_item:
        _check_name(name)
    shapes = {name: part.shape for name, part in first_item.items()}
    with ExitStack() as files:
        writers = {
            name: _Writer(files, folder / f"{name}.npy", part.dtype, (count, *part.shape))
            for name, part in first_item.items()
        }
        together = count_in_cache(sum(part.size for part in first_item.values()))
        for first in range(0, count, together):
            items = [_parts(source[i]) for i in range(first, min(count, first + together))]
            for place, item in enumerate(items, first):
                found = {name: part.shape for name, part in item.items()}
                if found != shapes:
                    raise DataError(f"item {place} of the dataset has the shapes {found}, expected {shapes}, as item 0")
            for name, writer in writers.items():
                writer.add(np.stack([item[name] for item in items]))
    made = _read(writers)
    if isinstance(form, Mapping):
        return made
    return tuple(made.values()) if isinstance(form, tuple | list) else made["rows"]


def _read(writers: Mapping[str, _Writer]) -> dict[str, np.ndarray]:
    """The files by name, mapped."""
    return {name: np.load(writer.path, mmap_mode="r") for name, writer in writers.items()}


def _parts(item: Any) -> dict[str, np.ndarray]:
    """An item's arrays by name."""
    named = item if isinstance(item, Mapping) else {"rows": item}
    if isinstance(item, tuple | list):
        named = {f"column_{number}": part for number, part in enumerate(item)}
    return {str(name): np.asarray(part) for name, part in named.items()}


def _from_parquet(path: Path, folder: Path, columns: Mapping[str, str | Sequence[str]] | None) -> dict[str, np.ndarray]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise SettingError("Parquet files need the extra: pip install 'pyro_fed[arrow]'") from error
    with parquet.ParquetFile(path) as file, ExitStack() as files:
        types = {field.name: field.type for field in file.schema_arrow}
        wanted = columns or {name: name for name in types}
        read = [name for part in wanted.values() for name in ([part] if isinstance(part, str) else part)]
        if absent := [name for name in read if name not in types]:
            raise DataError(f"{path} has no columns {listed(absent)}: it has {listed(types)}")
        for name in wanted:
            _check_name(name)
        kinds = {name: _kind_of(types[name]) for name in read}
        if others := [name for name in read if kinds[name].kind not in "biuf"]:
            raise DataError(
                f"{path}: columns {listed(others)} do not hold numbers: name the others by columns=, or write them as "
                "numbers, such as by pandas.factorize"
            )
        count = file.metadata.num_rows
        if not count:
            raise DataError(f"{path} has no rows")
        writers = {}
        for name, part in wanted.items():
            kind = np.result_type(*(kinds[one] for one in ([part] if isinstance(part, str) else part)))
            shape = (count,) if isinstance(part, str) else (count, len(part))
            writers[name] = _Writer(files, folder / f"{name}.npy", kind, shape)
        for batch in file.iter_batches(columns=list(dict.fromkeys(read))):
            values = {name: _values(batch.column(name), name, path) for name in batch.schema.names}
            for name, part in wanted.items():
                rows = values[part] if isinstance(part, str) else np.stack([values[one] for one in part], -1)
                writers[name].add(rows)
    return _read(writers)


def _kind_of(column_type: Any) -> np.dtype:
    """NumPy's type of a column; that of objects for types that it does not have, such as categories."""
    try:
        kind: np.dtype = np.dtype(column_type.to_pandas_dtype())
        return kind
    except (NotImplementedError, TypeError):
        return np.dtype(object)


def _values(column: Any, name: str, path: Path) -> np.ndarray:
    """A batch's column (m,); missing numbers as NaN."""
    if column.null_count and not np.dtype(column.type.to_pandas_dtype()).kind == "f":
        raise DataError(
            f"{path}: column {name!r} holds whole numbers or truth values, and some are missing: write it as "
            "floating-point numbers, with NaN where they are missing, or leave these rows out"
        )
    values: np.ndarray = column.to_numpy(zero_copy_only=False)
    return values
