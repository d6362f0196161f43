"""Langevin steps and step sizes against linear recursions and hand-written formulas; nothing is sampled."""

import math

import pytest
import torch
from stationary import stationary_variance
from torch.func import vmap
from torch.fx.experimental.proxy_tensor import make_fx

from pyro_fed.ops.gaussian import DiagGaussian, FullGaussian
from pyro_fed.ops.langevin import langevin_step
from pyro_fed.ops.step_sizes import AdaGrad, AdaGradState, polynomial_step

D = 3
BASIS = torch.eye(D, dtype=torch.float64)
ZERO = torch.zeros(D, D, dtype=torch.float64)
PRECISION = torch.tensor([[4.0, 1.0, 0.2], [1.0, 2.0, -0.3], [0.2, -0.3, 1.0]], dtype=torch.float64)


def recursion(step, factor=None):
    """The matrices of the linear map theta' = T theta + R xi that a step is at the target N(0, P⁻¹)."""
    transition = langevin_step(BASIS, -BASIS @ PRECISION, step, ZERO, factor).T
    noise = langevin_step(ZERO, ZERO, step, BASIS, factor).T
    return transition, noise


def limit_covariance(transition, noise, num_steps=4000):
    covariance = torch.zeros_like(transition)
    for _ in range(num_steps):
        covariance = transition @ covariance @ transition.T + noise @ noise.T
    return covariance


def test_step_is_equation_1():
    position, score, noise = torch.tensor([1.0, 2.0]), torch.tensor([-3.0, 0.5]), torch.tensor([0.2, -0.1])
    expected = position + 0.08 / 2 * score + math.sqrt(0.08) * noise
    for step in (0.08, torch.tensor(0.08)):
        torch.testing.assert_close(langevin_step(position, score, step, noise), expected)


@pytest.mark.parametrize("step", [0.01, 0.1, 0.7])
def test_stationary_covariance_is_that_of_the_recursion(step):
    values, vectors = torch.linalg.eigh(PRECISION)
    expected = vectors @ torch.diag(stationary_variance(values, step)) @ vectors.T
    torch.testing.assert_close(limit_covariance(*recursion(step)), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("score_variance", [0.0, 2.5])
def test_noisy_scores_widen_the_stationary_law(score_variance):
    step, precision = 0.3, 1.7
    variance = 0.0
    for _ in range(2000):
        variance = (1 - step * precision / 2) ** 2 * variance + step + step**2 / 4 * score_variance
    got = stationary_variance(torch.tensor(precision, dtype=torch.float64), step, score_variance)
    assert float(got) == pytest.approx(variance, rel=1e-12)


def test_no_stationary_law_beyond_the_stability_limit():
    got = stationary_variance(torch.tensor([1.0, 3.999, 4.0, 5.0], dtype=torch.float64), 1.0)
    assert torch.isfinite(got).tolist() == [True, True, False, False]


def test_preconditioning_by_the_target_makes_all_directions_alike():
    """With G = P⁻¹ every direction has lambda = 1: the limit is P⁻¹ times 1 / (1 - h / 4)."""
    step = 0.4
    covariance = limit_covariance(*recursion(step, FullGaussian(PRECISION, BASIS[0]).root()))
    torch.testing.assert_close(covariance, torch.linalg.inv(PRECISION) / (1 - step / 4), rtol=1e-10, atol=1e-12)


def test_diagonal_factor_is_the_dense_one_on_the_diagonal():
    diagonal = torch.tensor([4.0, 0.25, 9.0], dtype=torch.float64)
    args = (BASIS, -BASIS @ PRECISION, 0.2, BASIS + 1.0)
    dense = langevin_step(*args, FullGaussian(torch.diag(diagonal), diagonal).root())
    torch.testing.assert_close(langevin_step(*args, DiagGaussian(diagonal, diagonal).root()), dense)


@pytest.mark.parametrize("factor", [None, BASIS[0] + 1, BASIS + 0.1])
def test_step_under_vmap_and_make_fx(factor):
    generator = torch.Generator().manual_seed(0)
    position, score, noise = (torch.randn(4, 2, D, generator=generator, dtype=torch.float64) for _ in range(3))

    def step(position, score, noise):
        return langevin_step(position, score, 0.1, noise, factor)

    expected = torch.stack([step(*args) for args in zip(position, score, noise, strict=True)])
    traced = make_fx(vmap(step))(position + 1, score, noise)
    torch.testing.assert_close(vmap(step)(position, score, noise), expected)
    torch.testing.assert_close(traced(position, score, noise), expected)


def test_polynomial_step_is_welling_and_teh():
    assert polynomial_step(0, 0.01, 0.5, 0.55) == pytest.approx(0.01 * 0.5**-0.55)
    counts = torch.tensor([0.0, 1.0, 100.0], dtype=torch.float64)
    expected = torch.tensor([0.01 * (0.5 + t) ** -0.55 for t in (0, 1, 100)], dtype=torch.float64)
    torch.testing.assert_close(polynomial_step(counts, 0.01, 0.5, 0.55), expected)
    assert polynomial_step(17, 0.3, 1.0, 0.0) == 0.3


def fresh(like):
    """The state before the first step."""
    return AdaGradState(torch.zeros_like(like), torch.zeros((), dtype=like.dtype))


def test_adagrad_is_the_reference_recursion():
    generator = torch.Generator().manual_seed(1)
    directions = torch.randn(6, 5, 2, generator=generator, dtype=torch.float64)
    optimiser = AdaGrad(rate=0.05, momentum=0.9, fudge=1e-3)
    state, history = fresh(directions[0]), None
    for direction in directions:
        history = direction**2 if history is None else 0.9 * history + 0.1 * direction**2
        increment, state = optimiser.step(direction, state)
        torch.testing.assert_close(increment, 0.05 * direction / (1e-3 + history.sqrt()), rtol=1e-14, atol=0)
        torch.testing.assert_close(state.history, history, rtol=1e-14, atol=0)
    assert float(state.steps) == 6


def test_adagrad_with_a_zero_first_direction_stays_put():
    optimiser = AdaGrad(rate=0.05)
    increment, state = optimiser.step(torch.zeros(3), fresh(torch.zeros(3)))
    assert increment.tolist() == [0.0, 0.0, 0.0]
    assert state.history.tolist() == [0.0, 0.0, 0.0]


def test_decay_starts_at_the_rate_and_halves_where_it_says():
    optimiser = AdaGrad(rate=0.1, power=1.0, offset=4.0, fudge=1e-12)
    state, sizes = fresh(torch.ones(1, dtype=torch.float64)), []
    for _ in range(5):
        increment, state = optimiser.step(torch.ones(1, dtype=torch.float64), state)
        sizes.append(float(increment))
    assert sizes[0] == pytest.approx(0.1)
    assert sizes[4] == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: polynomial_step(0, 0.0, 1.0, 0.5), "scale=0.0"),
        (lambda: polynomial_step(0, 1.0, 1.0, 1.5), "power=1.5"),
        (lambda: AdaGrad(rate=0.0), "rate=0.0"),
        (lambda: AdaGrad(rate=0.1, momentum=1.0), "momentum=1.0"),
    ],
)
def test_bad_settings_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
