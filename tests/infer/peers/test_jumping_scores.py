"""Rows whose scores jump, a median's and a quantile's regression, among agents: the posterior by quadrature."""

import functools

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf

AGENTS, ROWS, SCALE = 6, 300, 0.5
COARSE, FINE = torch.linspace(-3, 3, 101, dtype=torch.float64), torch.linspace(-1, 1, 151, dtype=torch.float64)


def quantile(asymmetry):
    def model(x, y):
        w = pyro.sample("w", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.AsymmetricLaplace(x @ w, SCALE, asymmetry), obs=y)

    return model


def hinge(x, y):
    """A support vector machine's loss."""
    w = pyro.sample("w", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    sign = torch.where(y > 0, 1.0, -1.0)
    with pyro.plate("data", len(y)):
        pyro.factor("loss", -torch.relu(1 - sign * (x @ w)))


def rows(asymmetry):
    """Of the regression itself: where it is wrong, agents of few rows disagree by more than it can explain."""
    generator = torch.Generator().manual_seed(0)
    x = torch.stack([torch.ones(ROWS), torch.randn(ROWS, generator=generator)], 1).double()
    up, down = -torch.rand(2, ROWS, generator=generator).log().double()
    return x, x @ torch.tensor([0.3, 0.8]).double() + SCALE * (up / asymmetry - down * asymmetry)


MODELS = {"median": (quantile(1.0), 1.0), "quantile": (quantile(2.0), 2.0), "hinge": (hinge, 1.0)}


@functools.cache
def case(kind):
    """Its federation, and the posterior's means and SDs, on a grid where a coarser one has its mass."""
    model, asymmetry = MODELS[kind]
    x, y = rows(asymmetry)
    clients = list(zip(x.tensor_split(AGENTS), y.tensor_split(AGENTS), strict=True))
    problem = pf.Federation(model, (x, y), plate="data", num_clients=1).problem

    def moments(first, second):
        at = torch.cartesian_prod(first, second)
        parts = [problem.vmap(lambda z: problem.log_prior(z) + problem.log_lik(z))(part) for part in at.split(5000)]
        weight = torch.softmax(torch.cat(parts), 0)
        mean = weight @ at
        return mean, (weight @ (at - mean).square()).sqrt()

    about, _ = moments(COARSE, COARSE)
    return pf.Federation.from_clients(model, clients, plate="data"), *moments(about[0] + FINE, about[1] + FINE)


@pytest.mark.parametrize(
    ("kind", "graph", "options"),
    [
        ("median", pf.graph.ring, {}),
        ("median", pf.graph.complete, {"start": "auto"}),
        ("quantile", pf.graph.ring, {"start": "auto"}),
        ("quantile", pf.graph.complete, {}),
        ("hinge", pf.graph.ring, {}),
        ("hinge", pf.graph.complete, {"start": "auto"}),
    ],
)
def test_agents_end_at_the_posterior(kind, graph, options):
    fed, mean, sd = case(kind)
    idata = pf.run(pf.P2PVI(**options), fed, graph=graph(AGENTS), progress=False, log_likelihood=False)
    draws = torch.from_numpy(idata["posterior"]["w"].values).flatten(0, 1)
    assert idata["posterior"].attrs["converged"]
    assert ((draws.mean(0) - mean).abs() / sd).max() < 0.1
    torch.testing.assert_close(draws.std(0), sd, rtol=0.1, atol=0)
