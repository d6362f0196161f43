"""The header of a safetensors file or message, checked before memory is allocated.

    8 bytes N, little endian | N bytes of JSON | the tensors' bytes, without gaps

    {"__metadata__": {name: text}, tensor: {"dtype": "F64", "shape": [3], "data_offsets": [0, 24]}}

The safetensors library decodes the tensors. This module adds the checks that the library lacks, so that a false header
is cheap: no more memory is allocated than there are bytes.
"""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

import torch

from pyro_fed.errors import ProtocolError

#: Bytes of the number N.
PREFIX = 8
#: Default limit of the length of a JSON header, in bytes.
MAX_HEADER = 100_000
#: Largest number of dimensions of a tensor.
MAX_DIMS = 16

#: The accepted dtypes, in the order of safetensors' layout, largest alignment first.
DTYPES = {
    "I64": torch.int64,
    "F64": torch.float64,
    "F32": torch.float32,
    "I32": torch.int32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


class Entry(NamedTuple):
    """One tensor: its shape and dtype."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Bytes of its values."""
        return math.prod(self.shape) * self.dtype.itemsize


class FileHeader(NamedTuple):
    """The content of a header: text by name, and the shapes and dtypes of tensors by name."""

    text: dict[str, str]
    tensors: dict[str, Entry]


def read_header(data: bytes, total: int, max_header: int = MAX_HEADER) -> FileHeader:
    """The header, checked without the tensors' values; `data` may be only the first of `total` bytes."""
    length = header_length(data, total, max_header)
    fields = _parse(data[PREFIX : PREFIX + length])
    text = fields.pop("__metadata__", {})
    if not isinstance(text, dict) or not all(isinstance(value, str) for value in text.values()):
        raise ProtocolError(f"__metadata__ must map names to text, received {_quote(text)}")
    spans = {name: _entry(name, value) for name, value in fields.items()}
    _check_layout(spans, total - PREFIX - length)
    return FileHeader(text, {name: entry for name, (entry, _) in spans.items()})


def header_length(data: bytes, total: int, max_header: int = MAX_HEADER) -> int:
    """N, the length of the JSON header in bytes; `data` contains at least the first eight of `total` bytes."""
    if total < PREFIX:
        raise ProtocolError(f"truncated: {total} bytes cannot hold a header")
    length = int.from_bytes(data[:PREFIX], "little")
    if length > max_header:
        raise ProtocolError(f"the header claims {length} bytes, at most {max_header} are accepted")
    if length > total - PREFIX:
        raise ProtocolError(f"truncated: the header claims {length} bytes, received {total - PREFIX}")
    return length


def _parse(raw: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        if isinstance(error, ProtocolError):
            raise
        raise ProtocolError(f"the header is not JSON: {_quote(error)}") from error
    if not isinstance(fields, dict):
        raise ProtocolError(f"the header must be a JSON object, received {_quote(fields)}")
    return fields


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ProtocolError(f"the header names {_quote(repeated)} twice")
    return fields


def _no_constant(name: str) -> None:
    raise ProtocolError(f"the header holds {name}, which is not JSON")


def _entry(name: str, value: Any) -> tuple[Entry, tuple[int, int]]:
    """A tensor's shape and dtype, and the first and last offset of its bytes."""
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise ProtocolError(f"tensor {_quote(name)}: expected dtype, shape and data_offsets, received {_quote(value)}")
    kind, shape, span = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(kind, str) or kind not in DTYPES:
        raise ProtocolError(f"tensor {_quote(name)}: dtype must be one of {list(DTYPES)}, received {_quote(kind)}")
    if not _sizes(shape) or len(shape) > MAX_DIMS:
        raise ProtocolError(f"tensor {_quote(name)}: shape must be whole numbers, received {_quote(shape)}")
    if not _sizes(span) or len(span) != 2:
        raise ProtocolError(f"tensor {_quote(name)}: data_offsets must be two numbers, received {_quote(span)}")
    entry = Entry(tuple(shape), DTYPES[kind])
    if span[1] - span[0] != entry.num_bytes:
        raise ProtocolError(
            f"tensor {_quote(name)}: {kind} of shape {_quote(shape)} has {entry.num_bytes} bytes, its offsets hold "
            f"{span[1] - span[0]}"
        )
    return entry, (span[0], span[1])


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and 0 <= size < 2**63 for size in value)


def _check_layout(spans: dict[str, tuple[Entry, tuple[int, int]]], size: int) -> None:
    """Raise a `ProtocolError` unless the tensors fill the `size` bytes after the header without gap or overlap."""
    end = 0
    for name, (_, (first, last)) in sorted(spans.items(), key=lambda item: item[1][1]):
        if first != end:
            raise ProtocolError(f"tensor {_quote(name)} begins at byte {first}, expected {end}")
        end = last
    if end != size:
        raise ProtocolError(f"the tensors take {end} bytes, {size} follow the header")


def _quote(value: Any) -> str:
    """A received value for an error's text, cut to 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
