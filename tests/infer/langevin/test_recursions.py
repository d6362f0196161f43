"""The published recursions of the Langevin family, written out in NumPy on a run's own randomness and compared exactly.

On a linear regression of unequal clients, with random surrogates and unequal shares: no term is zero, one, or alike for
two clients, so that a sign, a factor or an index that is wrong moves the path.
"""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from conjugate import NOISE_SD, PRIOR_SD, data, model

import pyro_fed as pf
from pyro_fed.conventions import seeding

SEED, STEPS, CLIENTS = 3, 6, ((0, 10), (10, 25), (25, 60))
F = np.array([0.5, 0.3, 0.2])
QUIET = {"progress": False, "log_likelihood": False, "audit": False, "seed": SEED}
CHAIN = {"num_chains": 1, "local_steps": STEPS, "burn_in": 0, "thin": 1, "target_ess": None, "batch_size": 4}
PLAIN = {"control_variate": False, "minibatches": "anew"}
DECAY = {"decay": 0.4, "decay_offset": 3.0}
H = 1e-3
STEP = pf.infer.step.Fixed(size=H, precondition=False, midpoint=False)


def federation(num_clients=3):
    parts = [list(range(*ends)) for ends in CLIENTS] if num_clients > 1 else [list(range(CLIENTS[-1][1]))]
    return pf.Federation(model, data(), plate="data", partition=pf.partition.Explicit(parts))


def surrogates():
    """Random ones: of indefinite difference from the likelihoods, so that no term of Eq. (6) is zero or one."""
    rng = np.random.default_rng(5)
    root = rng.normal(size=(3, 3, 3))
    precision = root @ root.transpose(0, 2, 1) + 30 * np.eye(3)
    return precision, precision[:, 0] * 0.1 + rng.normal(size=(3, 3))


def given():
    return pf.infer.Given(*(torch.tensor(part) for part in surrogates()))


def path(algorithm, rounds, fed, **options):
    """Every step of the chain."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a short chain
        idata = pf.run(algorithm, fed, num_rounds=rounds, num_draws=rounds * STEPS, **QUIET, **options)
    return idata.posterior["w"].values[0]


def started(algorithm, fed):
    """Where the chain begins, and the clients' states."""
    generator = seeding.torch_generator(SEED, seeding.SERVER, 0)
    shared, local = algorithm.init(fed.problem, fed.num_clients, generator, None)
    return shared["position"][0].numpy(), {name: value[0].numpy() for name, value in local.items()}


def randomness(algorithm, fed, round_, client):
    """The normal numbers of a visit (T, D), and its minibatches (T, m)."""
    rows = CLIENTS[client] if fed.num_clients > 1 else (0, 60)
    generator = seeding.torch_generator(SEED, seeding.CLIENT, round_, client, 0)
    noise = algorithm.draw_noise(fed.problem, rows[1] - rows[0], generator)
    picks = noise["position"].numpy() if "position" in noise else [np.arange(rows[1] - rows[0])] * STEPS
    return noise["normal"].numpy(), [rows[0] + place for place in picks]


def uniforms(algorithm, fed, round_, client):
    """u of a quantiser (D,), of the one chain."""
    generator = seeding.torch_generator(SEED, seeding.CLIENT, round_, client, 0)
    return algorithm.draw_noise(fed.problem, 1, generator)["uniform"][0, 0].numpy()


def rows_score(theta, rows):
    """Σ ∇ log p(x_i | θ) over rows."""
    x, y = (part.numpy()[rows] for part in data())
    return x.T @ (y - x @ theta) / NOISE_SD**2


def prior_score(theta):
    return -theta / PRIOR_SD**2


def client_score(theta, client, rows, share):
    """d_s of Eq. (4): ∇ log p(θ) + N_s/(f_s m) Σ ∇ log p(x_i | θ)."""
    first, last = CLIENTS[client]
    return prior_score(theta) + (last - first) / (share * len(rows)) * rows_score(theta, rows)


def conducive(theta, client, share):
    """g_s of Eq. (6): ∇ log q(θ) - 1/f_s ∇ log q_s(θ)."""
    precision, eta = surrogates()
    each = eta - precision @ theta
    return each.sum(0) - each[client] / share


def step_size(t, decay=0.0, decay_offset=1.0):
    return H * (1 + t / decay_offset) ** -decay


def test_dsgld_is_equations_3_and_4():
    """θ' = θ + h/2 d_s(θ) + √h ξ, with the polynomial step."""
    fed = federation()
    step = replace(STEP, **DECAY)
    algorithm = pf.infer.DSGLD(**CHAIN, **PLAIN, surrogates=None, step=step, probabilities=tuple(F))
    theta, _ = started(algorithm, fed)
    expected = []
    for round_ in range(4):
        client = round_ % 3
        for normal, rows in zip(*randomness(algorithm, fed, round_, client), strict=True):
            h = step_size(len(expected), **DECAY)
            theta = theta + h / 2 * client_score(theta, client, rows, F[client]) + h**0.5 * normal
            expected.append(theta)
    found = path(algorithm, 4, fed, schedule=pf.schedule.RoundRobin())
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("alpha", [1.0, 0.6])
def test_fsgld_is_algorithm_1(alpha):
    """θ' = θ + h/2 (d_s(θ) + α g_s(θ)) + √h ξ."""
    fed = federation()
    settings = {**CHAIN, **PLAIN, "step": STEP, "probabilities": tuple(F)}
    algorithm = pf.FSGLD(**settings, conducive=pf.infer.Conducive(alpha=alpha, trust=None), surrogates=given())
    theta, _ = started(algorithm, fed)
    expected = []
    for round_ in range(4):
        client = round_ % 3
        for normal, rows in zip(*randomness(algorithm, fed, round_, client), strict=True):
            drift = client_score(theta, client, rows, F[client]) + alpha * conducive(theta, client, F[client])
            theta = theta + H / 2 * drift + H**0.5 * normal
            expected.append(theta)
    found = path(algorithm, 4, fed, schedule=pf.schedule.RoundRobin())
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("control_variate", [True, "visit"])
@pytest.mark.parametrize("chains_at_once", [True, False])
def test_fsgld_preconditioned_at_the_midpoint_with_a_control_variate(control_variate, chains_at_once):
    """θ' = θ + h/2 A A' v(θ + √h A ξ/2) + √h A ξ, draws at θ + √h A ξ/2, A A' the covariance of p Π q_s.

    The likelihood's part of v is N_s/(f_s m) Σ_batch [∇ log p(x | θ) - ∇ log p(x | θ*)] + 1/f_s Σ_all ∇ log p(x | θ*).
    """
    fed = federation()
    settings = {**CHAIN, "control_variate": control_variate, "step": pf.infer.step.Fixed(size=0.3, **DECAY)}
    algorithm = pf.FSGLD(**settings, conducive=pf.infer.Conducive(trust=None), surrogates=given(), sweeps=False)
    theta, local = started(algorithm, fed)
    root, covariance = local["factor"], np.linalg.inv(surrogates()[0].sum(0) + np.eye(3) / PRIOR_SD**2)
    np.testing.assert_allclose(root @ root.T, covariance, rtol=1e-9)
    np.testing.assert_allclose(local["anchor"], covariance @ surrogates()[1].sum(0), rtol=1e-9)  # the mode of p Π q_s
    share, expected, rounds = 1 / 3, [], 4
    for round_ in range(rounds):
        client = round_ % 3
        anchor, every = theta if control_variate == "visit" else local["anchor"], np.arange(*CLIENTS[client])
        for normal, rows in zip(*randomness(algorithm, fed, round_, client), strict=True):
            h = 0.3 * (1 + len(expected) / 3.0) ** -0.4
            noise = h**0.5 * root @ normal
            where = theta + noise / 2
            change = len(every) / len(rows) * (rows_score(where, rows) - rows_score(anchor, rows))
            drift = prior_score(where) + (change + rows_score(anchor, every)) / share + conducive(where, client, share)
            theta = theta + h / 2 * covariance @ drift + noise
            expected.append(where)
    executor = "vectorised" if chains_at_once else "sequential"
    found = path(algorithm, rounds, fed, schedule=pf.schedule.RoundRobin(), executor=executor)
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-9)


def test_fald_averages_clients_with_noise_of_their_own():
    """θ^c' = θ^c + h/2 (d_c + g_c)(θ^c) + √(h/p_c) ξ^c from the server's θ; then θ = Σ_c p_c θ^c."""
    fed = federation()
    settings = {**CHAIN, **PLAIN, "thin": STEPS, "step": STEP, "probabilities": tuple(F)}
    algorithm = pf.infer.FALD(**settings, conducive=pf.infer.Conducive(trust=None), surrogates=given())
    theta, _ = started(algorithm, fed)
    expected = []
    for round_ in range(3):
        ends = np.tile(theta, (3, 1))
        for client in range(3):
            for normal, rows in zip(*randomness(algorithm, fed, round_, client), strict=True):
                at = ends[client]
                drift = client_score(at, client, rows, F[client]) + conducive(at, client, F[client])
                ends[client] = at + H / 2 * drift + (H / F[client]) ** 0.5 * normal
        theta = F @ ends
        expected.append(theta)
    found = path(algorithm, 3, fed)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_sgld_is_equations_1_and_2():
    """θ' = θ + h/2 (∇ log p(θ) + N/m Σ ∇ log p(x_i | θ)) + √h ξ."""
    fed = federation(1)
    algorithm = pf.infer.SGLD(**CHAIN, **PLAIN, surrogates=None, step=replace(STEP, size=1e-4))
    theta, _ = started(algorithm, fed)
    expected = []
    for round_ in range(3):
        for normal, rows in zip(*randomness(algorithm, fed, round_, 0), strict=True):
            drift = prior_score(theta) + 60 / len(rows) * rows_score(theta, rows)
            theta = theta + 1e-4 / 2 * drift + 1e-2 * normal
            expected.append(theta)
    np.testing.assert_allclose(path(algorithm, 3, fed), expected, rtol=1e-9, atol=1e-9)


def test_summed_langevin_is_its_equation():
    """θ' = θ + h/2 (∇ log p(θ) + S/α) + √h ξ, S the sum of the clients' scores."""
    fed = federation()
    h, temperature = 1e-3, 2.5
    algorithm = pf.infer.SummedLangevin(step_size=h, temperature=temperature, burn_in=0, target_ess=None)
    generator = seeding.torch_generator(SEED, seeding.SERVER, 0)
    shared, _ = algorithm.init(fed.problem, 3, generator, None)
    theta, expected = shared["position"][0].numpy(), []
    for step in range(5):
        own = torch.Generator().manual_seed(int(shared["key"]) + step)
        normal = torch.randn((1, 3), generator=own, dtype=torch.float64)[0].numpy()
        drift = prior_score(theta) + rows_score(theta, np.arange(60)) / temperature
        theta = theta + h / 2 * drift + h**0.5 * normal
        expected.append(theta)
    found = path(algorithm, 5, fed)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("memory", [True, False])
def test_qlsd_is_its_equations(memory):
    """S = M + Σ_k C(v_k), v_k = ∇ log p_k(θ) - m_k, m_k' = m_k + a C(v_k), and θ' as above."""
    fed, h, s, temperature = federation(), 1e-3, 3, 2.5
    algorithm = pf.infer.QLSD(step_size=h, temperature=temperature, burn_in=0, target_ess=None, levels=s, memory=memory)
    generator = seeding.torch_generator(SEED, seeding.SERVER, 0)
    shared, _ = algorithm.init(fed.problem, 3, generator, None)
    theta, expected, memories = shared["position"][0].numpy(), [], np.zeros((3, 3))
    rate = 1 / (1 + min(3 / s**2, 3**0.5 / s)) if memory else 0.0
    for step in range(5):
        total = memories.sum(0)
        for client, ends in enumerate(CLIENTS):
            v = rows_score(theta, np.arange(*ends)) - memories[client]
            uniform = uniforms(algorithm, fed, step, client)
            norm = (v @ v) ** 0.5
            sent = norm * np.sign(v) * np.floor(s * np.abs(v) / norm + uniform) / s
            memories[client] += rate * sent
            total = total + sent
        own = torch.Generator().manual_seed(int(shared["key"]) + step)
        normal = torch.randn((1, 3), generator=own, dtype=torch.float64)[0].numpy()
        theta = theta + h / 2 * (prior_score(theta) + total / temperature) + h**0.5 * normal
        expected.append(theta)
    np.testing.assert_allclose(path(algorithm, 5, fed), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("shared_noise", "batch_size"), [(0.3, 4), (1.0, None), (0.0, 4)])
def test_vr_fald_is_its_equations(shared_noise, batch_size):
    """θ^c' = θ^c + h/2 [∇ log p + K N_c/m Σ (∇ log p(x | θ^c) - ∇ log p(x | Y)) + S] + η^c; then θ = Σ_c θ^c / K.

    η^c = √h (√τ ξ + √(K (1 - τ)) ξ^c). Y is where the last round began, S the sum of all rows' scores there; in the
    first round Y is θ and S is K times the client's own.
    """
    fed, tau = federation(), shared_noise
    settings = {**CHAIN, "batch_size": batch_size, "thin": STEPS, "step": STEP}
    algorithm = pf.infer.VRFALD(**settings, shared_noise=tau)
    theta, _ = started(algorithm, fed)
    key = int(algorithm.init(fed.problem, 3, seeding.torch_generator(SEED, seeding.SERVER, 0), None)[0]["noise_key"][0])
    expected, y = [], None
    for round_ in range(4):
        common = torch.randn(STEPS, 3, generator=torch.Generator().manual_seed(key + round_), dtype=torch.float64)
        ends = np.tile(theta, (3, 1))
        for client, rows_of in enumerate(CLIENTS):
            every = np.arange(*rows_of)
            at, total = (theta, 3 * rows_score(theta, every)) if y is None else (y, rows_score(y, np.arange(60)))
            for alike, normal, rows in zip(common.numpy(), *randomness(algorithm, fed, round_, client), strict=True):
                here = ends[client]
                change = len(every) / len(rows) * (rows_score(here, rows) - rows_score(at, rows))
                noise = tau**0.5 * alike + (3 * (1 - tau)) ** 0.5 * normal
                ends[client] = here + H / 2 * (prior_score(here) + 3 * change + total) + H**0.5 * noise
        y, theta = theta, ends.mean(0)
        expected.append(theta)
    np.testing.assert_allclose(path(algorithm, 4, fed), expected, rtol=1e-9, atol=1e-9)
