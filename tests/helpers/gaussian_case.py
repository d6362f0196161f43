"""Section 5.1 of the FSGLD paper: shards of Gaussian data with different means, and the exact posterior."""

from __future__ import annotations

import numpy as np
import pyro
import pyro.distributions as dist
import torch

import pyro_fed as pf


def model(x):
    """mu ~ N(0, I), x_i ~ N(mu, I)."""
    mu = pyro.sample("mu", dist.Normal(x.new_zeros(x.shape[1]), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Normal(mu, 1.0).to_event(1), obs=x)


def shards(num_clients=10, rows=200, dim=2, seed=0, spread=6.0):
    """Rows of each client, around means uniform on [-spread, spread]."""
    generator = torch.Generator().manual_seed(seed)
    means = spread * (2 * torch.rand(num_clients, 1, dim, generator=generator, dtype=torch.float64) - 1)
    return means + torch.randn(num_clients, rows, dim, generator=generator, dtype=torch.float64)


def federation(x):
    return pf.Federation.from_clients(model, [(rows,) for rows in x], plate="data")


def exact(x):
    """Mean (dim,) and variance of every coordinate of the posterior."""
    rows = x.flatten(0, -2)
    return rows.sum(0) / (1 + len(rows)), 1 / (1 + len(rows))


def analytic_surrogates(x):
    """q_s = N(mean of the shard, I / n): the likelihoods themselves."""
    clients, rows, dim = x.shape
    return pf.infer.Given(torch.full((clients, dim), float(rows), dtype=x.dtype), x.sum(1))


def moments(idata):
    """Mean (dim,) and covariance (dim, dim) of the draws."""
    draws = idata["posterior"]["mu"].values
    flat = draws.reshape(-1, draws.shape[-1])
    return torch.tensor(flat.mean(0)), torch.tensor(np.atleast_2d(np.cov(flat.T)))
