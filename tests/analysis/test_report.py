"""The blocks of text that the command line prints."""

from __future__ import annotations

import click
import numpy as np
import pytest
from late import late

from pyro_fed.analysis.report import overview, tables
from pyro_fed.results.to_arviz import make_inference_data

az, pd, xr = late("arviz"), late("pandas"), late("xarray")
pictures = late("pyro_fed.analysis.report.pictures")


def result(size=4, **attrs):
    """Draws 0..100 for the scalar ``a`` and for every entry of ``b``; two rounds of three clients."""
    draws = np.arange(101.0)[None]
    posterior = xr.Dataset(
        {
            "a": (("chain", "draw"), draws),
            "b": (("chain", "draw", "i"), np.repeat(draws[..., None], size, -1)),
        }
    )
    counts = xr.Dataset(
        {
            "bytes_up": (("round", "client"), np.array([[3000.0, np.nan, np.nan], [np.nan, 3000.0, np.nan]])),
            "bytes_down": (("round", "client"), np.full((2, 3), 5.0)),
            "seconds": (("round", "client"), np.array([[0.5, np.nan, np.nan], [np.nan, 0.25, np.nan]])),
        }
    )
    return make_inference_data({"posterior": posterior, "federation": counts}, attrs)


def test_posterior_table():
    text = click.unstyle(overview.posterior_table(result(), 3))
    lines = text.splitlines()
    assert lines[1] == "Posterior"
    assert lines[2].split() == ["mean", "sd", "hdi_3%", "hdi_97%"]
    row = lines[3].split()
    assert row[0] == "a"
    assert float(row[1]) == 50
    assert float(row[2]) == pytest.approx(np.arange(101).std(ddof=1), abs=0.1)
    assert [line.split()[0] for line in lines[4:6]] == ["b[0]", "b[1]"]
    assert lines[6] == "  ... and 2 more (all of them: --parameters 5)"


def test_posterior_table_without_omission():
    text = overview.posterior_table(result(), 5)
    assert "more" not in text
    assert "r_hat" not in text
    assert "ess" not in text


@pytest.mark.parametrize(("draws_are", "shown"), [("particles", False), ("independent", False), ("chains", True)])
def test_diagnostics_of_markov_chains_alone(draws_are, shown):
    text = overview.posterior_table(result(draws_are=draws_are), 5)
    assert ("ess_bulk" in text) is shown


@pytest.mark.parametrize("agents", [1, 3])
def test_a_point_has_its_value_alone(agents):
    """Warnings are errors: NumPy says nothing of an SD of one draw."""
    point = result(draws_are="point").isel(draw=[7], chain=[0] * agents)
    lines = click.unstyle(overview.posterior_table(point, 5)).splitlines()
    assert lines[1] == "Point, no posterior"
    assert lines[2].split() == ["value"]
    assert [line.split() for line in lines[3:]] == [["a", "7"], *([f"b[{i}]", "7"] for i in range(4))]


def test_cost_block():
    text = click.unstyle(overview.cost_block(result()))
    assert [line.split()[-2:] for line in text.splitlines()[2:]] == [
        ["rounds", "2"],
        ["6.0", "kB"],
        ["30", "B"],
        ["0.75", "s"],
    ]


@pytest.mark.parametrize(
    ("metrics", "expected", "absent"),
    [
        ({"num_rows": 9.0, "log_predictive_density": -0.5, "accuracy": 0.875}, "accuracy +87.5 %", "RMSE"),
        ({"num_rows": 9.0, "log_predictive_density": -0.5, "rmse": 12.3456}, "RMSE +12.35", "accuracy"),
        ({}, "none: this model has nothing to predict", "rows"),
    ],
)
def test_prediction_block(metrics, expected, absent):
    text = overview.prediction_block(metrics)
    assert np.any([len(line) > 0 for line in text.splitlines()])
    assert " ".join(expected.replace(" +", " ").split()) in " ".join(text.split())
    assert absent not in text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (2_345_678, "2.3 MB"), (5e15, "5000.0 TB")],
)
def test_readable_bytes(count, text):
    assert overview.readable_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.123, "0.12 s"), (12.34, "12.3 s"), (61.6, "1 min 02 s"), (119.7, "2 min 00 s")]
)
def test_readable_seconds(seconds, text):
    assert overview.readable_seconds(seconds) == text


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ([5, 5], "2, 5 rows each"),
        ([5, 2, 9], "3, 2 to 9 rows each"),
        ([7], "1, 7 rows each"),
        ([1, 1], "2, 1 row each"),
    ],
)
def test_client_line(sizes, text):
    assert overview.client_line(sizes) == text


def test_listing_aligns_long_names():
    text = click.unstyle(overview.listing("Models", {"a": "first", "a_name_that_is_longer_than_the_column": "second"}))
    lines = text.splitlines()[2:]
    assert lines[0].index("first") == lines[1].index("second")
    assert "(none)" in overview.listing("Models", {})


@pytest.mark.parametrize("apart", [1.0, 0.1])
def test_an_r_hat_of_chains_that_stand_still_is_large_or_infinite(apart):
    draws = xr.Dataset({"w": (("chain", "draw"), apart * np.repeat(np.arange(4.0)[:, None], 50, 1))})
    about = pictures.ReportData(
        pd.DataFrame(), {"still": make_inference_data({"posterior": draws}, {"draws_are": "chains"})}, None, None, None
    )
    with np.errstate(divide="ignore"):
        _, mixing = tables.posterior_tables(about)
    assert mixing["columns"][2] == "largest R-hat" and float(mixing["rows"]["still"][2][0].replace(",", "")) > 100
