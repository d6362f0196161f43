"""Annealed importance sampling and its weights against densities whose constants and moments are known."""

import math

import pytest
import torch

from pyro_fed.infer.surrogates.proposals import Defence
from pyro_fed.ops.annealing import FIRST_SHARE, anneal, anneal_sparingly, from_normal
from pyro_fed.ops.gaussian import FullGaussian
from pyro_fed.ops.importance import log_mean, smoothed, systematic

DRAWS, DIM = 4000, 3
SETTINGS = {"levels": 16, "leapfrog_steps": 5, "step_size": 0.4}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def standard():
    return torch.randn(DRAWS, DIM, generator=generator(1), dtype=torch.float64)


def to_gaussian(target):
    """d = log target - log N(0, I), and its gradient, the target's written out: `FullGaussian` factorises each time."""
    (mean, _), log_constant = target.moments(), 0.5 * float(torch.logdet(target.precision))
    precision = target.precision

    def difference(z):
        slope = -(z - mean) @ precision
        return log_constant + 0.5 * ((z - mean) * slope).sum(-1) + 0.5 * z.square().sum(-1), slope + z

    return difference


@pytest.fixture
def target():
    """One that is moved, correlated and wider."""
    covariance = torch.tensor([[2.0, 0.6, 0.0], [0.6, 1.0, 0.3], [0.0, 0.3, 0.5]], dtype=torch.float64)
    return FullGaussian.from_moments(torch.tensor([1.0, -0.5, 0.3], dtype=torch.float64), covariance)


@pytest.mark.parametrize("settings", [SETTINGS, SETTINGS | {"levels": 40}, SETTINGS | {"step_size": 2.5}])
def test_the_mean_weight_is_the_constant_and_weighted_moments_are_right_however_chains_mix(target, settings):
    """Two normalised densities: log of the mean weight 0. Five standard errors: one failure in 10^6."""
    found = anneal(from_normal(to_gaussian(target)), standard(), generator(), **settings)
    value, error = log_mean(found.log_weights)
    assert abs(value) < 5 * error
    weights = smoothed(found.log_weights)
    mean, covariance = target.moments()
    off = (weights.weights @ found.white - mean) / covariance.diagonal().sqrt()
    assert off.abs().max() < 5 / weights.effective**0.5
    if settings["step_size"] < 1:
        assert found.accepted > 0.8
        assert weights.effective > 0.5 * DRAWS  # far more than without annealing


def test_another_start_gives_the_same_constant_and_moments(target):
    """From N(0, 1.5² I), as N(0, I) exp b, and so with the wide share that `defence` mixes in."""

    def wide(z):
        return 0.5 * (1 - 1 / 1.5**2) * z.square().sum(-1) - DIM * math.log(1.5), (1 - 1 / 1.5**2) * z

    defence, generated = Defence(0.0), generator()
    cases = [
        (1.5 * standard(), lambda z: (to_gaussian(target)(z), wide(z))),
        (defence.draws(standard(), generated), defence.log_densities(to_gaussian(target))),
    ]
    mean, covariance = target.moments()
    for white, ends in cases:
        found = anneal(ends, white, generated, **SETTINGS)
        narrow = to_gaussian(target)(found.white)[0] - ends(found.white)[0][0]
        weights = found.log_weights + narrow
        value, error = log_mean(weights)
        assert abs(value) < 5 * error
        share = smoothed(weights)
        off = (share.weights @ found.white - mean) / covariance.diagonal().sqrt()
        assert off.abs().max() < 5 / share.effective**0.5
        assert share.effective > 0.3 * DRAWS


@pytest.mark.parametrize("levels, step_size, tried", [(60, 0.4, [12]), (20, 0.01, [4, 20]), (1, 0.4, [1])])
def test_a_share_of_the_levels_is_enough_where_its_weights_say_so(target, levels, step_size, tried):
    """Steps of a hundredth do not mix. The constant is right in any case: five standard errors."""
    calls = []

    def counted(z):
        calls.append(len(z))
        return to_gaussian(target)(z)

    how = {"leapfrog_steps": 5, "step_size": step_size}
    found = anneal_sparingly(from_normal(counted), standard(), generator(), levels=levels, **how)
    assert len(calls) == sum(1 + 5 * number for number in tried)
    assert min(tried) == math.ceil(FIRST_SHARE * levels)
    value, error = log_mean(found.log_weights)
    assert abs(value) < 5 * error


def test_the_wide_shares_log_ratio_has_its_own_gradient():
    z = standard()[:50].requires_grad_()
    none = torch.zeros(50, dtype=torch.float64), torch.zeros_like(z)
    value, slope = Defence(0.0).log_densities(lambda _: none)(z)[1]
    torch.testing.assert_close(torch.autograd.grad(value.sum(), z)[0], slope)


def test_a_constant_difference_leaves_equal_weights():
    same = from_normal(lambda z: (torch.full_like(z[:, 0], 2.5), torch.zeros_like(z)))
    found = anneal(same, standard(), generator(), **SETTINGS)
    torch.testing.assert_close(found.log_weights, torch.full((DRAWS,), 2.5, dtype=torch.float64))
    assert smoothed(found.log_weights).pareto_k == -math.inf
    assert smoothed(found.log_weights).effective == pytest.approx(DRAWS)
    assert log_mean(found.log_weights) == pytest.approx((2.5, 0.0))


def test_moves_into_what_is_not_a_number_are_refused():
    """Beyond a wall the density is NaN: every draw that starts inside stays there."""

    def wall(z):
        return torch.where(z[:, 0] < 2, 0.0, torch.nan), torch.zeros_like(z)

    inside = standard()[standard()[:, 0] < 2]
    found = anneal(from_normal(wall), inside, generator(), **SETTINGS)
    assert found.white[:, 0].max() < 2
    assert found.log_weights.isfinite().all()


def test_weights_of_a_student_t_have_its_tail_and_those_of_a_wider_gaussian_none():
    """Ratios t_ν / N have a Pareto shape far above one; N(0, 1) / N(0, 1.5²) is bounded."""
    x = standard().flatten()
    student = torch.distributions.StudentT(torch.tensor(2.0, dtype=torch.float64)).log_prob(x) + x.square() / 2
    assert smoothed(student).pareto_k > 0.7
    assert smoothed(-0.5 * x.square() * (1.5**2 - 1)).pareto_k < 0.5


@pytest.mark.parametrize("count", [1, 10, 1000, 20_000])
def test_systematic_resampling_takes_each_draw_as_often_as_its_weight_says(count):
    weights = smoothed(0.5 * standard()[:, 0]).weights
    times = torch.bincount(systematic(weights, count, generator()), minlength=DRAWS)
    assert times.sum() == count
    assert ((times - count * weights).abs() < 1 + 1e-9).all()


def test_momenta_along_other_axes_are_those_of_turned_coordinates(target):
    """What is computed in coordinates z V is what is computed in z, draw by draw."""
    turn = torch.linalg.qr(torch.randn(DIM, DIM, generator=generator(2), dtype=torch.float64))[0]

    def difference(z):
        value, slope = to_gaussian(target)(z @ turn.T)
        return value, slope @ turn

    plain = anneal(from_normal(to_gaussian(target)), standard(), generator(), **SETTINGS)
    there = anneal(from_normal(difference), standard() @ turn, generator(), **SETTINGS, axes=turn)
    torch.testing.assert_close(there.white @ turn.T, plain.white)
    torch.testing.assert_close(there.log_weights, plain.log_weights)
