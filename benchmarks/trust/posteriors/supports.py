"""Supports: bounds with mass at them, simplices, correlation matrices, positive parameters."""

from __future__ import annotations

import numpy as np
import pyro
import pyro.distributions as dist
import torch

import pyro_fed as pf
from benchmarks.trust.posterior import Grid, Posterior
from benchmarks.trust.posteriors.regressions import tensors


def at_the_edge(y):
    """Data beyond the bound of a uniform prior."""
    theta = pyro.sample("theta", dist.Uniform(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(theta, 0.5), obs=y)


def beyond():
    return tensors(1.2 + 0.5 * np.random.default_rng(60).normal(size=15))


def flat_between(y):
    """Hardly any information between two bounds: a uniform posterior."""
    theta = pyro.sample("theta", dist.Uniform(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(theta, 5.0), obs=y)


def share(y):
    p = pyro.sample("p", dist.Beta(0.5, 0.5))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Bernoulli(p), obs=y)


def simplex(y):
    p = pyro.sample("p", dist.Dirichlet(torch.ones(3, dtype=torch.float64)))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Categorical(p), obs=y)


def simplex_sparse(y):
    p = pyro.sample("p", dist.Dirichlet(0.2 * torch.ones(3, dtype=torch.float64)))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Categorical(p), obs=y)


def by_class(y):
    return pf.partition.LabelShards(1, by=y)


def correlated(y):
    """A correlation and two scales."""
    scales = pyro.sample("scales", dist.HalfNormal(2.0 * y.new_ones(2)).to_event(1))
    factor = pyro.sample("factor", dist.LKJCholesky(2, torch.ones((), dtype=torch.float64)))
    with pyro.plate("data", len(y)):
        normal = dist.MultivariateNormal(y.new_zeros(2), scale_tril=scales[:, None] * factor)
        pyro.sample("y", normal, obs=y)


def pairs(rho, n, seed):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, n))
    return tensors(np.column_stack([a, rho * a + np.sqrt(1 - rho**2) * b]))


def exponential(y):
    rate = pyro.sample("rate", dist.Gamma(1.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Exponential(rate), obs=y)


def gamma_shape(y):
    shape = pyro.sample("shape", dist.Gamma(1.0, 0.1))
    rate = pyro.sample("rate", dist.Gamma(1.0, 0.1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Gamma(shape, rate), obs=y)


def capture(y):
    """Size and probability of a binomial by moments: a ridge."""
    size = pyro.sample("size", dist.LogNormal(3.0, 1.0))
    p = pyro.sample("p", dist.Beta(1.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(size * p, (size * p * (1 - p)).sqrt() + 0.1), obs=y)


SUPPORTS = (
    Posterior("edge", "bounds", at_the_edge, beyond, Grid({"theta": (-12, 25)}), clients=3),
    Posterior("flat", "bounds", flat_between, lambda: tensors([0.3, 2.0, -1.0]), Grid({"theta": (-25, 25)}), clients=3),
    Posterior("no_successes", "few counts", share, lambda: tensors(np.zeros(12)), Grid({"p": (-60, 6)}, points=40001)),
    Posterior(
        "simplex",
        "easy",
        simplex,
        lambda: (torch.tensor([0] * 10 + [1] * 6 + [2] * 4),),
        Grid(default=(-8, 8)),
        clients=3,
        partition=by_class,
        options={"dtype": torch.float64},
    ),
    Posterior(
        "simplex_sparse",
        "bounds",
        simplex_sparse,
        lambda: (torch.tensor([0] * 7 + [1]),),
        Grid(default=(-70, 40), points=2401),
        clients=2,
        options={"dtype": torch.float64},
    ),
    Posterior(
        "lkj",
        "easy",
        correlated,
        lambda: pairs(0.5, 30, 61),
        Grid({"scales": (-2, 2), "factor": (-4, 4)}),
        partition=lambda y: pf.partition.SortedBy(by=y[:, 0]),
    ),
    Posterior(
        "lkj_few",
        "skewed",
        correlated,
        lambda: pairs(0.9, 4, 62),
        Grid({"scales": (-4, 4), "factor": (-8, 8)}),
        clients=2,
    ),
    Posterior(
        "exponential",
        "easy",
        exponential,
        lambda: tensors(np.random.default_rng(63).exponential(0.5, size=20)),
        Grid({"rate": (-6, 6)}),
        partition=lambda y: pf.partition.SortedBy(by=y),
    ),
    Posterior(
        "gamma",
        "curved",
        gamma_shape,
        lambda: tensors(np.random.default_rng(64).gamma(3.0, 0.5, size=12)),
        Grid(default=(-5, 7)),
        partition=lambda y: pf.partition.SortedBy(by=y),
    ),
    Posterior(
        "capture",
        "curved",
        capture,
        lambda: tensors([8.0, 11.0, 9.0, 6.0]),
        Grid({"size": (1, 9), "p": (-8, 14)}),
        clients=2,
    ),
)
