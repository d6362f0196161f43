"""How results were made: settings that are not the defaults, seeds, versions, the command."""

from __future__ import annotations

import ast
import datetime
from collections.abc import Mapping
from typing import Any, NamedTuple

from pyro_fed import infer
from pyro_fed.conventions.settings_repr import whole
from pyro_fed.conventions.version import VERSION
from pyro_fed.results.inference_data import InferenceData


class Setting(NamedTuple):
    """A setting that is not its default, as text; of a result without any, why the table has none."""

    result: str
    algorithm: str
    name: str
    value: str
    default: str


def settings(name: str, idata: InferenceData) -> list[Setting]:
    """What differs from the defaults; one line that says so where nothing does, or nothing is known.

    Args:
        name: of the result.
        idata: the result, also of another library, which says as much as it does.
    """
    if "algorithm" not in idata.attrs:
        maker = idata.attrs.get("inference_library", "another library")
        return [Setting(name, f"made by {maker}", "not known", "", "")]
    algorithm, text = str(idata.attrs["algorithm"]), str(idata.attrs.get("settings", ""))
    known: Any = getattr(infer, algorithm, None)
    if "chosen" in idata.attrs:
        algorithm = f"{algorithm}, which chose {idata.attrs['chosen']}"
    try:
        given, default = ast.literal_eval(text), whole(known())
    except (ValueError, SyntaxError, TypeError):  # an algorithm of the user's own, or settings of another writer
        return [Setting(name, algorithm, "as written", text, "")]
    rows = _differing(given, default)
    return [Setting(name, algorithm, *row) for row in rows or [("all at their defaults", "", "")]]


def _differing(given: Mapping[str, Any], default: Mapping[str, Any], within: str = "") -> list[tuple[str, str, str]]:
    """(setting, value, default) of what differs; a setting of a setting under both names, `client.steps`."""
    rows = []
    for name, value in given.items():
        usual = default.get(name, "")
        if value == usual:
            continue
        if isinstance(value, dict) and isinstance(usual, dict) and value.get("name") == usual.get("name"):
            rows += _differing(value, usual, f"{within}{name}.")
        else:
            rows.append((f"{within}{name}", _written(value), _written(usual)))
    return rows


def _written(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        return str(value)
    return f"{value:,}"


def colophon(results: Mapping[str, InferenceData], command: str) -> list[str]:
    """When, by what and how the page was made.

    Args:
        results: by name.
        command: that made them; "" where it was none of the shell.
    """
    seeds = sorted({str(one.attrs["seed"]) for one in results.values() if "seed" in one.attrs})
    versions = dict.fromkeys(str(one.attrs["versions"]) for one in results.values() if "versions" in one.attrs)
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    seed = f"; seed {', '.join(seeds)}" if seeds else ""
    lines = [f"Made on {day} by pyro_fed {VERSION}{seed}."]
    return [*lines, *versions, *([command] if command else [])]
