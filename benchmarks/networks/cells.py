"""Cells of a table in a JSON file, which is whole at any time: a benchmark can be cut off and resumed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Cells:
    """Figures by what they belong to.

    Args:
        path: of the file.
    """

    path: Path

    def all(self) -> dict[str, Any]:
        """What there is, by the first of its keys."""
        found: dict[str, Any] = json.loads(self.path.read_text()) if self.path.exists() else {}
        return found

    def under(self, *keys: str) -> dict[str, Any]:
        """What there is under these keys.

        Args:
            keys: of a cell, or of several.
        """
        found = self.all()
        for key in keys:
            found = found.get(key, {})
        return found

    def keep(self, keys: Sequence[str], figures: Mapping[str, float]) -> None:
        """Add one cell.

        Args:
            keys: of the cell.
            figures: by their names.
        """
        cells = at = self.all()
        for key in keys[:-1]:
            at = at.setdefault(key, {})
        at[keys[-1]] = {what: round(value, 5) for what, value in figures.items()}
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(cells, indent=1) + "\n")
        part.replace(self.path)


def spread(values: Sequence[float]) -> str:
    """Mean ± its standard error, which one value has not.

    Args:
        values: of the seeds.
    """
    error = f" ± {np.std(values, ddof=1) / len(values) ** 0.5:.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{error}"


def put(page: Path, begin: str, end: str, table: str) -> None:
    """Put a table between two lines of a page.

    Args:
        page: its file.
        begin: the line before the table.
        end: the line after it.
        table: what to put there.
    """
    before, rest = page.read_text(encoding="utf-8").split(begin)
    page.write_text(before + begin + table + rest[rest.index(end) :], encoding="utf-8")
