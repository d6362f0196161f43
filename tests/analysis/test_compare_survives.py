"""Whatever the results are, every row of the comparison is there, and a broken one says what it is."""

import re
import warnings

import numpy as np
import pytest
from algorithms import SMALL, line, line_data, unequal_lines
from late import late
from test_compare import draws_of, exact, result

import pyro_fed as pf
from pyro_fed.errors import DataError, DivergenceError, SettingError
from pyro_fed.ops.arviz_versions import group_of
from pyro_fed.results.to_arviz import make_inference_data

az, xr, comparison = late("arviz"), late("xarray"), late("pyro_fed.analysis.judging.compare")
MEASURED = ["mean_error", "sd_ratio_min", "sliced_wasserstein", "mmd2", "ksd", "prior_count", "elpd_loo", "rmse"]


def sentences(table):
    return {name: [one.text for one in found] for name, found in comparison.findings_of(table).items()}


def broken():
    """Draws of the posterior, each spoiled in its own way, and what is to be said of them."""
    draws = draws_of(*exact())
    nan, infinite, huge = draws.copy(), draws.copy(), draws.copy()
    nan[5:9], infinite[3, 1], huge[7, 0] = np.nan, -np.inf, 1e300
    return {
        "all NaN": (np.full_like(draws, np.nan), "the draws are not finite: 1000 of 1000"),
        "some NaN": (nan, r"the draws are not finite: 4 of 1000 have a NaN or an infinity, first in 'w\[0\]'"),
        "infinite": (infinite, r"the draws are not finite: 1 of 1000 .* 'w\[1\]'"),
        "huge": (huge, r"the draws reach 1e\+300 in 'w\[0\]'"),
        "none": (draws[:0], "there are no draws"),
    }


@pytest.fixture(scope="module")
def fed():
    return pf.Federation(line, line_data(), plate="data", num_clients=3)


@pytest.fixture(scope="module")
def table(fed):
    draws = draws_of(*exact(), seed=2)
    results = {
        "truth": result(draws_of(*exact(), seed=1)),
        "good": result(draws),
        **{name: result(spoiled) for name, (spoiled, _) in broken().items()},
        "constant": result(np.repeat(draws[:1], 500, 0)),
        "one": result(draws[:1]),
        "two": result(draws[:2]),
        "half still": result(np.stack([draws[:, 0], np.full(len(draws), 0.1)], 1)),
        "far": result(1e30 * draws),
        "fewer": result(draws[:333]),
        "point": result(draws[:1], draws_are="point"),
    }
    return pf.compare(results, "truth", federation=fed, test=line_data(10, seed=9))


def test_every_other_row_is_measured(table):
    assert table.loc[["good", "fewer"], MEASURED].notna().all().all()
    assert list(table["warnings"][["truth", "good", "fewer"]]) == [""] * 3
    assert list(table.columns) == [name for name in comparison.COLUMNS if name in table]


@pytest.mark.parametrize("name", broken())
def test_a_broken_row_says_what_it_is(table, name):
    said = sentences(table)[name]
    assert len(said) == 1
    assert re.match(broken()[name][1], said[0])
    assert table.loc[name, MEASURED].isna().all()
    assert "collapse" not in said[0]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("constant", "all 500 draws are the same point, without any uncertainty"),
        ("one", "a single draw, without any uncertainty"),
        ("point", "a point, without any uncertainty"),
    ],
)
def test_points_have_an_error_of_the_mean_and_no_spread(table, name, said):
    assert sentences(table)[name][0] == said
    assert table["mean_error"][name] == pytest.approx(table["mean_error"]["one"], rel=1e-9)
    assert table["sd_ratio_max"][name] == 0
    assert table.loc[name, ["ksd", "prior_count", "elpd_loo"]].isna().all()
    assert not any("SD of" in one for one in sentences(table)[name])
    assert any("reference SDs off" in one for one in sentences(table)[name])  # of 0.39, which is no noise


def test_what_is_measured_by_the_density_is_told_apart(table):
    assert "'w[1]' is the same in all draws: it has no uncertainty" in sentences(table)["half still"]
    assert any(re.match(r"the SD of 'w\[1\]' is 0 of the reference's", one) for one in sentences(table)["half still"])
    assert any("reference SDs off" in one for one in sentences(table)["far"])


def test_a_broken_reference_measures_nothing_and_says_so(fed):
    found = pf.compare({"broken": result(broken()["some NaN"][0]), "good": result(draws_of(*exact()))}, "broken")
    assert "cannot be the reference" in found["warnings"]["broken"]
    assert found["mean_error"].isna().all()
    assert found["warnings"]["good"] == ""
    assert found["elpd_loo"].notna()["good"]


def test_a_result_read_back_from_a_file_has_the_same_row(fed, tmp_path):
    idata = result(draws_of(*exact(10.0)), warnings="the KDE is dead")
    idata.to_netcdf(tmp_path / "result.nc")
    back = az.from_netcdf(tmp_path / "result.nc")
    found = pf.compare({"here": idata, "read": back}, federation=fed)
    assert found["warnings"]["read"] == found["warnings"]["here"]
    np.testing.assert_array_equal(found.loc["read"].drop("warnings"), found.loc["here"].drop("warnings"))


def test_the_result_of_a_run_that_stopped_says_so():
    fed = unequal_lines()
    with pytest.raises(DivergenceError) as caught, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # few particles
        pf.run(pf.papers.PaperDSVGD(**SMALL, step_size=1e200), fed, progress=False, compile="off")
    error = caught.value
    found = pf.compare({"stopped": error.result, "good": result(draws_of(*exact()))}, "good", federation=fed)
    assert str(error) in sentences(found)["stopped"][0]
    assert sentences(found)["stopped"][0].startswith("the run stopped before its end")
    assert found["warnings"]["good"] == ""
    with pytest.raises(SettingError, match=r"'stopped' is a DivergenceError: pass its `.result`"):
        pf.compare({"stopped": error})


def test_chains_as_dimensions_in_another_order(fed):
    idata = result(draws_of(*exact()))
    turned = make_inference_data({"posterior": group_of(idata, "posterior").transpose("w_dim_0", "draw", "chain")}, {})
    found = pf.compare({"turned": turned, "here": idata}, "here", federation=fed)
    assert found["mean_error"]["turned"] == 0
    assert found["warnings"]["turned"] == ""


def posterior(**variables):
    return make_inference_data({"posterior": xr.Dataset(variables)}, {})


@pytest.mark.parametrize(
    ("results", "options", "error", "said"),
    [
        ([1, 2], {}, SettingError, "results by name, such as .*received list"),
        (posterior(w=(("chain", "draw"), np.zeros((1, 30)))), {}, SettingError, "results by name"),
        ({3: "good"}, {}, SettingError, r"names that are strings, received 3 \(int\)"),
        ({"a": None}, {}, SettingError, "'a' is no InferenceData.*NoneType"),
        ({"a": "good"}, {"federation": "fed"}, SettingError, "federation to be a pf.Federation, received str"),
        ({"a": make_inference_data({}, {})}, {}, DataError, "'a' has no group 'posterior'"),
        ({"a": posterior(w=(("chain", "step"), np.zeros((1, 30))))}, {}, DataError, "'w' has the dimensions"),
        ({"a": posterior(w=(("chain", "draw"), np.full((1, 30), "x")))}, {}, DataError, "expected real numbers"),
        ({"a": "good", "b": posterior(w=(("chain", "draw", "i"), np.ones((1, 9, 3))))}, {}, DataError, "shapes of 'w'"),
        ({"b": posterior(v=(("chain", "draw"), np.zeros((1, 30))))}, {"federation": 1}, DataError, "no values for w"),
        ({"b": posterior(w=(("chain", "draw"), np.zeros((1, 30))))}, {"federation": 1}, DataError, "'w' of shape"),
    ],
)  # fmt: skip
def test_wrong_inputs_are_named(fed, results, options, error, said):
    if isinstance(results, dict):
        results = {k: result(draws_of(*exact())) if isinstance(v, str) else v for k, v in results.items()}
    if options.get("federation") == 1:
        options = {"federation": fed}
    with pytest.raises(error, match=said):
        pf.compare(results, **options)


def test_sentences_need_the_table(fed):
    table = pf.compare({"a": result(draws_of(*exact()), warnings="one; two\nthree")})
    assert sentences(table) == {"a": ["one; two", "three"]}
    assert table["warnings"]["a"] == "one; two; three"
    with pytest.raises(SettingError, match=r"table that pf\.compare returns"):
        sentences(table.rename_axis("other").reset_index().merge(table.reset_index()))
