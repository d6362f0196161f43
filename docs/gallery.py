"""Thumbnails that lead to pages, and the colours of figures in pages."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping

import nbformat

from pyro_fed.analysis.report import svg


def cards(notebooks: Mapping[str, nbformat.NotebookNode]) -> str:
    """A card for each tutorial: a figure of it, its title, its first sentence.

    Args:
        notebooks: with outputs, by their names.
    """
    shown = "".join(_card(stem, notebook) for stem, notebook in notebooks.items())
    return f'<div class="gallery">{shown}</div>'


def _card(stem: str, notebook: nbformat.NotebookNode) -> str:
    first = notebook.cells[0].source
    title = re.match(r"# (.*)", first)
    assert title, f"tutorial {stem} has no title"
    words = " ".join(re.sub(r"^#.*$", "", first, flags=re.MULTILINE).split())
    sentence = re.split(r"(?<=[.?!]) ", words)[0] if words else ""
    return card(f"_tutorials/{stem}.html", _thumbnail(stem, notebook), title[1], sentence)


def card(page: str, figure: str, title: str, sentence: str) -> str:
    """What leads to a page.

    Args:
        page: its address.
        figure: an element.
        title: of the card.
        sentence: below it.
    """
    words = html.escape(sentence.replace("`", ""))
    return f'<a class="card" href="{page}">{figure}<strong>{html.escape(title)}</strong><span>{words}</span></a>'


def _thumbnail(stem: str, notebook: nbformat.NotebookNode) -> str:
    """The last figure of a notebook, under names of its own."""
    found = [
        output.data["text/html"]
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if "figure-box" in output.get("data", {}).get("text/html", "")
    ]
    if not found:
        raise ValueError(f"tutorial {stem} draws nothing: the gallery has no picture of it")
    return found[-1].replace(f"t{stem}-", f"g{stem}-")


def colours() -> str:
    """The style sheet of figures: light, dark where the reader's theme or system is."""
    dark = svg.colours(dark=True)
    return (
        f"body {{ {svg.colours(dark=False)} }}\n"
        f'body[data-theme="dark"] {{ {dark} }}\n'
        f'@media (prefers-color-scheme: dark) {{ body:not([data-theme="light"]) {{ {dark} }} }}\n'
    )
