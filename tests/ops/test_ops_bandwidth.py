"""Distances and the median bandwidth: its definition, and what happens where particles coincide."""

import math

import numpy as np
import pytest
import torch

from pyro_fed.ops.kernel_base import median_distance, squared_distances, weighted_differences
from pyro_fed.ops.kernels import RBF, median_bandwidth
from pyro_fed.ops.stein import ksd, svgd_direction

N, D = 7, 3


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, S = draw(N, D, seed=1), draw(N, D, seed=2)


def test_one_particle_climbs_the_density():
    """Appendix A.2, Eq. (18): with N = 1 and the RBF kernel the direction is the score itself."""
    torch.testing.assert_close(svgd_direction(X[:1], S[:1], RBF()), S[:1], rtol=0, atol=0)


@pytest.mark.parametrize("num", [2, 3, 4, 5, 6, 12, 13, 14])  # beyond 11 the median is selected
def test_median_bandwidth_over_pairs(num):
    x = draw(num, D, seed=1)
    distances = [float((x[i] - x[j]).norm()) for i in range(num) for j in range(i)]
    expected = np.median(distances) ** 2 / math.log(num)
    assert float(median_bandwidth(x, 1e-18, 1e-6)) == pytest.approx(expected, rel=1e-12)
    assert float(median_bandwidth(1e-8 * x, 1e-18, 1e-6)) == pytest.approx(1e-16 * expected, rel=1e-12)


def test_median_distance_with_ties():
    square = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    assert float(median_distance(square)) == pytest.approx(1.0, rel=1e-14)  # distances 1, 1, 1, 1, √2, √2
    for num in (4, 12, 13, 14):
        line = torch.arange(num, dtype=torch.float64)
        expected = np.median([j - i for j in range(num) for i in range(j)])
        assert float(median_distance(line[:, None])) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_coinciding_particles_give_finite_directions(dtype):
    cloud, scores = torch.full((5, D), 3.3, dtype=dtype), draw(5, D).to(dtype)
    assert float(median_bandwidth(cloud, 1e-18, 1e-6)) == pytest.approx(1e-18)
    torch.testing.assert_close(svgd_direction(cloud, scores, RBF()), scores.mean(0).expand(5, D))
    assert torch.isfinite(ksd(cloud, scores, RBF()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_two_heaps_of_particles_do_not_drown_in_rounding(dtype):
    """Most pairs coincide and the median is zero: by the relative floor each heap sees itself alone."""
    cloud = torch.cat([draw(1, D, seed=1).expand(8, D), draw(1, D, seed=2).expand(2, D)]).to(dtype)
    scores = draw(10, D, seed=3).to(dtype)
    expected = torch.cat([scores[:8].sum(0).expand(8, D), scores[8:].sum(0).expand(2, D)]) / 10
    assert float(median_distance(cloud)) < 1e-2
    tolerance = 1e-2 if dtype == torch.float32 else 1e-9
    torch.testing.assert_close(svgd_direction(cloud, scores, RBF()), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("num, dim", [(6, 4), (40, 8)], ids=["written out", "by matrix products"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_differences_far_from_the_origin(num, dim, dtype):
    """Rounding is that of the distances, not of the positions."""
    x, y = ((draw(num, dim, seed=seed) + 1e4).to(dtype) for seed in (20, 21))
    weights = draw(num, num, seed=22).to(dtype)
    difference = y.double() - x.double().unsqueeze(1)
    near = {"rtol": 0, "atol": 1e3 * torch.finfo(dtype).eps}
    torch.testing.assert_close(squared_distances(x, y).double(), difference.square().sum(-1), **near)
    expected = (weights.double().unsqueeze(-1) * difference).sum(1)
    torch.testing.assert_close(weighted_differences(weights, x, y).double(), expected, **near)
