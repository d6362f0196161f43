"""Rows in files: memory-mapped tensors, and passes that hold one block at a time.

`mapped` makes a tensor of a part of a file without a copy; the operating system reads it when it is used. Pages stay in
the process's memory until `let_go`, and are then read again. Writes of a model into such a tensor do not reach the
file. Other processes receive the place of such a tensor (`place_of`), not its rows.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._C import DisableTorchFunction
from torch._C._functorch import is_functorch_wrapped_tensor

from pyro_fed.errors import DataError
from pyro_fed.ops.memory import count_in_cache, count_in_memory

#: Numbers that the system reads from a file around each selected row: 128 KiB.
READ_AHEAD_NUMBERS = 2**15
#: Flags of a private mapping: pages are copied when they are written to, and no memory is reserved before.
OWN_PAGES = mmap.MAP_PRIVATE | (0x4000 if sys.platform == "linux" else 0)  # MAP_NORESERVE


@dataclass(frozen=True)
class Place:
    """Place of an array in a file."""

    path: str
    dtype: str  # NumPy's name, such as "<f4"
    offset: int  # bytes before the first number
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # bytes from one number to the next along each axis

    @property
    def num_bytes(self) -> int:
        """Bytes from the first number to the end of the last."""
        steps = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        return steps + np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class _Mapping:
    """A mapped file: its memory, its place, the original places of its rows by first row; whether it is temporary."""

    memory: mmap.mmap
    place: Place
    origins: tuple[tuple[int, Place], ...]
    temporary: bool


#: Mappings by the address of their tensors' storage.
_MAPPINGS: dict[int, _Mapping] = {}


def place_of_array(array: np.ndarray) -> Place | None:
    """The place of an array in a file; None if it is in memory, or a copy-on-write mapping (mode "c")."""
    root: Any = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    if not isinstance(root, np.memmap) or root.filename is None or root.mode == "c" or not array.size:
        return None
    if any(stride < 0 or stride % array.itemsize for stride in array.strides):
        return None
    offset = root.offset + array.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    return Place(os.path.abspath(root.filename), array.dtype.str, offset, array.shape, array.strides)


def mapped_array(array: np.ndarray) -> Tensor | None:
    """A tensor over the file of a mapped array; None if the array is in memory, or if its file has changed."""
    place = place_of_array(array)
    if place is None or not os.path.exists(place.path):
        return None
    tensor = mapped(place)
    ends = (slice(0, 1), slice(-1, None)) if array.ndim else ((),)
    same = all(np.array_equal(array[end], tensor[end].numpy(), equal_nan=True) for end in ends)
    return tensor if same else None


def mapped(place: Place, origins: Sequence[tuple[int, Place]] = (), temporary: bool = False) -> Tensor:
    """The array at a place in a file as a tensor; DataError if unreadable. `temporary` files end with the tensor."""
    first = place.offset - place.offset % mmap.ALLOCATIONGRANULARITY
    length = place.offset - first + place.num_bytes
    try:
        with open(place.path, "rb") as file:
            memory = mmap.mmap(file.fileno(), length, OWN_PAGES, mmap.PROT_READ | mmap.PROT_WRITE, offset=first)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno == errno.EMFILE:
            raise DataError(
                f"rows are in the file {place.path}, but this process has reached its limit of open files: raise the "
                "limit (ulimit -n), or write the clients' rows consecutively into one file"
            ) from error
        raise DataError(
            f"rows are in the file {place.path}, which cannot be read here ({error}): if clients run in other "
            "processes or on other machines, the file must exist there under the same path"
        ) from error
    array = np.ndarray(place.shape, place.dtype, memory, place.offset - first, place.strides)
    tensor = torch.from_numpy(array)
    address = tensor.untyped_storage().data_ptr()
    _MAPPINGS[address] = _Mapping(memory, place, tuple(origins), temporary)
    weakref.finalize(array, _forget, address, place.path if temporary else None, os.getpid())
    return tensor


def _forget(address: int, path: str | None, process: int) -> None:
    _MAPPINGS.pop(address, None)
    if path is not None and process == os.getpid():  # a forked process shares the mapping, but does not own the file
        with suppress(FileNotFoundError):
            os.unlink(path)


def _mapping_of(leaf: Any) -> _Mapping | None:
    if not _MAPPINGS or type(leaf) is not Tensor or leaf.device.type != "cpu" or is_functorch_wrapped_tensor(leaf):
        return None
    with DisableTorchFunction():  # a model may be running, in a mode that changes torch's functions
        return _MAPPINGS.get(leaf.untyped_storage().data_ptr())


def is_mapped(leaf: Any) -> bool:
    """Whether a value is a tensor over a file."""
    return _mapping_of(leaf) is not None


def let_go(leaf: Tensor) -> None:
    """Release the pages of a mapped tensor from this process's memory; no effect on other tensors."""
    mapping = _mapping_of(leaf)
    if mapping is not None:
        mapping.memory.madvise(mmap.MADV_DONTNEED)


def place_of(leaf: Tensor) -> Place | None:
    """The place of a mapped tensor, in the original file if it has all rows; None if only a temporary file does."""
    mapping = _MAPPINGS[leaf.untyped_storage().data_ptr()]
    whole, size = mapping.place, leaf.element_size()
    inside = int(leaf.storage_offset()) * size
    strides = tuple(step * size for step in leaf.stride())
    for first, origin in mapping.origins:
        start, end = first * whole.strides[0], (first + origin.shape[0]) * whole.strides[0]
        after = inside + max(1, len(leaf)) * whole.strides[0]
        if origin.dtype == whole.dtype and leaf.shape[1:] == origin.shape[1:] and start <= inside and after <= end:
            row = (inside - start) // whole.strides[0]
            return Place(
                origin.path, origin.dtype, origin.offset + row * origin.strides[0], tuple(leaf.shape), origin.strides
            )
    return (
        None if mapping.temporary else replace(whole, offset=whole.offset + inside, shape=leaf.shape, strides=strides)
    )


def blocks(leaf: Tensor) -> Iterator[Tensor]:
    """The rows (N, ...) in consecutive blocks (m, ...), each released before the next; a scalar is one block."""
    if not leaf.dim():
        yield leaf
        return
    for block in leaf.split(count_in_cache(leaf[:1].numel())):
        yield block
        let_go(leaf)


def picked(leaf: Any, at: Tensor) -> Any:
    """The rows at positions (m,); from a file a few at a time, since the system reads many rows around each."""
    if not is_mapped(leaf):
        return leaf[at]
    parts = []
    for chunk in at.split(count_in_memory(max(READ_AHEAD_NUMBERS, leaf[:1].numel()))):
        parts.append(leaf[chunk])
        let_go(leaf)
    return torch.cat(parts)


def row_blocks(rows: Sequence[Tensor]) -> Iterator[tuple[Tensor, ...]]:
    """Rows (N, ...) of several tensors in common blocks (m, ...), each released before the next."""
    count = len(rows[0])
    size = count_in_memory(sum(leaf[:1].numel() for leaf in rows))
    for first in range(0, count, size):
        yield tuple(leaf[first : first + size] for leaf in rows)
        for leaf in rows:
            let_go(leaf)


def pooled(parts: Sequence[Tensor]) -> Tensor:
    """The concatenated rows of tensors: in memory, or in a file if one of the tensors is mapped."""
    if not any(map(is_mapped, parts)):
        return torch.cat(list(parts))
    non_empty = [part for part in parts if len(part)]
    places = [place_of(part) if is_mapped(part) else None for part in non_empty]
    if places and places[0] is not None and all(_follows(a, b) for a, b in pairwise(places)):
        return mapped(replace(places[0], shape=(sum(map(len, non_empty)), *places[0].shape[1:])))
    return written(parts, reduce(torch.promote_types, [part.dtype for part in parts]))


def _follows(one: Place | None, other: Place | None) -> bool:
    """Whether the rows at one place directly follow those at another in a file."""
    if one is None or other is None:
        return False
    after = replace(one, offset=one.offset + one.shape[0] * one.strides[0], shape=other.shape)
    return other == after and one.shape[1:] == other.shape[1:]


@contextmanager
def _removed_on_error(path: str) -> Iterator[None]:
    """Remove a file that is not completely written, such as on a full disk."""
    try:
        yield
    except BaseException:
        os.unlink(path)
        raise


def written(parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """The concatenated rows of tensors in `dtype`, in a temporary file that is removed with the tensor."""
    places, row_count = [], 0
    with tempfile.NamedTemporaryFile(prefix="pyro_fed_rows_", delete=False) as file, _removed_on_error(file.name):
        for part in parts:
            for block in blocks(part):
                file.write(block.to(dtype).contiguous().numpy().data)
            if is_mapped(part) and (origin := place_of(part)) is not None:
                places.append((row_count, origin))
            row_count += len(part)
        file.flush()
    result_shape = torch.empty((row_count, *parts[0].shape[1:]), dtype=dtype, device="meta")
    dtype_name = torch.empty(0, dtype=dtype).numpy().dtype.str
    strides = tuple(step * result_shape.element_size() for step in result_shape.stride())
    return mapped(Place(file.name, dtype_name, 0, tuple(result_shape.shape), strides), places, temporary=True)
