"""FedLap, Bayesian ADMM, FedProx and FedDyn end where mathematics says, on conjugate Gaussian models."""

import pytest
import torch
from algorithms import line_data, unequal_lines

import pyro_fed as pf
from pyro_fed.errors import SettingError

CLIENT_ROWS = (slice(0, 3), slice(3, 10), slice(10, 23))


def exact():
    """Mean and precision of the posterior."""
    x, y = line_data()
    precision = torch.eye(2, dtype=torch.float64) + x.T @ x
    return torch.linalg.solve(precision, x.T @ y), precision


def final(algorithm, rounds):
    """The server's last mean and precision, from draws that are many where they are random."""
    options = {"num_rounds": rounds, "num_draws": 100_000, "log_likelihood": False}
    idata = pf.run(algorithm, unequal_lines(), compile="off", audit=False, progress=False, **options)
    return torch.tensor(idata["posterior"]["w"].values).reshape(-1, 2)


@pytest.mark.parametrize(
    "algorithm", [pf.FedLapCov(), pf.BayesADMM(), pf.BayesADMM(rho=0.3, start="prior"), pf.BayesADMM(rho=2.0)]
)
def test_gaussian_duals_end_at_the_exact_posterior(algorithm):
    mean, precision = exact()
    draws = final(algorithm, 60)
    sd = torch.linalg.inv(precision).diagonal().sqrt()
    # 100,000 draws: five standard errors of means and of SDs.
    assert ((draws.mean(0) - mean) / sd).abs().max() < 5 / 100_000**0.5
    assert (draws.std(0) / sd - 1).abs().max() < 5 / 200_000**0.5


@pytest.mark.parametrize("algorithm", [pf.FedLap(), pf.FedDyn(proximal=1.0, step_size=0.05)], ids=["FedLap", "FedDyn"])
def test_points_end_at_the_exact_mode(algorithm):
    torch.testing.assert_close(final(algorithm, 200)[0], exact()[0], rtol=0, atol=1e-5)


def test_fedprox_ends_at_its_biased_fixed_point():
    """Of the quadratics f_k = (|y - x θ|² / 2 + N_k / N |θ|² / 2) / N_k, solved to the end in each round."""
    (x, y), proximal = line_data(), 0.5
    left, right = torch.zeros(2, 2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    eye = torch.eye(2, dtype=torch.float64)
    for rows in CLIENT_ROWS:
        count = rows.stop - rows.start
        curvature = x[rows].T @ x[rows] / count + eye / 23
        pull = count / 23 * torch.linalg.inv(curvature + proximal * eye)
        left, right = left + pull @ curvature, right + pull @ (x[rows].T @ y[rows]) / count
    biased = torch.linalg.solve(left, right)
    found = final(pf.FedProx(proximal=proximal, step_size=0.1, chain_steps=200), 60)[0]
    torch.testing.assert_close(found, biased, rtol=0, atol=1e-6)
    assert (biased - exact()[0]).norm() > 1e-3


def test_settings_without_effect_are_refused():
    with pytest.raises(SettingError, match="one Newton step is FedEP's"):
        pf.BayesADMM(client=pf.tilted.Newton(steps=1))
    with pytest.raises(SettingError, match="damping"):
        pf.BayesADMM(damping=0.5)
    with pytest.raises(SettingError, match="damping"):
        pf.FedDyn(damping=0.5)
    with pytest.raises(SettingError, match="proximal"):
        pf.FedProx(proximal=0.0)
