"""The statistics of simulation-based calibration, on ranks whose distribution is known; and its data."""

import numpy as np
import pytest

from benchmarks.sbc.__main__ import chi_square, coverage, ecdf, smooth
from benchmarks.sbc.models import BLOCKS, SETUPS

EVEN = (np.arange(400) + 0.5) / 400


def test_uniform_ranks_pass_and_intervals_cover_as_they_say():
    assert chi_square(EVEN) == 1.0
    assert ecdf(EVEN) > 0.9
    assert coverage(EVEN) == pytest.approx([0.5, 0.8, 0.9], abs=0.01)


@pytest.mark.parametrize(
    "u", [0.5 + 0.7 * (EVEN - 0.5), EVEN**1.4, np.where(EVEN < 0.5, EVEN**1.5, 1 - (1 - EVEN) ** 1.5)]
)
def test_too_wide_shifted_and_too_narrow_posteriors_fail(u):
    assert chi_square(u) < 1e-3
    assert ecdf(u) < 0.01


def test_p_values_are_uniform_where_ranks_are():
    rng = np.random.default_rng(0)
    found = [chi_square(smooth(rng.integers(0, 100, 200), 99, rng)) for _ in range(400)]
    assert 0.02 < np.mean(np.array(found) < 0.05) < 0.09
    assert np.mean(found) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("name", SETUPS)
@pytest.mark.parametrize("skew", ["label", "covariate"])
def test_replicates_have_like_shapes_and_clients_that_differ(name, skew):
    (truth, args), (other, again) = (SETUPS[name].data(np.random.default_rng(number), skew) for number in (1, 2))
    assert [part.shape for part in args] == [part.shape for part in again]
    assert truth.keys() == other.keys()
    x, y = args[0].numpy(), args[1].numpy()
    by = (x[:, 1] if x.ndim == 2 else x) if skew == "covariate" else y
    if name != "poisson" or skew == "covariate":
        assert (np.diff([by[block].mean() for block in BLOCKS]) >= 0).all()
