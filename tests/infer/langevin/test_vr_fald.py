"""VR-FALD* on clients that differ: the mean, and the stationary variance of its own linear recursion.

Clients with effects of their own, so that no client's score is zero at the posterior's mode: without the sum of all
scores each client's steps lead to a place of its own.
"""

import numpy as np
import pytest
import torch
from conjugate import NOISE_SD, PRIOR_SD, model
from scipy.linalg import solve_discrete_lyapunov
from short_runs import quiet

import pyro_fed as pf

CLIENTS, ROWS, DIM, T = 5, 40, 3, 5


def federation():
    """With each client's precision (K, D, D), and the posterior's mean and precision."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(CLIENTS * ROWS, DIM, generator=generator, dtype=torch.float64)
    own = 3 * torch.randn(CLIENTS, DIM, generator=generator, dtype=torch.float64).repeat_interleave(ROWS, 0)
    y = (x * own).sum(1) + torch.randn(len(x), generator=generator, dtype=torch.float64)
    where = [torch.arange(k * ROWS, (k + 1) * ROWS) for k in range(CLIENTS)]
    fed = pf.Federation(model, (x, y), plate="data", partition=pf.partition.Explicit(where))
    each = torch.stack([x[rows].T @ x[rows] for rows in where]).numpy() / NOISE_SD**2
    precision = each.sum(0) + np.eye(DIM) / PRIOR_SD**2
    return fed, each, np.linalg.solve(precision, (x.T @ y).numpy() / NOISE_SD**2), precision


def stationary(each, h, tau):
    """The covariance of θ: T steps of Eq. (1) and (2) of the module are linear in θ, Y and the noise."""
    prior, eye = np.eye(DIM) / PRIOR_SD**2, np.eye(DIM)
    onward, of_reference, noise = np.zeros((DIM, DIM)), np.zeros((DIM, DIM)), np.zeros((DIM, DIM))
    powers = []
    for own in each:
        step = eye - h / 2 * (prior + CLIENTS * own)
        powers.append([np.linalg.matrix_power(step, j) for j in range(T + 1)])
        onward += powers[-1][T] / CLIENTS
        of_reference += sum(powers[-1][:T]) @ (h / 2 * (CLIENTS * own - each.sum(0))) / CLIENTS
        noise += sum(h * (1 - tau) * power @ power.T for power in powers[-1][:T]) / CLIENTS
    for j in range(T):
        mean = sum(one[j] for one in powers) / CLIENTS
        noise += h * tau * mean @ mean.T
    whole = np.block([[onward, of_reference], [eye, np.zeros((DIM, DIM))]])
    return solve_discrete_lyapunov(whole, np.block([[noise, 0 * eye], [0 * eye, 0 * eye]]))[:DIM, :DIM]


def run(kind, h, **settings):
    """Draws of 400 chains, of the 20 rounds after the first 20."""
    step = pf.infer.step.Fixed(size=h, precondition=False, midpoint=False)
    many = {"num_chains": 400, "local_steps": T, "thin": T, "burn_in": 20 * T, "target_ess": None, "batch_size": None}
    idata = quiet(kind(**many, **settings, step=step), federation()[0], num_rounds=40, num_draws=400 * 20)
    return idata.posterior["w"].values.reshape(-1, DIM)


@pytest.mark.parametrize("tau", [1.0, 0.2])
def test_its_mean_is_exact_and_its_variance_that_of_its_recursion(tau):
    """Draws with a memory of some two rounds: an SD within 1.2 %, a mean within 0.017 SD; five of these."""
    _, each, mean, precision = federation()
    h = 0.3 / np.linalg.eigvalsh(precision).max()
    expected = np.sqrt(np.diag(stationary(each, h, tau)))
    draws = run(pf.infer.VRFALD, h, shared_noise=tau)
    assert (np.abs(draws.mean(0) - mean) < 0.085 * expected).all()
    np.testing.assert_allclose(draws.std(0) / expected, 1.0, atol=0.06)


@pytest.mark.parametrize("tau", [1.0, 0.2])
def test_its_variance_is_the_posteriors_up_to_the_step(tau):
    """In closed form: the error is as long as h, from Euler's steps and from a reference that is a round old."""
    _, each, _, precision = federation()
    exact = np.sqrt(np.diag(np.linalg.inv(precision)))
    for share in (0.3, 0.03, 0.003):
        h = share / np.linalg.eigvalsh(precision).max()
        error = np.sqrt(np.diag(stationary(each, h, tau))) / exact - 1
        assert (np.abs(error) < 0.6 * share).all(), error


def test_without_the_sum_of_scores_the_mean_is_another():
    """The same visits by FALD without conducive gradients: what the correction is there for."""
    _, _, mean, precision = federation()
    plain = {"surrogates": None, "conducive": None, "control_variate": False}
    draws = run(pf.infer.FALD, 0.3 / np.linalg.eigvalsh(precision).max(), **plain)
    assert (np.abs(draws.mean(0) - mean) / np.sqrt(np.diag(np.linalg.inv(precision)))).max() > 0.5


def test_what_it_does_not_take_is_said():
    with pytest.raises(pf.errors.SettingError, match="shared_noise"):
        pf.infer.VRFALD(shared_noise=1.5)
    with pytest.raises(pf.errors.SettingError, match="replaces it"):
        pf.infer.VRFALD(conducive=None)
    with pytest.raises(pf.errors.SettingError, match="thin must be a multiple"):
        pf.infer.VRFALD(local_steps=4)


def test_a_schedule_of_some_clients_is_refused():
    """The sum of their scores stood for that of all: SDs were up to nine times too large, and R-hat 1.07."""
    with pytest.raises(pf.errors.SettingError, match=r"sums the scores of all 5 clients .* the schedule named 12"):
        quiet(pf.infer.VRFALD(), federation()[0], num_rounds=2, schedule=pf.schedule.UniformRandom(3))
