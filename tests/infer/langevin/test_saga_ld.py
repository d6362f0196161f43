"""SAGA-LD: its recursion written out, its estimator's variance, and the posterior it ends at."""

import warnings

import numpy as np
import pytest
from conjugate import NOISE_SD, PRIOR_SD, data, exact, model

import pyro_fed as pf
from pyro_fed.conventions import seeding
from pyro_fed.errors import SettingError
from pyro_fed.policy import sampling as policy

QUIET = {"progress": False, "log_likelihood": False, "audit": False, "seed": 3}
ROWS, STEPS, ROUNDS, H = 60, 30, 3, 1e-4
STEP = pf.infer.step.Fixed(size=H, precondition=False, midpoint=False)
PLAIN = {"surrogates": None, "step": STEP, "target_ess": None, "num_chains": 1}


def pooled():
    return pf.Federation(model, data(), plate="data", num_clients=1)


def run(algorithm, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a short chain
        return pf.run(algorithm, pooled(), **{**QUIET, **options})


def by_hand(algorithm):
    """Algorithm 1 in NumPy on the run's own randomness: positions after every step."""
    x, y = (part.numpy() for part in data())
    problem = pooled().problem
    start = algorithm.init(problem, 1, seeding.torch_generator(3, seeding.SERVER, 0), None)[0]["position"][0].numpy()

    def row_scores(theta):
        return x * ((y - x @ theta) / NOISE_SD**2)[:, None]

    theta, table, path = start.copy(), row_scores(start), []
    for number in range(ROUNDS):
        noise = algorithm.draw_noise(problem, ROWS, seeding.torch_generator(3, seeding.CLIENT, number, 0, 0))
        for normal, rows in zip(noise["normal"].numpy(), noise["position"].numpy(), strict=True):
            fresh = row_scores(theta)[rows]
            score = -theta / PRIOR_SD**2 + ROWS / len(rows) * (fresh - table[rows]).sum(0) + table.sum(0)
            theta = theta + H / 2 * score + H**0.5 * normal
            table[rows] = fresh
            path.append(theta)
    return np.array(path)


def test_it_is_algorithm_1():
    algorithm = pf.infer.SAGALD(**PLAIN, batch_size=7, local_steps=STEPS, burn_in=0, thin=1)
    found = run(algorithm, num_rounds=ROUNDS, num_draws=ROUNDS * STEPS).posterior["w"].values[0]
    np.testing.assert_allclose(found, by_hand(algorithm), rtol=1e-9, atol=1e-9)


def test_a_minibatch_of_all_rows_is_sgld():
    same = {**PLAIN, "batch_size": ROWS, "local_steps": STEPS, "burn_in": 0, "thin": 1}
    kinds = pf.infer.SAGALD(**same), pf.infer.SGLD(**same, control_variate=False)
    draws = [run(kind, num_rounds=2, num_draws=60).posterior["w"].values for kind in kinds]
    np.testing.assert_allclose(*draws, rtol=1e-10)


def test_by_default_it_ends_at_the_posterior():
    """The run stops at 400 effective draws: a mean has an error of 0.05 SD, an SD 3.5 %; bounds of five of them."""
    mean, covariance = exact(*data())
    draws = (
        run(pf.infer.SAGALD(batch_size=10, target_ess=400), num_draws=5000, compile="trace")
        .posterior["w"]
        .values.reshape(-1, len(mean))
    )
    sd = covariance.diagonal().sqrt().numpy()
    assert np.abs((draws.mean(0) - mean.numpy()) / sd).max() < 0.25
    np.testing.assert_allclose(draws.std(0), sd, rtol=0.18)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"control_variate": True}, "has no setting 'control_variate': the gradients that are kept .* SGLD takes it"),
        ({"minibatches": "reshuffled"}, "has no setting 'minibatches': no row may stand twice"),
        ({"batch_size": None}, "nothing to correct"),
    ],
)
def test_settings_that_have_no_effect_are_refused(settings, match):
    with pytest.raises(SettingError, match=match):
        pf.infer.SAGALD(**settings)


def test_tables_that_are_too_large_are_refused_before_the_run(monkeypatch):
    monkeypatch.setattr(policy, "MAX_POINTWISE", 4 * ROWS * 3 - 1)
    with pytest.raises(SettingError, match="SAGALD: gradients of 60 rows in 3 dimensions for 4 chains are 720 numbers"):
        run(pf.infer.SAGALD(), num_rounds=1)
    run(pf.infer.SAGALD(num_chains=3), num_rounds=1)
