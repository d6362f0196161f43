"""`what_left.jsonl`: a line for each message that left the site or was refused, with the hash of the line before.

A line is a JSON object. `hash` is SHA-256 of the line's other fields as sorted JSON, among them `previous`, the hash of
the line before it. So no line can be changed, removed or moved without a trace, except at the end: whoever removes the
last lines leaves a shorter ledger that is whole. Only the last hash, kept elsewhere, shows that (`verify(path, head)`).
Who can write the file can also write another one from the beginning; a kept hash shows that too.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyro_fed.conventions.output import open_lock
from pyro_fed.errors import ProtocolError

#: Name of the file in the site's folder.
LEDGER = "what_left.jsonl"
#: What the first line names as the hash before it.
FIRST = "0" * 64
#: Bytes that are read from the end for the last line; twice as many until it is whole.
TAIL = 2**16


def line_hash(line: Mapping[str, Any]) -> str:
    """SHA-256 of a line's fields without `hash`."""
    fields = {name: value for name, value in line.items() if name != "hash"}
    return hashlib.sha256(json.dumps(fields, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


class Ledger:
    """The ledger in a file, to which several processes may append."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def appending(self) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """The last line ({} if there is none), and a new one to be filled in, which is on the disk at the end.

        No other process appends meanwhile. If the block raises, nothing is written.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = open_lock(self.path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            last = _last_line(file, self.path)
            line: dict[str, Any] = {"number": last.get("number", -1) + 1, "previous": last.get("hash", FIRST)}
            yield last, line
            line["hash"] = line_hash(line)
            os.lseek(file, 0, os.SEEK_END)
            data = json.dumps(line, ensure_ascii=False).encode() + b"\n"
            while data:
                data = data[os.write(file, data) :]
            os.fsync(file)
        finally:
            os.close(file)


def _last_line(file: int, path: Path) -> dict[str, Any]:
    size, width, data = os.fstat(file).st_size, TAIL, b""
    if not size:
        return {}
    while len(data) < size and data.strip().count(b"\n") < 1:
        at = max(0, size - width)
        data, width = os.pread(file, size - at, at), 2 * width
    if not data.endswith(b"\n"):
        raise ProtocolError(f"{path}: its last line was cut off: {CURE}")
    return _parsed(data.splitlines()[-1], path, "its last line")


#: What to do with a ledger that is not whole.
CURE = "keep the file, tell who is responsible for data protection, and begin a new one in its place"


def _parsed(text: bytes, path: Path, which: str) -> dict[str, Any]:
    try:
        line = json.loads(text)
        if not isinstance(line, dict) or line.get("hash") != line_hash(line):
            raise ValueError("its hash is not that of its fields")
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"{path}: {which} is not as it was written: {error!s:.200}: {CURE}") from error
    return line


def verify(path: Path, head: str | None = None) -> list[dict[str, Any]]:
    """The lines of a ledger, after each was checked against the one before it.

    Args:
        path: the ledger.
        head: the hash of a line that was kept elsewhere, the last one at that time. Without it lines that were removed
            from the end cannot be noticed.

    Raises:
        ProtocolError: a line that was changed, removed, moved or cut off, and which; or `head` is the hash of no line.

    Example:
        >>> lines = verify(Path("what_left.jsonl"), head="5f2c...")
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ProtocolError(f"{path} cannot be read: {error}") from error
    lines: list[dict[str, Any]] = []
    previous = FIRST
    texts = data.split(b"\n")
    if texts.pop():
        raise ProtocolError(f"{path}: line {len(texts) + 1} was cut off: {CURE}")
    for number, text in enumerate(texts):
        which = f"line {number + 1}"
        line = _parsed(text, path, which)
        if line.get("number") != number or line.get("previous") != previous:
            raise ProtocolError(
                f"{path}: {which} is number {line.get('number')!r:.20} and follows {line.get('previous')!r:.12}..., "
                f"expected number {number} after {previous:.10}...: a line was removed, added or moved: {CURE}"
            )
        previous = line["hash"]
        lines.append(line)
    if head is not None and head not in {FIRST, *(line["hash"] for line in lines)}:
        raise ProtocolError(
            f"{path}: none of its {len(lines)} lines has the hash {head!s:.20}... that was kept: lines were removed "
            f"from the end, or all were written anew: {CURE}"
        )
    return lines
