"""What the command line prints about a run: a few aligned blocks of plain text."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import arviz as az
import click

#: Column at which the values of a block begin.
NAME_WIDTH = 24

#: Longer values of a block go on in the next line.
LINE_WIDTH = 110


def heading(text: str) -> str:
    """A block's title, bold on a terminal."""
    return "\n" + click.style(text, bold=True)


def field(name: str, value: str) -> str:
    """One entry of a block: a name and its value in their columns."""
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
    """A titled block of names and one-line descriptions."""
    width = max([NAME_WIDTH, *(len(name) + 2 for name in entries)])
    lines = [f"  {click.style(name.ljust(width), fg='cyan')}{text}" for name, text in entries.items()]
    return "\n".join([heading(title), *(lines or ["  (none)"])])


def posterior_table(idata: Any, max_rows: int) -> str:
    """Mean, SD and 94 % interval of the posterior, one row a scalar.

    R-hat and ESS describe Markov chains and are shown for them alone: of particles or independent draws they
    would say nothing.

    Args:
        idata: result of `pyro_fed.run`.
        max_rows: rows to show; what is left out is counted in a last line.
    """
    kind: Literal["all", "stats"] = "all" if idata.attrs.get("draws_are") == "chains" else "stats"
    table = az.summary(idata, var_names=list(idata["posterior"].data_vars), kind=kind, round_to="none")
    text = table.head(max_rows).to_string(float_format=lambda number: f"{number:.3g}")
    left_out = len(table) - max_rows
    lines = [f"  {line}" for line in text.splitlines()]
    if left_out > 0:
        lines.append(f"  ... and {left_out} more (all of them: --rows {len(table)})")
    return "\n".join([heading("Posterior"), *lines])


def prediction_block(metrics: Mapping[str, float]) -> str:
    """The metrics of `pyro_fed.metrics.test_metrics` as a block; none, the model has no test data."""
    if not metrics:
        return "\n".join([heading("Test data"), "  none: this model has nothing to predict"])
    lines = [field("rows", f"{metrics['num_rows']:.0f}")]
    if "accuracy" in metrics:
        lines.append(field("accuracy", f"{100 * metrics['accuracy']:.1f} %"))
    if "rmse" in metrics:
        lines.append(field("RMSE", f"{metrics['rmse']:.4g}"))
    lines.append(field("log predictive density", f"{metrics['log_predictive_density']:.4f} a row"))
    return "\n".join([heading("Test data"), *lines])


def cost_block(idata: Any) -> str:
    """Rounds, traffic and time of a run, read from the group ``federation``."""
    federation = idata["federation"]
    up, down = (int(federation[name].sum()) for name in ("bytes_up", "bytes_down"))
    lines = [
        field("rounds", str(federation.sizes["round"])),
        field("sent by the clients", readable_bytes(up)),
        field("received by them", readable_bytes(down)),
        field("time", readable_seconds(float(federation["seconds"].sum()))),
    ]
    return "\n".join([heading("Cost"), *lines])


def readable_bytes(count: int) -> str:
    """A byte count in the unit a person would choose: 950 B, 12.3 kB, 4.0 MB."""
    size = float(count)
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


def client_line(sizes: Sequence[int]) -> str:
    """How many clients there are and how many rows they hold."""
    if min(sizes) == max(sizes):
        return f"{len(sizes)}, {sizes[0]} {'row' if sizes[0] == 1 else 'rows'} each"
    return f"{len(sizes)}, {min(sizes)} to {max(sizes)} rows each"
