"""FedLap, Bayesian ADMM, FedProx and FedDyn end where mathematics says, on conjugate Gaussian models."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from algorithms import line, line_data, unequal_lines

import pyro_fed as pf
from pyro_fed.analysis.bench.cases.case import Split
from pyro_fed.analysis.bench.cases.library import all_cases
from pyro_fed.errors import SettingError
from pyro_fed.policy import resolve

#: Of quadratics one Newton step is the end.
ONE = pf.infer.tilted.Laplace(steps=1, fractions=(1.0,))
CLIENT_ROWS = (slice(0, 3), slice(3, 10), slice(10, 23))


def exact():
    """Mean and precision of the posterior."""
    x, y = line_data()
    precision = torch.eye(2, dtype=torch.float64) + x.T @ x
    return torch.linalg.solve(precision, x.T @ y), precision


def ended(algorithm, rounds=None, federation=None):
    """The result of a run with many draws, where draws are random."""
    options = {"num_rounds": rounds, "num_draws": 100_000, "log_likelihood": False}
    federation = federation or unequal_lines()
    return pf.run(algorithm, federation, compile="trace", audit=False, progress=False, **options)


def draws_of(idata):
    return torch.tensor(idata["posterior"]["w"].values).reshape(-1, 2)


def assert_exact(draws):
    """Five standard errors of means and of SDs."""
    mean, precision = exact()
    sd = torch.linalg.inv(precision).diagonal().sqrt()
    assert ((draws.mean(0) - mean) / sd).abs().max() < 5 / 100_000**0.5
    assert (draws.std(0) / sd - 1).abs().max() < 5 / 200_000**0.5


@pytest.mark.parametrize(
    "algorithm",
    [
        pf.infer.FedLapCov(client=ONE),
        pf.infer.BayesADMM(),
        pf.infer.BayesADMM(rho=0.3, start="prior"),
        pf.infer.BayesADMM(rho=2.0),
    ],
)
def test_gaussian_duals_end_at_the_exact_posterior(algorithm):
    assert_exact(draws_of(ended(algorithm, 60)))


@pytest.mark.parametrize(
    "algorithm",
    [
        pf.infer.FedLapCov(client=ONE, tolerance=1e-3),
        pf.infer.BayesADMM(start="prior", tolerance=1e-3),
        pf.FedEP(client=ONE, start="prior", tolerance=1e-3),
    ],
)
def test_they_do_not_stop_early_among_many_clients(algorithm):
    """Of 8 clients a round takes an eighth of what is left: a small move is no small distance."""
    idata = ended(algorithm, 300, pf.Federation(line, line_data(), plate="data", num_clients=8))
    assert idata["federation"].sizes["round"] < 150  # by its own criterion
    assert_exact(draws_of(idata))


def test_a_change_of_the_prior_s_site_that_is_no_number_is_not_taken_by_admm():
    """As a client's: t_0 stays, the clients' changes are taken, and the round counts as held back."""
    fed = unequal_lines()
    algorithm = resolve(pf.infer.BayesADMM(start="prior"), fed.problem.traits).algorithm
    shared, _ = algorithm.init(fed.problem, 3, torch.Generator().manual_seed(0), None)
    changes = {"precision": torch.eye(2).double().expand(3, 2, 2), "eta": torch.ones(3, 2).double()}
    broken = shared | {
        name: torch.full_like(shared[name], torch.nan) for name in ("prior_delta_eta", "prior_delta_precision")
    }
    messages = {**changes, "usable": torch.ones(3, dtype=torch.bool)}
    after, plain = (algorithm.combine(state, messages, torch.ones(3)) for state in (broken, shared))
    assert after.keys() == plain.keys() and float(after["cut"]) == 1 and float(plain["cut"]) == 0
    for name in after.keys() - {"cut"}:
        torch.testing.assert_close(after[name], plain[name], rtol=0, atol=0, equal_nan=True)


def admm(rounds, damping):
    """FedLap's point (2,) and its bound on the distance of the one before, by Swaroop et al.'s steps in NumPy."""
    x, y = (part.numpy() for part in line_data())
    parts = [(x[rows], y[rows]) for rows in CLIENT_ROWS]
    point, duals, prior, bound = np.zeros(2), np.zeros((3, 2)), np.eye(2), np.inf
    for _ in range(rounds):
        modes = [
            np.linalg.solve(x.T @ x + prior, x.T @ y - dual + prior @ point)
            for (x, y), dual in zip(parts, duals, strict=True)
        ]
        away = [mode - point for mode in modes]
        bound = sum(np.sqrt(a @ (x.T @ x + prior) @ a) for (x, _), a in zip(parts, away, strict=True))
        duals = duals + damping * np.array(away) @ prior
        point = np.linalg.solve(prior, duals.sum(0))
    return point, bound


@pytest.mark.parametrize(("damping", "rounds"), [(None, 1), (None, 7), (0.6, 2), (0.6, 5)])
@pytest.mark.filterwarnings("ignore:.*not converged")
def test_fedlap_s_rounds_are_admm(damping, rounds):
    """Also where they have not converged: how slow they are is the recursion's own."""
    idata = ended(pf.infer.FedLap(client=ONE, damping=damping, tolerance=1e-12), rounds)
    point, bound = admm(rounds, damping or 1 / 3)
    np.testing.assert_allclose(draws_of(idata)[0].numpy(), point, rtol=0, atol=1e-9)
    assert float(idata["federation"]["bound"][-1]) == pytest.approx(bound, rel=1e-6)


def test_fedlap_stops_within_its_tolerance_of_the_mode():
    algorithm, (mean, precision) = pf.infer.FedLap(client=ONE, damping=0.6), exact()
    idata = ended(algorithm)
    off = draws_of(idata)[0] - mean
    assert (off @ precision @ off).sqrt() < algorithm.tolerance
    assert idata["federation"].sizes["round"] < algorithm.default_rounds(3)


def test_fedlap_says_how_far_the_mode_may_be():
    mean, precision = exact()
    with pytest.warns(UserWarning, match="posterior SDs from the mode"):
        short, longer = ended(pf.infer.FedLap(client=ONE), 40), ended(pf.infer.FedLap(client=ONE), 41)
    off = draws_of(short)[0] - mean
    bound = float(longer["federation"]["bound"][-1])  # of the point before its last round
    assert 0.01 < (off @ precision @ off).sqrt() <= bound < 1.0


def test_feddyn_ends_at_the_exact_mode():
    algorithm = pf.infer.FedDyn(proximal=1.0, step_size=0.2, momentum=0.0, chain_steps=5)
    torch.testing.assert_close(draws_of(ended(algorithm, 60))[0], exact()[0], rtol=0, atol=1e-6)


def test_fedprox_ends_at_its_biased_fixed_point():
    """Of the quadratics f_k = (|y - x θ|² / 2 + N_k / N |θ|² / 2) / N_k, solved to the end in each round."""
    (x, y), proximal = line_data(), 1.0
    left, right = torch.zeros(2, 2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    eye = torch.eye(2, dtype=torch.float64)
    for rows in CLIENT_ROWS:
        count = rows.stop - rows.start
        curvature = x[rows].T @ x[rows] / count + eye / 23
        pull = count / 23 * torch.linalg.inv(curvature + proximal * eye)
        left, right = left + pull @ curvature, right + pull @ (x[rows].T @ y[rows]) / count
    biased = torch.linalg.solve(left, right)
    algorithm = pf.infer.FedProx(proximal=proximal, step_size=0.4, momentum=0.0, chain_steps=18)
    torch.testing.assert_close(draws_of(ended(algorithm, 22))[0], biased, rtol=0, atol=1e-6)
    assert (biased - exact()[0]).norm() > 1e-2


def test_settings_without_effect_are_refused():
    with pytest.raises(SettingError, match="must take at least 2 steps, received 1"):
        pf.infer.BayesADMM(client=pf.infer.tilted.Newton(steps=1))
    with pytest.raises(SettingError, match="damping"):
        pf.infer.BayesADMM(damping=0.5)
    with pytest.raises(SettingError, match="damping"):
        pf.infer.FedDyn(damping=0.5)
    with pytest.raises(SettingError, match="proximal"):
        pf.infer.FedProx(proximal=0.0)


@pytest.mark.parametrize("steps", [2, 10])
def test_a_message_that_cannot_be_used_makes_fedlap_s_bound_unknown_and_does_not_end_the_run(steps):
    """Clients without some categories: in an early round steps end where the tilted density is no Gaussian."""
    fed = Split.parse("dirichlet:0.3/10").federation(all_cases()["ordinal_regression"], 0)
    algorithm = pf.infer.FedLap(client=pf.infer.tilted.Laplace(steps=steps))
    with pytest.warns(UserWarning, match="not converged"):
        idata = pf.run(algorithm, fed, num_rounds=5, compile="off", audit=False, progress=False, log_likelihood=False)
    bound, usable = idata["federation"]["bound"].values, idata["federation"]["usable"].values.all(1)
    assert (np.isfinite(bound) == usable).all()
    assert not usable.all() and usable[4]


def test_a_last_newton_step_that_leads_away_from_the_mode_is_not_taken():
    """A client's search cannot move from 0, where its curvature, 0.02 - 0.0183, would send the mean to 600.

    -log t'' of two degrees of freedom is 3 (2 - r²) / (2 + r²)², which is -0.0183 at a residual r of 1.45.
    """

    def heavy(y):
        w = pyro.sample("w", dist.Normal(torch.zeros((), dtype=torch.float64), 50**0.5))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.StudentT(2.0, w, 1.0), obs=y)

    fed = pf.Federation(heavy, (torch.tensor([1.45], dtype=torch.float64),), plate="data", num_clients=1)
    still = pf.infer.tilted.Laplace(steps=1, fractions=(1e-12,))
    with pytest.warns(UserWarning, match="not converged"), pytest.warns(UserWarning, match="were not used"):
        idata = ended(pf.infer.FedLap(client=still, damping=1.0), 1, fed)
    assert float(idata["posterior"]["w"].values.mean()) == 0.0
    assert idata["federation"]["usable"].values.tolist() == [[0.0]]
