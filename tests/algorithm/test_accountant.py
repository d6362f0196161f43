"""ε of Gaussian noise: the exact curve, by integration, by closed forms, and on a grid."""

import numpy as np
import pytest
import scipy.stats
from scipy.integrate import quad

import pyro_fed as pf
from pyro_fed.algorithm.privacy import gaussian_epsilon

CASES = [(4.0, 5, 1e-6), (1.0, 1, 1e-5), (27.8, 400, 1e-5), (0.3, 2, 1e-9), (30.0, 1, 1e-5), (2.0, 1, 0.1)]


def hockey_stick(epsilon, sigma):
    """∫ max(0, p - e^ε q) of p = N(1, σ²) and q = N(0, σ²), which is positive above σ² ε + 1/2."""
    p, q = scipy.stats.norm(1.0, sigma), scipy.stats.norm(0.0, sigma)
    low = sigma**2 * epsilon + 0.5
    return quad(
        lambda x: p.pdf(x) - np.exp(epsilon + q.logpdf(x)), low, low + 40 * sigma, epsrel=1e-10, epsabs=0, limit=500
    )[0]


@pytest.mark.parametrize(("noise_multiplier", "releases", "delta"), CASES)
def test_epsilon_is_where_the_hockey_stick_divergence_is_delta(noise_multiplier, releases, delta):
    epsilon = gaussian_epsilon(noise_multiplier, releases, delta)
    assert epsilon > 0
    assert hockey_stick(epsilon, noise_multiplier / releases**0.5) == pytest.approx(delta, rel=1e-6)


def test_epsilon_of_nothing_but_delta_is_zero():
    """At ε = 0 δ is the total variation distance, 2Φ(1/2σ) - 1."""
    sigma = 5.0
    distance = 2 * scipy.stats.norm.cdf(0.5 / sigma) - 1
    assert gaussian_epsilon(sigma, 1, distance * 1.001) == 0.0
    assert 0 < gaussian_epsilon(sigma, 1, distance * 0.999) < 1e-3


@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.01])
def test_releases_compose_as_one_with_less_noise(delta):
    for z, releases in ((2.0, 4), (30.0, 400), (0.5, 9)):
        assert gaussian_epsilon(z, releases, delta) == pytest.approx(
            gaussian_epsilon(z / releases**0.5, 1, delta), rel=1e-12
        )
    over_rounds = [gaussian_epsilon(8.0, releases, delta) for releases in range(1, 50)]
    assert (np.diff(over_rounds) > 0).all()
    over_noise = [gaussian_epsilon(z, 3, delta) for z in np.geomspace(1e-8, 50, 60)]
    assert (np.diff(over_noise) < 0).all()
    assert gaussian_epsilon(4.0, 3, delta) < gaussian_epsilon(4.0, 3, delta / 2)


@pytest.mark.parametrize(("noise_multiplier", "releases", "delta"), CASES[:4])
def test_it_is_below_what_renyi_privacy_gives_and_not_far(noise_multiplier, releases, delta):
    """By Rényi divergences α R / 2z², converted at the best order by Balle et al. (2020), Theorem 21."""
    orders = 1 + np.geomspace(1e-3, 1e3, 4000)
    divergence = releases * orders / (2 * noise_multiplier**2)
    bound = (divergence + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)).min()
    assert 0.85 * bound < gaussian_epsilon(noise_multiplier, releases, delta) < 0.98 * bound


def test_small_epsilon_is_not_rounded_up():
    """Rényi's orders up to 64 gave 0.103 here."""
    assert pf.Private(norm=1.0, noise_multiplier=1000.0).epsilon(1) == pytest.approx(0.00194, rel=0.01)


@pytest.mark.parametrize("z", [1e-100, 1e-9, 1e9, 1e100])
def test_the_curve_at_its_ends(z):
    """Little noise: ε is 1/2σ² + Φ⁻¹(1 - δ)/σ to first order."""
    epsilon = gaussian_epsilon(z, 7, 1e-5)
    expected = 0.0 if z > 1 else 3.5 / z**2
    assert epsilon == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_the_discrete_gaussian_on_a_fine_grid_spends_the_same():
    """The divergence of discrete Gaussians, summed over whole numbers, a thousand steps apart."""
    z, step = 2.0, 1000
    sd = z * step
    x = np.arange(-14 * sd, 14 * sd + step + 1)
    p, q = (np.exp(-((x - shift) ** 2) / (2 * sd**2)) for shift in (step, 0))
    p, q = p / p.sum(), q / q.sum()
    for delta in (1e-3, 1e-6):
        epsilon = gaussian_epsilon(z, 1, delta)
        assert np.maximum(p - np.exp(epsilon) * q, 0).sum() == pytest.approx(delta, rel=1e-5)
        beta = 200 / sd**2
        assert np.maximum(p - np.exp(epsilon + 2 * beta) * q, 0).sum() < delta
