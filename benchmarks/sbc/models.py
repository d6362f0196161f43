"""Four models with proper priors, simulated data, and two ways in which clients differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch

#: Rows and clients of every model.
ROWS, CLIENTS = 60, 4
#: Rows of every client: equal numbers, so that all data have the same shapes.
BLOCKS = np.arange(ROWS).reshape(CLIENTS, -1)


@dataclass(frozen=True)
class Setup:
    """A model to be calibrated.

    Attributes:
        model: the Pyro model.
        simulate: from a generator and a skew, the truth by site and the arguments, rows in the clients' order.
    """

    model: Callable[..., Any]
    simulate: Callable[[np.random.Generator, str], tuple[dict[str, Any], tuple[np.ndarray, ...]]]

    def data(self, rng: np.random.Generator, skew: str) -> tuple[dict[str, Any], tuple[torch.Tensor, ...]]:
        """Parameters drawn from the prior, and data drawn given them: blocks of rows are the clients'.

        Args:
            rng: source of randomness.
            skew: "label" (clients differ in y) or "covariate" (in x).
        """
        truth, args = self.simulate(rng, skew)
        return truth, tuple(torch.as_tensor(part) for part in args)


def ordered(by: np.ndarray, *args: np.ndarray) -> tuple[np.ndarray, ...]:
    """The arguments with their rows sorted."""
    order = np.argsort(by, kind="stable")
    return tuple(part[order] for part in args)


def linear(x, y):
    """A line, its noise unknown."""
    beta = pyro.sample("beta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    sigma = pyro.sample("sigma", dist.HalfNormal(1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)


def simulate_linear(rng, skew):
    x = np.column_stack([np.ones(ROWS), rng.normal(size=ROWS)])
    beta, sigma = rng.normal(size=2), abs(rng.normal())
    y = x @ beta + sigma * rng.normal(size=ROWS)
    return {"beta": beta, "sigma": sigma}, ordered(y if skew == "label" else x[:, 1], x, y)


def logistic(x, y):
    """Three weights."""
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def simulate_logistic(rng, skew):
    x = np.column_stack([np.ones(ROWS), rng.normal(size=(ROWS, 2))])
    w = rng.normal(size=3)
    y = (rng.uniform(size=ROWS) < 1 / (1 + np.exp(-x @ w))).astype(float)
    return {"w": w}, ordered(y if skew == "label" else x[:, 1], x, y)


def poisson(x, y, client):
    """Counts with an intercept of each client, whose scale is unknown."""
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    tau = pyro.sample("tau", dist.HalfNormal(0.5))
    a = pyro.sample("a", dist.Normal(mu, tau).expand([CLIENTS]).to_event(1))
    b = pyro.sample("b", dist.Normal(0.0, 0.5))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Poisson((a[client] + b * x).exp()), obs=y)


def simulate_poisson(rng, skew):
    """Intercepts make the clients' labels differ; under covariate skew each has its own range of x besides."""
    mu, tau, b = rng.normal(), 0.5 * abs(rng.normal()), 0.5 * rng.normal()
    a = mu + tau * rng.normal(size=CLIENTS)
    x = rng.normal(size=ROWS)
    x = np.sort(x) if skew == "covariate" else x
    client = np.repeat(np.arange(CLIENTS), ROWS // CLIENTS)
    y = rng.poisson(np.exp(a[client] + b * x)).astype(float)
    return {"mu": mu, "tau": tau, "a": a, "b": b}, (x, y, client)


def hierarchy(x, y):
    """A line through groups whose effects are latents of their own."""
    mu = pyro.sample("mu", dist.Normal(0.0, 2.0))
    beta = pyro.sample("beta", dist.Normal(0.0, 1.0))
    tau = pyro.sample("tau", dist.HalfNormal(1.0))
    with pyro.plate("data", len(x)):
        theta = pyro.sample("theta", dist.Normal(mu + beta * x, tau))
        pyro.sample("y", dist.Normal(theta, 1.0), obs=y)


def simulate_hierarchy(rng, skew):
    mu, beta, tau = 2 * rng.normal(), rng.normal(), abs(rng.normal())
    x = rng.normal(size=ROWS)
    y = mu + beta * x + tau * rng.normal(size=ROWS) + rng.normal(size=ROWS)
    return {"mu": mu, "beta": beta, "tau": tau}, ordered(y if skew == "label" else x, x, y)


SETUPS = {
    "linear": Setup(linear, simulate_linear),
    "logistic": Setup(logistic, simulate_logistic),
    "poisson": Setup(poisson, simulate_poisson),
    "hierarchy": Setup(hierarchy, simulate_hierarchy),
}
