"""Two records of one case, field by field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

#: Fields that are not compared: what wrote the record.
WHO = ("case", "code")


def differences(
    golden: Mapping[str, Any], now: Mapping[str, Any], ignored: frozenset[str] = frozenset()
) -> dict[str, str]:
    """What differs, by field, in words; `settings.damping` ignores one setting, wherever it stands."""
    found = {}
    for field in sorted({*golden, *now} - {*WHO, *ignored}):
        before, after = golden.get(field), now.get(field)
        if field == "codes" and before is None:
            continue  # the golden was written before findings had codes
        if field in ("settings", "phases"):
            before, after = (_without(value, ignored) for value in (before, after))
        if same(before, after):
            continue
        found[field] = _draws(before, after) if field == "draws" and before and after else _words(before, after)
    return found


def same(before: Any, after: Any) -> bool:
    """Whether two values are equal to the last digit; NaN is equal to itself."""
    return json.dumps(before, sort_keys=True) == json.dumps(after, sort_keys=True)


def largest(golden: Mapping[str, Any], now: Mapping[str, Any]) -> float:
    """The largest difference of a mean or an SD, in SDs of the golden; infinite where they cannot be compared."""
    if golden.keys() != now.keys():
        return float("inf")
    worst = 0.0
    for name, before in golden.items():
        after = now[name]
        if before["shape"][2:] != after["shape"][2:]:
            return float("inf")
        sd = np.array(before["sd"])
        for moment in ("mean", "sd"):
            one, other = np.array(before[moment]), np.array(after[moment])
            away = np.abs(one - other)
            away[(one == other) | (np.isnan(one) & np.isnan(other))] = 0.0
            with np.errstate(divide="ignore", invalid="ignore"):
                scaled = np.where(away == 0, 0.0, away / sd)
            worst = max(worst, float(np.nan_to_num(scaled, nan=np.inf).max(initial=0.0)))
    return worst


def _draws(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    names = sorted(name for name in {*before, *after} if not same(before.get(name), after.get(name)))
    return f"{', '.join(names)}: means and SDs differ by at most {largest(before, after):.2g} SD"


def _without(value: Any, ignored: frozenset[str]) -> Any:
    """A value without the settings that may differ."""
    if isinstance(value, Mapping):
        return {name: _without(part, ignored) for name, part in value.items() if f"settings.{name}" not in ignored}
    return [_without(part, ignored) for part in value] if isinstance(value, list) else value


def _words(before: Any, after: Any) -> str:
    """The parts that differ, before and after."""
    return "; ".join(
        f"{where or 'it'} was {_short(one)}, is {_short(other)}" for where, one, other in _parts("", before, after)
    )


def _parts(where: str, before: Any, after: Any) -> list[tuple[str, Any, Any]]:
    if same(before, after):
        return []
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        keys, dot = sorted({*before, *after}), f"{where}." if where else ""
        pairs = [(f"{dot}{key}", before.get(key, "(absent)"), after.get(key, "(absent)")) for key in keys]
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = [(f"{where}[{number}]", *pair) for number, pair in enumerate(zip(before, after, strict=True))]
    else:
        return [(where, before, after)]
    return [part for pair in pairs for part in _parts(*pair)]


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 300 else f"{text[:300]} ..."
