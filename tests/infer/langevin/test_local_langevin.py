"""Langevin samplers on models with latents inside the plate: the conjugate hierarchy, by every sampler."""

from dataclasses import replace

import hierarchies
import numpy as np
import pytest
import torch

import pyro_fed as pf

QUIET = {"progress": False, "compile": "trace", "log_likelihood": False, "audit": False}
SIZES = {"mu": 1, "effect": hierarchies.J}
MEAN, COVARIANCE = hierarchies.means_posterior(hierarchies.SD, hierarchies.Y)
CHAINS = {"num_chains": 100, "target_ess": None}
#: DSGLD has no conducive gradient: its visits must be short. The others' surrogates are exact here: they need not be.
SAMPLERS = {
    "SGLD": (pf.infer.SGLD(**CHAINS, local_steps=10, burn_in=20), 6),
    "DSGLD": (
        pf.infer.DSGLD(**CHAINS, local_steps=2, step=pf.infer.step.ForVisits(visit_time=0.4), thin=2, burn_in=50),
        60,
    ),
    "FSGLD": (pf.FSGLD(**CHAINS, local_steps=8, step=pf.infer.step.Measured(visit_time=4.0), thin=8, burn_in=16), 12),
    "FALD": (pf.infer.FALD(**CHAINS, step=pf.infer.step.Measured(visit_time=2.5), burn_in=20), 12),
}


@pytest.fixture(scope="module")
def fed():
    """Three clients of three groups; the integrals are exact with three nodes, each at its mode."""
    return hierarchies.CASES["means"].federation(3, order=3, mode_steps=1)


@pytest.fixture(scope="module")
def exact(fed):
    """The clients' own Gaussians of mu, in closed form."""
    precision = 1 / (hierarchies.SD**2 + hierarchies.SPREAD**2)
    sums = [[part[rows].sum() for rows in fed.client_rows] for part in (precision, precision * hierarchies.Y)]
    return pf.infer.Given(*(torch.stack(each).unsqueeze(-1) for each in sums))


@pytest.mark.filterwarnings("ignore:only", "ignore:the 100 chains disagree")  # each of them is short
@pytest.mark.parametrize("name", SAMPLERS)
def test_global_and_local_posteriors_of_a_conjugate_hierarchy(name, fed, exact):
    """100 chains of four or more independent draws: a mean's standard error is 0.05 SD and an SD's 3.5 %, ten of each.

    Bounds of five standard errors and, for SDs, 2 % for the errors of the clients' visits: below 1e-4 before fixing the
    seed. The effects, given mu, are exact and independent.
    """
    algorithm, rounds = SAMPLERS[name]
    algorithm = replace(algorithm, surrogates=exact)
    idata = pf.run(algorithm, fed, num_rounds=rounds, num_draws=500, **QUIET)
    parts = [torch.as_tensor(idata["posterior"][name].values) for name in SIZES]
    draws = torch.cat([part.reshape(-1, size) for part, size in zip(parts, SIZES.values(), strict=True)], 1)
    sd = COVARIANCE.diagonal().sqrt()
    assert float(((draws.mean(0) - MEAN) / sd).abs().max()) < 0.25
    assert float((draws.std(0) / sd - 1).abs().max()) < 0.185
    assert idata["posterior"]["effect"].dims == ("chain", "draw", "group")


@pytest.mark.filterwarnings("ignore:only", "ignore:the 2 chains disagree")
@pytest.mark.parametrize("name", SAMPLERS)
def test_executors_agree_and_effects_are_drawn_at_the_end(name, fed, exact):
    """Chains carry mu alone; the clients draw the effects given mu, in the groups' original order."""
    short = replace(SAMPLERS[name][0], num_chains=2, local_steps=2, thin=2, burn_in=0, surrogates=exact)
    quiet = QUIET | {"compile": "auto"}
    runs = [pf.run(short, fed, num_rounds=3, executor=name, **quiet) for name in ("vectorised", "sequential")]
    for name in SIZES:
        first, second = (run["posterior"][name].values for run in runs)
        np.testing.assert_allclose(first, second, rtol=1e-8, atol=1e-10)
    assert runs[0]["posterior"]["effect"].dims == ("chain", "draw", "group")
