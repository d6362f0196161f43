"""The largest proper fraction of a change, at its very edge; and points of exact moments."""

import math

import pytest
import torch
from torch.func import vmap
from torch.fx.experimental.proxy_tensor import make_fx

from pyro_fed.ops.backtrack import backtrack, backtracked_step, largest_fraction, move
from pyro_fed.ops.gaussian import STRUCTURES, DiagGaussian, FullGaussian
from pyro_fed.ops.points import standardised_sobol

K, D = 5, 4


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pair(name, seed=0):
    """Proper Gaussians and indefinite changes of them."""
    root = draw(K, D, D, seed=seed)
    precision, change = root @ root.transpose(-1, -2) + 0.2 * torch.eye(D), draw(K, D, D, seed=seed + 1)
    change = change + change.transpose(-1, -2) - 3 * torch.eye(D)
    pick = {"full": lambda m: m, "diag": lambda m: torch.diagonal(m, dim1=-2, dim2=-1)}[name]
    structure = STRUCTURES[name]
    return structure(pick(precision), draw(K, D, seed=2)), structure(pick(change), draw(K, D, seed=3))


each_structure = pytest.mark.parametrize("name", STRUCTURES)


@each_structure
@pytest.mark.parametrize("seed", [0, 10, 20])
def test_the_limit_is_the_edge(name, seed):
    q, delta = pair(name, seed)
    limit = largest_fraction(q, delta)
    edge = torch.isfinite(limit)
    assert edge.any()
    inside, outside = q * delta ** (limit * (1 - 1e-9)), q * delta ** (limit * (1 + 1e-9))
    assert inside.is_proper()[edge].all()
    assert not outside.is_proper()[edge].any()


@each_structure
def test_a_change_that_adds_precision_has_no_limit(name):
    q, _ = pair(name)
    assert torch.isinf(largest_fraction(q, q)).all()
    assert backtrack(q, q).tolist() == [1.0] * K


@each_structure
def test_the_margin_is_kept_and_the_maximum_too(name):
    q, delta = pair(name)
    fraction = backtrack(q, delta, max_fraction=0.7, margin=0.2)
    kept = 1.0 + q.relative_change(delta**fraction).amin(-1)
    assert (fraction <= 0.7).all()
    assert (kept >= 0.2 - 1e-9).all()
    held_back = fraction < 0.7
    torch.testing.assert_close(kept[held_back], torch.full_like(kept[held_back], 0.2), rtol=0, atol=1e-9)


@each_structure
def test_the_gaussian_that_a_fraction_leads_to_comes_with_it(name):
    q, delta = pair(name)
    fraction, moved = backtracked_step(q, delta, margin=0.2)
    assert torch.equal(fraction, backtrack(q, delta, margin=0.2)) and bool((fraction > 0).all())
    assert torch.equal(moved.precision, move(q, delta, fraction).precision) and bool(moved.is_proper().all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_units_of_the_coordinates_do_not_matter(dtype):
    q, delta = pair("full")
    units = torch.tensor([1e-6, 1e-2, 1.0, 1e6], dtype=torch.float64)
    scaled = [FullGaussian(g.precision / units.unsqueeze(-1) / units, g.eta / units).to(dtype) for g in (q, delta)]
    tolerance = 1e-10 if dtype == torch.float64 else 1e-3
    torch.testing.assert_close(largest_fraction(*scaled), largest_fraction(q, delta), rtol=tolerance, atol=0)
    fraction = backtrack(*scaled)
    assert (scaled[0] * scaled[1] ** fraction).is_proper().all()


@each_structure
def test_what_cannot_go_on_is_stalled_and_alone(name):
    q, _ = pair(name)
    sign = torch.tensor([1.0, -1.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    size = torch.tensor([0.0, 1.0, math.nan, 1e9, math.inf], dtype=torch.float64)
    shrinking = q**-1.0
    fraction = backtrack(q**sign, shrinking**size)
    assert fraction.tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]
    limit = largest_fraction(q**sign, shrinking**size)
    assert limit[[1, 2, 4]].tolist() == [0.0, 0.0, 0.0]
    assert float(limit[3]) == pytest.approx(1e-9, rel=1e-9)
    moved = move(q, shrinking**size, fraction)
    assert torch.equal(moved.precision[1:], q.precision[1:])
    assert torch.equal(moved.eta[1:], q.eta[1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e6, 1e12, 1e20, 1e30])
def test_a_monstrous_change_is_taken_properly_or_not_at_all(size, dtype):
    """Where a huge eigenvalue hides a negative one from rounding, the result is still proper or stalled."""
    basis = torch.linalg.qr(draw(D, D, seed=4)).Q
    values = torch.tensor([size, -0.5, -3.0, 0.1], dtype=torch.float64)
    q = FullGaussian.from_moments(torch.zeros(D).double(), torch.eye(D).double()).to(dtype)
    delta = FullGaussian(basis @ torch.diag(values) @ basis.T, draw(D, seed=5)).to(dtype)
    fraction = backtrack(q, delta)
    assert bool(move(q, delta, fraction).is_proper())


def test_one_q_and_many_changes():
    q, delta = pair("full")
    one = FullGaussian(q.precision[0], q.eta[0])
    expected = torch.stack([largest_fraction(one, FullGaussian(delta.precision[k], delta.eta[k])) for k in range(K)])
    torch.testing.assert_close(largest_fraction(one, delta), expected)
    assert backtrack(one, delta).shape == (K,)


@each_structure
def test_vmap_and_make_fx_agree_with_the_batch(name):
    q, delta = pair(name)

    def on_tensors(precision, eta):
        return vmap(backtrack)(type(q)(precision, eta), delta)

    expected = backtrack(q, delta)
    traced = make_fx(on_tensors)(q.precision * 2, q.eta)
    for got in (vmap(backtrack)(q, delta), traced(q.precision, q.eta)):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("settings", [{"max_fraction": 0.0}, {"min_fraction": 0.0}, {"margin": 1.0}])
def test_bad_settings_are_named(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        backtrack(*pair("diag"), **settings)


@pytest.mark.parametrize(("num_points", "dim"), [(2, 1), (8, 4), (128, 10), (128, 64), (100, 7)])
def test_points_have_exact_moments(num_points, dim):
    points = standardised_sobol(num_points, dim, seed=3)
    identity = torch.eye(dim, dtype=torch.float64)
    torch.testing.assert_close(points.mean(0), torch.zeros(dim, dtype=torch.float64), rtol=0, atol=1e-14)
    torch.testing.assert_close(points.T @ points / num_points, identity, rtol=0, atol=1e-13)
    assert (points[: num_points // 2] == -points[num_points // 2 :]).all()


@pytest.mark.parametrize(("num_points", "dim"), [(2, 3), (16, 50)])
def test_few_points_have_exact_means_and_variances(num_points, dim):
    points = standardised_sobol(num_points, dim)
    assert torch.isfinite(points).all()
    torch.testing.assert_close(points.mean(0), torch.zeros(dim, dtype=torch.float64), rtol=0, atol=1e-14)
    torch.testing.assert_close(points.square().mean(0), torch.ones(dim).double(), rtol=0, atol=1e-14)


def test_points_are_near_normal_and_reproducible():
    state = torch.get_rng_state()
    points = standardised_sobol(1024, 3, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(points, standardised_sobol(1024, 3, seed=1))
    assert not torch.equal(points, standardised_sobol(1024, 3, seed=2))
    # Fourth moment 3 (slow: it lives in the tails) and E exp(z) = sqrt(e), for one fixed seed.
    torch.testing.assert_close(points.pow(4).mean(0), torch.full((3,), 3.0).double(), rtol=0.05, atol=0)
    torch.testing.assert_close(points.exp().mean(0), torch.full((3,), math.e**0.5).double(), rtol=0.005, atol=0)


@pytest.mark.parametrize(("num_points", "dim"), [(0, 3), (7, 3), (8, 0), (8, 30000)])
def test_points_refuse_what_they_cannot_do(num_points, dim):
    with pytest.raises(ValueError, match="standardised_sobol: expected"):
        standardised_sobol(num_points, dim)


def test_expected_newton_step_is_exact_for_a_gaussian_likelihood():
    """Site precision -E[H] and eta E[g] - E[H] m recover the likelihood from any q, with few points too."""
    site, q = pair("diag")[0], DiagGaussian.from_moments(draw(D, seed=8), draw(D, seed=9).square() + 0.1)
    points = q.transform(standardised_sobol(4, D))
    target = DiagGaussian(site.precision[0], site.eta[0])
    score = target.score(points).mean(0)
    torch.testing.assert_close(score + target.precision * q.mean(), target.eta, rtol=1e-12, atol=1e-12)
