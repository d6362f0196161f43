"""The blocks of aligned text that the command line prints about a run."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from pyro_fed.analysis.judging.draws import Draws
from pyro_fed.analysis.numbers import percent, readable_bytes, readable_seconds
from pyro_fed.ops.arviz_versions import summary
from pyro_fed.results.inference_data import InferenceData, flag

if TYPE_CHECKING:
    import pandas as pd

#: Column at which the values of a block begin.
NAME_WIDTH = 24

#: Lines of a block are wrapped at this width.
LINE_WIDTH = 110


def heading(text: str) -> str:
    """A block's title, bold on a terminal, after an empty line."""
    return "\n" + click.style(text, bold=True)


def field(name: str, value: str) -> str:
    """One entry of a block: the name on the left, the value on the right, wrapped if it is long."""
    indent = " " * (NAME_WIDTH + 2)
    return textwrap.fill(
        value,
        LINE_WIDTH,
        initial_indent=f"  {name:<{NAME_WIDTH}}",
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def listing(title: str, entries: Mapping[str, str]) -> str:
    """A block of names and their descriptions, one line each."""
    width = max([NAME_WIDTH, *(len(name) + 2 for name in entries)])
    lines = [f"  {click.style(name.ljust(width), fg='cyan')}{text}" for name, text in entries.items()]
    return "\n".join([heading(title), *(lines or ["  (none)"])])


def steps_block(steps: pd.DataFrame) -> str:
    """The stages of a run of `Auto`, with costs and doubts, as a block."""
    lines = []
    for row in steps.to_dict("records"):
        cost = f"{row['rounds']} rounds, {readable_bytes(row['bytes'])}, {readable_seconds(row['seconds'])}"
        said = row["doubts"] or "nothing speaks against it"
        lines.append(field(str(row["algorithm"]), f"{cost}{' (chosen)' if row['chosen'] else ''}: {said}"))
    return "\n".join([heading("What was done"), *lines])


def doubts_block(idata: InferenceData) -> str:
    """The doubts about a run, as a block."""
    doubts = [line for line in str(idata.attrs.get("doubts", "")).split("\n") if line]
    none = "none" if flag(idata.attrs, "audited") else "none by the run itself; its draws were not audited"
    return "\n".join([heading("Doubts"), *(f"  {line}" for line in doubts or [none])])


def posterior_table(idata: InferenceData, max_rows: int) -> str:
    """Mean, SD and 94 % interval of the posterior, with a row for each scalar.

    R-hat and ESS are shown for Markov chains only, since for particles and independent draws they mean nothing. For a
    point, which has neither SD nor interval, the table has its values (if each agent has a point, their mean).
    """
    made = idata.attrs.get("draws_are")
    table = _values(idata) if made == "point" else summary(idata, chains=made == "chains")
    text = table.head(max_rows).to_string(float_format=lambda number: f"{number:.3g}")
    left_out = len(table) - max_rows
    lines = [f"  {line}" for line in text.splitlines()]
    if left_out > 0:
        lines.append(f"  ... and {left_out} more (all of them: --parameters {len(table)})")
    return "\n".join([heading("Point, no posterior" if made == "point" else "Posterior"), *lines])


def _values(idata: InferenceData) -> pd.DataFrame:
    """The values of a point, with a row for each scalar; if each agent has a point, their mean."""
    import pandas as pd

    draws = Draws.of(idata, list(map(str, idata["posterior"].data_vars)))
    return pd.DataFrame({"value": draws.flat.mean(0)}, index=draws.labels)


def prediction_block(metrics: Mapping[str, float]) -> str:
    """The measures of predictions of test data as a block, which says so if there are none."""
    if not metrics:
        return "\n".join([heading("Test data"), "  none: this model has nothing to predict"])
    lines = [field("rows", f"{metrics['num_rows']:.0f}")]
    if "accuracy" in metrics:
        lines.append(field("accuracy", percent(metrics["accuracy"])))
    if "rmse" in metrics:
        lines.append(field("RMSE", f"{metrics['rmse']:.4g}"))
    lines.append(field("log predictive density", f"{metrics['log_predictive_density']:.4f} a row"))
    return "\n".join([heading("Test data"), *lines])


def cost_block(idata: InferenceData) -> str:
    """Rounds, traffic and time of a run, as a block."""
    federation = idata["federation"]
    up, down = (int(federation[name].sum()) for name in ("bytes_up", "bytes_down"))
    lines = [
        field("rounds", str(federation.sizes["round"])),
        field("sent by the clients", readable_bytes(up)),
        field("received by them", readable_bytes(down)),
        field("time", readable_seconds(float(federation["seconds"].sum()))),
    ]
    return "\n".join([heading("Cost"), *lines])


def client_line(sizes: Sequence[int]) -> str:
    """The number of clients and of their rows, in words."""
    if min(sizes) == max(sizes):
        return f"{len(sizes)}, {sizes[0]} {'row' if sizes[0] == 1 else 'rows'} each"
    return f"{len(sizes)}, {min(sizes)} to {max(sizes)} rows each"
