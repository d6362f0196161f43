"""A fixed sample of the trust benchmark: who is wrong says so, and who is right is silent. And its own arithmetic."""

import numpy as np
import pytest
import torch
import xarray as xr
from scipy import special

import pyro_fed as pf
from benchmarks.trust.judge import judged
from benchmarks.trust.posterior import Grid, LongRun, coordinates, log_density
from benchmarks.trust.posteriors import POSTERIORS
from benchmarks.trust.references import by_grid, by_quadratic, read
from benchmarks.trust.trials import trials
from pyro_fed.results.to_arviz import make_inference_data

ATTRS = {"doubts": "", "converged": 1}

SAMPLE = [
    ("linear_sorted", "FedEP"),
    ("collinear", "FedEP"),
    ("logistic_labels", "FedEP"),
    ("half_cauchy_n4", "FedEP"),
    ("squared", "FedEP"),
    ("logistic_covariates", "FedLaplace"),
    ("logistic_separated", "FedLaplace"),
    ("linear_disagreeing", "FedAIS"),
    ("half_cauchy_n4", "FedAIS"),
    ("linear_sorted", "P2PVI"),
    ("collinear", "FedEP, diagonal"),
    ("linear_sorted", "PVI, 2 rounds from the prior"),
    ("walk", "FedEP"),
    ("survival", "FedAIS"),
    ("centred_inside", "FedEP"),
    ("prior_of_data", "FedAIS"),
    ("trend_inside", "FedLaplace"),
]


@pytest.mark.parametrize(("posterior", "label"), SAMPLE)
@pytest.mark.filterwarnings("ignore::UserWarning")  # `judged` records them
def test_who_is_wrong_says_so_and_who_is_right_is_silent(posterior, label):
    (trial,) = [trial for trial in trials() if (trial.posterior, trial.label) == (posterior, label)]
    verdict = judged(trial.target, read()[posterior], trial.run)
    assert not verdict.said.startswith("CRASH"), verdict.said
    assert bool(verdict.said) == (verdict.wrong is not False), verdict


def test_references_are_of_the_present_data():
    """Long runs may be missing: their posteriors are not judged until they have been made."""
    kept = read()
    long = {name for name, posterior in POSTERIORS.items() if isinstance(posterior.reference, LongRun)}
    assert set(POSTERIORS) - long <= set(kept) <= set(POSTERIORS)
    assert {name: part["data"] for name, part in kept.items()} == {
        name: POSTERIORS[name].fingerprint() for name in kept
    }


def test_a_grid_finds_what_is_known_in_closed_form():
    posterior = POSTERIORS["sum_only"]
    (grid, exact) = (how(posterior, *more) for how, more in ((by_grid, (Grid(default=(-60, 60)),)), (by_quadratic, ())))
    for name in ("a", "b"):
        np.testing.assert_allclose(grid[name]["mean"], exact[name]["mean"], atol=1e-6)
        np.testing.assert_allclose(grid[name]["sd"], exact[name]["sd"], rtol=1e-6)


@pytest.mark.parametrize("name", ["linear_scale", "schools_global", "lkj", "horseshoe", "student_outliers"])
def test_densities_through_pyro_alone_are_those_of_the_federation(name):
    posterior = POSTERIORS[name]
    problem = posterior.federation().problem
    places = coordinates(posterior.model, posterior.data())
    assert {key: place.start for key, place in places.items()} == {key: s.start for key, s in problem.sites.items()}
    z = 0.3 * torch.randn(5, problem.dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    density = log_density(posterior.model, posterior.data())
    theirs = torch.stack([density(point) for point in z])
    torch.testing.assert_close(problem.log_prior(z) + problem.log_lik(z), theirs, rtol=1e-9, atol=1e-8)


def test_the_judge_measures_means_and_spreads():
    """Draws of which mean error and SD ratio are known."""
    posterior = POSTERIORS["offset_float32"]
    kept = {"sites": {"mu": {"mean": [2.0], "sd": [0.5]}}}
    draws = 2.0 + 0.5 * special.ndtri((np.arange(4000) + 0.5) / 4000)

    def verdict(values):
        posteriors = xr.Dataset({"mu": (("chain", "draw"), values[None])})
        return judged(posterior, kept, lambda: make_inference_data({"posterior": posteriors}, ATTRS))

    right, off, narrow = verdict(draws), verdict(draws + 0.2), verdict(2.0 + 0.5 * (draws - 2.0))
    assert not right.wrong and right.mean_error < 1e-6 and abs(right.sd_low - 1) < 1e-2
    assert off.wrong and abs(off.mean_error - 0.4) < 1e-3
    assert narrow.wrong and abs(narrow.sd_low - 0.5) < 1e-2


def test_what_is_raised_is_said_and_a_crash_is_told_from_a_refusal():
    def raises(error):
        def run():
            raise error

        return judged(POSTERIORS["linear"], read()["linear"], run).said

    assert raises(pf.errors.ModelError("no")) == "ModelError: no"
    assert raises(IndexError("no")) == "CRASH IndexError: no"
