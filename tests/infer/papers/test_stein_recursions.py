"""Algorithms 1, 3, 4 and 5 of Kassab & Simeone, written out in loops from the paper's equations and compared exactly.

Clients of unequal rows whose scores are curved, three particles in the plane, α = 2 and two turns a client: no term is
zero, one, or alike for two clients, so that a sign, a factor or an index that is wrong moves the particles.
"""

import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.conventions import seeding
from pyro_fed.ops.kernels import RBF

SEED, N, L, DISTILL, SERVER = 4, 3, 3, 4, 5
ALPHA, RATE, MOMENTUM, FUDGE, WIDTH, LAMBDA, PRIOR_SD = 2.0, 0.1, 0.9, 1e-9, 1.3, 0.7, 1.5
X, Y = np.array([0.3, 1.2, -0.4, 0.9, 1.7]), np.array([2.0, 0.0, 3.0, 1.0, 1.0])
CLIENTS = ([0, 1], [2, 3, 4])
SETTINGS = {"num_particles": N, "local_steps": L, "step_size": RATE, "momentum": MOMENTUM, "fudge": FUDGE}
SETTINGS |= {"temperature": ALPHA, "kernel": RBF(bandwidth=WIDTH)}
SITES = {**SETTINGS, "kde_bandwidth": LAMBDA, "kde_floor": 0.0}


def model(x, y):
    z = pyro.sample("z", dist.Normal(x.new_zeros(2), PRIOR_SD).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Normal(z[0], 0.8), obs=x)
        pyro.sample("y", dist.Poisson(z[1].exp()), obs=y)


def prior(theta):
    """∇ log p_0."""
    return -theta / PRIOR_SD**2


def one(theta):
    """The score of a site that is one."""
    return np.zeros(2)


def loss_gradient(theta, rows):
    """∇ L_k, of minus the log-likelihood."""
    return -np.array([((X[rows] - theta[0]) / 0.8**2).sum(), (Y[rows] - np.exp(theta[1])).sum()])


def kde(centres):
    """∇ log of 1/N Σ_n N(θ | θ_n, λ² I)."""

    def score(theta):
        kernels = [np.exp(-((theta - centre) ** 2).sum() / (2 * LAMBDA**2)) for centre in centres]
        pulls = [kernel * (centre - theta) / LAMBDA**2 for kernel, centre in zip(kernels, centres, strict=True)]
        return sum(pulls) / sum(kernels)

    return score


def svgd(particles, score, steps, optimiser=None):
    """Eq. (8) with AdaGrad with momentum, G_0 = g_0²; `optimiser` keeps G from call to call."""
    optimiser = {} if optimiser is None else optimiser
    for _ in range(steps):
        direction = np.zeros_like(particles)
        for n in range(N):
            for j in range(N):
                kernel = np.exp(-((particles[j] - particles[n]) ** 2).sum() / WIDTH)
                repulsion = -2 * (particles[j] - particles[n]) / WIDTH * kernel
                direction[n] += (kernel * score(particles[j]) + repulsion) / N
        old = optimiser.get("G", direction**2)
        optimiser["G"] = MOMENTUM * old + (1 - MOMENTUM) * direction**2
        particles = particles + RATE * direction / (FUDGE + np.sqrt(optimiser["G"]))
    return particles


def moved(particles, q, site, rows):
    """Eq. (13): L steps towards the tilted target of Eq. (14), ∇ log q - ∇ log t_k - 1/α ∇ L_k."""
    return svgd(particles, lambda z: q(z) - site(z) - loss_gradient(z, rows) / ALPHA, L)


def distilled(local, new_q, q, site):
    """Eq. (17): L' steps towards ∇ log q^(i) + ∇ log t_k^(i-1) - ∇ log q^(i-1)."""
    return svgd(local, lambda z: new_q(z) + site(z) - q(z), DISTILL)


def algorithm_1(start, rounds):
    """DSVGD, one client in turn."""
    particles, q = start, prior
    local, sites = [start, start], [one, one]
    for i in range(rounds):
        k = i % 2
        particles = moved(particles, q, sites[k], CLIENTS[k])
        local[k] = distilled(local[k], kde(particles), q, sites[k])
        q, sites[k] = kde(particles), kde(local[k])
    return particles


def algorithm_3(start, rounds):
    """SVGD of all rows."""
    particles, optimiser, rows = start, {}, list(range(len(X)))
    for _ in range(rounds):
        particles = svgd(particles, lambda z: prior(z) - loss_gradient(z, rows) / ALPHA, L, optimiser)
    return particles


def algorithm_4(start, rounds):
    """U-DSVGD: a site is Π_j q^(j) / q^(j-1) over the turns of its client, Eq. (10) and (15)."""
    particles, q = start, prior
    turns = [[], []]
    for i in range(rounds):
        k = i % 2

        def site(z, ratios=tuple(turns[k])):
            return sum((after(z) - before(z) for after, before in ratios), np.zeros(2))

        particles = moved(particles, q, site, CLIENTS[k])
        turns[k].append((kde(particles), q))
        q = kde(particles)
    return particles


def algorithm_5(start, rounds, scheduled):
    """Parallel-DSVGD: the scheduled clients' sites go to the server, whose particles approach p_0 Π_k t_k, Eq. (29)."""
    particles, q = start, prior
    local, sites = [start, start], [one, one]
    for i in range(rounds):
        for k in scheduled(i):
            new_q = kde(moved(particles, q, sites[k], CLIENTS[k]))
            local[k] = distilled(local[k], new_q, q, sites[k])
            sites[k] = kde(local[k])
        particles = svgd(particles, lambda z: prior(z) + sites[0](z) + sites[1](z), SERVER)
        q = kde(particles)
    return particles


def run(algorithm, rounds, num_clients=2, **options):
    """The particles that a run begins with and ends at."""
    parts = CLIENTS if num_clients == 2 else [list(range(len(X)))]
    rows = (torch.tensor(X), torch.tensor(Y))
    fed = pf.Federation(model, rows, plate="data", partition=pf.partition.Explicit(parts))
    shared, _ = algorithm.init(fed.problem, num_clients, seeding.torch_generator(SEED, seeding.SERVER, 0), None)
    quiet = {"progress": False, "log_likelihood": False, "audit": False, "seed": SEED}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a few turns of few particles
        idata = pf.run(algorithm, fed, num_rounds=rounds, **quiet, **options)
    return shared["particles"].numpy(), idata.posterior["z"].values[0]


def agree(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("rounds", [1, 2, 3, 6])
def test_dsvgd_is_algorithm_1(rounds):
    start, end = run(pf.papers.PaperDSVGD(**SITES, distill_steps=DISTILL), rounds)
    agree(end, algorithm_1(start, rounds))


def test_svgd_is_algorithm_3():
    start, end = run(pf.papers.PaperSVGD(**SETTINGS), 3, num_clients=1)
    agree(end, algorithm_3(start, 3))


@pytest.mark.parametrize("rounds", [2, 5])
def test_udsvgd_is_algorithm_4(rounds):
    start, end = run(pf.papers.UDSVGD(**SITES), rounds)
    agree(end, algorithm_4(start, rounds))


@pytest.mark.parametrize(
    ("schedule", "scheduled"),
    [(pf.schedule.All(), lambda i: (0, 1)), (pf.schedule.RoundRobin(), lambda i: (i % 2,))],
    ids=["all", "in turn"],
)
def test_parallel_dsvgd_is_algorithm_5(schedule, scheduled):
    start, end = run(
        pf.papers.PaperParallelDSVGD(**SITES, distill_steps=DISTILL, server_steps=SERVER), 4, schedule=schedule
    )
    agree(end, algorithm_5(start, 4, scheduled))
