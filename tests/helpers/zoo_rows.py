"""Models of every way in which rows and plates come in: sizes, masks, scales, containers, plates of groups."""

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from zoo_data import N, Y, normal


def make_subsampled(size):
    def subsampled(x, y):
        w = pyro.sample("w", normal(0, 1, 3))
        with pyro.plate("data", len(x), subsample_size=size) as i:
            pyro.sample("y", dist.Normal(x[i] @ w, 1.0), obs=y[i])

    return subsampled


def sized(x, y, n):
    w = pyro.sample("w", normal(0, 1, 3))
    with pyro.plate("data", n):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def given_rows(x, y, n, subsample=True):
    w = pyro.sample("w", normal(0, 1, 3))
    with pyro.plate("data", n, subsample=torch.arange(4) if subsample else None) as i:
        pyro.sample("y", dist.Normal(x[i] @ w, 1.0), obs=y[i])


def closure():
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    with pyro.plate("data", N) as i:
        pyro.sample("y", dist.Normal(mu, 1.0), obs=Y[i])


def closure_subsampled(subsample=True):
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    with pyro.plate("data", N, subsample_size=4 if subsample else None):
        pyro.sample("y", dist.Normal(mu, 1.0), obs=pyro.subsample(Y, event_dim=0))


def masked(x, y, seen):
    w = pyro.sample("w", normal(0, 1, 3))
    with pyro.plate("data", len(x)), poutine.mask(mask=seen):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def masked_off(x, y):
    w = pyro.sample("w", normal(0, 1, 3))
    with poutine.mask(mask=False):
        pyro.sample("flat", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def scaled(x, y, weights):
    with poutine.scale(scale=0.5):
        w = pyro.sample("w", normal(0, 1, 3))
    with pyro.plate("data", len(x)), poutine.scale(scale=weights):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def imputed(x, y, seen):
    w = pyro.sample("w", normal(0, 1, 3))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y, obs_mask=seen)


def imputed_reference(x, y, seen):
    w = pyro.sample("w", normal(0, 1, 3))
    with pyro.plate("data", len(x)), poutine.mask(mask=seen):
        pyro.sample("y_observed", dist.Normal(x @ w, 1.0), obs=y)


def imputed_counts(y, seen):
    rate = pyro.sample("rate", dist.Gamma(2.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Poisson(rate), obs=y, obs_mask=seen)


def imputed_counts_reference(y, seen):
    rate = pyro.sample("rate", dist.Gamma(2.0, 1.0))
    with pyro.plate("data", len(y)), poutine.mask(mask=seen):
        pyro.sample("y_observed", dist.Poisson(rate), obs=y)


def images(x, z):
    w = pyro.sample("w", normal(0, 1, 3))
    with pyro.plate("data", len(x)):
        mean = torch.einsum("nij,j->ni", x, w)
        pyro.sample("z", dist.Normal(mean, 1.0).to_event(1), obs=z)


def rows_on_dim_2(z):
    mu = pyro.sample("mu", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    with pyro.plate("data", len(z), dim=-2), pyro.plate("columns", 3, dim=-1):
        pyro.sample("z", dist.Normal(mu, 1.0), obs=z)


def keywords(x, *, y, prior_sd=1.0):
    w = pyro.sample("w", dist.Normal(torch.zeros(3), prior_sd).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def tables(data, options):
    w = pyro.sample("w", normal(0, options[0], 3))
    with pyro.plate("data", len(data["x"])):
        pyro.sample("y", dist.Normal(data["x"] @ w, options[1]), obs=data["y"])


def star(*columns):
    w = pyro.sample("w", normal(0, 1, len(columns) - 1))
    with pyro.plate("data", len(columns[-1])):
        pyro.sample("y", dist.Normal(sum(c * w[i] for i, c in enumerate(columns[:-1])), 1.0), obs=columns[-1])


def named_as_plate(data):
    mu = pyro.sample("mu", normal(0, 1, 3))
    with pyro.plate("data", len(data)):
        pyro.sample("y", dist.Normal(mu, 1.0).to_event(1), obs=data)


def several(x, y, k):
    w = pyro.sample("w", normal(0, 1, 3))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)
        pyro.sample("k", dist.Poisson((x @ w).exp()), obs=k)


def observed_outside(y, centre):
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    pyro.sample("centre", dist.Normal(mu, 0.1), obs=centre)
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def twice(x, y, k):
    w = pyro.sample("w", normal(0, 1, 3))
    data = pyro.plate("data", len(x))
    with data:
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)
    with data:
        pyro.sample("k", dist.Poisson((x @ w).exp()), obs=k)


def sequential_groups(y, group):
    theta = torch.stack([pyro.sample(f"theta_{g}", dist.Normal(0.0, 1.0)) for g in pyro.plate("groups", 4)])
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(theta[group], 1.0), obs=y)


def nested(y, group):
    with pyro.plate("regions", 2, dim=-2):
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
        with pyro.plate("groups", 4, dim=-1):
            theta = pyro.sample("theta", dist.Normal(mu, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(theta.sum(0)[group], 1.0), obs=y)


def schools(y, group):
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    tau = pyro.sample("tau", dist.HalfNormal(1.0))
    with pyro.plate("groups", 4):
        theta = pyro.sample("theta", dist.Normal(mu, tau))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(theta[group], 1.0), obs=y)


def schools_noncentred(y, group):
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    tau = pyro.sample("tau", dist.HalfNormal(1.0))
    with pyro.plate("groups", 4):
        z = pyro.sample("theta_decentered", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal((mu + tau * z)[group], 1.0), obs=y)
