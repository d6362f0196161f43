"""Many rows: pieces of rows and their structure give what all rows give, and turns towards sites the same posterior."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from helpers.structureless import forget_structure

import pyro_fed as pf
from pyro_fed.density import traits as record
from pyro_fed.density.derivatives import scores
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.infer.stein import dsvgd
from pyro_fed.infer.stein.states import TiltedTarget

ROWS, DIM = 6000, 3


def logistic(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def curved(x, y):
    """Rows of as many predictors as there are parameters."""
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(torch.sin(x * w).sum(1), 1.0), obs=y)


def rows():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, DIM, generator=generator, dtype=torch.float64)
    chance = torch.sigmoid(x @ torch.tensor([1.0, -0.5, 0.2], dtype=torch.float64))
    return x, (torch.rand(ROWS, generator=generator, dtype=torch.float64) < chance).to(x)


def two_clients(problem):
    """Of 17 and 11 rows, and points for each."""
    index = torch.stack([torch.arange(17), torch.arange(20, 37)])
    points = torch.randn(2, 5, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return ClientData(problem.rows, index, torch.tensor([17, 11])), points


@pytest.mark.parametrize("model", [logistic, curved])
def test_pieces_of_rows_are_all_rows(model, monkeypatch):
    problem = pf.Federation(model, rows(), plate="data", num_clients=2).problem
    data, points = two_clients(problem)
    found = [scores.clients_likelihood_scores, scores.clients_log_likelihoods, scores.look_at_likelihood]
    whole = [function(problem, points, data) for function in found]
    monkeypatch.setattr("pyro_fed.ops.memory.RESULT_NUMBERS", 1)
    monkeypatch.setattr("pyro_fed.ops.memory.CACHE_NUMBERS", 60)
    forget_structure(monkeypatch)
    torch.testing.assert_close([function(problem, points, data) for function in found], whole)


@pytest.mark.parametrize("model", [logistic, curved])
def test_curves_along_directions_are_the_slopes_of_scores(model, monkeypatch):
    problem = pf.Federation(model, rows(), plate="data", num_clients=2).problem
    data, points = two_clients(problem)
    directions = points.flip(-1) + 0.3
    whole = scores.clients_likelihood_curves(problem, points, directions, data)
    ahead, behind = (scores.clients_likelihood_scores(problem, points + e * directions, data) for e in (1e-5, -1e-5))
    torch.testing.assert_close(whole, (ahead - behind) / 2e-5, rtol=1e-6, atol=1e-6)
    monkeypatch.setattr("pyro_fed.ops.memory.RESULT_NUMBERS", 1)
    monkeypatch.setattr("pyro_fed.ops.memory.CACHE_NUMBERS", 60)
    torch.testing.assert_close(scores.clients_likelihood_curves(problem, points, directions, data), whole)


def test_clients_and_points_of_a_large_model_in_turn_are_all_at_once(monkeypatch):
    problem = pf.Federation(curved, rows(), plate="data", num_clients=2).problem
    data, points = two_clients(problem)
    whole = scores.clients_likelihood_scores(problem, points, data)
    monkeypatch.setattr(record, "LARGE_DIM", 1)
    monkeypatch.setattr("pyro_fed.ops.memory.STEP_NUMBERS", 1)  # two points at once
    torch.testing.assert_close(scores.clients_likelihood_scores(problem, points, data), whole)


def test_looks_by_structure_are_those_of_all_rows(monkeypatch):
    problem = pf.Federation(logistic, rows(), plate="data", num_clients=2).problem
    data, points = two_clients(problem)
    whole = scores.look_at_likelihood(problem, points, data)
    forget_structure(monkeypatch)
    torch.testing.assert_close(scores.look_at_likelihood(problem, points, data), whole)


def laplace(x, y):
    """Mean and SDs by Newton's method, of a posterior that is Gaussian up to terms of the order ROWS^(-1/2)."""
    w, eye = x.new_zeros(DIM), torch.eye(DIM, dtype=x.dtype)
    for _ in range(20):
        p = torch.sigmoid(x @ w)
        precision = x.T @ (x * (p * (1 - p)).unsqueeze(1)) + eye
        w = w + torch.linalg.solve(precision, x.T @ (y - p) - w)
    return w, precision.inverse().diagonal().sqrt()


def run(clients, passes=None):
    """Particles at their own end, or after so many passes."""
    federation = pf.Federation(logistic, rows(), plate="data", num_clients=clients)
    algorithm = pf.DSVGD(end=pf.infer.EndOfRun() if passes is None else pf.infer.EndOfRun(noise=1e-9, patience=passes))
    num_rounds = None if passes is None else passes * clients
    idata = pf.run(algorithm, federation, num_rounds=num_rounds, progress=False, audit=False, log_likelihood=False)
    return torch.tensor(idata.posterior["w"].values).flatten(0, 1)


@pytest.mark.filterwarnings("ignore:not converged after 8|not converged after 32")  # which no discrepancy could be
@pytest.mark.parametrize("clients", [1, 4])
def test_turns_towards_sites_take_no_rows_and_end_where_turns_towards_rows_do(clients, monkeypatch):
    """Particle by particle to well within `NEGLIGIBLE` of an SD, by which a site may be wrong over one."""

    def refused(*_):
        raise AssertionError("rows were taken in every step")

    mean, sd = laplace(*rows())
    with monkeypatch.context() as patch:
        patch.setattr(TiltedTarget, "scores", refused)
        towards_sites = run(clients, passes=8)
    monkeypatch.setattr(dsvgd, "NEGLIGIBLE", -1.0)
    with monkeypatch.context() as patch, pytest.raises(AssertionError, match="rows were taken"):
        patch.setattr(TiltedTarget, "scores", refused)
        run(clients)
    towards_rows = run(clients, passes=8)
    assert float(((towards_sites - towards_rows) / sd).abs().max()) < 0.03
    assert float(((towards_sites.mean(0) - mean) / sd).abs().max()) < 0.05
    assert float((towards_sites.std(0) / sd - 1).abs().max()) < 0.05


def test_few_rows_whose_scores_are_straight_are_not_taken_in_every_step_either(monkeypatch):
    """Linear rows of known noise are exactly their surrogates: the posterior is N(0.75 ȳ, 0.0375)."""

    def located(y):
        z = pyro.sample("z", dist.Normal(y.new_zeros(()), 0.387298334620742))  # variance 0.15
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(z, 1.0), obs=y)

    def refused(*_):
        raise AssertionError("rows were taken in every step")

    monkeypatch.setattr(TiltedTarget, "scores", refused)
    y = torch.linspace(-1, 2, 20, dtype=torch.float64)
    fed = pf.Federation(located, (y,), plate="data", num_clients=4)
    z = pf.run(pf.DSVGD(start="gaussian"), fed, progress=False, audit=False).posterior["z"].values
    precision = 20 + 1 / 0.15
    assert abs(z.mean() - 20 * float(y.mean()) / precision) < 0.02 * precision**-0.5
    assert abs(z.std() * precision**0.5 - 1) < 0.02
