"""Points that are chosen far apart: a small basin at the edge of the draws has one, and tails do not take all."""

import pytest
import torch

from pyro_fed.ops.entries import CANDIDATES, all_finite, far_apart


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("tails", [False, True])
def test_a_tenth_at_the_edge_has_a_point_and_long_tails_do_not_take_all(seed, tails):
    """Of 60 draws none in a tenth is a case in 600; of 15 independent ones, one in five."""
    g = torch.Generator().manual_seed(seed)
    draws = torch.rand(15 * CANDIDATES, 1, generator=g, dtype=torch.float64)
    draws[0] = 0.05  # one at least
    placed = torch.tan(3.1 * (draws - 0.5)) if tails else draws
    chosen = far_apart(placed, 15)
    assert len(chosen.unique()) == 15 and chosen[:8].tolist() == list(range(8))
    for low in torch.arange(0.0, 0.9, 0.1):
        inside = (draws >= low) & (draws < low + 0.2)
        assert not bool(inside.any()) or bool(inside[chosen].any())


def test_equal_draws_are_chosen_once_each():
    assert far_apart(torch.zeros(12, 3), 5).tolist()[:3] == [0, 1, 2]
    assert len(far_apart(torch.zeros(12, 3), 5)) == 5


@pytest.mark.parametrize(
    "values, finite",
    [([1.0, -2.0], True), ([1.0, torch.nan], False), ([torch.inf, -torch.inf], False), ([1e308, 1e308], True)],
)
def test_all_finite_is_told_by_the_sum_and_where_that_is_not_by_each(values, finite):
    assert all_finite(torch.tensor(values, dtype=torch.float64)) == finite
