"""How results were made: settings that differ from the defaults, seeds, versions, and the command."""

from __future__ import annotations

import ast
import datetime
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from pyro_fed import infer
from pyro_fed.conventions.nested_settings import all_settings
from pyro_fed.conventions.version import VERSION
from pyro_fed.results.inference_data import InferenceData


class Setting(NamedTuple):
    """A row of the table of settings that differ from their defaults, as text.

    For a result without such settings, `name` says why. `why` is "" for a setting that the user gave.
    """

    result: str
    algorithm: str
    name: str
    value: str
    default: str
    why: str = ""


def settings(name: str, idata: InferenceData) -> list[Setting]:
    """The settings of a result that differ from their defaults; if there are none, one row that says why."""
    if "algorithm" not in idata.attrs:
        maker = idata.attrs.get("inference_library", "another library")
        return [Setting(name, f"made by {maker}", "not known", "", "")]
    algorithm, text = str(idata.attrs.get("plan", idata.attrs["algorithm"])), str(idata.attrs.get("settings", ""))
    known: Any = getattr(infer, algorithm, None)
    if "chosen" in idata.attrs:
        algorithm = f"{algorithm}, which chose {idata.attrs['chosen']}"
    try:
        given, default = ast.literal_eval(text), all_settings(known())
    except (ValueError, SyntaxError, TypeError):  # the user's own algorithm, or settings by another program
        return [Setting(name, algorithm, "as written", text, "")]
    rows, why = _changed_settings(given, default), _reasons(idata)
    shown = rows or [("all at their defaults", "", "")]
    return [Setting(name, algorithm, *row, why.get(row[0].partition(".")[0], "")) for row in shown]


def _reasons(idata: InferenceData) -> dict[str, str]:
    """Setting → why it was chosen, for the algorithm whose result it is."""
    choices = json.loads(idata.attrs.get("choices", "[]"))
    own = str(idata.attrs["algorithm"])
    return {one["setting"]: one["reason"] for one in choices if one["algorithm"] == own and one["override"]}


def _changed_settings(
    given: Mapping[str, Any], default: Mapping[str, Any], within: str = ""
) -> list[tuple[str, str, str]]:
    """(name, value, default) of each setting that differs; settings within a setting are named like `client.steps`."""
    rows = []
    for name, value in given.items():
        usual = default.get(name, "")
        if value == usual:
            continue
        if isinstance(value, dict) and isinstance(usual, dict) and value.get("name") == usual.get("name"):
            rows += _changed_settings(value, usual, f"{within}{name}.")
        else:
            rows.append((f"{within}{name}", _setting_text(value), _setting_text(usual)))
    return rows


def _setting_text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        return str(value)
    return f"{value:,}"


def colophon(results: Mapping[str, InferenceData], command: str) -> list[str]:
    """The lines at the end of the page: date, version, seeds, versions of libraries and the shell command, if any."""
    seeds = sorted({str(one.attrs["seed"]) for one in results.values() if "seed" in one.attrs})
    versions = dict.fromkeys(str(one.attrs["versions"]) for one in results.values() if "versions" in one.attrs)
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    seed = f"; seed {', '.join(seeds)}" if seeds else ""
    lines = [f"Made on {day} by pyro_fed {VERSION}{seed}."]
    return [*lines, *versions, *([command] if command else [])]
