"""A turn of DSVGD against its header's equations, written out in loops: a wrong sign, site or weight is found."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.infer.stein import dsvgd
from pyro_fed.ops.kernels import RBF

D64 = torch.float64
N, L, ALPHA, RATE, MOMENTUM, FUDGE, STEP_FACTOR, WIDTH = 5, 3, 2.0, 0.1, 0.9, 1e-9, 0.7, 1.3


def located(x, y):
    """Rows whose scores are no straight lines: a mean, and a rate on the log scale."""
    z = pyro.sample("z", dist.Normal(x.new_zeros(2), 3.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Normal(z[0], 0.8), obs=x)
        pyro.sample("y", dist.Poisson(z[1].exp()), obs=y)


def own_score(theta, x, y):
    return np.array([((x - theta[0]) / 0.8**2).sum(), (y - np.exp(theta[1])).sum()])


def federation():
    x, y = np.array([0.3, 1.2, -0.4, 0.9, 1.7]), np.array([2.0, 0.0, 3.0, 1.0, 1.0])
    parts = pf.partition.Explicit([[0, 1], [2, 3, 4]])
    fed = pf.Federation(located, (torch.tensor(x), torch.tensor(y)), plate="data", partition=parts)
    return fed, [(x[:2], y[:2]), (x[2:], y[2:])]


def states(seed=0):
    """Server's and clients' states with sites that are no client's own, as after some rounds."""
    source = np.random.default_rng(seed)
    lower = [np.array([[1.0, 0.0], [0.3, 0.6]]), np.array([[0.7, 0.0], [-0.2, 0.9]])]
    precision = np.stack([factor @ factor.T for factor in lower])
    eta, residual = source.normal(size=(2, 2)), source.normal(size=(2, N, 2))
    server = {
        "white": source.normal(size=(N, 2)),
        "history": source.uniform(0.5, 2.0, size=(N, 2)),
        "steps": np.array(7.0),
        "mean": np.array([0.4, -0.3]),
        "factor": np.array([[0.5, 0.0], [0.2, 0.8]]),
        "precision": precision.sum(0),
        "eta": eta.sum(0),
        "residuals": residual.sum(0),
    }
    return server, {"precision": precision, "eta": eta, "residual": residual}


def turn(server, sites, k, x, y):
    """Client k's turn by the header: its particles, history and new residual."""
    white, history, count = server["white"].copy(), server["history"].copy(), float(server["steps"])
    mean, factor = server["mean"], server["factor"]

    def likelihood(z):
        return factor.T @ own_score(mean + factor @ z, x, y) / ALPHA

    def target(n, z):
        prior = factor.T @ (-(mean + factor @ z) / 9)
        others = np.zeros(2)
        for j in range(2):
            if j != k:
                others += sites["eta"][j] - sites["precision"][j] @ z + sites["residual"][j][n]
        return prior + likelihood(z) + others

    for _ in range(L):
        scores = [target(n, white[n]) for n in range(N)]
        direction = np.zeros_like(white)
        for n in range(N):
            for m in range(N):
                kernel = np.exp(-((white[m] - white[n]) ** 2).sum() / WIDTH)
                direction[n] += (kernel * scores[m] - 2 * (white[m] - white[n]) / WIDTH * kernel) / N
        history = MOMENTUM * history + (1 - MOMENTUM) * direction**2
        rate = RATE * (1 + count / 500) ** -0.6
        white = white + STEP_FACTOR * rate * direction / (FUDGE + np.sqrt(history))
        count += 1
    own = [likelihood(z) - (sites["eta"][k] - sites["precision"][k] @ z) for z in white]
    return white, history, np.array(own)


def stepped(monkeypatch, k, straight):
    fed, _ = federation()
    monkeypatch.setattr(dsvgd, "NEGLIGIBLE", np.inf if straight else -1.0)
    algorithm = pf.DSVGD(
        num_particles=N, local_steps=L, step_size=RATE, temperature=ALPHA, kernel=RBF(bandwidth=WIDTH), start="gaussian"
    )
    server, sites = states()
    shared = {name: torch.tensor(value)[None] for name, value in server.items()}
    shared |= {"step_factor": torch.tensor([STEP_FACTOR], dtype=D64), "apart": torch.zeros(1), "near": torch.zeros(1)}
    local = {name: torch.tensor(value)[k : k + 1] for name, value in sites.items()}
    return algorithm.local_step(fed.problem, shared, local, fed.client_data([k]), ())


@pytest.mark.parametrize("k", [0, 1])
def test_a_turn_is_that_of_the_equations(k, monkeypatch):
    message, local, _ = stepped(monkeypatch, k, straight=False)
    (server, sites), (_, rows) = states(), federation()
    white, history, residual = turn(server, sites, k, *rows[k])
    np.testing.assert_allclose(message["white"][0], white, rtol=1e-10)
    np.testing.assert_allclose(message["history"][0], history, rtol=1e-10)
    np.testing.assert_allclose(local["residual"][0], residual, rtol=1e-9)
    np.testing.assert_allclose(message["residuals"][0], residual + sites["residual"][1 - k], rtol=1e-9)
    assert float(message["steps"]) == 7 + L


def test_a_turn_by_sites_is_that_of_rows_whose_scores_are_the_sites(monkeypatch):
    """In the first step both targets have the same scores at the particles, so that one step is the same."""
    monkeypatch.setattr(f"{__name__}.L", 1)
    by_rows, by_sites = (stepped(monkeypatch, 0, straight)[0] for straight in (False, True))
    torch.testing.assert_close(by_sites["white"], by_rows["white"])
    torch.testing.assert_close(by_sites["residuals"], by_rows["residuals"])


def test_particles_apart_see_no_sites_and_their_rows_stand_for_all(monkeypatch):
    fed, ((x, y), _) = federation()
    algorithm = pf.DSVGD(
        num_particles=N, local_steps=1, step_size=RATE, decay=0.0, kernel=RBF(bandwidth=WIDTH), start="apart"
    )
    server, sites = states()
    none = {name: 0 * sites[name][:1] for name in ("precision", "eta")}
    shared = {name: torch.tensor(value)[None] for name, value in server.items()}
    shared |= {name: 0 * shared[name] for name in ("precision", "eta")}
    shared |= {"step_factor": torch.ones(1), "apart": torch.ones(1), "near": torch.zeros(1)}
    local = {name: torch.tensor(value) for name, value in (none | {"residual": sites["residual"][:1]}).items()}
    message, _, _ = algorithm.local_step(fed.problem, shared, local, fed.client_data([0]), ())
    mean, factor, white = server["mean"], server["factor"], server["white"]
    scores = []
    for z in white:
        theta = mean + factor @ z
        scores.append(factor.T @ (-theta / 9 + 5 / 2 * own_score(theta, x, y)))
    direction = np.zeros_like(white)
    for n in range(N):
        for m in range(N):
            kernel = np.exp(-((white[m] - white[n]) ** 2).sum() / WIDTH)
            direction[n] += (kernel * scores[m] - 2 * (white[m] - white[n]) / WIDTH * kernel) / N
    history = MOMENTUM * server["history"] + (1 - MOMENTUM) * direction**2
    expected = white + RATE * direction / (FUDGE + np.sqrt(history))
    np.testing.assert_allclose(message["white"][0], expected, rtol=1e-10)
