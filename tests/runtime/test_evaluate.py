"""run(..., evaluate=): the user's figures of every round; that they change nothing is in the contract of algorithms."""

import numpy as np
import pytest
from algorithms import line_data, unequal_lines
from short_runs import quiet

import pyro_fed as pf
from pyro_fed.analysis.judging.metrics import test_metrics as metrics_on


def mean_of(idata):
    name = sorted(idata.posterior.data_vars)[0]
    return {"first_mean": float(idata.posterior[name].mean())}


def test_every_second_round_and_only_the_runs_own_phase():
    fed, seen = unequal_lines(), []

    def evaluate(idata):
        seen.append(idata.attrs["num_rounds"])
        return {"seen": len(seen)}

    small = pf.DSVGD(num_particles=5, local_steps=4, end=pf.infer.EndOfRun(noise=1e-6))
    idata = quiet(small, fed, num_rounds=5, evaluate=evaluate, evaluate_every=2)
    own = (idata.federation["phase"] == "DSVGD").values
    assert 0 < own.sum() < len(own)
    figures = idata.federation["seen"].values
    assert np.isnan(figures[~own]).all()
    assert np.isnan(figures[own][::2]).all()
    assert figures[own][1::2].tolist() == list(range(1, len(seen) + 1))


def test_predictions_of_unseen_rows_by_round_survive_a_checkpoint(tmp_path):
    fed = unequal_lines()
    test = line_data(rows=9, seed=1)
    settings = {"evaluate": lambda idata: metrics_on(idata, fed, test), "num_rounds": 3}
    whole = quiet(pf.infer.FedSEP(), fed, **settings)
    quiet(pf.infer.FedSEP(), fed, **settings, checkpoint=tmp_path)
    again = quiet(pf.infer.FedSEP(), fed, **settings, checkpoint=tmp_path, resume=True)
    for name in ("rmse", "log_predictive_density"):
        np.testing.assert_array_equal(whole.federation[name].values, again.federation[name].values)
        assert np.isfinite(float(whole.federation[name][-1]))


@pytest.mark.parametrize(
    ("evaluate", "message"),
    [
        (lambda idata: 0.5, "numbers by name"),
        (lambda idata: {"accuracy": "high"}, "numbers by name"),
        (lambda idata: {"change": 1.0}, "named .'change'., which the run has itself"),
    ],
)
def test_what_is_no_figure_is_refused(evaluate, message):
    with pytest.raises(pf.errors.SettingError, match=message):
        quiet(pf.FedEP(), unequal_lines(), evaluate=evaluate)


def test_a_period_below_one_round_is_refused():
    with pytest.raises(pf.errors.SettingError, match="evaluate_every must be at least 1, received 0"):
        quiet(pf.FedEP(), unequal_lines(), evaluate=mean_of, evaluate_every=0)
