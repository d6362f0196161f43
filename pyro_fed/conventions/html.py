"""Small tables for notebooks, in which objects show themselves in the notebook's own style."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

#: Rows of a table that are shown, in a notebook and in a terminal.
MAX_SHOWN_ROWS = 20


def block(title: str, *parts: str) -> str:
    """A plain title in bold above parts that are HTML already; empty parts are left out."""
    return "".join(["<div>", f"<strong>{html.escape(title)}</strong>", *filter(None, parts), "</div>"])


def text(words: str, tag: str = "div") -> str:
    """Plain text in an element; empty if there is none."""
    return f"<{tag}>{html.escape(words)}</{tag}>" if words else ""


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of plain values, the first column its rows' names; rows beyond `MAX_SHOWN_ROWS` are counted."""
    cells = [[html.escape(str(value)) for value in row] for row in rows]
    if not cells:
        return ""
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in columns)
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>{"".join(f"<td>{value}</td>" for value in row[1:])}</tr>'
        for row in cells[:MAX_SHOWN_ROWS]
    )
    left_out = text(f"... and {len(cells) - MAX_SHOWN_ROWS} more") if len(cells) > MAX_SHOWN_ROWS else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{left_out}"


def details_block(title: str, inside: str) -> str:
    """A part, in HTML, that opens when its plain title is clicked; empty if the part is."""
    return f"<details><summary>{html.escape(title)}</summary>{inside}</details>" if inside else ""
