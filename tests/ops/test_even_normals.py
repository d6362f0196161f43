"""Draws spread more evenly than independent ones: each exactly normal, together with less chance error."""

import pytest
import torch

from pyro_fed.ops.gaussian import FullGaussian
from pyro_fed.ops.points import MOST_SOBOL_DIMS, even_normals

SEEDS, COUNT = 400, 100


def over_seeds(dim):
    return torch.stack([even_normals(COUNT, dim, torch.Generator().manual_seed(seed)) for seed in range(SEEDS)])


@pytest.mark.parametrize("dim", [1, 3])
def test_a_single_draw_is_normal(dim):
    """Kolmogorov's distance of the first draw over seeds: above 1.95 with probability 0.001 a dimension."""
    first = over_seeds(dim)[:, 0]
    ordered = first.sort(0).values
    grid = (torch.arange(SEEDS, dtype=torch.float64)[:, None] + 0.5) / SEEDS
    distance = (torch.special.ndtr(ordered) - grid).abs().amax(0) + 0.5 / SEEDS
    assert float(distance.max()) * SEEDS**0.5 < 2.3  # 5e-5


def test_neighbours_in_the_order_are_unrelated():
    drawn = over_seeds(1)[..., 0]
    correlation = float((drawn[:, 1:] * drawn[:, :-1]).mean())
    assert abs(correlation + 1 / (COUNT - 1)) < 0.01  # evenness itself is -1 / (n - 1) between any two


@pytest.mark.parametrize(("dim", "least"), [(1, 8.0), (5, 3.0), (40, 1.5)])
def test_means_and_variances_have_less_chance_error(dim, least):
    """Their variance over seeds is so many times smaller than that of independent draws, 1/n and 2/n."""
    drawn = over_seeds(dim)
    assert float(drawn.mean(1).square().mean()) < 1 / COUNT / least
    assert float((drawn.square().mean(1) - 1).square().mean()) < 2 / COUNT / least


def test_more_dimensions_than_the_sequence_has_are_independent():
    drawn = even_normals(4, MOST_SOBOL_DIMS + 1, torch.Generator().manual_seed(0))
    assert drawn.shape == (4, MOST_SOBOL_DIMS + 1)
    assert 0.97 < float(drawn.std()) < 1.03


def test_a_gaussian_s_draws_have_its_moments():
    covariance = torch.tensor([[2.0, 0.9], [0.9, 1.0]], dtype=torch.float64)
    mean = torch.tensor([[1.0, -1.0], [5.0, 0.0]], dtype=torch.float64)
    precision = torch.linalg.inv(covariance).expand(2, 2, 2)
    both = FullGaussian(precision, (precision @ mean[..., None])[..., 0])
    drawn = both.even_sample(2000, torch.Generator().manual_seed(0))
    assert drawn.shape == (2000, 2, 2)
    torch.testing.assert_close(drawn.mean(0), mean, atol=0.01, rtol=0)
    for agent in range(2):
        torch.testing.assert_close(drawn[:, agent].T.cov(), covariance, atol=0.06, rtol=0)
    apart = drawn - drawn.mean(0)
    assert abs(float((apart[:, 0, 0] * apart[:, 1, 0]).mean())) < 0.25  # agents' draws are unrelated: 5 SDs
