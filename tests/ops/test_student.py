"""Student's tails on a Gaussian factor, against the multivariate t and automatic differentiation."""

import pytest
import torch
from late import late

from pyro_fed.ops.gaussian import DiagGaussian
from pyro_fed.ops.student import Tails

stats = late("scipy.stats")

DIM, FREEDOM = 4, 7.0
Z = 3 * torch.randn(200, DIM, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_the_whole_standard_normal_becomes_the_multivariate_t():
    whole = DiagGaussian(torch.ones(DIM, dtype=torch.float64), torch.zeros(DIM, dtype=torch.float64))
    found = whole.log_factor(Z) + Tails.of(whole, FREEDOM).log_ratio(Z)[0]
    exact = torch.as_tensor(
        stats.multivariate_t(torch.zeros(DIM).numpy(), torch.eye(DIM).numpy(), df=FREEDOM).logpdf(Z)
    )
    torch.testing.assert_close(found - found[0], exact - exact[0])


@pytest.fixture
def factor():
    """One with a negative and a negligible precision among its directions, and a distant centre along another."""
    values = torch.tensor([0.8, 0.02, 1e-4, -0.3], dtype=torch.float64)
    eta = torch.tensor([0.1, 0.1, 0.2, -0.1], dtype=torch.float64)
    return DiagGaussian(values, eta)


def test_the_gradient_is_that_of_the_value(factor):
    z = Z.clone().requires_grad_()
    value, slope = Tails.of(factor, FREEDOM).log_ratio(z)
    torch.testing.assert_close(torch.autograd.grad(value.sum(), z)[0], slope.detach())


def test_where_draws_lie_the_factor_keeps_its_slope(factor):
    """At r² = R, its mean under N(0, I), h is flat: the far centre along the second direction does not matter."""
    tails = Tails.of(factor, FREEDOM)
    assert int((tails.values > 0).sum()) == 2
    mean = (tails.values * (Z / 3 - tails.centre).square()).sum(-1).mean()
    assert float(tails.typical) == pytest.approx(float(mean), rel=0.1)
    scale = (tails.typical / (tails.values * tails.centre.square()).sum()).sqrt()
    at = (tails.centre * (1 - scale))[None]
    torch.testing.assert_close(tails.log_ratio(at)[1], torch.zeros(1, DIM, dtype=torch.float64))


def test_a_direction_in_which_other_factors_hold_the_whole_is_left_as_it_is():
    """There tails that fall as a power would give way to them."""
    one = torch.tensor([0.5, 0.5], dtype=torch.float64)
    tails = Tails.of(DiagGaussian(one, torch.tensor([0.5, 5.0], dtype=torch.float64)), FREEDOM)
    assert tails.values.tolist() == [0.5, 0.0]


def test_none_leaves_the_factor_as_it_is(factor):
    value, slope = Tails.of(factor, None).log_ratio(Z)
    assert not value.any()
    assert not slope.any()
