"""Langevin samplers on models with latents inside the plate: the conjugate hierarchy, by every sampler."""

from dataclasses import replace

import hierarchies
import numpy as np
import pytest
import torch

import pyro_fed as pf

QUIET = {"progress": False, "compile": "trace", "log_likelihood": False}
SIZES = {"mu": 1, "effect": hierarchies.J}
MEAN, COVARIANCE = hierarchies.means_posterior(hierarchies.SD, hierarchies.Y)
MANY = {"num_chains": 32, "target_ess": 1000}
#: DSGLD has no conducive gradient: its visits must be short.
SAMPLERS = pytest.mark.parametrize(
    "algorithm",
    [
        pf.SGLD(**MANY),
        pf.DSGLD(**MANY, local_steps=2, visit_time=0.1, thin=2, burn_in=200),
        pf.FSGLD(**MANY),
        pf.FALD(**MANY),
    ],
    ids=lambda algorithm: type(algorithm).__name__,
)


def federation():
    """Three clients of three groups; the integrals are exact with three nodes."""
    return hierarchies.CASES["means"].federation(3, order=3)


@pytest.mark.filterwarnings("ignore:only")  # effective draws of each chain
@SAMPLERS
def test_global_and_local_posteriors_of_a_conjugate_hierarchy(algorithm):
    """1,000 effective draws of mu: a mean's standard error is 0.032 SD and an SD's 2.2 %, ten of each.

    Bounds of five standard errors and, for SDs, 1 % for the errors of the clients' visits: below 1e-4 before fixing the
    seed. The effects, given mu, are exact and independent.
    """
    idata = pf.run(algorithm, federation(), num_draws=500, **QUIET)
    parts = [torch.as_tensor(idata["posterior"][name].values) for name in SIZES]
    draws = torch.cat([part.reshape(-1, size) for part, size in zip(parts, SIZES.values(), strict=True)], 1)
    sd = COVARIANCE.diagonal().sqrt()
    assert float(((draws.mean(0) - MEAN) / sd).abs().max()) < 0.16
    assert float((draws.std(0) / sd - 1).abs().max()) < 0.12
    assert idata.attrs["converged"] == "True"


@pytest.mark.filterwarnings("ignore:only", "ignore:the 2 chains disagree")
@SAMPLERS
def test_executors_agree_and_chains_carry_theta_alone(algorithm):
    """One latent of the ten is outside the plate; the effects are drawn at the end, in the original order."""
    short = replace(algorithm, num_chains=2, burn_in=0, target_ess=None, thin=20)
    runs = [pf.run(short, federation(), num_rounds=12, executor=name, **QUIET) for name in ("vectorised", "sequential")]
    for name in SIZES:
        first, second = (run["posterior"][name].values for run in runs)
        np.testing.assert_allclose(first, second, rtol=1e-8, atol=1e-10)
    assert runs[0]["posterior"]["effect"].dims == ("chain", "draw", "group")
