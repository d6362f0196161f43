"""Records as files: one line of JSON each, sorted by case, under a line that says where they were made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
Records = dict[str, dict[str, Any]]


def path_of(name: str) -> Path:
    """The file of a set.

    Args:
        name: of the set.
    """
    return FOLDER / f"{name}.jsonl"


def line(record: Mapping[str, Any]) -> str:
    """A record as a line."""
    return json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False) + "\n"


def read(path: Path) -> tuple[dict[str, Any], Records]:
    """The header and the records by case; both empty where there is no file.

    Args:
        path: the file. A last line that was cut off is left out.
    """
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = []
    for number, text in enumerate(lines):
        try:
            found.append(json.loads(text))
        except json.JSONDecodeError:
            if number < len(lines) - 1:
                raise
    return (found[0] if found else {}), {record["case"]: record for record in found[1:]}


def write(path: Path, header: Mapping[str, Any], records: Records) -> None:
    """Write a file whole, so that an interruption leaves the old or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".part")
    new.write_text(line(header) + "".join(line(records[case]) for case in sorted(records)), encoding="utf-8")
    new.replace(path)
