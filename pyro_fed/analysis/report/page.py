"""The comparison as one HTML page that needs no other file: tables, figures, settings and warnings."""

from __future__ import annotations

import ast
import base64
import datetime
import importlib.util
import io
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from pyro_fed import infer
from pyro_fed.analysis import plots
from pyro_fed.analysis.judging.compare import TABLES, sentences
from pyro_fed.analysis.judging.draws import Draws
from pyro_fed.analysis.judging.loo import ABOUT_LOO
from pyro_fed.conventions.calls import checked
from pyro_fed.conventions.output import check_writable
from pyro_fed.conventions.settings_repr import whole
from pyro_fed.conventions.version import VERSION
from pyro_fed.errors import SettingError
from pyro_fed.federation.federation import Federation
from pyro_fed.results.inference_data import InferenceData

#: Where the page's template is.
TEMPLATES = Path(__file__).parent / "templates"


class Picture(NamedTuple):
    """A figure of the page: its title, how it is drawn, how to read it, and what is seen, for who cannot."""

    title: str
    draw: Callable[[], Figure]
    note: str
    alt: str


class Made(NamedTuple):
    """How a result was made: the algorithm, and the settings that are not its defaults."""

    algorithm: str
    settings: str


class Verdict(NamedTuple):
    """What is said of a result: why it should not be trusted, and what the figures of its row do not tell."""

    name: str
    reference: bool
    doubts: list[str]
    remarks: list[str]


#: How to read the figures.
WHO = """
Rows of each client. The more the clients' labels differ, the more they must learn from each other.
"""
POSTERIORS = """
Posterior densities of the parameters on which the results differ most; grey is the reference. An arrow
names a result that lies outside the panel.
"""
CONVERGENCE = """
Size of the update of each round, in the algorithm's own measure: compare the slopes, not the heights.
"""
RELIABILITY = """
Accuracy against confidence on the test data; numbers are rows in the bin. On the dashed line a confidence
of 80 % is right four times in five; below it the result is too sure of itself. Bins of a few rows are
noise.
"""


def check_report(path: Path) -> None:
    """Whether a page can be made and written, to be asked before the runs that go into it.

    Args:
        path: the HTML file.

    Raises:
        SettingError: jinja2 is not installed, or the file cannot be written.
    """
    if importlib.util.find_spec("jinja2") is None:
        raise SettingError("the report needs jinja2: pip install 'pyro_fed[compare]'")
    check_writable(path, "path")


@checked
def write_report(
    path: Path,
    table: pd.DataFrame,
    results: Mapping[str, InferenceData],
    federation: Federation,
    *,
    title: str,
    lead: str = "",
    reference: str | None = None,
    test: Any = None,
    command: str = "",
) -> None:
    """Write the page.

    Args:
        path: the HTML file.
        table: of `pyro_fed.compare`.
        results: InferenceData by name.
        federation: on which they were run.
        title: of the page.
        lead: a line below the title.
        reference: name of the reference.
        test: the model's arguments for test data, for the reliability plot of a classifier.
        command: that made the results; at the end of the page, with versions and date.

    Raises:
        SettingError: jinja2 is not installed, or the file cannot be written.

    Example:
        >>> table = pf.compare(results, "NUTS", federation=fed)
        >>> write_report(Path("report.html"), table, results, fed, title="Two algorithms", reference="NUTS")
    """
    check_report(path)
    import jinja2

    loader = jinja2.FileSystemLoader(TEMPLATES)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True)
    verdicts = [_verdict(name, said, name == reference) for name, said in sentences(table).items()]
    page = environment.get_template("report.html").render(
        title=title,
        lead=lead,
        reference=reference,
        verdict=_in_one_sentence(verdicts),
        verdicts=verdicts,
        tables=_tables(table),
        figures=[
            {"title": one.title, "svg": _svg(one.draw), "note": one.note, "alt": one.alt}
            for one in _pictures(table, results, federation, reference, test)
        ],
        settings={name: _made(one) for name, one in results.items()},
        colophon=_colophon(results, command),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")


def _tables(table: pd.DataFrame) -> list[dict[str, Any]]:
    shown = []
    for part in TABLES:
        written = part.written(table)
        values = [table[name].to_numpy(dtype=float, na_value=math.nan) for name in part.columns if name in table]
        columns = list(zip(written.values(), values, strict=True))
        rows = {name: [(cells[i], each[i]) for cells, each in columns] for i, name in enumerate(table.index)}
        shown.append({"title": part.title, "note": part.note, "columns": list(written), "rows": rows})
    return shown


def _pictures(
    table: pd.DataFrame, results: Mapping[str, InferenceData], federation: Federation, reference: str | None, test: Any
) -> list[Picture]:
    least, most = int(federation.row_counts.min()), int(federation.row_counts.max())
    holds = f"Bars of the rows of {federation.num_clients} clients, by label where there are labels: {least} to {most}"
    found = [Picture("Who holds what", lambda: cast("Figure", plots.plot_partition(federation).figure), WHO, holds)]
    drawable = {name: idata for name, idata in results.items() if not _draws(idata).fault}
    missing = [name for name in results if name not in drawable]
    without = f" Left out, as their draws are no numbers: {', '.join(missing)}." if missing else ""
    centre = next((name for name in (reference, *drawable) if name in drawable and _spread(drawable[name])), None)
    if centre is not None:
        title = "Posteriors"
        names = ", ".join(drawable)
        seen = f"Densities of {names}, a panel a parameter, over the grey one of {centre}; {_farthest(table)}"
        found.append(Picture(title, lambda: plots.plot_comparison(drawable, centre), POSTERIORS + without, seen))
    recorded = {name: idata for name, idata in results.items() if "federation" in idata}
    if any("change" in idata["federation"] for idata in recorded.values()):
        rounds = ", ".join(f"{name} {idata['federation'].sizes['round']:,}" for name, idata in recorded.items())
        seen = f"Lines that fall over rounds and bytes, one a result; rounds: {rounds}"
        found.append(Picture("Convergence", lambda: plots.plot_convergence(recorded), CONVERGENCE, seen))
    predicting = {name: idata for name, idata in drawable.items() if "ece" in table and table["ece"].notna()[name]}
    if test is not None and predicting:
        title = "Do probabilities mean what they say?"
        note = RELIABILITY + without
        gaps = ", ".join(f"{name} {table['ece'][name]:.3f}" for name in predicting)
        seen = f"Accuracy against confidence, a panel a result; average gaps: {gaps}"
        found.append(Picture(title, lambda: plots.plot_reliability(predicting, federation, test), note, seen))
    return found


def _draws(idata: InferenceData) -> Draws:
    return Draws.of(idata, sorted(map(str, idata["posterior"].data_vars)))


def _spread(idata: InferenceData) -> bool:
    return not _draws(idata).spreadless


def _verdict(name: str, said: list[str], reference: bool) -> Verdict:
    remarks = [one for one in said if one.startswith(ABOUT_LOO)]
    return Verdict(name, reference, [one for one in said if one not in remarks], remarks)


def _in_one_sentence(verdicts: list[Verdict]) -> str:
    """How many results are without doubts, and which."""
    good = [one.name for one in verdicts if not one.doubts]
    if not good:
        return f"Something speaks against each of the {len(verdicts)} results."
    if len(good) == len(verdicts):
        return f"Nothing speaks against {'any of the' if len(good) > 1 else 'the'} {len(good)} results."
    doubted = [one.name for one in verdicts if one.doubts]
    return (
        f"Nothing speaks against {len(good)} of {len(verdicts)} results: {', '.join(good)}. "
        f"There are reasons to doubt {', '.join(doubted)}."
    )


def _farthest(table: pd.DataFrame) -> str:
    """Which result is farthest from the reference."""
    if "mean_error" not in table or table["mean_error"].isna().all():
        return "there is no reference to measure them by"
    worst = table["mean_error"].astype(float).idxmax()
    return f"the farthest mean is that of {worst}, {table['mean_error'][worst]:.2f} SDs of the reference's"


def _made(idata: InferenceData) -> Made:
    """How a result was made; of one that another library has made, its name as far as it says it."""
    if "algorithm" not in idata.attrs:
        return Made(f"made by {idata.attrs.get('inference_library', 'another library')}", "not known")
    name, text = str(idata.attrs["algorithm"]), str(idata.attrs.get("settings", ""))
    known: Any = getattr(infer, name, None)
    try:
        given, default = ast.literal_eval(text), whole(known())
    except (ValueError, SyntaxError, TypeError):  # an algorithm of the user's own, or settings of another writer
        return Made(name, text)
    return Made(name, ", ".join(f"{key}={value!r}" for key, value in given.items() if default.get(key, ...) != value))


def _colophon(results: Mapping[str, InferenceData], command: str) -> list[str]:
    """When, by what and how the page was made."""
    seeds = sorted({str(one.attrs["seed"]) for one in results.values() if "seed" in one.attrs})
    versions = dict.fromkeys(str(one.attrs["versions"]) for one in results.values() if "versions" in one.attrs)
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    seed = f"; seed {', '.join(seeds)}" if seeds else ""
    lines = [f"Made on {day} by pyro_fed {VERSION}{seed}."]
    return [*lines, *versions, *([command] if command else [])]


def _svg(draw: Callable[[], Figure]) -> str:
    """A figure as SVG in base64, closed again."""
    figure = draw()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    plt.close(figure)
    return base64.b64encode(buffer.getvalue()).decode("ascii")
