"""Numbers that leave those of the machine, or have no SD, are no reason for the audit to fail."""

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.audit.moments import (
    MAX_PLACE_SDS,
    Moments,
    Quantities,
    moments_of_chains,
    worst_moment,
    wrong_moments,
)
from pyro_fed.audit.motion import moments_by_chains
from pyro_fed.audit.target import Target
from pyro_fed.conventions.limits import MATTERS


def positive(y):
    a = pyro.sample("a", dist.LogNormal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(a.log(), 1.0), obs=y)


def found(draws):
    """Of the posterior N(0, 1/2) of log a, against draws (S, 1) of it."""
    problem = pf.Federation(positive, (torch.zeros(1, dtype=torch.float64),), plate="data", num_clients=1).problem
    target, quantities = Target.of(problem, draws), Quantities.of(problem, draws)
    return moments_by_chains(target, quantities, draws, torch.Generator().manual_seed(1))


def normal(count):
    return 0.5**0.5 * torch.randn(count, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_a_draw_beyond_the_range_on_its_own_scale():
    """exp(800) is infinite: the mean and SD of `a` are not judged."""
    draws = normal(400)
    draws[1] = 800.0
    result = found(draws)
    for figure in (result.mean, result.mean_error, result.log_sd, result.log_sd_error):
        assert bool(figure.isfinite().all())
        assert float(figure[1]) == 0.0
    assert len(result.mean) == 2
    assert not wrong_moments(result)[:, 1].any()


@pytest.mark.parametrize("at", [0.0, 0.3])
def test_draws_that_are_all_the_same(at):
    result = found(torch.full((200, 1), at, dtype=torch.float64))
    assert bool(result.excess.isfinite().all())
    assert wrong_moments(result).any()


@pytest.mark.parametrize(
    ("excess", "noise", "said"),
    [(1.3, 0.1, True), (1.05, 0.3, True), (1.05, 0.4, False), (1.3, 0.5, False), (0.9, 0.1, False)],
)
def test_what_is_beyond_the_limit_is_wrong_where_it_is_plainly_not_right(excess, noise, said):
    """One number, in units of what matters: a mean."""
    one = torch.ones(1, dtype=torch.float64)
    result = Moments(MATTERS * excess * one, MATTERS * noise * one, 0 * one, 0.01 * one)
    assert wrong_moments(result).flatten().tolist() == [said, False]


def test_places_beyond_the_range():
    """A chain that is infinitely far away counts as one that is very far."""
    generator = torch.Generator().manual_seed(0)
    begun, momenta = (torch.randn(128, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    places = momenta[None].clone()
    far = places.clone()
    far[0, 5, 1], far[0, 7, 2] = torch.inf, torch.nan
    result, right = moments_of_chains(begun, far, momenta[None]), moments_of_chains(begun, places, momenta[None])
    torch.testing.assert_close(result.mean[0], right.mean[0])
    places[0, 5, 1] = MAX_PLACE_SDS
    torch.testing.assert_close(result.log_sd[1], moments_of_chains(begun, places, momenta[None]).log_sd[1])
    assert float(result.excess[:, 2].sum()) == float(result.noise[:, 2].sum()) == 0.0


@pytest.mark.parametrize("memory", [0.0, 0.6])
def test_chains_that_remember_where_they_began_give_lower_bounds(memory):
    """Places of N(1, 4) after as many steps of a recursion as leave `memory` of the start, from draws of N(0, 1)."""
    generator = torch.Generator().manual_seed(2)
    begun, noise, momenta = (torch.randn(512, 1, generator=generator, dtype=torch.float64) for _ in range(3))
    places = 1 + memory * (begun - 1) + 2 * (1 - memory**2) ** 0.5 * noise
    result = moments_of_chains(begun, places[None], momenta[None])
    assert result.lower_bounds.flatten().tolist() == [memory > 0, memory > 0.5]
    worst = worst_moment(result)
    assert worst.bound == (memory > 0)
