"""A latent of every row inside a group's effect, as the page on hierarchical models has it, against grids."""

import re
from pathlib import Path

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.audit.client_sites import client_log_likelihoods
from pyro_fed.deployment.remote.remote_federation import Description

PAGE = (Path(__file__).parents[2] / "docs" / "hierarchical.md").read_text()
RNG = np.random.default_rng(2)


def rows(groups, size, measured):
    """severity, dose with missing values, ward of each patient, number of wards, deaths."""
    n = groups * size
    severity, dose = RNG.normal(size=n), RNG.normal(size=n)
    dose[RNG.random(n) > measured] = np.nan
    return severity, dose, np.repeat(np.arange(groups), size), groups, (RNG.random(n) < 0.5).astype(float)


#: South has never measured the dose.
CLIENTS = {"north": rows(3, 4, 0.6), "south": rows(2, 5, 0.0)}


@pytest.fixture(scope="module")
def model():
    block = next(
        one for one in re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE) if "imputing" in one
    )
    names = {"pyro": pyro, "dist": dist, "torch": torch, "pf": pf}
    exec(compile(block.split("\n\nimputed =")[0], "docs/hierarchical.md", "exec"), names)
    return names["imputing"]


@pytest.fixture(scope="module")
def federation(model):
    return pf.Federation.from_clients(model, CLIENTS, plate="ward", rows={"patient": "ward_idx"})


def on_grids(own, mu, tau, slope, effect, sd):
    """log ∫ N(a; mu, tau) Π_i ∫ N(dose_i; ...) p(died_i | a, dose_i) by sums over fine grids, ward by ward."""
    severity, dose, ward, groups, died = own
    grid = np.linspace(-9, 9, 1801)
    normal = np.exp(-(grid**2) / 2) / np.exp(-(grid**2) / 2).sum()
    a = mu + tau * grid
    total = 0.0
    for group in range(groups):
        log_terms = np.zeros_like(grid)
        for i in np.flatnonzero(ward == group):
            seen = not np.isnan(dose[i])
            x = np.array([dose[i]]) if seen else slope * severity[i] + sd * grid
            died_at = 1 / (1 + np.exp(-(2 * died[i] - 1) * (a[:, None] + effect * x)))
            log_terms += np.log(died_at @ (np.ones(1) if seen else normal))
            if seen:
                away = (dose[i] - slope * severity[i]) / sd
                log_terms += -(away**2) / 2 - np.log(sd) - np.log(2 * np.pi) / 2
        total += np.log(np.exp(log_terms) @ normal)
    return total


#: mu, tau, slope, effect, sd
POINTS = [(0.3, 0.8, 0.5, 1.0, 0.9), (-0.5, 0.3, -0.4, -0.7, 1.4)]


def test_each_hospitals_likelihood_is_the_double_integral(federation):
    """Nine nodes of the covariate, and the federation's own of the effects, leave an error of at most 1e-4."""
    values = [dict(zip(("mu", "tau", "slope", "effect", "sd"), point, strict=True)) for point in POINTS]
    order = list(federation.problem.sites)
    points = [[np.log(one[name]) if name in ("tau", "sd") else one[name] for name in order] for one in values]
    found = client_log_likelihoods(federation, torch.tensor(points, dtype=torch.float64)).numpy()
    expected = [[on_grids(own, **one) for own in CLIENTS.values()] for one in values]
    np.testing.assert_allclose(found, expected, atol=1e-4)
    no_effect = [[on_grids(own, **{**one, "effect": 0.0}) for own in CLIENTS.values()] for one in values]
    assert np.abs(found - no_effect).min() > 0.01  # what is imputed counts, at south too


def test_a_decorated_model_keeps_the_names_of_its_arguments(federation):
    """Of `config_enumerate`, with which `rows` names them, and a deployment's server makes up rows."""
    description = Description.of("north", pf.Federation.from_clients(
        federation.problem.model, {"north": CLIENTS["north"]}, plate="ward", rows={"patient": "ward_idx"}
    ))  # fmt: skip
    assert description.order == ["severity", "dose", "ward_idx", "wards", "died"]
    assert set(description.nested["patient"]) == {"severity", "dose", "ward_idx", "died"}
