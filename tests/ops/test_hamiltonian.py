"""Hamiltonian trajectories against products of matrices, their own inverse, and quadrature."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch.func import grad, jacfwd, vmap

from pyro_fed.ops.hamiltonian import LEAPFROG, THREE_STAGE, Phase, fresh_momenta, trajectory, transition

SPLITTINGS = {"leapfrog": LEAPFROG, "three stages": THREE_STAGE}
#: Blanes, Casas & Sanz-Serna (2014), Eq. (25).
A, B = 0.29619504261126, 0.11888010966548
each_splitting = pytest.mark.parametrize("name", SPLITTINGS)


def gaussian(z):
    """log N(0, 1) of every coordinate, but for its constant, and its gradient."""
    return -z.square().sum(-1) / 2, -z


def banana(z):
    return -(z[0] ** 2) / 2 - (z[1] - z[0] ** 2) ** 2 - torch.cos(z[0] * z[1])


def bent(z):
    return vmap(banana)(z), vmap(grad(banana))(z)


def began(position, momentum, density=gaussian):
    return Phase.at(position, momentum, density(position))


def matrix_of_step(name, h):
    """(θ, r) → (θ', r') of one step at N(0, 1), kick by kick and drift by drift."""
    kick = lambda b: np.array([[1.0, 0.0], [-b * h, 1.0]])  # noqa: E731
    drift = lambda a: np.array([[1.0, a * h], [0.0, 1.0]])  # noqa: E731
    if name == "leapfrog":
        return kick(0.5) @ drift(1.0) @ kick(0.5)
    inner = kick(0.5 - B) @ drift(1 - 2 * A) @ kick(0.5 - B)
    return kick(B) @ drift(A) @ inner @ drift(A) @ kick(B)


@each_splitting
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_trajectories_at_a_gaussian_are_powers_of_a_matrix(name, steps):
    start = torch.tensor([[0.7, -1.2], [1.9, 0.4]], dtype=torch.float64)  # θ and r of two chains
    h = torch.tensor([[0.3], [0.9]], dtype=torch.float64)
    end = trajectory(began(start[:, :1], start[:, 1:]), gaussian, h, steps, SPLITTINGS[name])
    for i in range(2):
        expected = np.linalg.matrix_power(matrix_of_step(name, float(h[i])), steps) @ start[i].numpy()
        np.testing.assert_allclose([float(end.position[i]), float(end.momentum[i])], expected, rtol=1e-13)
    torch.testing.assert_close(end.value, gaussian(end.position)[0], rtol=0, atol=0)
    torch.testing.assert_close(end.score, -end.position, rtol=0, atol=0)


@pytest.mark.parametrize("name, steps, error", [("leapfrog", 5, 3e-4), ("three stages", 1, 5e-5)])
def test_a_quarter_of_a_turn_has_the_stated_error(name, steps, error):
    """E(H' - H) is (|M|² - 2) / 2 of the matrix M of a trajectory, for one dimension of N(0, I)."""
    start = torch.eye(2, dtype=torch.float64)
    end = trajectory(began(start[:, :1], start[:, 1:]), gaussian, math.pi / 2 / steps, steps, SPLITTINGS[name])
    found = (float(end.position.square().sum() + end.momentum.square().sum()) - 2) / 2
    assert found == pytest.approx(error, rel=0.1)


@each_splitting
def test_a_trajectory_is_its_own_inverse_and_preserves_volume_where_the_density_is_bent(name):
    def end(both):
        """(4,) → (4,), θ and r."""
        moved = trajectory(began(both[None, :2], both[None, 2:], bent), bent, 0.21, 6, SPLITTINGS[name])
        return torch.cat([moved.position[0], moved.momentum[0]])

    start, turn = torch.tensor([0.4, -0.3, 0.9, -1.1]).double(), torch.tensor([1.0, 1.0, -1.0, -1.0]).double()
    there = end(start)
    assert (there - start).abs().max() > 0.5
    torch.testing.assert_close(turn * end(turn * there), start, rtol=0, atol=1e-12)
    assert float(torch.linalg.det(jacfwd(end)(start)).abs()) == pytest.approx(1.0, abs=1e-11)


@each_splitting
def test_the_error_of_the_energy_is_of_second_order(name):
    """Half the step, a quarter of the error in H, for a trajectory of the same length."""
    position, momentum = torch.tensor([[[0.4, -0.3]], [[0.9, -1.1]]], dtype=torch.float64)

    def energy(phase):
        return float(phase.momentum.square().sum() / 2 - phase.value[0])

    start = began(position, momentum, bent)
    errors = [
        energy(trajectory(start, bent, 0.8 / count, count, SPLITTINGS[name])) - energy(start) for count in (16, 32, 64)
    ]
    assert abs(errors[-1]) < 1e-3
    for wide, narrow in itertools.pairwise(errors):
        assert wide / narrow == pytest.approx(4, rel=0.05)


@each_splitting
def test_a_transition_leaves_the_density_as_it_is(name):
    """∫ p(θ) N(r) [c g(θ') + (1 - c) g(θ)] = ∫ p(θ) g(θ), c the probability of acceptance, by quadrature.

    Each place is in the sum twice, with uniform numbers just below and above c. Steps are nearly too long to be stable.
    """
    line = torch.linspace(-7, 7, 401, dtype=torch.float64)
    theta, r = (part.reshape(-1, 1) for part in torch.meshgrid(line, line, indexing="ij"))
    weight = torch.exp(gaussian(theta)[0] + gaussian(r)[0])
    weight = weight / weight.sum()
    start = began(theta, r)
    how = gaussian, 1.9 if name == "leapfrog" else 4.0, 3, SPLITTINGS[name]

    def moved(uniform):
        return transition(start, how[0], uniform, *how[1:])

    chance = moved(torch.zeros(len(theta)))[2]
    taken, refused = moved(chance * (1 - 1e-12)), moved(chance * (1 + 1e-12))
    assert torch.equal(taken[1], chance > 0) and not bool(refused[1].any())
    assert torch.equal(refused[0].position, theta) and torch.equal(refused[0].momentum, r)
    assert 0.3 < float(weight @ chance) < 0.99
    for power in (2, 4):
        after = chance * taken[0].position[:, 0] ** power + (1 - chance) * theta[:, 0] ** power
        assert float(weight @ after) == pytest.approx({2: 1.0, 4: 3.0}[power], abs=2e-3)


def test_ends_that_are_no_number_are_refused_and_those_of_more_density_taken():
    density = lambda z: (torch.where(z[:, 0] < 2, 3 * z[:, 0], torch.nan), 0 * z, 10 * z)  # noqa: E731
    position, momentum = torch.zeros(2, 1).double(), torch.tensor([[1.0], [3.0]]).double()
    state, accepted, chance = transition(
        Phase.at(position, momentum, density(position)), density, torch.tensor([0.999, 0.0]), 1.0, 1
    )
    assert accepted.tolist() == [True, False] and chance.tolist() == [1.0, 0.0]
    assert state.position.tolist() == [[1.0], [0.0]] and state.value.tolist() == [3.0, 0.0]
    assert state.beside[0].tolist() == [[10.0], [0.0]]


def test_momenta_are_standard_normal_and_lengths_differ_evenly():
    """Six standard errors of 10⁵ numbers: one failure in 10⁸."""
    momentum, length = fresh_momenta(torch.zeros(50_000, 2).double(), torch.Generator().manual_seed(0), 0.3)
    assert abs(float(momentum.mean())) < 6 / 10**2.5 and abs(float(momentum.var()) - 1) < 6 * (2 / 10**5) ** 0.5
    assert 0.7 <= float(length.min()) < 0.701 and 1.299 < float(length.max()) <= 1.3
