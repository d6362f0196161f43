"""Federated averaging with adaptive servers and over graphs, in NumPy from the papers' equations and compared exactly.

Clients of unequal rows, a smaller curvature than the bound of a step on all rows, and no prior: no weight is alike for
two clients, so that a wrong weight, sign or index moves the point.
"""

import numpy as np
import pytest
from conjugate import NOISE_SD, QUIET, data, model

import pyro_fed as pf

PARTS = ([*range(5)], [*range(5, 14)], [*range(14, 34)], [*range(34, 60)])
STEPS, RATE, MOMENTUM, SERVER_RATE = 3, 1e-3, 0.9, 0.3
LOCAL = {"chain_steps": STEPS, "step_size": RATE, "momentum": MOMENTUM}
DIRECTED = [[0.5, 0.5, 0, 0], [0.2, 0.5, 0.3, 0], [0, 0, 0.5, 0.5], [0.3, 0.3, 0, 0.4]]


def adam(delta, memory):
    """FedAdam, with the averages divided by what their weights sum to."""
    memory["t"] = memory.get("t", 0) + 1
    memory["m"] = 0.9 * memory.get("m", 0) + 0.1 * delta
    memory["v"] = 0.999 * memory.get("v", 0) + 0.001 * delta**2
    first, second = memory["m"] / (1 - 0.9 ** memory["t"]), memory["v"] / (1 - 0.999 ** memory["t"])
    return first / (np.sqrt(second) + 1e-5)


def adagrad(delta, memory):
    """FedAdagrad."""
    memory["v"] = memory.get("v", 0) + delta**2
    return delta / (np.sqrt(memory["v"]) + 1e-5)


def sgd(delta, memory):
    """FedAvgM."""
    memory["v"] = 0.9 * memory.get("v", 0) + delta
    return memory["v"]


def local_point(point, rows):
    """L steps of SGD with momentum on the mean log-likelihood of a client's rows."""
    x, y = (part.numpy()[rows] for part in data())
    velocity = np.zeros(3)
    for _ in range(STEPS):
        velocity = MOMENTUM * velocity + x.T @ (y - x @ point) / NOISE_SD**2 / len(rows)
        point = point + RATE * velocity
    return point


def federation():
    return pf.Federation(model, data(), plate="data", partition=pf.partition.Explicit([*PARTS]))


def points(algorithm, rounds, **options):
    """The point, or those of the agents, with which a run begins and ends; the same seed begins with the same."""
    fed = federation()
    begun = pf.run(pf.FedAvg(step_size=1e-300), fed, num_rounds=1, **QUIET)["posterior"]["w"].values[0, 0]
    ended = pf.run(algorithm, fed, num_rounds=rounds, **QUIET, **options)["posterior"]["w"].values
    return begun, ended


@pytest.mark.parametrize(("name", "optimiser"), [(None, None), ("sgd", sgd), ("adagrad", adagrad), ("adam", adam)])
def test_fedavg_is_the_optimisers_step_on_the_average_by_rows(name, optimiser):
    """Reddi et al., Algorithm 2: θ ← θ + δ optim(Σ_k N_k / N (θ_k - θ))."""
    server = pf.infer.optim.Adam() if name == "adam" else name
    point, ended = points(pf.FedAvg(**LOCAL, damping=SERVER_RATE, server_optimiser=server), 3)
    memory = {}
    for _ in range(3):
        delta = sum(len(rows) / 60 * (local_point(point, rows) - point) for rows in PARTS)
        point = point + SERVER_RATE * (delta if optimiser is None else optimiser(delta, memory))
    np.testing.assert_allclose(ended[0, 0], point, rtol=1e-9, atol=1e-10)


def test_one_client_in_turn_moves_the_point_alone():
    """Kassab and Simeone, C.1: FedAvg whose server schedules a single agent at a time."""
    point, ended = points(pf.FedAvg(**LOCAL), 5, schedule=pf.schedule.RoundRobin())
    for turn in range(5):
        point = local_point(point, PARTS[turn % 4])
    np.testing.assert_allclose(ended[0, 0], point, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("gossip_steps", [1, 2])
def test_agents_mix_their_own_points_with_the_rows_of_the_weights(gossip_steps):
    """θ_i ← Σ_j W_ij (θ_j after L steps); a matrix that is not symmetric."""
    algorithm = pf.infer.P2PFedAvg(**LOCAL, gossip_steps=gossip_steps)
    begun, ended = points(algorithm, 3, graph=pf.graph.from_matrix(DIRECTED))
    agents = np.tile(begun, (4, 1))
    for _ in range(3):
        moved = np.stack([local_point(point, rows) for point, rows in zip(agents, PARTS, strict=True)])
        agents = np.linalg.matrix_power(np.array(DIRECTED), gossip_steps) @ moved
    np.testing.assert_allclose(ended[:, 0], agents, rtol=1e-9, atol=1e-10)
    assert ended.std(0).min() > 1e-4
