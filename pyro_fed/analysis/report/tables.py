"""How the comparison is shown, in the terminal and on the page: which columns, by what names, written how."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from pyro_fed.analysis.report.terminal import readable_bytes, readable_seconds


class Column(NamedTuple):
    """A column of a table: its heading, and how a number is written."""

    heading: str
    write: Callable[[float], str]


class Table(NamedTuple):
    """A part of the comparison: the columns it takes, and how to read them."""

    title: str
    note: str
    columns: dict[str, Column]


def cell(value: float, write: Callable[[float], str]) -> str:
    """A number as it is shown; a dash where there is none."""
    return "–" if value is None or math.isnan(value) else write(value)


def _digits(count: int) -> Callable[[float], str]:
    return lambda value: f"{value:.{count}f}" if abs(value) < 1e4 else f"{value:.1e}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _bytes(value: float) -> str:
    return readable_bytes(int(value))


#: How to read the tables.
CLOSENESS = """
Mean error: the largest error of a posterior mean, in SDs of the reference; a good result is below about
0.2. SD ratio: the smallest and largest posterior SD over the reference's; 1 is right, below 1
overconfident. Sliced Wasserstein distance and MMD² are zero for equal distributions. KSD measures the
distance to the model's own density, without the reference; it is unbiased, so that it may be slightly
negative. Prior count: how often the result has counted the prior (± one standard error); 1 is right.
"""
PREDICTIONS = """
ELPD: expected log density of a new row for each training row, summed, by PSIS-LOO, with its standard error;
with many rows of a large Pareto k it is not reliable. The rest is measured on the test data. ECE and MCE
are the average and the largest gap between confidence and accuracy.
"""
COSTS = """
Bytes of all clients together. The reference works on the pooled data and sends nothing. Seconds are those
of the simulation in one process.
"""

TABLES = (
    Table(
        "How close to the reference",
        CLOSENESS,
        {
            "mean_error": Column("mean error", _digits(2)),
            "sd_ratio_min": Column("SD ratio, least", _digits(2)),
            "sd_ratio_max": Column("SD ratio, largest", _digits(2)),
            "sliced_wasserstein": Column("sliced Wasserstein", _digits(2)),
            "mmd2": Column("MMD²", _digits(3)),
            "ksd": Column("KSD", _digits(3)),
            "prior_count": Column("prior count", _digits(2)),
            "prior_count_se": Column("±", _digits(2)),
        },
    ),
    Table(
        "How good at predicting",
        PREDICTIONS,
        {
            "elpd_loo": Column("ELPD (LOO)", _digits(1)),
            "elpd_loo_se": Column("± SE", _digits(1)),
            "bad_pareto_k": Column("rows with Pareto k > 0.7", _digits(0)),
            "test_log_density": Column("test log density a row", _digits(3)),
            "accuracy": Column("accuracy", _percent),
            "rmse": Column("RMSE", _digits(3)),
            "ece": Column("ECE", _digits(3)),
            "mce": Column("MCE", _digits(2)),
        },
    ),
    Table(
        "What it cost",
        COSTS,
        {
            "rounds": Column("rounds", _digits(0)),
            "bytes_up": Column("sent by clients", _bytes),
            "bytes_down": Column("received by them", _bytes),
            "seconds": Column("time", readable_seconds),
        },
    ),
)
