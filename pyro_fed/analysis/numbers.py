"""Numbers as text for people: decimals, percentages, bytes and durations."""

from __future__ import annotations

import math
from collections.abc import Callable


def digits(count: int) -> Callable[[float], str]:
    """A function that writes a number with `count` decimals (0.25), a large one with none (10,036, or 1.2e+09)."""
    return lambda value: f"{value:,.{count if abs(value) < 1e4 else 0}f}" if abs(value) < 1e7 else f"{value:.1e}"


def number_text(value: float | None, write: Callable[[float], str]) -> str:
    """A number as text; a dash for None and NaN."""
    return "–" if value is None or math.isnan(value) else write(value)


def significant(value: float) -> str:
    """A number with three significant digits, and commas between thousands: 0.0123, 1.23, 12,346."""
    if value == 0 or not math.isfinite(value):
        return f"{value:.3g}"
    size = math.floor(math.log10(abs(value)))
    if not -4 <= size < 7:
        return f"{value:.2e}"
    return f"{value:,.{max(0, 2 - size)}f}"


def percent(value: float) -> str:
    """A share in [0, 1] in per cent: 87.5 %."""
    return f"{100 * value:.1f} %"


def readable_bytes(count: float) -> str:
    """A byte count in the unit a person would choose: 950 B, 12.3 kB, 4.0 MB."""
    size = float(int(count))
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def readable_seconds(seconds: float) -> str:
    """A duration in the unit a person would choose: 0.84 s, 12.3 s, 3 min 20 s."""
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"
