"""FedEP's rounds are Algorithms 3 and 4 of Guo et al., written out for one parameter in NumPy."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf

QUIET = {"progress": False, "log_likelihood": False, "audit": False, "seed": 0, "num_draws": 4000}
COUNTS = np.array([0.0, 2.0, 1.0, 5.0, 3.0, 0.0, 7.0])
CLIENTS = [[0, 1], [2, 3, 4], [5, 6]]
PRIOR = (0.5, 2.0)  # mean and precision


def counts(y):
    theta = pyro.sample("theta", dist.Normal(PRIOR[0], PRIOR[1] ** -0.5).expand([1]).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Poisson(theta.exp()), obs=y)


def laplace(total, rows, precision, eta):
    """The site of Laplace's approximation of a Poisson likelihood times a cavity: its mode, by Newton's method."""
    mode = 0.5
    for _ in range(100):
        mode += (total - rows * np.exp(mode) + eta - precision * mode) / (rows * np.exp(mode) + precision)
    curvature = rows * np.exp(mode)
    return np.array([curvature, (curvature + precision) * mode - eta])


def published(damping, rounds, cavity_of):
    """q after so many rounds from the prior, natural parameters (2,); Algorithm 3 at the server, 4 at the clients."""
    prior = np.array([PRIOR[1], PRIOR[0] * PRIOR[1]])
    q, sites = prior.copy(), [np.zeros(2) for _ in CLIENTS]
    for _ in range(rounds):
        changes = []
        for k, rows in enumerate(CLIENTS):
            cavity = cavity_of(q, sites[k], prior)
            changes.append(laplace(COUNTS[rows].sum(), len(rows), *cavity) - sites[k])
        q = q + damping * sum(changes)
        sites = [site + damping * change for site, change in zip(sites, changes, strict=True)]
    return q


@pytest.fixture(scope="module")
def fed():
    y = torch.tensor(COUNTS, dtype=torch.float64)
    return pf.Federation.from_clients(counts, [(y[rows],) for rows in CLIENTS], plate="data")


@pytest.mark.parametrize(
    ("algorithm", "damping", "rounds", "cavity_of"),
    [
        (pf.FedEP(client="laplace", damping=0.4, start="prior", tolerance=1e-12), 0.4, 1, lambda q, t, p: q - t),
        (pf.FedEP(client="laplace", damping=0.4, start="prior", tolerance=1e-12), 0.4, 3, lambda q, t, p: q - t),
        (pf.FedEP(client="laplace", start="prior", tolerance=1e-12), 1 / 3, 2, lambda q, t, p: q - t),
        (pf.infer.FedPA(client="laplace", damping=0.4, start="prior"), 0.4, 3, lambda q, t, p: np.zeros(2)),
        (pf.infer.BCM(client="laplace", damping=0.4), 0.4, 1, lambda q, t, p: p),
    ],
    ids=["one round", "three rounds", "one over the clients", "no cavity", "the prior as cavity"],
)
@pytest.mark.filterwarnings("ignore")
def test_rounds_are_those_of_the_paper(fed, algorithm, damping, rounds, cavity_of):
    idata = pf.run(algorithm, fed, num_rounds=rounds, **QUIET)
    precision, eta = published(damping, rounds, cavity_of)
    theta = idata.posterior["theta"].values.ravel()
    assert abs(theta.mean() - eta / precision) * precision**0.5 < 2e-3
    assert abs(np.log(theta.std() * precision**0.5)) < 2e-3


WORKING = ([0, 1], [2], [1, 2], [0], [2, 1])
MOMENTUM = 0.6


def written_out(rounds, *, server, client, mean=False, stateless=False, delta=0.3, schedule=WORKING):
    """q and sites of Algorithm 1, clients by a schedule: optimisers of Section 2.2.3 with momentum, FedSEP of 2.2.4."""
    prior = np.array([PRIOR[1], PRIOR[0] * PRIOR[1]])
    q, sites, servers, clients = prior.copy(), np.zeros((3, 2)), np.zeros(2), np.zeros((3, 2))
    for i in range(rounds):
        working, changes = schedule[i % len(schedule)], np.zeros((3, 2))
        for k in working:
            site = (q - prior) / 3 if stateless else sites[k]
            changes[k] = laplace(COUNTS[CLIENTS[k]].sum(), len(CLIENTS[k]), *(q - site)) - site
        share = 1 / len(working) if mean else 1.0
        servers = server * servers + share * changes.sum(0)
        q = q + delta * servers
        for k in working:
            clients[k] = client * clients[k] + share * changes[k]
            sites[k] = sites[k] + delta * clients[k]
    return q, sites


def momentum(value):
    return pf.infer.optim.SGD(momentum=value)


FORMS = {
    "some clients a round": (pf.FedEP, {}, {"server": 0.0, "client": 0.0}),
    "both optimisers": (
        pf.FedEP,
        {"optimisers": pf.infer.Optimisers(server=momentum(MOMENTUM), client=momentum(0.2))},
        {"server": MOMENTUM, "client": 0.2},
    ),
    "the server's, of the mean": (
        pf.FedEP,
        {"optimisers": pf.infer.Optimisers(server=momentum(MOMENTUM), client=momentum(0.0), changes="mean")},
        {"server": MOMENTUM, "client": 0.0, "mean": True},
    ),
    "stateless": (pf.infer.FedSEP, {}, {"server": 0.0, "client": 0.0, "stateless": True}),
    "stateless, with an optimiser": (
        pf.infer.FedSEP,
        {"optimisers": pf.infer.Optimisers(server=momentum(MOMENTUM))},
        {"server": MOMENTUM, "client": 0.0, "stateless": True},
    ),
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.filterwarnings("ignore")
def test_optimisers_some_clients_and_the_average_site_are_those_of_the_paper(fed, name):
    """After five rounds, a second one of each client that works by turns: still on its way."""
    rounds = 5
    kind, settings, form = FORMS[name]
    algorithm = kind(client="laplace", damping=0.3, start="prior", tolerance=1e-12, **settings)
    idata = pf.run(algorithm, fed, num_rounds=rounds, schedule=pf.schedule.Explicit(WORKING), **QUIET)
    (precision, eta), _ = written_out(rounds, **form)
    theta = idata.posterior["theta"].values.ravel()
    assert abs(theta.mean() - eta / precision) * precision**0.5 < 2e-3
    assert abs(np.log(theta.std() * precision**0.5)) < 2e-3


EVERYONE = ([0, 1, 2],)


@pytest.mark.parametrize(
    ("server", "client", "changes", "schedule", "holds"),
    [
        (0.0, 0.0, "sum", WORKING, True),
        (0.0, None, "mean", WORKING, True),
        (None, 0.0, "sum", WORKING, True),
        (MOMENTUM, MOMENTUM, "mean", EVERYONE, True),
        (MOMENTUM, MOMENTUM, "sum", WORKING, False),
        (MOMENTUM, 0.2, "sum", EVERYONE, False),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_optimisers_are_doubted_where_q_is_not_the_product_of_prior_and_sites(
    fed, server, client, changes, schedule, holds
):
    prior = np.array([PRIOR[1], PRIOR[0] * PRIOR[1]])
    q, sites = written_out(
        4, server=server or 0.0, client=client or 0.0, mean=changes == "mean", delta=0.1, schedule=schedule
    )
    assert (abs(q - prior - sites.sum(0)).max() < 1e-9) == holds
    given = {name: None if m is None else momentum(m) for name, m in (("server", server), ("client", client))}
    optimisers = pf.infer.Optimisers(**given, changes=changes)
    algorithm = pf.FedEP(client="laplace", damping=0.1, start="prior", optimisers=optimisers)
    idata = pf.run(algorithm, fed, num_rounds=4, schedule=pf.schedule.Explicit(schedule), **QUIET)
    assert ("sites_are_not_the_quotient" in set(pf.findings(idata)["code"])) != holds


@pytest.mark.parametrize(("server", "doubted"), [(momentum(MOMENTUM), False), ("adam", True)])
@pytest.mark.filterwarnings("ignore")
def test_sites_that_no_client_keeps_follow_every_optimiser_that_is_linear(fed, server, doubted):
    optimisers = pf.infer.Optimisers(server=server)
    algorithm = pf.infer.FedSEP(client="laplace", damping=0.1, start="prior", optimisers=optimisers)
    idata = pf.run(algorithm, fed, num_rounds=2, schedule=pf.schedule.Explicit(WORKING), **QUIET)
    assert ("sites_are_not_the_quotient" in set(pf.findings(idata)["code"])) == doubted


def rates(y):
    rate = pyro.sample("rate", dist.Gamma(3.0, 1.0))  # of its logarithm no Gaussian
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Poisson(rate), obs=y)


@pytest.mark.parametrize("changes", ["sum", "mean"])
@pytest.mark.filterwarnings("ignore")
def test_optimisers_count_a_prior_that_is_no_gaussian_once(changes):
    """The fixed point with Laplace's approximation is the mode of the logarithm, (Σ y + 3) / (N + 1)."""
    y = torch.tensor(COUNTS, dtype=torch.float64)
    fed = pf.Federation(rates, (y,), plate="data", num_clients=2)
    both = pf.infer.Optimisers(server=momentum(MOMENTUM), client=momentum(MOMENTUM), changes=changes)
    algorithm = pf.FedEP(client="laplace", damping=0.2, start="prior", tolerance=1e-9, optimisers=both)
    log_rate = np.log(pf.run(algorithm, fed, num_rounds=80, **QUIET).posterior["rate"].values.ravel())
    shape, rows = COUNTS.sum() + 3, len(COUNTS) + 1
    assert abs(log_rate.mean() - np.log(shape / rows)) * shape**0.5 < 2e-2
    assert abs(np.log(log_rate.std() * shape**0.5)) < 2e-2


def tilted_by_moments(total, rows, precision, eta):
    """arg min KL(q ‖ p_k q_-k) of Gaussians: Λ = n E_q[exp θ] + Λ_-k, and E_q of the tilted score is zero."""
    mean, variance = 0.5, 0.2
    for _ in range(500):
        expected = rows * np.exp(mean + variance / 2)
        variance = 1 / (expected + precision)
        mean += variance * (total - expected + eta - precision * mean)
    return np.array([1 / variance, mean / variance])


@pytest.mark.parametrize("rounds", [1, 2, 3, 5])
@pytest.mark.filterwarnings("ignore")
def test_partitioned_variational_inference_is_algorithm_2_of_kassab_and_simeone(fed, rounds):
    """q_k = arg min KL(q ‖ p_k q / t_k), t_k ← t_k q_k / q, q ← q_k: one client in turn."""
    settings = {"start": "prior", "num_points": 2048, "tolerance": 1e-12}
    whole = pf.infer.StepControl(reach=1e3)  # the second turn is longer than q's own reach
    turns = pf.infer.PVI(client=pf.infer.tilted.Newton(steps=60), step_control=whole, **settings)
    idata = pf.run(turns, fed, num_rounds=rounds, **QUIET)
    q, sites = np.array([PRIOR[1], PRIOR[0] * PRIOR[1]]), np.zeros((3, 2))
    for i in range(rounds):
        k = i % 3
        new = tilted_by_moments(COUNTS[CLIENTS[k]].sum(), len(CLIENTS[k]), *(q - sites[k]))
        sites[k], q = sites[k] + new - q, new
    theta = idata.posterior["theta"].values.ravel()
    assert abs(theta.mean() - q[1] / q[0]) * q[0] ** 0.5 < 5e-3
    assert abs(np.log(theta.std() * q[0] ** 0.5)) < 5e-3


@pytest.mark.filterwarnings("ignore")
def test_a_fixed_point_has_each_client_s_tilted_mode(fed):
    """Where nothing moves q is the product of the prior and sites that are Laplace's at their own cavities."""
    idata = pf.run(pf.FedEP(client="laplace", damping=0.5, start="prior", tolerance=1e-9), fed, **QUIET)
    precision, eta = published(0.5, 200, lambda q, t, p: q - t)
    theta = idata.posterior["theta"].values.ravel()
    assert abs(theta.mean() - eta / precision) * precision**0.5 < 2e-3
    assert abs(np.log(theta.std() * precision**0.5)) < 2e-3
