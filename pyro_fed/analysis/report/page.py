"""The comparison as one HTML page that needs no other file: verdict, tables, figures, changed settings."""

from __future__ import annotations

import ast
import datetime
import importlib.util
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from pyro_fed import infer
from pyro_fed.analysis.judging.compare import TABLES, compare, findings_of
from pyro_fed.analysis.plots.style import by_name
from pyro_fed.analysis.report import pictures, svg, tables
from pyro_fed.codes.finding import Finding, texts
from pyro_fed.conventions.calls import checked
from pyro_fed.conventions.nested_settings import all_settings
from pyro_fed.conventions.output import PAGE_ENDINGS, check_writable
from pyro_fed.conventions.version import VERSION
from pyro_fed.errors import SettingError
from pyro_fed.federation.federation import Federation
from pyro_fed.results.inference_data import InferenceData, flag

#: Where the page's template is.
TEMPLATES = Path(__file__).parent / "templates"


class Verdict(NamedTuple):
    """The verdict on a result in a sentence, with those that speak against it and those that do not."""

    name: str
    reference: bool
    sentence: str
    doubts: list[str]
    remarks: list[str]


def check_report(path: str | Path) -> None:
    """Check, before long runs, that a page can be made and written; SettingError if not."""
    if importlib.util.find_spec("jinja2") is None:
        raise SettingError("the report needs jinja2: pip install 'pyro_fed[compare]'")
    place = check_writable(path, "path")
    if place.suffix and place.suffix.lower() not in PAGE_ENDINGS:
        better = place.with_suffix(PAGE_ENDINGS[0]).name
        raise SettingError(f"path={str(path)!r} would be an HTML page, whatever its name: call it {better!r}")


def write_page(path: str | Path, template: str, *folders: Path, **values: Any) -> None:
    """Write a page from a template in one of some folders, or of this room, without empty lines."""
    check_report(path)
    import jinja2

    loader = jinja2.FileSystemLoader([*folders, TEMPLATES])
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True)
    text = environment.get_template(template).render(**values)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    lines = (line.rstrip() for line in text.splitlines() if line.strip())
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


@checked
def write_report(
    path: str | Path,
    table: pd.DataFrame | None = None,
    results: Mapping[str, InferenceData] | InferenceData | None = None,
    federation: Federation | None = None,
    *,
    title: str = "Results compared",
    lead: str = "",
    reference: str | None = None,
    test: Any = None,
    command: str = "",
) -> None:
    """Write an HTML page on several results: verdicts, tables, the sites' answers to questions, figures and settings.

    Args:
        path: the HTML file to write.
        table: the table of `pyro_fed.compare` for the same results; by default it is made of them.
        results: InferenceData by name, or a single result, such as one that was read from a deployment's file.
        federation: the federation of the runs; without it the page lacks the figures that need rows.
        title: title of the page.
        lead: a line below the title; by default the numbers of clients and rows.
        reference: name of the reference, as in `pyro_fed.compare`.
        test: the model's arguments for test data, for the reliability plot of a classifier.
        command: the shell command that made the results, shown at the end of the page.

    Raises:
        SettingError: jinja2 is not installed, the file cannot be written, there are no results, the reference is
            unknown, or the table is of other results.

    Example:
        >>> results = {"NUTS": reference, "FedEP": idata}
        >>> table = pf.compare(results, "NUTS", federation=fed)
        >>> pf.write_report("report.html", table, results, fed, reference="NUTS")
        >>> pf.write_report("report.html", results=az.from_netcdf("trial/result.nc"))
    """
    check_report(path)
    if results is None:
        raise SettingError("write_report takes results: pass results=, InferenceData by name or a single one")
    named = by_name(results)
    results = {name or str(named[""].attrs.get("algorithm", "result")): one for name, one in named.items()}
    table = compare(results, reference, federation=federation, test=test) if table is None else table
    findings = findings_of(table)
    if set(findings) != set(results):
        raise SettingError(
            f"write_report takes results and their table, received results {list(results)} and a table of "
            f"{list(findings)}: pass pf.compare(results, ...) as the table"
        )
    if reference is not None and reference not in results:
        raise SettingError(
            f"write_report: the reference {reference!r} is none of the results {list(results)}: name one of them"
        )
    unaudited = {name for name, one in results.items() if "audited" in one.attrs and not flag(one.attrs, "audited")}
    verdicts = [_verdict(name, one, table, reference, name in unaudited) for name, one in findings.items()]
    about = pictures.ReportData(table, results, federation, reference, test)
    sections = [*_tables(table), *tables.posterior_tables(about), *tables.answer_tables(results)]
    sections += pictures.pictures(about)
    write_page(
        path,
        "report.html",
        title=title,
        lead=lead
        or (f"{len(results)} results, without their rows" if federation is None else clients_line(federation)),
        reference=reference,
        verdict=_in_one_sentence(verdicts),
        verdicts=verdicts,
        sections=[{**one, "id": re.sub(r"\W+", "-", one["title"].lower()).strip("-")} for one in sections],
        light=svg.colours(dark=False),
        dark=svg.colours(dark=True),
        settings=[row for name, one in results.items() for row in settings(name, one)],
        colophon=colophon(results, command),
    )


def clients_line(federation: Federation) -> str:
    """The numbers of rows and clients in words: `455 rows over 10 clients, 7 to 190 each`."""
    rows = federation.summary()["rows"]  # for groups of rows, the rows in them
    least, most = int(rows.min()), int(rows.max())
    each = f"{least:,} to {most:,} each" if least < most else f"{least:,} each"
    return f"{int(rows.sum()):,} rows over {federation.num_clients} clients, {each}"


def _tables(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The parts of the comparison that have at least one number, as the page's template takes them."""
    shown = []
    for part in TABLES:
        written = part.written(table)
        values = [table[name].to_numpy(dtype=float, na_value=math.nan) for name in part.columns if name in table]
        if not any((~pd.isna(one)).any() for one in values):
            continue
        columns = list(zip(written.values(), values, strict=True))
        rows = {name: [(cells[i], each[i]) for cells, each in columns] for i, name in enumerate(table.index)}
        shown.append(
            {"title": part.title, "note": part.note, "first": "result", "columns": list(written), "rows": rows}
        )
    return shown


def _verdict(name: str, found: list[Finding], table: pd.DataFrame, reference: str | None, unaudited: bool) -> Verdict:
    remarks = texts(one for one in found if not one.is_doubt)
    doubts = texts(one for one in found if one.is_doubt)
    if doubts:
        sentence = re.split(r"\. |; ", doubts[0])[0].rstrip(".")
    else:
        praise = f"nothing speaks against {'its posterior' if remarks else 'it'}"
        praise += ", which its run did not audit" if unaudited else ""
        sentence = f"{praise}{_distance_clause(table.loc[name])}"
    return Verdict(name, name == reference, sentence, doubts, remarks)


def _distance_clause(row: pd.Series[Any]) -> str:
    """A result's distance from the reference, as the end of a sentence; "" if it was not measured."""
    if "mean_error" not in row or pd.isna(row["mean_error"]):
        return ""
    return (
        f": no mean is more than {row['mean_error']:.2f} SDs off, and its SDs are {row['sd_ratio_min']:.2f} to "
        f"{row['sd_ratio_max']:.2f} times the reference's"
    )


def _in_one_sentence(verdicts: list[Verdict]) -> str:
    """A sentence on the results without doubts and the results with doubts."""
    good = [one.name for one in verdicts if not one.doubts]
    if len(verdicts) == 1:
        return "Nothing speaks against this result." if good else "There are reasons to doubt this result."
    if not good:
        return f"Something speaks against each of the {len(verdicts)} results."
    if len(good) == len(verdicts):
        return f"Nothing speaks against any of the {len(good)} results."
    doubted = [one.name for one in verdicts if one.doubts]
    return (
        f"Nothing speaks against {len(good)} of {len(verdicts)} results: {', '.join(good)}. "
        f"There are reasons to doubt {', '.join(doubted)}."
    )


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
