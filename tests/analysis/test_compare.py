"""The comparison against closed forms, and that it tells right from wrong."""

import math
import warnings

import numpy as np
import pytest
import torch
from algorithms import line, line_data
from late import late

import pyro_fed as pf
from pyro_fed.analysis.judging import calibration
from pyro_fed.analysis.judging.density import laplace_sds
from pyro_fed.errors import DataError, DivergenceError, SettingError
from pyro_fed.results.to_arviz import make_inference_data
from pyro_fed.runtime.run import Final

pd, xr, stats = late("pandas"), late("xarray"), late("scipy.stats")
comparison, doubts = late("pyro_fed.analysis.judging.compare"), late("pyro_fed.analysis.judging.doubts")
distances = late("pyro_fed.analysis.judging.distances")

DRAWS = 1000


def exact(count_prior=1.0, count_likelihood=1.0):
    """Mean and covariance of `line`'s weights, the prior and the likelihood counted as often as said."""
    x, y = (part.numpy() for part in line_data())
    precision = count_likelihood * x.T @ x + count_prior * np.eye(2)
    covariance = np.linalg.inv(precision)
    return covariance @ x.T @ y * count_likelihood, covariance


def draws_of(mean, covariance, seed=0, count=DRAWS):
    return np.random.default_rng(seed).multivariate_normal(mean, covariance, size=count)


def result(draws, **attrs):
    posterior = xr.Dataset({"w": (("chain", "draw", "w_dim_0"), draws[None])})
    x, y = (part.numpy() for part in line_data())
    with np.errstate(over="ignore", invalid="ignore"):  # of draws that are made to be broken
        log_likelihood = stats.norm.logpdf(y, draws @ x.T)
    groups = {
        "posterior": posterior,
        "log_likelihood": xr.Dataset({"y": (("chain", "draw", "data"), log_likelihood[None])}),
    }
    return make_inference_data(groups, {"draws_are": "independent", **attrs})


@pytest.fixture(scope="module")
def fed():
    return pf.Federation(line, line_data(), plate="data", num_clients=3)


def test_distances_to_a_reference_are_the_closed_forms():
    """Gaussians N(0, I) and N(m, s² I): Monte Carlo errors of 5 standard errors, once in 10^5 runs."""
    shift, scale, n = 0.8, 0.5, 20_000
    rng = np.random.default_rng(0)
    reference, draws = rng.normal(size=(n, 3)), shift * np.eye(3)[0] + scale * rng.normal(size=(n, 3))
    found = distances.against_reference(draws, reference)
    assert found["mean_error"] == pytest.approx(shift, abs=0.05)
    assert found["sd_ratio_min"] == pytest.approx(scale, abs=0.02)
    assert found["sd_ratio_max"] == pytest.approx(scale, abs=0.02)
    # A direction u sees N(shift u_1, scale²): W2² = shift² u_1² + (1 - scale)², and E u_1² = 1/3.
    assert found["sliced_wasserstein"] == pytest.approx(math.sqrt(shift**2 / 3 + (1 - scale) ** 2), abs=0.08)


def test_sliced_wasserstein_of_unequal_numbers_of_draws_is_exact():
    """In one dimension: 3 draws against 2, ∫ (F⁻¹ - G⁻¹)² du written out over the pieces [0, 1/3, 1/2, 2/3, 1]."""
    draws, reference = np.array([[2.0], [0.0], [1.0]]), np.array([[5.0], [3.0]])
    exact = (3.0**2) / 3 + (3 - 1) ** 2 / 6 + (5 - 1) ** 2 / 6 + (5 - 2) ** 2 / 3
    assert distances.sliced_wasserstein(draws, reference) == pytest.approx(math.sqrt(exact))
    assert distances.sliced_wasserstein(draws, draws) == 0.0


def test_mmd_is_the_closed_form():
    """E k of Gaussians: (h²/(h² + v))^(d/2) exp(-|m|²/2(h² + v)), v the variance of the difference."""
    rng, shift, dim = np.random.default_rng(1), 1.0, 2
    reference = rng.normal(size=(1000, dim))
    draws = rng.normal(size=(1000, dim)) + shift * np.eye(dim)[0]
    width = np.sqrt(2 * stats.chi2(dim).ppf(0.5))  # median of |r - r'|, whose square is 2 χ²_d
    ratio = (width**2 / (width**2 + 2)) ** (dim / 2)
    expected = 2 * ratio * (1 - np.exp(-(shift**2) / 2 / (width**2 + 2)))
    assert distances.mmd2(draws, reference) == pytest.approx(expected, abs=0.03)
    assert abs(distances.mmd2(rng.normal(size=(1000, dim)), reference)) < 0.005
    skewed = np.array([[100.0, 0.0], [99.0, 0.1]])
    assert distances.mmd2(draws @ skewed, reference @ skewed) == pytest.approx(
        distances.mmd2(draws, reference), abs=0.02
    )


@pytest.mark.parametrize("prior", [0.0, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("likelihood", [1.0, 4.0])
def test_the_prior_is_counted(fed, prior, likelihood):
    draws = torch.as_tensor(draws_of(*exact(prior, likelihood), count=4000))
    found = doubts.prior_count(draws, *distances.scores(fed.problem, draws))
    assert found.value == pytest.approx(prior / likelihood, abs=max(5 * found.error, 1e-6))
    assert found.error < 0.2 + 0.1 * prior
    assert found.is_wrong == (abs(prior / likelihood - 1) > 0.5)


def test_laplace_sds_of_a_gaussian_are_exact(fed):
    sds = laplace_sds(fed)
    np.testing.assert_allclose(sds, np.sqrt(np.diag(exact()[1])), rtol=1e-6)
    collapsed = torch.as_tensor(draws_of(exact()[0], exact()[1] / 16))
    assert "variance collapse: SDs are 0.2" in doubts.spread_findings(collapsed, sds)[0].text
    assert doubts.spread_findings(torch.as_tensor(draws_of(*exact())), sds) == []


def test_laplace_sds_are_none_where_no_mode_was_found(fed, monkeypatch):
    def diverges(algorithm, federation):
        raise DivergenceError("an update left the finite numbers")

    for end in (lambda algorithm, federation: Final({}, False), diverges):
        monkeypatch.setattr("pyro_fed.analysis.judging.density.final_state", end)
        assert laplace_sds(fed) is None


def test_columns_are_those_of_the_tables_each_once(fed):
    columns = comparison.COLUMNS
    assert len(set(columns)) == len(columns) == sum(len(part.columns) for part in comparison.TABLES) + 1
    table = pf.compare({"exact": result(draws_of(*exact()))}, federation=fed)
    assert set(table.columns) <= set(comparison.COLUMNS)
    assert [name for name in comparison.COLUMNS if name in table] == list(table.columns)
    written = comparison.TABLES[0].written(table)
    assert list(written) == [c.heading for name, c in comparison.TABLES[0].columns.items() if name in table]
    assert all(len(cells) == 1 for cells in written.values())


def test_calibration_errors_are_their_definition():
    """Of 100 rows with confidence 0.75, 60 are right; of 50 with 0.95, all are."""
    probs = torch.cat([torch.tensor([[0.25, 0.75]]).repeat(100, 1), torch.tensor([[0.95, 0.05]]).repeat(50, 1)])
    value = torch.cat([torch.ones(60), torch.zeros(40), torch.zeros(50)])
    errors = calibration.calibration_errors(probs, value)
    assert errors["ece"] == pytest.approx((100 * 0.15 + 50 * 0.05) / 150, abs=1e-6)
    assert errors["mce"] == pytest.approx(0.15, abs=1e-6)
    bins = calibration.reliability(probs, value)
    np.testing.assert_array_equal(bins.rows, [100, 50])
    np.testing.assert_allclose(bins.accuracy, [0.6, 1.0])
    np.testing.assert_allclose(bins.confidence, [0.75, 0.95], rtol=1e-6)
    np.testing.assert_allclose(bins.left, [0.7, 0.9])


def test_bins_of_confidence_are_closed_on_the_right():
    """Eq. 21: ((j-1)/B, j/B]. By hand, for B = 4 and three classes, of which 1.0 and 0.8 share the last bin.

    Bin (0.25, 0.5]: confidences 0.4 and 0.5, one right of two; gap |0.5 - 0.45| = 0.05. Bin (0.5, 0.75]: 0.75,
    right; gap 0.25. Bin (0.75, 1]: 0.8 right, 1.0 right, 1.0 wrong; gap |2/3 - 2.8/3| = 0.8/3.
    """
    confidence = torch.tensor([0.4, 0.5, 0.75, 0.8, 1.0, 1.0], dtype=torch.float64)
    probs = torch.stack([confidence, *[(1 - confidence) / 2] * 2], 1)
    value = torch.tensor([1, 0, 0, 0, 0, 2])
    bins = calibration.reliability(probs, value, bins=4)
    np.testing.assert_array_equal(bins.left, [0.25, 0.5, 0.75])
    np.testing.assert_array_equal(bins.rows, [2, 1, 3])
    np.testing.assert_allclose(bins.accuracy, [0.5, 1.0, 2 / 3])
    np.testing.assert_allclose(bins.confidence, [0.45, 0.75, 2.8 / 3])
    errors = calibration.calibration_errors(probs, value, bins=4)
    assert errors["mce"] == pytest.approx(0.8 / 3, abs=1e-12)
    assert errors["ece"] == pytest.approx((2 * 0.05 + 0.25 + 3 * 0.8 / 3) / 6, abs=1e-12)
    sure = torch.tensor([[0.3, 0.7], [0.0, 1.0], [0.9, 0.1]], dtype=torch.float64)
    np.testing.assert_array_equal(calibration.reliability(sure, torch.tensor([1, 1, 0])).left * 10, [6, 8, 9])
    with pytest.raises(SettingError, match="bins=0"):
        calibration.reliability(sure, torch.tensor([1, 1, 0]), bins=0)


@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto")
def test_right_and_wrong_are_told_apart(fed):
    mean, covariance = exact()
    results = {
        "truth": result(draws_of(mean, covariance, 1)),
        "good": result(draws_of(mean, covariance, 2)),
        "prior ten times": result(draws_of(*exact(10.0), seed=3)),
        "collapsed": result(draws_of(mean, covariance / 100, 4)),
        "off": result(draws_of(mean + 2 * np.sqrt(np.diag(covariance)), covariance, 5)),
        "warned": result(draws_of(mean, covariance, 6), warnings="the KDE is dead"),
    }
    table = pf.compare(results, reference="truth", federation=fed, test=line_data(10, seed=9))
    said = table["warnings"]
    assert said["truth"] == said["good"] == ""
    assert "the prior counts 10" in said["prior ten times"] or "the prior counts 9" in said["prior ten times"]
    assert "variance collapse" in said["collapsed"] and "of the reference's" in said["collapsed"]
    assert "reference SDs off" in said["off"]
    assert said["warned"] == "the KDE is dead"
    assert table["mean_error"].idxmax() == "off"
    assert table["ksd"]["good"] < 0.5 * min(table["ksd"][["prior ten times", "off"]])
    assert pd.isna(table["mean_error"]["truth"])
    assert {"elpd_loo", "elpd_loo_se", "bad_pareto_k", "test_log_density", "rmse"} <= set(table)
    x, y = (part.numpy() for part in line_data(10, seed=9))
    draws = results["good"].posterior["w"].values[0]
    density = np.log(stats.norm.pdf(y, draws @ x.T).mean(0)).mean()
    assert table["test_log_density"]["good"] == pytest.approx(density, abs=1e-9)


def test_costs_are_those_of_the_record(fed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # few particles, and it says so
        distributed = pf.run(
            pf.papers.PaperDSVGD(num_particles=30, local_steps=2), fed, num_rounds=2, progress=False, compile="off"
        )
        pooled = pf.run(
            pf.papers.PaperSVGD(num_particles=30, local_steps=2), fed, num_rounds=2, progress=False, compile="off"
        )
        table = pf.compare({"d": distributed, "p": pooled})
    assert table["rounds"]["d"] == 2
    assert table["bytes_up"]["d"] == float(np.nansum(distributed.federation["bytes_up"]))
    assert math.isnan(table["bytes_up"]["p"])
    assert table["seconds"]["p"] > 0


def test_what_cannot_be_compared(fed):
    one = result(draws_of(*exact()))
    other = make_inference_data({"posterior": xr.Dataset({"v": (("chain", "draw"), np.zeros((1, 30)))})}, {})
    with pytest.raises(SettingError, match="reference 'b' is not among"):
        pf.compare({"a": one}, reference="b")
    with pytest.raises(SettingError, match="at least one"):
        pf.compare({})
    with pytest.raises(SettingError, match="test data need the federation"):
        pf.compare({"a": one}, test=line_data())
    with pytest.raises(DataError, match=r"different parameters.*'w'"):
        pf.compare({"a": one, "b": other})
