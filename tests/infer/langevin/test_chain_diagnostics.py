"""R-hat and ESS of all coordinates at once against ArviZ's, coordinate by coordinate."""

import numpy as np
import pytest

from pyro_fed.infer.langevin import chain_diagnostics
from pyro_fed.infer.langevin.chain_diagnostics import _normal_scores, rhat_and_ess
from pyro_fed.ops.arviz_versions import ess, rhat


@pytest.mark.parametrize(
    ("chains", "draws", "memory"),
    [(4, 8, 0.5), (4, 11, 0.5), (2, 200, 0.9), (10, 60, 0.95), (3, 9, -0.9), (4, 100, -0.5)],
)
def test_the_numbers_are_arviz_s(chains, draws, memory):
    """Also with ties, which share their mean rank, and with an odd number of draws."""
    noise = np.random.default_rng(0).normal(size=(chains, draws, 5))
    values = np.zeros_like(noise)
    for t in range(draws):
        values[:, t] = memory * values[:, t - 1] + noise[:, t]
    values[:, 1, :2] = values[:, 0, :2]
    values[0, :, 3] += 2.0
    found = rhat_and_ess(values)
    np.testing.assert_allclose(found[0], rhat(values), rtol=1e-12)
    np.testing.assert_allclose(found[1], ess(values), rtol=1e-12)


@pytest.mark.parametrize("tied", [False, True])
def test_normal_scores_are_those_of_mean_ranks(tied):
    """Blom's, of SciPy's ranks, beside the median; one table serves all coordinates."""
    from scipy import special, stats

    values = np.random.default_rng(0).normal(size=(3, 2, 30))
    values = values.round(1) if tied else values
    ranks = stats.rankdata(values.reshape(3, -1), axis=1)
    expected = special.ndtri((ranks - 0.375) / (60 + 0.25)).reshape(values.shape)
    found, median = _normal_scores(values)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(median, np.median(values, (1, 2)))


def test_coordinates_are_judged_alone(monkeypatch):
    """In pieces that fit a cache: each has the numbers that it has by itself."""
    monkeypatch.setattr(chain_diagnostics, "count_in_cache", lambda numbers: max(1, 16_384 // numbers))
    values = np.random.default_rng(0).normal(size=(4, 3000, 5)).cumsum(1)
    together, alone = rhat_and_ess(values), [rhat_and_ess(values[..., [i]]) for i in range(5)]
    assert chain_diagnostics.count_in_cache(values[..., 0].size) == 1
    many = np.repeat(values[:, :40], 30, 2)  # many a piece
    for place, found in enumerate(together):
        np.testing.assert_array_equal(found, [each[place][0] for each in alone])
        expected = np.repeat(rhat_and_ess(values[:, :40])[place], 30)
        np.testing.assert_array_equal(rhat_and_ess(many)[place], expected)
