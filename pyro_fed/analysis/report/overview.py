"""A run in short: blocks of text for a terminal, an overview for notebooks, and plain dictionaries for `--json`."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from pyro_fed.analysis.judging.draws import Draws
from pyro_fed.analysis.numbers import percent, readable_bytes, readable_seconds
from pyro_fed.codes.finding import texts
from pyro_fed.conventions import html
from pyro_fed.conventions.calls import Checked
from pyro_fed.conventions.html import MAX_SHOWN_ROWS
from pyro_fed.ops.arviz_versions import summary
from pyro_fed.results.inference_data import InferenceData, flag, recorded_findings

if TYPE_CHECKING:
    import pandas as pd

#: Column at which the values of a block begin, and the width at which its lines are wrapped.
NAME_WIDTH, LINE_WIDTH = 24, 110


def doubt_sentences(idata: InferenceData) -> list[str]:
    """The sentences that speak against a result, of this package or of another program."""
    return [line for line in str(idata.attrs.get("doubts", "")).split("\n") if line]


def posterior_frame(idata: InferenceData) -> pd.DataFrame:
    """Mean, SD and 94 % interval of each scalar, of chains also R-hat and ESS; of a point its value (agents' mean)."""
    import pandas as pd  # takes half a second

    if idata.attrs.get("draws_are") == "point":
        draws = Draws.of(idata, list(map(str, idata["posterior"].data_vars)))  # in the model's order
        return pd.DataFrame({"value": draws.flat.mean(0)}, index=draws.labels)
    return summary(idata, chains=idata.attrs.get("draws_are") == "chains")


def run_cost(idata: InferenceData) -> dict[str, Any]:
    """Bytes that the clients sent and received, seconds, and rounds of a run."""
    record = idata["federation"]
    cost = {name: float(record[name].sum()) for name in ("bytes_up", "bytes_down", "seconds")}
    return {**cost, "rounds": int(record.sizes["round"])}


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
        doubts = row["doubts"] or "nothing speaks against it"
        lines.append(field(str(row["algorithm"]), f"{cost}{' (chosen)' if row['chosen'] else ''}: {doubts}"))
    return "\n".join([heading("What was done"), *lines])


def doubts_block(idata: InferenceData) -> str:
    """The doubts about a run, as a block."""
    none = "none" if flag(idata.attrs, "audited") else "none by the run itself; its draws were not audited"
    return "\n".join([heading("Doubts"), *(f"  {line}" for line in doubt_sentences(idata) or [none])])


def posterior_table(idata: InferenceData, max_rows: int = MAX_SHOWN_ROWS) -> str:
    """The first rows of `posterior_frame` as a block."""
    table = posterior_frame(idata)
    text = table.head(max_rows).to_string(float_format=lambda number: f"{number:.3g}")
    left_out = len(table) - max_rows
    lines = [f"  {line}" for line in text.splitlines()]
    if left_out > 0:
        lines.append(f"  ... and {left_out} more (all of them: --parameters {len(table)})")
    title = "Point, no posterior" if idata.attrs.get("draws_are") == "point" else "Posterior"
    return "\n".join([heading(title), *lines])


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
    cost = run_cost(idata)
    lines = [
        field("rounds", str(cost["rounds"])),
        field("sent by the clients", readable_bytes(cost["bytes_up"])),
        field("received by them", readable_bytes(cost["bytes_down"])),
        field("time", readable_seconds(cost["seconds"])),
    ]
    return "\n".join([heading("Cost"), *lines])


def client_line(sizes: Sequence[int]) -> str:
    """The number of clients and of their rows, in words."""
    if min(sizes) == max(sizes):
        return f"{len(sizes)}, {sizes[0]} {'row' if sizes[0] == 1 else 'rows'} each"
    return f"{len(sizes)}, {min(sizes)} to {max(sizes)} rows each"


@dataclass(frozen=True)
class Overview(metaclass=Checked):
    """An overview of a run in a notebook or terminal: its verdict, its doubts, the posterior and the costs.

    Args:
        idata: result of `pyro_fed.run` or `pyro_fed.fit`.

    Example:
        >>> pf.Overview(pf.fit(fed))
    """

    idata: InferenceData

    @property
    def title(self) -> str:
        """The algorithm and its clients: `FedEP on 10 clients: nothing speaks against it`."""
        attrs = self.idata.attrs
        name = attrs.get("chosen") or attrs.get("algorithm", "a result of another library")
        clients = f" on {attrs['num_clients']} clients" if "num_clients" in attrs else ""
        return f"{name}{clients}: {self._verdict()}"

    @property
    def doubts(self) -> list[str]:
        """The sentences that speak against the result."""
        return doubt_sentences(self.idata)

    def _verdict(self) -> str:
        if self.doubts:
            return f"{len(self.doubts)} reason{'s' if len(self.doubts) > 1 else ''} to doubt it"
        return "nothing speaks against it" if flag(self.idata.attrs, "audited") else "it was not audited"

    def __repr__(self) -> str:
        blocks = [self.title, *(f"  {doubt}" for doubt in self.doubts), posterior_table(self.idata)]
        if "federation" in self.idata:
            blocks.append(cost_block(self.idata))
        return "\n".join(blocks)

    def _repr_html_(self) -> str:
        if self.idata.attrs.get("draws_are") == "point":
            sizes = {name: dict(value.sizes) for name, value in self.idata["posterior"].data_vars.items()}
            shown = html.text("a point: " + ", ".join(f"{name} {size}" for name, size in sizes.items()))
        else:
            rows = posterior_frame(self.idata)
            cells = [[name, *(f"{value:.3g}" for value in row)] for name, *row in rows.itertuples()]
            shown = html.table(["", *map(str, rows.columns)], cells)
        doubts = "".join(html.text(doubt, "li") for doubt in self.doubts)
        return html.block(self.title, f"<ul>{doubts}</ul>" if doubts else "", shown, html.text(self._cost()))

    def _cost(self) -> str:
        if "federation" not in self.idata:
            return ""
        cost = run_cost(self.idata)
        return (
            f"{cost['rounds']} rounds, {readable_bytes(cost['bytes_up'])} sent by the clients, "
            f"{readable_bytes(cost['bytes_down'])} received by them, {readable_seconds(cost['seconds'])}"
        )


def as_json(values: Mapping[str, Any]) -> str:
    """Plain values as JSON. NaN and infinities, which JSON does not have, become null."""
    return json.dumps(_as_plain(values), indent=1, ensure_ascii=False, allow_nan=False)


def comparison_figures(table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """The columns of `pyro_fed.compare` by result, `findings` and `warnings`, their texts, as lists."""
    from pyro_fed.analysis.judging.compare import findings_of  # which takes torch

    findings = findings_of(table)
    lists = {
        name: {"findings": [one.to_plain() for one in every], "warnings": texts(every)}
        for name, every in findings.items()
    }
    return {
        str(name): {str(key): value for key, value in row.items()} | lists[str(name)]
        for name, row in table.drop(columns="warnings").iterrows()
    }


def run_figures(idata: InferenceData, measured: Mapping[str, float]) -> dict[str, Any]:
    """A run's attributes, posterior table, doubts and warnings, costs, and measures on test data if there are any."""
    found = recorded_findings(idata)
    lists = {
        "doubts": texts(one for one in found if one.is_doubt),
        "warnings": texts(found),
        "findings": [one.to_plain() for one in found],
    }
    steps = {"steps": json.loads(idata.attrs["steps"])} if "steps" in idata.attrs else {}
    return {
        **lists,
        "posterior": posterior_frame(idata).to_dict("index"),
        "test": dict(measured),
        "cost": run_cost(idata),
        "attributes": {name: value for name, value in idata.attrs.items() if name not in (*lists, "steps")},
        **steps,
    }


def _as_plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _as_plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_as_plain(one) for one in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
