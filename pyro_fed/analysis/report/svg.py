"""Figures as SVG elements of a page, whose style sheet has the figures' colours for light and for dark paper.

Text is drawn as outlines, so that a figure looks the same everywhere. Screen readers have the alternative text.
"""

from __future__ import annotations

import html
import io
import re
from typing import Any

from matplotlib.figure import Figure

from pyro_fed.analysis.plots.style import DARK, INK, PAPER, SOFT

#: Matplotlib settings for figures of a page: only colours that the style sheet has, and no background.
STYLE: Any = {
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": SOFT,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "font.size": 9.0,
    "axes.formatter.min_exponent": 6,  # numbers of logarithmic axes from 0.00001 to 100,000 are written out
    "svg.fonttype": "path",
    "svg.hashsalt": "pyro_fed",  # the same figure gives the same text
}
#: Decimals of coordinates, in points. Scales of glyphs need more, and are left as they are.
DECIMALS = 2


def inline(figure: Figure, prefix: str, alt: str) -> str:
    """A figure drawn under `STYLE` as an SVG element with alternative text. A page needs unique prefixes of ids."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = buffer.getvalue()
    body = text[text.index(">", text.index("<svg")) + 1 :]
    body = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="', f'id="{prefix}-', body)
    body = re.sub(r'(url\(#|<use xlink:href="#)', rf"\g<1>{prefix}-", body)  # links lead to the page itself
    body = body.replace(' target="_blank"', "")  # and open no second one
    body = re.sub(r"(?<!scale\()-?\d+\.\d{3,}", _rounded_number, body)
    body = re.sub(r"#[0-9a-f]{6}(?=[;\"])", _colour, body)
    body = re.sub(r"\n\s*", "\n", body)
    width, height = (float(size) for size in figure.get_size_inches())
    return (
        f'<svg class="figure" role="img" aria-label="{html.escape(alt)}" viewBox="0 0 {72 * width:g} {72 * height:g}" '
        f'style="width: {width:g}in" xmlns="http://www.w3.org/2000/svg" '
        f'xmlns:xlink="http://www.w3.org/1999/xlink">{body}'
    )


def _colour(found: re.Match[str]) -> str:
    """The style sheet's variable for a known colour, transparent ink for other greys, else the colour itself."""
    colour = found[0]
    if colour in _KNOWN or not colour[1:3] == colour[3:5] == colour[5:]:
        return _KNOWN.get(colour, colour)
    share = 100 - 100 * int(colour[1:3], 16) / 255
    return f"color-mix(in srgb, var({variable(INK)}) {share:.0f}%, transparent)"


def _rounded_number(found: re.Match[str]) -> str:
    return f"{float(found[0]):.{DECIMALS}f}".rstrip("0").rstrip(".")


def colours(dark: bool) -> str:
    """Declarations of a style sheet with the figures' colours, for light or dark paper."""
    return " ".join(f"{variable(light)}: {DARK[light] if dark else light};" for light in DARK)


def variable(light: str) -> str:
    """The name of the style sheet's variable for a colour of the figures."""
    return f"--figure-{light[1:].lower()}"


#: The style sheet's variable of each colour as Matplotlib writes it; paper is left out.
_KNOWN = {light.lower(): f"var({variable(light)})" for light in DARK} | {PAPER: "none"}
