"""KDE in log space against autograd and hand-made ratios."""

import math

import pytest
import torch
from torch.distributions import Normal
from torch.func import grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from pyro_fed.ops.stein import (
    buffer_score_ratio,
    effective_neighbours,
    kde_score,
    kde_weights,
)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def log_density(x, centres, bandwidth):
    """The mixture of normals itself, (M,)."""
    parts = Normal(centres, bandwidth).log_prob(x.unsqueeze(-2)).sum(-1)
    return torch.logsumexp(parts, -1) - math.log(len(centres))


@pytest.mark.parametrize("bandwidth", [0.3, torch.tensor(0.55, dtype=torch.float64)])
def test_score_is_the_gradient(bandwidth):
    x, centres = draw(6, 4, seed=1), draw(9, 4, seed=2)
    expected = vmap(grad(lambda row: log_density(row, centres, bandwidth)))(x)
    torch.testing.assert_close(kde_score(x, centres, bandwidth), expected, rtol=1e-10, atol=1e-10)


def test_a_floor_is_added_to_the_mean_of_the_kernels():
    """∇ log(floor + 1/N Σ_n exp(-|x - θ_n|² / 2λ²)), kernels of a peak of one: the authors' code, and no paper."""
    x, centres = 3 * draw(6, 2, seed=1), draw(9, 2, seed=2)

    def log_sum(row):
        return torch.log(0.02 + torch.exp(-(row - centres).square().sum(-1) / (2 * 0.7**2)).mean())

    torch.testing.assert_close(kde_score(x, centres, 0.7, 0.02), vmap(grad(log_sum))(x), rtol=1e-9, atol=1e-9)


def test_several_estimates_at_once():
    x, centres = draw(6, 4, seed=1), draw(3, 9, 4, seed=2)
    for function in (kde_score, effective_neighbours):
        expected = torch.stack([function(x, c, 0.7) for c in centres])
        torch.testing.assert_close(function(x, centres, 0.7), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_high_dimension_stays_finite_and_points_to_the_nearest_centre(dtype):
    """In 500 dimensions every kernel value underflows; the score does not."""
    x, centres = draw(4, 500, seed=5).to(dtype), (3 * draw(7, 500, seed=6)).to(dtype)
    squared = (x.unsqueeze(1) - centres).square().sum(-1)
    assert torch.exp(-squared / 2 / 0.55**2).max() == 0
    expected = (centres[squared.argmin(1)] - x) / 0.55**2
    torch.testing.assert_close(kde_score(x, centres, 0.55), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(effective_neighbours(x, centres, 0.55), torch.ones(4, dtype=dtype))


def test_effective_neighbours_counts():
    centres = torch.tensor([[-1.0], [1.0], [1e4]], dtype=torch.float64)
    x = torch.tensor([[0.0], [1e4]], dtype=torch.float64)
    torch.testing.assert_close(effective_neighbours(x, centres, 1.0), torch.tensor([2.0, 1.0]).double())
    torch.testing.assert_close(effective_neighbours(x, centres, 1e8), torch.tensor([3.0, 3.0]).double())


def test_weights_sum_to_one():
    weights = kde_weights(draw(6, 4, seed=1), draw(9, 4, seed=2), 0.2)
    torch.testing.assert_close(weights.sum(-1), torch.ones(6).double())


def test_single_centre_is_a_gaussian_site():
    """Appendix A.2: with one particle the ratio has eta = Σ_j (theta_j - theta_{j-1}) / lambda²."""
    after, before, x = draw(3, 1, 2, seed=7), draw(3, 1, 2, seed=8), draw(5, 2, seed=9)
    mask = torch.tensor([True, True, True])
    eta = (after - before).sum((0, 1)) / 0.55**2
    torch.testing.assert_close(
        buffer_score_ratio(x, after, before, mask, 0.55), eta.expand(5, 2), rtol=1e-10, atol=1e-10
    )


def test_buffer_sums_the_slots_in_use_whatever_the_others_hold():
    after, before, x = draw(4, 6, 2, seed=7), draw(4, 6, 2, seed=8), draw(5, 2, seed=9)
    after[2], before[3] = math.nan, math.inf
    mask = torch.tensor([True, True, False, False])
    expected = sum(kde_score(x, after[j], 0.55) - kde_score(x, before[j], 0.55) for j in (0, 1))
    torch.testing.assert_close(buffer_score_ratio(x, after, before, mask, 0.55), expected, rtol=1e-10, atol=1e-10)
    assert (buffer_score_ratio(x, after, before, torch.zeros(4, dtype=torch.bool), 0.55) == 0).all()


def test_buffer_score_is_the_gradient_under_vmap_and_make_fx():
    after, before, x = draw(3, 6, 2, seed=7), draw(3, 6, 2, seed=8), draw(4, 5, 2, seed=9)
    mask = torch.tensor([True, False, True])

    def log_ratio(row):
        return sum(log_density(row, after[j], 0.55) - log_density(row, before[j], 0.55) for j in (0, 2))

    def by_autograd(points):
        return vmap(grad(log_ratio))(points)

    def closed_form(points):
        return buffer_score_ratio(points, after, before, mask, 0.55)

    expected = torch.stack([by_autograd(points) for points in x])
    traced = make_fx(vmap(closed_form))(draw(4, 5, 2, seed=10))
    torch.testing.assert_close(vmap(closed_form)(x), expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(traced(x), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("function", [kde_score, effective_neighbours])
def test_bandwidth_must_be_positive(function):
    with pytest.raises(ValueError, match="expected bandwidth > 0"):
        function(draw(2, 2), draw(2, 2), 0.0)
