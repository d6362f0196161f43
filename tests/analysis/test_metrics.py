"""Test metrics against the formulas written out."""

from __future__ import annotations

import functools
import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from late import late

import pyro_fed as pf
from pyro_fed.analysis.judging import metrics
from pyro_fed.analysis.judging.calibration import calibration_errors
from pyro_fed.analysis.judging.draws import DRAWS_AT_ONCE
from pyro_fed.errors import DataError
from pyro_fed.results.to_arviz import make_inference_data

xr = late("xarray")


def gaussian(y):
    """y_i ~ Normal(mu, 1)."""
    mu = pyro.sample("mu", dist.Normal(y.new_zeros(()), 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def classes(y):
    """P(y_i = c) = softmax((0, mu))_c."""
    mu = pyro.sample("mu", dist.Normal(y.new_zeros(()), 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Bernoulli(logits=mu), obs=y)


def fed(model):
    return pf.Federation(model, (torch.tensor([0.0, 1.0], dtype=torch.float64),), plate="data", num_clients=1)


def result(draws):
    """A posterior of two chains with the site ``mu``."""
    return make_inference_data({"posterior": xr.Dataset({"mu": (("chain", "draw"), np.reshape(draws, (2, -1)))})}, {})


@pytest.mark.parametrize("num_draws", [2, 2 * DRAWS_AT_ONCE + 6])
def test_gaussian_metrics(num_draws):
    draws = np.linspace(-1.0, 2.0, num_draws)
    y = np.array([0.0, 1.5, -2.0])
    measured = metrics.test_metrics(result(draws), fed(gaussian), (torch.tensor(y, dtype=torch.float64),))
    density = np.exp(-0.5 * (y[None] - draws[:, None]) ** 2) / np.sqrt(2 * np.pi)
    assert set(measured) == {"num_rows", "log_predictive_density", "rmse"}
    assert measured["num_rows"] == 3
    assert measured["log_predictive_density"] == pytest.approx(np.log(density.mean(0)).mean(), abs=1e-12)
    assert measured["rmse"] == pytest.approx(np.sqrt(np.mean((draws.mean() - y) ** 2)), abs=1e-12)


def test_what_a_partial_model_holds_is_the_federations():
    """Test rows are given as the model is called: without the width that `functools.partial` has given it."""

    def scaled(y, *, width=1.0):
        mu = pyro.sample("mu", dist.Normal(y.new_zeros(()), 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(mu, width), obs=y)

    test = (torch.tensor([1.0], dtype=torch.float64),)
    held = fed(functools.partial(scaled, width=3.0))
    density = metrics.test_metrics(result([0.0, 0.0]), held, test)["log_predictive_density"]
    assert density == pytest.approx(float(dist.Normal(0.0, 3.0).log_prob(torch.tensor(1.0))), abs=1e-6)


def test_decisions_come_from_the_average_prediction():
    """Three draws lean slightly to class 0, one strongly to class 1: the average is for class 1."""
    draws = [-0.1, -0.1, -0.1, 5.0]
    measured = metrics.test_metrics(
        result(draws), fed(classes), (torch.tensor([1.0, 1.0, 0.0, 1.0], dtype=torch.float64),)
    )
    p = np.mean(1 / (1 + np.exp(-np.array(draws))))
    assert p > 0.5
    assert set(measured) == {"num_rows", "log_predictive_density", "accuracy"}
    assert measured["accuracy"] == 0.75
    expected = (3 * np.log(p) + np.log(1 - p)) / 4
    assert measured["log_predictive_density"] == pytest.approx(expected, abs=1e-12)


def test_log_predictive_density_does_not_underflow():
    log_prob = torch.tensor([[-2000.0], [-2001.0]], dtype=torch.float64)
    expected = -2000.0 + math.log((1 + math.exp(-1)) / 2)
    assert metrics.log_predictive_density(log_prob) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("y", "part"),
    [([], "no rows"), ([0.0, math.nan, math.nan], "2 observed values of the test data are NaN")],
)
def test_bad_test_data(y, part):
    with pytest.raises(DataError, match=part):
        metrics.test_metrics(result([0.0, 1.0]), fed(gaussian), (torch.tensor(y, dtype=torch.float64),))


def test_a_nan_among_the_covariates_of_test_rows_is_refused():
    """A mean over rows would be NaN, and the accuracy one of classes that a maximum takes NaN to be."""

    def logistic(x, y):
        mu = pyro.sample("mu", dist.Normal(x.new_zeros(()), 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Bernoulli(logits=mu * x), obs=y)

    ones = torch.ones(4, dtype=torch.float64)
    holds = pf.Federation(logistic, (ones, ones), plate="data", num_clients=1)
    x = torch.tensor([1.0, math.nan, 2.0, math.nan], dtype=torch.float64)
    with pytest.raises(DataError, match="log density of 2 of 4 test rows is NaN, of row 1 first"):
        metrics.test_metrics(result([0.0, 1.0]), holds, (x, ones))


def test_rmse_does_not_broadcast():
    with pytest.raises(DataError, match=r"means of shape \(3,\) and observations of shape \(3, 1\)"):
        metrics.rmse(torch.zeros(3), torch.zeros(3, 1))


def tails_learned(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    tails = pyro.sample("tails", dist.Gamma(2.0, 0.5))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.StudentT(1.0 + tails, w * x, 0.5), obs=y)


def skewed(x, y):
    w, tails = pyro.sample("w", dist.Normal(0.0, 1.0)), pyro.sample("tails", dist.Gamma(2.0, 0.5))
    noise = dist.TransformedDistribution(dist.Gumbel(w * x, 1.0), [dist.transforms.AffineTransform(0.0, tails)])
    with pyro.plate("data", len(x)):
        pyro.sample("y", noise, obs=y)


@pytest.mark.parametrize(("model", "has_mean"), [(tails_learned, True), (skewed, False)])
def test_outcomes_whose_mean_torch_writes_by_a_mask_or_does_not_know(model, has_mean):
    """Of Student's t with learned tails there was an error of `vmap`, of others "NotImplementedError"."""
    x = torch.linspace(-1, 1, 8, dtype=torch.float64)
    fed = pf.Federation(model, (x, x), plate="data", num_clients=2)
    draws = {name: (("chain", "draw"), np.array([[0.5, 1.5]])) for name in ("w", "tails")}
    idata = make_inference_data({"posterior": xr.Dataset(draws)}, {})
    found = pf.metrics.test_metrics(idata, fed, (x, x))
    assert math.isfinite(found["log_predictive_density"])
    assert found.get("rmse") == (pytest.approx(0.0, abs=1e-6) if has_mean else None)


def test_multilabel_figures_are_scikit_learn_s():
    from sklearn.metrics import f1_score, precision_score, recall_score

    rng = np.random.default_rng(0)
    probs, value = rng.random((40, 5)), rng.integers(0, 2, (40, 5))
    value[:, 3] = 0  # a label that is never there
    said, options = probs > 0.5, {"zero_division": 0}
    found = metrics.multilabel(torch.tensor(probs), torch.tensor(value))
    assert found == pytest.approx(
        {
            "precision": precision_score(value, said, average="micro", **options),
            "recall": recall_score(value, said, average="micro", **options),
            "micro_f1": f1_score(value, said, average="micro", **options),
            "macro_f1": f1_score(value, said, average="macro", **options),
        }
    )


def labelled(y):
    """y_il ~ Bernoulli(sigmoid(mu)), three labels a row."""
    mu = pyro.sample("mu", dist.Normal(y.new_zeros(()), 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Bernoulli(logits=mu.expand(len(y), 3)).to_event(1), obs=y)


def test_rows_of_several_labels_are_measured_by_label():
    y = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]], dtype=torch.float64)
    federation = pf.Federation(labelled, (y,), plate="data", num_clients=2)
    found = metrics.test_metrics(result([0.5, 1.5]), federation, (y,))
    assert found["recall"] == 1.0  # all probabilities are above one half
    assert found["precision"] == pytest.approx(4 / 6)


def test_labels_of_rows_are_compared_too():
    y = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]], dtype=torch.float64)
    federation = pf.Federation(labelled, (y,), plate="data", num_clients=2)
    table = pf.compare({"a": result(np.linspace(0.5, 1.5, 200))}, federation=federation, test=(y,))
    assert table.loc["a", "precision"] == pytest.approx(4 / 6)
    assert {"recall", "micro_f1", "macro_f1"} <= set(table.columns)


def counted(y):
    """A rate that overflows where mu is large, so that its density is no number."""
    mu = pyro.sample("mu", dist.Normal(y.new_zeros(()), 3.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Poisson(mu.exp() - mu.exp() + mu.exp()), obs=y)


def test_draws_at_which_test_rows_have_no_density_are_the_results_own_fault():
    y = torch.ones(4, dtype=torch.float64)
    federation = pf.Federation(counted, (y,), plate="data", num_clients=2)
    draws = np.linspace(-1.0, 1.0, 200)
    spoiled = draws.copy()
    spoiled[:3] = 800.0
    words = "the density of the test data is not finite at 3 of 200 draws"
    with pytest.raises(DataError, match=words):
        metrics.test_metrics(result(spoiled), federation, (y,))
    table = pf.compare({"good": result(draws), "bad": result(spoiled)}, federation=federation, test=(y,))
    assert words in table.loc["bad", "warnings"] and words not in table.loc["good", "warnings"]
    assert math.isfinite(table.loc["good", "test_log_density"])


def test_calibration_does_not_broadcast():
    with pytest.raises(DataError, match=r"classes \(n,\), received \(2, 2\) and \(2, 1\)"):
        calibration_errors(torch.tensor([[0.25, 0.75], [0.6, 0.4]]), torch.tensor([[1], [1]]))
