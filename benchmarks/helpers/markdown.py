"""Tables in Markdown, printed row by row as their figures come."""

from __future__ import annotations

from typing import Any


def heading(*titles: Any) -> str:
    """The first two lines of a table."""
    return f"{row(*titles)}\n{'| --- ' * len(titles)}|"


def row(*cells: Any) -> str:
    """A line of a table."""
    return f"| {' | '.join(map(str, cells))} |"
