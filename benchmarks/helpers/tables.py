"""Tables in Markdown, printed row by row as their figures come, and those of cells whose records are in a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from benchmarks.helpers.records import Records


def heading(*titles: Any) -> str:
    """The first two lines of a table."""
    return f"{row(*titles)}\n{'| --- ' * len(titles)}|"


def row(*cells: Any) -> str:
    """A line of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def case_of(keys: Iterable[object]) -> str:
    """The name of a cell: "digits / 20 / FedEP / 0"."""
    return " / ".join(map(str, keys))


def rounded(figures: Mapping[str, float]) -> dict[str, float]:
    """Figures as they are kept."""
    return {what: round(value, 5) for what, value in figures.items()}


def nested(records: Records) -> dict[str, Any]:
    """Figures by the first key of their cells, by the second, and so on."""
    found: dict[str, Any] = {}
    for record in records.values():
        at = found
        for key in record["case"].split(" / "):
            at = at.setdefault(key, {})
        at.update({what: value for what, value in record.items() if what != "case"})
    return found


def spread(values: Sequence[float]) -> str:
    """Mean ± its standard error, which one value has not."""
    error = f" ± {np.std(values, ddof=1) / len(values) ** 0.5:.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{error}"


def put(page: Path, begin: str, end: str, table: str) -> None:
    """Put a table between two lines of a page."""
    before, rest = page.read_text(encoding="utf-8").split(begin)
    page.write_text(before + begin + table + rest[rest.index(end) :], encoding="utf-8")
