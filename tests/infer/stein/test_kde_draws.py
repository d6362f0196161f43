"""Draws of the KDE around published particles: what they average to is the predictive of Eq. (22)."""

import numpy as np
import pytest
import torch
from conjugate import federation
from scipy.stats import norm

import pyro_fed as pf
from pyro_fed.errors import SettingError
from pyro_fed.ops.stein import kde_draws

LAMBDA, NUM_DRAWS = 0.55, 20_000


@pytest.mark.parametrize("kind", [pf.papers.UDSVGD, pf.papers.PaperDSVGD, pf.papers.PaperParallelDSVGD])
def test_the_average_of_probits_is_in_closed_form(kind):
    """∫ Φ(a'θ) q(θ) dθ = (1/N) Σ_n Φ(a'θ_n / √(1 + λ² a'a)), exactly, for q the KDE of the particles θ_n."""
    options = {"num_rounds": 2, "num_draws": NUM_DRAWS, "progress": False, "audit": False, "log_likelihood": False}
    settings = {"num_particles": 7, "local_steps": 5, "kde_bandwidth": LAMBDA}
    if kind is not pf.papers.UDSVGD:
        settings["distill_steps"] = 5
    with pytest.warns(UserWarning):  # two rounds have not converged
        particles, draws = (
            pf.run(kind(**settings, draws=draws), federation(num_clients=2), **options)["posterior"]
            for draws in ("particles", "kde")
        )
    (name,) = particles.data_vars
    centres, draws = (found[name].values[0] for found in (particles, draws))
    assert centres.shape[0] == 7 and draws.shape[0] == NUM_DRAWS
    for direction in np.eye(centres.shape[1]):
        found = norm.cdf(2.0 * draws @ direction).mean()
        exact = norm.cdf(2.0 * centres @ direction / np.sqrt(1 + 4.0 * LAMBDA**2)).mean()
        assert abs(found - exact) < 5 * 0.5 / np.sqrt(NUM_DRAWS)


def test_every_particle_has_its_share():
    centres = torch.arange(3.0, dtype=torch.float64)[:, None]
    draws = kde_draws(centres, 11, 1e-9, torch.Generator().manual_seed(0))
    counts = draws.round().long().flatten().bincount(minlength=3)
    assert counts.tolist() in ([4, 4, 3], [4, 3, 4], [3, 4, 4])


def test_an_unknown_kind_is_refused():
    with pytest.raises(SettingError, match="draws"):
        pf.papers.UDSVGD(draws="both")
