"""Curves, ridges, spikes, bounds, and parameters without end: answers near the limits, by a long tail on one side."""

from __future__ import annotations

import numpy as np
import pyro
import pyro.distributions as dist
import torch

import pyro_fed as pf
from benchmarks.trust.posterior import Grid, Posterior
from benchmarks.trust.posteriors.regressions import tensors


def spike(x, y):
    """Two coefficients, each in a narrow spike at zero or in a wide slab."""
    b = pyro.sample("b", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    narrower = dist.Normal(0.0, 0.05).log_prob(b) - dist.Normal(0.0, 2.0).log_prob(b)
    pyro.factor("spike", torch.logaddexp(narrower, torch.zeros_like(narrower)).sum())
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x @ b, 1.0), obs=y)


def spike_data():
    rng = np.random.default_rng(105)
    x = rng.normal(size=(25, 2))
    return tensors(x, x @ [0.55, 0.0] + rng.normal(size=25))


def exponential_curve(x, y):
    """A mean that is an exponential: of small ones data say only that they are small."""
    a = pyro.sample("a", dist.Normal(0.0, 2.0))
    b = pyro.sample("b", dist.Normal(0.0, 2.0))
    s = pyro.sample("s", dist.HalfNormal(1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal((a + b * x).exp(), s), obs=y)


def exponential_data():
    rng = np.random.default_rng(114)
    x = rng.uniform(-1, 1, 20)
    return tensors(x, np.exp(-1.5 + 0.8 * x) + 0.4 * rng.normal(size=20))


def overdispersion(y):
    """Counts that are hardly more than Poisson: the overdispersion has no end towards zero."""
    m = pyro.sample("m", dist.LogNormal(1.0, 1.0))
    over = pyro.sample("over", dist.HalfCauchy(0.5))
    with pyro.plate("data", len(y)):
        size = over.pow(-2)
        pyro.sample("y", dist.NegativeBinomial(size, logits=(m / size).log(), validate_args=False), obs=y)


def near_binomial(n, y):
    """Successes near all, hardly overdispersed: the precision has no end."""
    m = pyro.sample("m", dist.Beta(1.0, 1.0))
    phi = pyro.sample("phi", dist.LogNormal(0.0, 2.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.BetaBinomial(m * phi, (1 - m) * phi, n), obs=y)


def near_binomial_data():
    rng = np.random.default_rng(101)
    n = np.full(12, 8.0)
    return tensors(n, rng.binomial(8, 0.93, 12))


def misclassified(n, y):
    """Prevalence, sensitivity and specificity of which data see one number."""
    p = pyro.sample("p", dist.Beta(1.0, 1.0))
    sensitivity = pyro.sample("sensitivity", dist.Beta(4.0, 2.0))
    specificity = pyro.sample("specificity", dist.Beta(4.0, 2.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Binomial(n, p * sensitivity + (1 - p) * (1 - specificity)), obs=y)


def saturation(x, y):
    """Michaelis and Menten's curve seen below half of its height: a ridge."""
    v = pyro.sample("v", dist.LogNormal(0.0, 1.5))
    k = pyro.sample("k", dist.LogNormal(0.0, 1.5))
    s = pyro.sample("s", dist.HalfNormal(0.5))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(v * x / (k + x), s), obs=y)


def saturation_data():
    rng = np.random.default_rng(119)
    x = rng.uniform(0.1, 1.0, 16)
    return tensors(x, 3 * x / (2.5 + x) + 0.1 * rng.normal(size=16))


def truncated(y):
    """Data of which those below zero were not kept."""
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    s = pyro.sample("s", dist.HalfNormal(5.0))
    with pyro.plate("data", len(y)):
        pyro.factor("y", dist.Normal(mu, s).log_prob(y) - torch.special.log_ndtr(mu / s))


def truncated_data():
    y = np.random.default_rng(103).normal(-1.0, 1.5, 400)
    return tensors(y[y > 0][:40])


def upper_bound(y):
    """Data up to a latent bound: the posterior ends at the largest."""
    theta = pyro.sample("theta", dist.Gamma(2.0, 0.5))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Uniform(0.0, theta, validate_args=False), obs=y)


def by_value(first, *_):
    return pf.partition.SortedBy(by=first)


CURVES = (
    Posterior("spike_slab", "two modes", spike, spike_data, Grid({"b": (-2, 2)}, points=1201)),
    Posterior(
        "exponential_curve",
        "curved",
        exponential_curve,
        exponential_data,
        Grid({"a": (-11, 4), "b": (-9, 9), "s": (-3, 2)}, points=101),
        partition=by_value,
    ),
    Posterior(
        "negative_binomial",
        "no end",
        overdispersion,
        lambda: tensors(np.random.default_rng(125).poisson(4, 25)),
        Grid({"m": (-1, 4), "over": (-14, 4)}),
        partition=by_value,
    ),
    Posterior(
        "beta_binomial", "no end", near_binomial, near_binomial_data, Grid({"m": (-1, 8), "phi": (-6, 12)}), clients=4
    ),
    Posterior(
        "misclassified",
        "ridge",
        misclassified,
        lambda: tensors([10.0] * 8, [3.0, 4.0, 2.0, 5.0, 3.0, 4.0, 3.0, 2.0]),
        Grid(default=(-9, 9), points=121),
    ),
    Posterior(
        "saturation",
        "ridge",
        saturation,
        saturation_data,
        Grid({"v": (-1, 6.5), "k": (-2, 7), "s": (-4, 0)}, points=261),
        partition=by_value,
    ),
    Posterior(
        "truncated", "ridge", truncated, truncated_data, Grid({"mu": (-25, 6), "s": (-2, 4)}), partition=by_value
    ),
    Posterior(
        "upper_bound",
        "bounds",
        upper_bound,
        lambda: tensors(3 * np.random.default_rng(124).random(10)),
        Grid({"theta": (-1, 4)}, points=40001),
        clients=3,
    ),
)
