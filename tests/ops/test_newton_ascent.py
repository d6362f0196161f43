"""Damped Newton climbs of densities whose modes are known, driven by a loop."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch.func import grad, hessian, vmap

from pyro_fed.audit.modes.climbs import mode_by_newton
from pyro_fed.ops.batched import Moments
from pyro_fed.ops.newton_ascent import Damping, NewtonAscent

D64 = torch.float64


def bent(z):
    """A banana with its mode at (1, 1), where -∇² is [[802, -400], [-400, 200]]."""
    return -((1 - z[0]) ** 2) - 100 * (z[1] - z[0] ** 2) ** 2


def quartic(z):
    """Modes at ±1 along the first axis, a saddle at zero."""
    return -((z[0] ** 2 - 1) ** 2) - z[1] ** 2


def look(density, points):
    return Moments(vmap(density)(points), vmap(grad(density))(points), -vmap(hessian(density))(points))


def climbed(density, starts, rounds=60, broken=None):
    climb = NewtonAscent.begin(torch.tensor(starts, dtype=D64), 1.0)
    for _ in range(rounds):
        seen = look(density, climb.trial)
        usable = seen.finite() if broken is None else seen.finite() & ~broken(climb.trial)
        climb = climb.tell(seen, usable, Damping())
    return climb


def test_climbs_arrive_at_the_mode_of_a_banana_with_its_curvature():
    climb = climbed(bent, [[-1.2, 1.0], [3.0, -2.0], [0.0, 0.0], [1.0, 1.0]])
    torch.testing.assert_close(climb.points, torch.ones(4, 2, dtype=D64))
    assert float(climb.length.max()) < 1e-6
    expected = torch.tensor([[802.0, -400.0], [-400.0, 200.0]], dtype=D64).expand(4, 2, 2)
    torch.testing.assert_close(climb.curvature, expected)


def test_no_climb_stays_at_a_saddle_and_the_density_never_falls():
    start = [[1e-3, 0.5], [-1e-3, 0.5]]
    values = torch.stack([climbed(quartic, start, rounds).value for rounds in range(1, 20)])
    assert bool((values.diff(dim=0) >= 0).all())
    torch.testing.assert_close(climbed(quartic, start).points[:, 0], torch.tensor([1.0, -1.0], dtype=D64))


def test_points_that_cannot_be_looked_at_are_not_taken():
    """Nothing is known beyond z_0 = 0.5: the climb stays before it, and one that begins beyond is nowhere."""
    climb = climbed(quartic, [[0.2, 0.1], [0.7, 0.1]], broken=lambda points: points[:, 0] > 0.5)
    assert 0.2 <= float(climb.points[0, 0]) <= 0.5
    assert climb.value[1] == -torch.inf and climb.length[1] == torch.inf


def test_rounding_may_lower_the_density():
    climb = NewtonAscent.begin(torch.zeros(1, 1, dtype=D64), 1.0)
    first = Moments(*(torch.full(shape, 1.0, dtype=D64) for shape in ((1,), (1, 1), (1, 1, 1))))
    lower = first._replace(value=first.value - 1e-7)
    usable = torch.tensor([True])
    for rounding, taken in ((1e-6, True), (0.0, False)):
        control = Damping(rounding=rounding)
        before = climb.tell(first, usable, control)
        after = before.tell(lower, usable, control)
        assert bool((after.points == before.trial).all()) is taken


class Banana:
    """`bent` as the audit has a target."""

    problem = SimpleNamespace(dtype=D64)

    def __call__(self, points):
        return vmap(bent)(points), vmap(grad(bent))(points)


@pytest.mark.parametrize("start", [(-1.2, 1.0), (2.0, 2.0), (0.0, 0.0)])
def test_the_audits_climbs_arrive_along_a_banana(start):
    """Its SDs are 0.7 and 1.4, and |H| = 802 · 200 - 400². The curvature is that of the point before the last step."""
    mode = mode_by_newton(Banana(), torch.tensor(start, dtype=D64))
    assert mode is not None
    torch.testing.assert_close(mode.at, torch.ones(2, dtype=D64), rtol=0, atol=0.01)
    assert abs(mode.log_mass + math.log(400) / 2) < 0.2
