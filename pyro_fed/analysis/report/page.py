"""The comparison as one HTML page that needs no other file: tables, figures, settings and warnings."""

from __future__ import annotations

import base64
import importlib.util
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from pyro_fed.analysis import plots
from pyro_fed.analysis.judging.compare import TABLES, sentences
from pyro_fed.analysis.judging.draws import Draws
from pyro_fed.analysis.judging.loo import ABOUT_LOO
from pyro_fed.conventions.calls import checked
from pyro_fed.conventions.output import check_writable
from pyro_fed.errors import SettingError
from pyro_fed.federation.federation import Federation
from pyro_fed.results.inference_data import InferenceData

#: Where the page's template is, and the resolution of its figures.
TEMPLATES = Path(__file__).parent / "templates"
DPI = 110


class Picture(NamedTuple):
    """A figure of the page: its title, how it is drawn, and how to read it."""

    title: str
    draw: Callable[[], Figure]
    note: str


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
    page = environment.get_template("report.html").render(
        title=title,
        lead=lead,
        reference=reference,
        verdicts=[_verdict(name, said, name == reference) for name, said in sentences(table).items()],
        tables=_tables(table),
        figures=[
            {"title": one.title, "png": _png(one.draw), "note": one.note}
            for one in _pictures(table, results, federation, reference, test)
        ],
        settings={name: _settings(one) for name, one in results.items()},
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")


def _tables(table: pd.DataFrame) -> list[dict[str, Any]]:
    shown = []
    for part in TABLES:
        written = part.written(table)
        rows = {name: [cells[i] for cells in written.values()] for i, name in enumerate(table.index)}
        shown.append({"title": part.title, "note": part.note, "columns": list(written), "rows": rows})
    return shown


def _pictures(
    table: pd.DataFrame, results: Mapping[str, InferenceData], federation: Federation, reference: str | None, test: Any
) -> list[Picture]:
    found = [Picture("Who holds what", lambda: cast("Figure", plots.plot_partition(federation).figure), WHO)]
    drawable = {name: idata for name, idata in results.items() if not _draws(idata).fault}
    missing = [name for name in results if name not in drawable]
    without = f" Left out, as their draws are no numbers: {', '.join(missing)}." if missing else ""
    centre = next((name for name in (reference, *drawable) if name in drawable and _spread(drawable[name])), None)
    if centre is not None:
        title = "Posteriors"
        found.append(Picture(title, lambda: plots.plot_comparison(drawable, centre), POSTERIORS + without))
    recorded = {name: idata for name, idata in results.items() if "federation" in idata}
    if any("change" in idata["federation"] for idata in recorded.values()):
        found.append(Picture("Convergence", lambda: plots.plot_convergence(recorded), CONVERGENCE))
    predicting = {name: idata for name, idata in drawable.items() if "ece" in table and table["ece"].notna()[name]}
    if test is not None and predicting:
        title = "Do probabilities mean what they say?"
        note = RELIABILITY + without
        found.append(Picture(title, lambda: plots.plot_reliability(predicting, federation, test), note))
    return found


def _draws(idata: InferenceData) -> Draws:
    return Draws.of(idata, sorted(map(str, idata["posterior"].data_vars)))


def _spread(idata: InferenceData) -> bool:
    return not _draws(idata).spreadless


def _verdict(name: str, said: list[str], reference: bool) -> Verdict:
    remarks = [one for one in said if one.startswith(ABOUT_LOO)]
    return Verdict(name, reference, [one for one in said if one not in remarks], remarks)


def _settings(idata: InferenceData) -> str:
    """How a result was made; of one that another library has made, its name as far as it says it."""
    if "algorithm" not in idata.attrs:
        return f"made by {idata.attrs.get('inference_library', 'another library')}"
    return f"{idata.attrs['algorithm']}({idata.attrs.get('settings', '')})"


def _png(draw: Callable[[], Figure]) -> str:
    """A figure as base64, closed again."""
    figure = draw()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    plt.close(figure)
    return base64.b64encode(buffer.getvalue()).decode("ascii")
