"""The models of the page on survival: federated posteriors are the pooled ones, whose densities are written out."""

import re
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pyro
import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import multivariate_t

import pyro_fed as pf
from pyro_fed.audit.client_sites import client_log_likelihoods

PAGE = (Path(__file__).parents[2] / "docs" / "survival.md").read_text()
STARTS = np.array([0.0, 0.5, 1.0])
#: Patients of each hospital.
SIZES = {"albany": 70, "boston": 45, "chicago": 25}


def frame(seed, size):
    """Two causes of death; times in tenths of a year, many of which are tied."""
    rng = np.random.default_rng(seed)
    age, sex = rng.normal(0.2 * seed, 1.0, size), (rng.random(size) < 0.4).astype(float)
    deaths = rng.exponential(1 / np.exp([0.4 * age - 0.5 * sex - 0.3, 0.6 * age - 1.0]))
    end = rng.uniform(0.5, 3.5, size)
    times = np.vstack([end, deaths])
    status = times.argmin(0)
    return pd.DataFrame({"time": np.ceil(10 * times.min(0)) / 10, "status": status, "age": age, "sex": sex})


FRAMES = {name: frame(seed, size) for seed, (name, size) in enumerate(SIZES.items())}
ROWS = pd.concat(FRAMES.values(), ignore_index=True)


def spells_of(frame, seed):
    """Illness and death of as many patients: their times at risk of each transition."""
    rng, found = np.random.default_rng(seed + 10), []
    for age, sex, end in frame[["age", "sex", "time"]].to_numpy():
        ill, known = rng.exponential(1.0), rng.integers(0, 2)
        first = min(ill, end)
        rows = [(0, 0.0, first, float(ill < end)), (1, 0.0, first, float(ill >= end and known))]
        rows += [(2, ill, end, float(known))] if ill < end else []
        found += [(age, sex, *row) for row in rows]
    return pd.DataFrame(found, columns=["age", "sex", "transition", "start", "stop", "event"]).astype(
        {"transition": int}
    )


SPELLS = {name: spells_of(own, seed) for seed, (name, own) in enumerate(FRAMES.items())}


@pytest.fixture(scope="module")
def page():
    """The names of the page's blocks, once they have run."""
    names = {"frames": FRAMES, "spells": SPELLS}

    def run(algorithm, federation):
        return real(algorithm, federation, num_draws=4000, **QUIET)

    real, pf.run = pf.run, run
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE):
                exec(compile(block, "docs/survival.md", "exec"), names)
    finally:
        pf.run = real
    return names


QUIET = {"progress": False, "audit": False, "compile": "trace", "log_likelihood": False}


def x_of(rows):
    return rows[["age", "sex"]].to_numpy()


def cox(points):
    """The stratified partial likelihood, Breslow's for ties, with N(0, 2²): risk set by risk set."""
    total = -(points**2).sum(1) / 8
    for own in FRAMES.values():
        line, time = points @ x_of(own).T, own["time"].to_numpy()
        for i in np.flatnonzero(own["status"] > 0):
            total = total + line[:, i] - np.log(np.exp(line[:, time >= time[i]]).sum(1))
    return total


def piecewise(log_rate, beta, died):
    """Hazards (S, periods) of one cause, by integrals period by period."""
    time, line, total = ROWS["time"].to_numpy(), beta @ x_of(ROWS).T, -(log_rate**2).sum(1) / 18 - (beta**2).sum(1) / 8
    for j, start in enumerate(STARTS):
        end = STARTS[j + 1] if j + 1 < len(STARTS) else np.inf
        spent = np.clip(np.minimum(time, end) - start, 0, None)
        inside = (time > start) & (time <= end) & died
        rate = log_rate[:, j : j + 1] + line
        total = total + (rate * inside).sum(1) - (np.exp(rate) * spent).sum(1)
    return total


def one_cause(points):
    return piecewise(points[:, :3], points[:, 3:], (ROWS["status"] > 0).to_numpy())


def two_causes(points):
    return sum(
        piecewise(points[:, 3 * c : 3 * c + 3], points[:, 6 + 2 * c : 8 + 2 * c], (ROWS["status"] == c + 1).to_numpy())
        for c in (0, 1)
    )


def moments(density, dim):
    """Means and SDs (D,) by importance sampling from a t distribution at the mode."""
    best = minimize(lambda point: -density(point[None])[0], np.zeros(dim), method="BFGS", options={"gtol": 1e-4})
    proposal = multivariate_t(best.x, 1.2 * best.hess_inv, df=10, seed=1)
    draws = proposal.rvs(20_000)
    logs = np.concatenate([density(part) for part in np.split(draws, 20)]) - proposal.logpdf(draws)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    assert 1 / np.square(weights).sum() > 3_000
    mean = weights @ draws
    return mean, np.sqrt(weights @ np.square(draws - mean))


@pytest.mark.parametrize(
    ("result", "density", "sites", "dim"),
    [
        ("idata_cox", cox, ("beta",), 2),
        ("idata", one_cause, ("log_rate", "beta"), 5),
        ("idata_causes", two_causes, ("log_rate", "beta"), 10),
    ],
)
def test_the_federated_posterior_is_the_pooled_one(page, result, density, sites, dim):
    """Means within 0.1 SDs and SDs within 10 %; 4,000 draws move a mean by 0.016 SDs and an SD by 1.1 %."""
    posterior = page[result].posterior
    draws = np.concatenate([posterior[site].values.reshape(4000, -1) for site in sites], 1)
    mean, sd = moments(density, dim)
    np.testing.assert_allclose((draws.mean(0) - mean) / sd, 0, atol=0.1)
    np.testing.assert_allclose(draws.std(0) / sd, 1, atol=0.1)


def test_incidence_is_the_integral_of_the_hazard(page):
    """∫ h_1(s) S(s) ds by 30,000 steps, at a few draws."""
    found, posterior = page["found"].posterior["estimand"], page["idata_causes"].posterior
    steps = np.linspace(0, 1.5, 30_001)
    middle = (steps[1:] + steps[:-1]) / 2
    place = np.searchsorted(STARTS, middle) - 1
    for draw in (0, 17):
        rate, beta = (posterior[site].values[0, draw] for site in ("log_rate", "beta"))
        own = FRAMES["chicago"]
        hazard = np.exp(rate[:, place])[:, None] * np.exp(x_of(own) @ beta.T).T[..., None]  # (causes, n, steps)
        spent = np.cumsum(hazard.sum(0) * 5e-5, 1) - hazard.sum(0) * 2.5e-5
        expected = (hazard[0] * np.exp(-spent) * 5e-5).sum(1).mean()
        assert float(found.sel(client="chicago")[0, draw]) == pytest.approx(expected, rel=1e-5)


def test_ties_share_their_risk_set(page):
    """The density that the page's model has is the one written out here, hospital by hospital."""
    beta = torch.tensor([0.3, -0.4]).double()
    total = 0.0
    for own in FRAMES.values():
        rows = page["sorted_rows"](own, 80)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trace = pyro.poutine.trace(pyro.condition(page["cox"], {"beta": beta})).get_trace(*rows)
        total += float(trace.nodes["order"]["fn"].log_factor.sum())
    assert total - (beta**2).sum().item() / 8 == pytest.approx(cox(beta.numpy()[None])[0], abs=1e-9)


def hazard_integral(log_rate, start, stop):
    """∫ exp(log_rate(s)) ds by 20,000 steps of equal length."""
    steps = np.linspace(start, stop, 20_001)
    middle = (steps[1:] + steps[:-1]) / 2
    return np.exp(log_rate[np.searchsorted(STARTS, middle) - 1]).mean() * (stop - start)


def cure_density(point, own):
    """Patient by patient: a death, or the two ways to be alive."""
    cured, gamma, log_rate, beta = point[0], point[1:3], point[3:6], point[6:]
    total = 0.0
    for x, time, status in zip(x_of(own), own["time"], own["status"], strict=True):
        share = 1 / (1 + np.exp(-cured - x @ gamma))
        alive = np.exp(-np.exp(x @ beta) * hazard_integral(log_rate, 0.0, time))
        hazard = np.exp(log_rate[np.searchsorted(STARTS, time) - 1] + x @ beta)
        total += np.log((1 - share) * hazard * alive if status > 0 else share + (1 - share) * alive)
    return total


def state_density(point, own):
    """Time at risk by time at risk."""
    log_rate, beta = point[:9].reshape(3, 3), point[9:].reshape(3, 2)
    total = 0.0
    for x, r, start, stop, event in zip(
        x_of(own), own["transition"], own["start"], own["stop"], own["event"], strict=True
    ):
        total -= np.exp(x @ beta[r]) * hazard_integral(log_rate[r], start, stop)
        total += event * (log_rate[r, np.searchsorted(STARTS, stop) - 1] + x @ beta[r])
    return total


@pytest.mark.parametrize(
    ("made", "density", "tables"), [("cures", cure_density, FRAMES), ("states", state_density, SPELLS)]
)
def test_each_hospitals_likelihood_is_the_one_written_out(page, made, density, tables):
    """At two points; steps of the integral that straddle a change of the hazard cost 1e-4 of it."""
    federation = page[made]
    points = np.random.default_rng(5).normal(0, 0.5, (2, federation.problem.dim))
    found = client_log_likelihoods(federation, torch.as_tensor(points)).numpy()
    expected = [[density(point, own) for own in tables.values()] for point in points]
    np.testing.assert_allclose(found, expected, atol=0.02)
    assert np.ptp(found, 0).min() > 0.5  # points that differ
