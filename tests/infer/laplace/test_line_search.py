"""Newton's method over clients where a trial leads far out, to densities that fall without bound."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.algorithm import message_limits
from pyro_fed.infer.laplace import fedlaplace
from pyro_fed.infer.peers.consensus_laplace import ConsensusLaplace


def survival(x, time, seen):
    """Weibull times with right censoring, -(t/λ)^k each: the first Newton step goes to k = 160."""
    w = pyro.sample("w", dist.Normal(0.0, 2.0).expand([3]).to_event(1))
    level = pyro.sample("level", dist.Normal(0.0, 2.0))
    k = pyro.sample("k", dist.LogNormal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        log_ratio = time.log() - level - x @ w
        pyro.factor("seen", torch.where(seen, k.log() + k * log_ratio, 0.0) - (k * log_ratio).exp())


@pytest.fixture(scope="module")
def by_time():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(240, 3, generator=generator, dtype=torch.float64)
    uniform, censored = torch.rand(2, 240, generator=generator, dtype=torch.float64)
    scale = (0.5 + x @ torch.tensor([0.5, -0.4, 0.2], dtype=torch.float64)).exp()
    failure, end = scale * (-uniform.log()) ** (1 / 1.5), 3 * censored
    time = torch.minimum(failure, end)
    partition = pf.partition.SortedBy(time)
    return pf.Federation(survival, (x, time, failure <= end), plate="data", num_clients=4, partition=partition)


@pytest.mark.parametrize(
    ("algorithm", "has_prior", "options"),
    [
        (pf.FedLaplace(), True, {}),
        (pf.FedLaplace(), True, {"executor": "sequential"}),
        (ConsensusLaplace(), False, {"graph": pf.graph.ring(4)}),
    ],
    ids=["server", "sequential", "ring"],
)
def test_a_trial_of_any_curvature_is_turned_down(by_time, algorithm, has_prior, options, monkeypatch):
    """The run ends at the mode, where the score is zero, here in posterior SDs."""
    kept = []
    monkeypatch.setattr(type(algorithm), "sample", lambda self, shared, *_: kept.append(shared) or torch.zeros(1, 2, 5))
    found = pf.run(algorithm, by_time, progress=False, log_likelihood=False, audit=False, **options)
    assert (found.attrs["converged"], found.attrs["num_rounds"] < 30) == (1, True)

    problem = by_time.problem
    precision, eta = kept[0]["precision"].reshape(-1, 5, 5)[0], kept[0]["eta"].reshape(-1, 5)[0]
    if not has_prior:  # agents sum the sites alone, around their aim; the prior is normal around zero, unconstrained
        eta = eta + precision @ kept[0]["aim"][0]
        precision = precision - torch.func.hessian(problem.log_prior)(torch.zeros_like(eta))
    mode = torch.linalg.solve(precision, eta)
    score = torch.func.grad(lambda z: problem.log_prior(z) + problem.log_lik(z))(mode)
    assert float((score @ torch.linalg.solve(precision, score)).sqrt()) < 1e-3


@pytest.mark.parametrize(("fall", "refused"), [(0.0, True), (1e20, False)])
def test_a_precision_beyond_the_gate_needs_a_likelihood_that_falls(fall, refused):
    """A liar's 1e25 is refused; an honest client far out sends a log-likelihood that turns the trial down."""
    precision = torch.ones(3, 1, 1, dtype=torch.float64)
    precision[1] = 1e25
    values = torch.zeros(3, 4, dtype=torch.float64)
    values[1, 0] = -fall
    message = {"precision": precision, "eta": precision[..., 0], "values": values}
    found = message_limits.outlying_sites(message)
    assert [bool(holds[1]) for holds in found.values()] == [refused, refused]
    assert not any(bool(holds[[0, 2]].any()) for holds in found.values())


def counts(y):
    level = pyro.sample("level", dist.Normal(0.0, 10.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Poisson(level.exp()), obs=y)


@pytest.mark.parametrize("jump", [1e-4, 5e-3])
def test_values_that_jump_beside_the_mode_do_not_hold_newtons_steps_up(jump, monkeypatch):
    """As integrals by quadrature do, here 0.001 SDs away; the mode is where the score is zero, by bisection."""
    y = torch.tensor([3.0, 5.0, 2.0, 7.0, 4.0, 11.0], dtype=torch.float64)
    low, high = 0.0, 3.0
    for _ in range(60):
        mode = (low + high) / 2
        low, high = (mode, high) if float(y.sum()) - len(y) * math.exp(mode) - mode / 100 > 0 else (low, mode)

    def jumping(problem, points, data):
        return values(problem, points, data) + jump / 2 * (points[..., 0] > mode + 2.5e-4)

    kept, values = [], fedlaplace.clients_log_likelihoods
    monkeypatch.setattr(fedlaplace, "clients_log_likelihoods", jumping)
    monkeypatch.setattr(pf.FedLaplace, "sample", lambda self, shared, *_: kept.append(shared) or torch.zeros(1, 2, 1))
    fed = pf.Federation(counts, (y,), plate="data", num_clients=2)
    found = pf.run(pf.FedLaplace(), fed, progress=False, log_likelihood=False, audit=False)
    assert (found.attrs["converged"], found.attrs["num_rounds"] < 12) == (1, True)
    assert abs(float(kept[0]["point"]) - mode) < 1e-6
