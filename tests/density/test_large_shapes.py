"""Log densities of counts without dispersion and of Student's t near a normal, by mpmath at 60 digits."""

import mpmath as mp
import pyro.distributions as dist
import pytest
import torch

from pyro_fed.density.running.log_probs import own_log_probs

mp.mp.dps = 60
SHAPES = [0.3, 40.0, 7e3, 9e3, 1e8, 1e14, 1e24]
COUNTS = [0.0, 3.0, 998.0]


def rising(a, n):
    return mp.loggamma(a + n) - mp.loggamma(a)


def log_ways(n, k):
    return mp.loggamma(n + 1) - mp.loggamma(k + 1) - mp.loggamma(n - k + 1)


def negative_binomial(a, chance, y):
    """`chance` is that of one more: y counts with probability p, a with 1 - p."""
    return rising(a, y) - mp.loggamma(y + 1) + a * mp.log1p(-chance) + y * mp.log(chance)


def by_torch(fn, y):
    with own_log_probs():
        return float(fn.log_prob(torch.tensor(y, dtype=torch.float64)))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("y", COUNTS)
def test_negative_binomials(shape, y):
    a, mean = torch.tensor(shape, dtype=torch.float64), torch.tensor(1000.0, dtype=torch.float64)
    rate = mp.mpf(float(a / mean))
    expected = negative_binomial(mp.mpf(shape), 1 / (1 + rate), mp.mpf(y))
    assert by_torch(dist.GammaPoisson(a, a / mean), y) == pytest.approx(float(expected), rel=1e-9, abs=1e-9)
    logits = (mean / a).log()
    odds = mp.e ** mp.mpf(float(logits))
    expected = negative_binomial(mp.mpf(shape), odds / (1 + odds), mp.mpf(y))
    assert by_torch(dist.NegativeBinomial(a, logits=logits), y) == pytest.approx(float(expected), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("y", [0.0, 3.0, 50.0])
def test_beta_binomials(shape, y):
    a, b, n = torch.tensor(shape, dtype=torch.float64), torch.tensor(0.4 * shape + 1, dtype=torch.float64), mp.mpf(50)
    exact = mp.mpf(float(a)), mp.mpf(float(b)), mp.mpf(y)
    expected = log_ways(n, exact[2]) + rising(exact[0], exact[2]) + rising(exact[1], n - exact[2])
    expected = float(expected - rising(exact[0] + exact[1], n))
    assert by_torch(dist.BetaBinomial(a, b, 50.0), y) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    pair = dist.DirichletMultinomial(torch.stack([a, b]), 50)
    assert by_torch(pair, [y, 50 - y]) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("y", [0.0, 2.5, 30.0])
def test_student_s_t(shape, y):
    a, v = mp.mpf(shape), mp.mpf(y) / 2
    expected = rising(a / 2, mp.mpf("0.5")) - mp.log(a * mp.pi) / 2 - mp.log(2) - (a + 1) / 2 * mp.log1p(v**2 / a)
    assert by_torch(dist.StudentT(torch.tensor(shape, dtype=torch.float64), 0.0, 2.0), y) == pytest.approx(
        float(expected), rel=1e-9
    )


def test_derivatives_do_not_cancel_either():
    """d log p / d log a = a (ψ(a + y) - ψ(a) - log(1 + m / a) + (m - y) / (a + m)), and its derivative."""
    y, mean = 998.0, 1000.0

    def density(log_shape):
        a = log_shape.exp()
        with own_log_probs():
            return dist.GammaPoisson(a, a / mean).log_prob(torch.tensor(y, dtype=torch.float64))

    def exact(t):
        a = mp.e**t
        return negative_binomial(a, mean / (a + mean), mp.mpf(y))

    for log_shape in (3.0, 12.0, 30.0):
        at = torch.tensor(log_shape, dtype=torch.float64)
        slope, bend = torch.func.grad(density)(at), torch.func.grad(torch.func.grad(density))(at)
        assert float(slope) == pytest.approx(float(mp.diff(exact, log_shape)), rel=1e-6, abs=1e-8)
        assert float(bend) == pytest.approx(float(mp.diff(exact, log_shape, 2)), rel=1e-5, abs=1e-7)


def test_small_shapes_have_the_distributions_own_densities_to_the_bit():
    y, a = torch.tensor([0.0, 2.0, 9.0]).double(), torch.tensor([0.5, 3.0, 50.0]).double()
    for fn in (dist.GammaPoisson(a, 0.3), dist.NegativeBinomial(a, logits=a.log()), dist.StudentT(a, 1.0, 2.0)):
        own = fn.log_prob(y)
        with own_log_probs():
            assert torch.equal(fn.log_prob(y), own)
