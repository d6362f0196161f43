"""FSGLD with surrogates that are wrong by a known amount, at a Gaussian posterior."""

import numpy as np
import pytest
import torch
from gaussian_case import exact, federation, moments, shards

import pyro_fed as pf
from pyro_fed.ops.langevin import longest_visit, visit_variance

QUIET = {"progress": False, "log_likelihood": False, "compile": "trace"}
X = shards(num_clients=4, rows=25)
MEAN, VARIANCE = exact(X)


def wrong(shift, scale=0.0, structure="diag"):
    """The likelihoods' sites with scores moved by `shift` posterior SDs, and precisions by `scale` posterior ones.

    Both sum to zero over the clients, so that their product is right.
    """
    off = torch.randn(2, 4, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    off = off - off.mean(1, keepdim=True)
    precision = 25 + scale * off[0] / VARIANCE
    eta = X.sum(1) + shift * off[1] / VARIANCE**0.5
    return pf.infer.Given(precision if structure == "diag" else torch.diag_embed(precision), eta)


def expected_mismatch(given, alpha):
    """E e_s² C of each client, θ ~ N(MEAN, C).

    e_s = [25 (m_s - θ) - α (η_s - P_s θ)]/f_s - (1 - α)(Σ η - Σ P θ)
    """
    slope = 25 - alpha * (given.precision if given.precision.ndim == 2 else given.precision.diagonal(dim1=1, dim2=2))
    value = X.sum(1) - alpha * given.eta - slope * MEAN
    value = 4 * value - (1 - alpha) * (X.sum((0, 1)) - 100 * MEAN)
    slope = 4 * slope - (1 - alpha) * 100
    return VARIANCE * (value**2 + slope**2 * VARIANCE)


@pytest.mark.filterwarnings("ignore:only", "ignore:the .* chains disagree", "ignore:no draw")
@pytest.mark.parametrize("structure", ["diag", "full"])
@pytest.mark.parametrize("alpha", [1.0, 0.4])
def test_the_mismatch_is_measured(structure, alpha):
    given = wrong(0.3, 0.1, structure)
    idata = pf.run(
        pf.FSGLD(surrogates=given, conducive=pf.infer.Conducive(alpha=alpha)),
        federation(X),
        num_rounds=1,
        audit=False,
        **QUIET,
    )
    found = np.nanmax(idata["federation"]["mismatch"].values, 0)
    np.testing.assert_allclose(found, expected_mismatch(given, alpha).amax(-1).numpy(), rtol=1e-8)


@pytest.mark.filterwarnings("ignore:only", "ignore:the .* chains disagree", "ignore:no draw")
def test_steps_are_short_where_a_client_curves_more_than_its_surrogate():
    """In units of the posterior I - 4 A'(-25 + P_k)A, the same everywhere: the largest is 1 + 4 max |25 - P_k| V."""
    given = pf.infer.Given(torch.tensor([[5.0], [45.0], [20.0], [30.0]], dtype=X.dtype).expand(4, 2).clone(), X.sum(1))
    idata = pf.run(pf.FSGLD(surrogates=given), federation(X), num_rounds=1, audit=False, **QUIET)
    expected = (1 + 4 * (25 - given.precision) * VARIANCE).abs().amax(-1)
    found = np.nanmax(idata["federation"]["curvature"].values, 0)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-6)
    step = float(idata["sample_stats"]["step_size"].values[0, 0])
    assert step <= 1 / float(expected.max()) * (1 + 1e-6)


@pytest.mark.filterwarnings("ignore:only", "ignore:the 100 chains disagree")
@pytest.mark.parametrize("probabilities", [None, (0.25, 0.25, 0.25, 0.25)])
def test_the_variance_of_long_visits_is_what_the_derivation_says(probabilities):
    """Visits of t = 1, whose ends are kept: 1 + s² V, several times the posterior's variance.

    100 chains × 40 visits; squares decorrelate by exp(-1) a visit, so that 1,850 are effective and a variance has a
    standard error of 3.3 %; the tolerance is five of them. Without random sweeps s² V is twice as large.
    """
    given = wrong(1.5)
    algorithm = pf.FSGLD(
        surrogates=given,
        probabilities=probabilities,
        local_steps=25,
        thin=25,
        burn_in=200,
        num_chains=100,
        batch_size=None,
        step=pf.infer.step.Fixed(size=0.04),
        conducive=pf.infer.Conducive(trust=None),
        target_ess=None,
    )
    idata = pf.run(algorithm, federation(X), num_rounds=48, audit=False, **QUIET)  # it is not the posterior
    _, covariance = moments(idata)
    errors = (given.eta - X.sum(1)) * 4 * VARIANCE**0.5
    expected = 1 + errors.square().mean(0) * visit_variance(1.0, 4, probabilities is None)
    assert float(expected.min()) > 2
    torch.testing.assert_close(covariance.diagonal() / VARIANCE, expected, rtol=0.165, atol=0)


@pytest.mark.filterwarnings("ignore:only", "ignore:the 100 chains disagree")  # each of them is short
def test_the_default_visits_are_short_enough():
    """100 chains of at least ten relaxation times: 500 effective draws.

    A mean's standard error is 0.045 SD, an SD's 3.2 %; bounds of four and a half of them.
    """
    given = wrong(0.15)
    algorithm = pf.FSGLD(surrogates=given, burn_in=20, target_ess=None, num_chains=100)
    idata = pf.run(algorithm, federation(X), num_rounds=100, audit=False, **QUIET)
    visit = longest_visit(0.03, float(expected_mismatch(given, 1.0).mean(0).max()), 4, True, 1.0)
    assert 0.1 < visit < 0.9
    assert float(idata["sample_stats"]["step_size"].values[0, 0]) == pytest.approx(visit / 5, rel=1e-10)
    found, covariance = moments(idata)
    assert float((found - MEAN).abs().max()) < 0.2 * VARIANCE**0.5
    assert float((covariance.diagonal().sqrt() / VARIANCE**0.5 - 1).abs().max()) < 0.15


def test_burn_in_lasts_as_long_for_shorter_steps():
    """50 steps of full length, 1/5, are 10 units of time."""
    algorithm = pf.FSGLD(surrogates=wrong(0.5))
    seen = {}

    class Watched(pf.FSGLD):
        def init(self, *args):
            shared, local = super().init(*args)
            seen.update(shared)
            return shared, local

    with pytest.warns(UserWarning, match="no draw was kept: the run ended within burn_in=50 steps of full length"):
        pf.run(Watched(surrogates=algorithm.surrogates), federation(X), num_rounds=11, audit=False, **QUIET)
    assert int(seen["burn_in"]) * float(seen["step_size"]) == pytest.approx(10.0, rel=1e-2)


def test_errors_that_are_not_finite_are_refused():
    given = pf.infer.Given(
        torch.full((4, 2), 25.0, dtype=torch.float64),
        X.sum(1) + 1e200 * torch.tensor([[1.0], [-1.0]] * 2, dtype=X.dtype),
    )
    with pytest.raises(pf.errors.DivergenceError, match="the surrogates do not fit: use others"):
        pf.run(pf.FSGLD(surrogates=given), federation(X), num_rounds=1, **QUIET)
