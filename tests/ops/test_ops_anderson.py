"""Anderson acceleration against what it is on linear maps: GMRES, which ends after as many steps as eigenvalues."""

import pytest
import torch

from pyro_fed.ops.anderson import acceleration, remember
from pyro_fed.ops.gaussian import DiagGaussian, FullGaussian

DIM, MEMORY = 4, 8


def history(q):
    """An empty one."""
    return type(q)(*(part.new_full((MEMORY, *part.shape), torch.nan) for part in (q.precision, q.eta)))


def iterate(step, q, rounds, longest=1e6, growth=1e6):
    points = moves = history(q)
    for _ in range(rounds):
        move = step(q).quotient(q)
        points, moves = remember(points, q), remember(moves, move)
        q = q.product(move).product(acceleration(points, moves, 1.0, growth, longest))
    return q


def fixed_point(kind):
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(DIM, DIM, generator=generator, dtype=torch.float64)
    precision = root @ root.T + torch.eye(DIM) if kind is FullGaussian else root.diagonal().square() + 1
    return kind(precision, torch.randn(DIM, generator=generator, dtype=torch.float64))


def test_an_alternating_and_a_slow_mode_are_removed_in_three_rounds():
    """The natural parameters' first half is multiplied by -0.99 in every round, the mean's part by 0.99."""
    end = fixed_point(FullGaussian)

    def step(q):
        off = q.quotient(end)
        return end.product(FullGaussian(-0.99 * off.precision, 0.99 * off.eta))

    begin = end.product(FullGaussian(0.3 * torch.eye(DIM, dtype=torch.float64), torch.ones(DIM, dtype=torch.float64)))
    found = iterate(step, begin, 3)
    torch.testing.assert_close(found.precision, end.precision, rtol=0, atol=1e-9)
    torch.testing.assert_close(found.eta, end.eta, rtol=0, atol=1e-9)


def test_a_diagonal_q_that_oversteps_finds_the_mean_in_as_many_rounds_as_dimensions():
    target = fixed_point(FullGaussian)

    def step(q):
        return DiagGaussian(q.precision, q.eta + target.score(q.mean()))

    begin = DiagGaussian(target.precision.diagonal() / 3, torch.zeros(DIM, dtype=torch.float64))
    found = iterate(step, begin, DIM + 1)
    torch.testing.assert_close(found.mean(), target.mean(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", [FullGaussian, DiagGaussian])
def test_nothing_is_added_where_only_one_round_is_known(kind):
    q = fixed_point(kind)
    points = moves = history(q)
    added = acceleration(remember(points, q), remember(moves, q.power(0.1)), 1.0, 2.0, 5.0)
    assert not added.precision.any()
    assert not added.eta.any()


def test_a_bad_guess_is_forgotten_and_agents_are_worked_on_together():
    """The first of two agents has a long last step; the second has not."""
    q = fixed_point(FullGaussian)
    both = FullGaussian(q.precision.expand(2, DIM, DIM), q.eta.expand(2, DIM))
    points, moves = history(both), history(both)
    for sizes in ([0.1, 0.1], [1.0, 0.05]):
        move = both.power(torch.tensor(sizes, dtype=torch.float64))
        points, moves = remember(points, both), remember(moves, move)
        both = both.power(1.1)
    added = acceleration(points, moves, 1.0, 2.0, 5.0)
    assert not added.eta[0].any()
    assert added.eta[1].abs().max() > 0
