"""How a kernel suits itself to particles and scores, and how many particles a cloud is worth."""

import pytest
import torch

from pyro_fed.ops import kernels
from pyro_fed.ops.kernel_base import Preconditioned
from pyro_fed.ops.kernels import RBF, Balanced, Linear, Marginal, median_bandwidth
from pyro_fed.ops.stein import effective_number, ksd, ksd_and_noise, svgd_direction


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, S = draw(9, 3, seed=1), draw(9, 3, seed=2)


@pytest.mark.parametrize("scale", [0.2, 1.0, 5.0])
def test_ksd_bandwidth_is_the_most_telling_multiple(scale):
    kernel = RBF("ksd")
    scores = -X / scale**2
    found = float(kernel.fit(X, scores).bandwidth)
    candidates = [m * float(median_bandwidth(X, 1e-18, 1e-4)) for m in kernel.multiples]
    best = max(candidates, key=lambda h: float(ksd(X, scores, RBF(h), "U")))
    assert found == pytest.approx(best, rel=1e-12)
    torch.testing.assert_close(svgd_direction(X, scores, kernel), svgd_direction(X, scores, RBF(best)))


def test_ksd_bandwidth_is_found_in_the_kernels_own_coordinates():
    factor = torch.tensor([10.0, 1.0, 0.1], dtype=torch.float64)
    whitened = RBF("ksd").fit(X, S)
    outer = Preconditioned(0.5 * RBF("ksd") + Linear(), factor).fit(X * factor, S / factor)
    torch.testing.assert_close(outer.kernel.first.kernel.bandwidth, whitened.bandwidth)


def test_ksd_bandwidth_maps_over_clients():
    batch = torch.stack([X, 3 * X])
    mapped = torch.func.vmap(lambda x: svgd_direction(x, S, RBF("ksd")))(batch)
    torch.testing.assert_close(mapped[1], svgd_direction(3 * X, S, RBF("ksd")))


def test_ksd_bandwidth_needs_scores():
    with pytest.raises(ValueError, match=r"call kernel\.fit"):
        RBF("ksd").fit(X)
    with pytest.raises(ValueError, match="positive multiples"):
        RBF("ksd", multiples=())
    with pytest.raises(ValueError, match="'median', 'ksd' or a number"):
        RBF("mean")


@pytest.mark.parametrize(("count", "dim", "weight"), [(100, 1, 1.0), (100, 5, 0.4), (100, 100, 0.02)])
def test_the_balanced_kernel_is_the_weighted_sum_of_three(count, dim, weight):
    x, s = draw(count, dim), draw(count, dim, seed=3)
    expected = weight * RBF() + Linear()
    if weight < 1:
        expected = expected + (1 - weight) * Marginal()
    torch.testing.assert_close(svgd_direction(x, s, Balanced()), svgd_direction(x, s, expected))
    torch.testing.assert_close(ksd(x, s, Balanced()), ksd(x, s, expected))
    torch.testing.assert_close(Balanced().velocity(x[:2], x, s), svgd_direction(x, s, expected)[:2])
    torch.testing.assert_close(Balanced().stein_matrix(x, s, s), expected.fit(x).stein_matrix(x, s, s))


def test_marginal_is_one_kernel_a_coordinate():
    """Velocity and Stein matrix are those of one-dimensional RBF kernels, side by side and summed."""
    widths = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    kernel, alone = Marginal(widths), [RBF(float(h)) for h in widths]
    columns = [slice(i, i + 1) for i in range(3)]
    velocity = torch.cat([k.velocity(X[:4, i], X[:, i], S[:, i]) for k, i in zip(alone, columns, strict=True)], 1)
    matrix = sum(k.stein_matrix(X[:, i], S[:, i], 2 * S[:, i]) for k, i in zip(alone, columns, strict=True))
    torch.testing.assert_close(kernel.velocity(X[:4], X, S), velocity)
    torch.testing.assert_close(kernel.stein_matrix(X, S, 2 * S), matrix)


def test_coordinates_in_pieces_are_all_coordinates(monkeypatch):
    kernel = Marginal().fit(X)
    whole = kernel.velocity(X, X, S), kernel.stein_matrix(X, S, 2 * S)
    monkeypatch.setattr(kernels, "count_in_cache", lambda numbers: 1)
    monkeypatch.setattr(kernels, "MAX_BLOCKS", 2)  # of two coordinates and one
    monkeypatch.setattr(kernels, "count_in_memory", lambda numbers: 2)
    torch.testing.assert_close(kernel.velocity(X, X, S), whole[0], rtol=0, atol=1e-14)
    torch.testing.assert_close(kernel.stein_matrix(X, S, 2 * S), whole[1])


def test_a_marginal_bandwidth_follows_its_own_coordinate():
    """Mean squared distance along each coordinate over log N; scaling a coordinate scales it alone."""
    apart = (X.unsqueeze(0) - X.unsqueeze(1)).square().mean((0, 1))
    torch.testing.assert_close(Marginal().fit(X).bandwidth, apart / torch.tensor(9.0, dtype=torch.float64).log())
    with pytest.raises(ValueError, match=r"call kernel\.fit"):
        Marginal().velocity(X, X, S)
    with pytest.raises(ValueError, match="expected min_bandwidth > 0, received 0"):
        Marginal(min_bandwidth=0)


def test_noise_is_the_ksd_of_draws():
    """Over sets of standard normal draws, the mean KSD is the mean noise: 400 sets, within 5 standard errors."""
    sets, kernel = draw(400, 20, 2), Marginal(torch.ones(2, dtype=torch.float64))
    found, noise = torch.func.vmap(lambda x: ksd_and_noise(x, -x, kernel))(sets)
    error = found.std() / len(sets) ** 0.5
    assert float((found.mean() - noise.mean()).abs()) < 5 * float(error)
    torch.testing.assert_close(found[0], ksd(sets[0], -sets[0], kernel))


def test_balanced_refuses_no_shrinkage():
    with pytest.raises(ValueError, match="expected shrinkage > 0, received 0"):
        Balanced(shrinkage=0)


def test_effective_number_of_particles():
    """All in one place: one. Far apart in units of the median bandwidth: all."""
    assert float(effective_number(torch.zeros(7, 2, dtype=torch.float64))) == pytest.approx(1)
    corners = torch.eye(50, dtype=torch.float64)  # equal distances: k = 1/N off the diagonal
    assert float(effective_number(corners)) == pytest.approx(50 / (1 + 49 / 50**2), rel=1e-9)
