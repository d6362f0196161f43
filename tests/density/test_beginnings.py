"""Ascents to the modes of the rows' latents begin at the modes at the points' mean, where few steps lead from there."""

import hierarchies
import pytest
import torch

from pyro_fed.conventions.limits import NEGLIGIBLE
from pyro_fed.density.derivatives.derivatives import Derivatives
from pyro_fed.density.derivatives.scores import clients_log_likelihoods, log_likelihoods
from pyro_fed.density.latents.ascent_starts import ascent_starts, first_client
from pyro_fed.density.latents.quadrature import Quadrature
from pyro_fed.density.rows.batches import BATCHES, Batch

THETA = torch.tensor([0.9, -0.2], dtype=torch.float64)


@pytest.fixture(scope="module")
def fed():
    return hierarchies.CASES["rates"].federation(tails=False)


def points_of(fed, apart):
    """Draws of θ for each of the clients, (C, 32, 2), the last client's at one place."""
    away = torch.randn(32, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    spread = torch.full((fed.num_clients, 1, 1), apart, dtype=torch.float64)
    spread[-1] = 0.01
    return THETA + spread * away


@pytest.mark.parametrize("apart, all_arrive", [(0.2, True), (3.0, False)])
def test_log_likelihoods_are_exact_wherever_ascents_begin(fed, apart, all_arrive):
    problem, data, points = fed.problem, fed.client_data(), points_of(fed, apart)
    near = ascent_starts(problem, points, data.full_batch())
    assert bool(near.arrive.all()) == all_arrive and bool(near.arrive[-1])  # each client's own rows decide
    found = clients_log_likelihoods(problem, points, data)
    from_zero = problem.mapped(log_likelihoods, (0, BATCHES))(points, data.full_batch())
    off = (found - from_zero).abs()
    assert float(off.max()) < NEGLIGIBLE
    assert float((off - off.mean(1, keepdim=True)).abs().max()) < 0.01
    counts = data.rows[0][data.row_index[-1][: data.num_rows[-1]]]
    exact = torch.stack([hierarchies.rates_log_lik(z, counts).sum() for z in points[-1]])
    assert float((from_zero[-1] - exact).abs().max()) < 1e-3


def test_derivatives_under_a_gaussian_climb_from_zero_once(fed, monkeypatch):
    problem, data = fed.problem, fed.client_data()
    points, batch = points_of(fed, 0.2).transpose(0, 1).contiguous(), data.full_batch()
    derivatives = Derivatives("full", "hessian")
    from_zero = derivatives._of_likelihood(problem, points, batch)
    climbed, centre = [], Quadrature.centre
    monkeypatch.setattr(Quadrature, "centre", lambda *args: climbed.append(1) or centre(*args))
    found = derivatives.of_likelihood(problem, points, batch)
    assert not climbed  # a compiled step climbs at the mean, and near it
    sd = points.std(0)  # of each client's points: what these are known to matters, not a score far narrower than they
    value, score, curvature = (one - other for one, other in zip(found, from_zero, strict=True))
    assert float(value.abs().max()) < NEGLIGIBLE
    assert float((score * sd).abs().max()) < 0.01
    assert float((curvature * sd.unsqueeze(1) * sd.unsqueeze(2)).abs().max()) < 0.01


def test_modes_are_known_at_each_of_a_few_points_however_far_apart(fed):
    problem, data, points = fed.problem, fed.client_data(), points_of(fed, 1.0)[:, :3]
    near = ascent_starts(problem, points, data.full_batch())
    assert bool(near.arrive.all())
    counts = data.rows[0][data.row_index[0][: data.num_rows[0]]]
    known = first_client(near.batch.near[0])
    found = clients_log_likelihoods(problem, points, data)
    for z, total in zip(points[0], found[0], strict=True):
        shape, scale = z.exp()  # given a count, exp(x (shape + count) - exp(x) (1 / scale + 1)) of x = log(rate)
        mode = ((shape + counts) / (1 / scale + 1)).log()
        assert float((known.modes(z)[: len(counts), 0] - mode).abs().max()) < 0.01
        assert float(total - hierarchies.rates_log_lik(z, counts).sum()) == pytest.approx(0, abs=1e-3)


def test_nothing_is_begun_where_it_saves_nothing(fed):
    points, batch = points_of(fed, 0.2), fed.client_data().full_batch()
    gaussian = hierarchies.federation("means")  # two steps from anywhere
    assert ascent_starts(gaussian.problem, points[:, :, :1], gaussian.client_data().full_batch()) is None
    assert Batch(*batch[:2]).near == ()
