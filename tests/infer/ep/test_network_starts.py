"""Where FedEP begins on a network: no wider than the mass at the mode, and no honest client is refused there."""

import math
import warnings
from dataclasses import replace
from functools import partial

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.algorithm import message_limits
from pyro_fed.density.derivatives.derivatives import Derivatives
from pyro_fed.infer.ep import ascent
from pyro_fed.infer.laplace.laplace_point import mode_level
from pyro_fed.infer.sites.gaussian_sites import add_batch_axis
from pyro_fed.ops.gaussian import DiagGaussian, FullGaussian
from pyro_fed.policy import resolve

F64 = torch.float64
KINDS = pytest.mark.parametrize("kind", [DiagGaussian, FullGaussian])


def one(kind, precision):
    """A Gaussian in two dimensions around one."""
    matrix = torch.eye(2, dtype=F64) * precision
    return kind(matrix if kind is FullGaussian else matrix.diagonal(), torch.full((2,), float(precision), dtype=F64))


def dip(depth, offset, sd):
    """E_q[l] and E_q[-l''] of l = -depth exp(-(θ - offset)² / 2) under N(0, sd²), by a fine grid."""
    z = torch.linspace(-12, 12, 40001, dtype=F64) * sd
    weight = torch.exp(-0.5 * (z / sd) ** 2)
    away = z - offset
    value = -depth * torch.exp(-(away**2) / 2)
    curvature = value * (1 - away**2)
    return float((weight * value).sum() / weight.sum()), float((weight * curvature).sum() / weight.sum())


@pytest.mark.parametrize("sd", [0.1, 0.5, 2.0, 10.0])
@pytest.mark.parametrize("offset", [0.0, 0.7, 3.0])
def test_a_negative_curvature_is_no_larger_than_the_log_likelihood_has_fallen(sd, offset):
    """What `natural` relies on: -E_q[-l''] ≤ P (max l - E_q[l])."""
    value, curvature = dip(1e5, offset, sd)
    assert -curvature <= (1 + 1e-6) * -value / sd**2


@KINDS
def test_an_honest_client_whose_log_likelihood_has_fallen_is_heard_and_a_flipped_one_is_not(kind):
    q = add_batch_axis(one(kind, 1.0))
    value, curvature = dip(1e5, 0.0, 1.0)
    assert curvature < -100 * message_limits.LARGEST_FALL
    changes = [one(kind, size) for size in (0.5, 0.4, curvature)]
    deltas = kind(*(torch.stack([getattr(d, part) for d in changes]) for part in ("precision", "eta")))
    found = message_limits.natural(q, deltas, torch.tensor([-10.0, -12.0, value], dtype=F64))
    assert not any(bool(holds.any()) for holds in found.values())
    for values in (None, torch.tensor([-10.0, -12.0, -value], dtype=F64)):  # a flipped message has its value flipped
        refused = [reason for reason, holds in message_limits.natural(q, deltas, values).items() if bool(holds[2])]
        assert refused == ["its precision has the wrong sign"]


def judged(expected, level):
    """What becomes of a start of three parameters at which the log density has this mean."""
    q = FullGaussian(torch.eye(3, dtype=F64), torch.ones(3, dtype=F64))
    climb = replace(ascent.first_climb(q), mode_log_density=torch.tensor(level, dtype=F64))
    return q, climb.replacement(q, torch.tensor(expected, dtype=F64) + q.entropy(), 1.0)


@pytest.mark.parametrize(("below", "narrowed"), [(1.5, False), (8.9, False), (9.1, True), (1e9, True)])
def test_a_start_that_loses_much_of_its_mode_is_narrowed_about_it(below, narrowed):
    q, back = judged(7.0 - below, 7.0)
    assert (back is not None) == narrowed
    if back is not None:
        torch.testing.assert_close(back[0].mean(), q.mean())
        torch.testing.assert_close(back[0].precision, 4 * q.precision)
        assert not bool(back[1].best_value.isfinite())


def test_a_start_is_not_judged_where_no_mode_is_known():
    assert judged(-1e9, -math.inf)[1] is None


def test_the_level_is_that_of_the_point_at_which_the_climb_ended():
    told = {name: torch.tensor(value) for name, value in {"value": -3.0, "decrement": 0.0, "back": 1.0}.items()}
    assert mode_level(told) == -3.0
    assert mode_level(told | {"decrement": torch.tensor(9.0)}) == -math.inf
    assert mode_level({"point": torch.zeros(2)}) == -math.inf


def two_scales(x, y, units):
    """A mean and a scale of each row."""
    w1 = pyro.sample("w1", dist.Normal(x.new_zeros(3, units), 1.0).to_event(2))
    b1 = pyro.sample("b1", dist.Normal(x.new_zeros(units), 1.0).to_event(1))
    w2 = pyro.sample("w2", dist.Normal(x.new_zeros(units, 2), 1.0).to_event(2))
    b2 = pyro.sample("b2", dist.Normal(x.new_zeros(2), 1.0).to_event(1))
    out = torch.tanh(x @ w1 + b1) @ w2 + b2
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(out[..., 0], out[..., 1].exp()), obs=y)


def scales_of_rows():
    """Five clients of 48 rows."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(640, 3, generator=generator)[:240]
    noise = torch.randn(640, generator=generator)[:240]
    y = torch.sin(2 * x[:, 0]) + 0.5 * x[:, 1] + 0.3 * x[:, 2].exp() * noise
    return pf.Federation(partial(two_scales, units=12), (x, y), plate="data", num_clients=5, seed=0)


def test_a_scale_of_each_row_begins_within_reach_of_its_mode():
    """Under Laplace's approximation the rows' log density is -5e9, and the clients that said so were refused."""
    fed = scales_of_rows()
    assert fed.problem.dim == 74
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # eight rounds are few
        idata = pf.run(pf.FedEP(), fed, num_rounds=8, progress=False, audit=False, log_likelihood=False)
    record = idata["federation"]
    assert "failure_round" not in record
    assert float(record["expected_log_lik"].values[-1].sum()) > -2 * 240


def test_rows_of_a_network_share_the_points_from_a_tenth_of_the_work_on():
    """1.7e8 numbers: two shares of any other model's rows."""
    fed = scales_of_rows()
    assert Derivatives("full", "hessian").shares(fed.problem, 128, fed.client_data().full_batch()) == 16


def of_heavy_weights(x, y, layers):
    """Laplace's priors, of a network or of a regression."""
    inputs = x
    for number in range(layers):
        width = 6 if number + 1 < layers else 1
        w = pyro.sample(f"w{number}", dist.Laplace(x.new_zeros(inputs.shape[-1], width), 1.0).to_event(2))
        inputs = torch.tanh(inputs @ w) if number + 1 < layers else inputs @ w
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(inputs[..., 0], 0.3), obs=y)


@pytest.mark.parametrize(("layers", "at_prior"), [(1, True), (2, False)])
def test_a_network_whose_priors_scores_jump_begins_at_no_prior(layers, at_prior):
    """A lasso does; a network is stationary there, and had a log density of -0.63 in place of -0.25."""
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    fed = pf.Federation(partial(of_heavy_weights, layers=layers), (x, x[:, 0]), plate="data", num_clients=2)
    assert (resolve(pf.FedEP(), fed.problem.traits).algorithm.start == "prior") == at_prior
