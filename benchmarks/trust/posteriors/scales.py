"""Scales: hierarchies, heavy tails, funnels, horseshoes, latents of rows."""

from __future__ import annotations

import math

import numpy as np
import pyro
import pyro.distributions as dist
import torch

import pyro_fed as pf
from benchmarks.trust.posterior import Grid, LongRun, Nested, Posterior
from benchmarks.trust.posteriors.regressions import tensors

#: Eight schools (Rubin 1981).
EFFECTS = [28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0]
ERRORS = [15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]


def schools_data():
    return tensors(EFFECTS, ERRORS)


def schools(y, error):
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(5.0))
    with pyro.plate("data", len(y)):
        theta = pyro.sample("theta", dist.Normal(mu, tau))
        pyro.sample("y", dist.Normal(theta, error), obs=y)


def schools_apart(y, error):
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(5.0))
    with pyro.plate("data", len(y)):
        raw = pyro.sample("raw", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(mu + tau * raw, error), obs=y)


def schools_marginal(y, error):
    """The effects integrated out by hand."""
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(5.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mu, (tau.square() + error.square()).sqrt()), obs=y)


def schools_global(y, error, school):
    """The effects outside of the plate: a funnel in ten dimensions."""
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(5.0))
    theta = pyro.sample("theta", dist.Normal(mu, tau).expand([8]).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(theta[school], error), obs=y)


def schools_global_data():
    return *schools_data(), torch.arange(8)


def normal_hierarchy(y, error, mu, tau, log_weight):
    """Moments of mu, log tau and the effects, from weights over a grid of (mu, tau), each (G,); y, error (n,)."""
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    precision = 1 / error**2 + 1 / tau[:, None] ** 2
    mean = (y / error**2 + mu[:, None] / tau[:, None] ** 2) / precision
    moments = {}
    for name, first, second in (
        ("mu", mu[:, None], mu[:, None] ** 2),
        ("tau", np.log(tau)[:, None], np.log(tau)[:, None] ** 2),
        ("theta", mean, mean**2 + 1 / precision),
    ):
        average = weight @ first
        moments[name] = (average, np.sqrt(weight @ second - average**2))
    return moments


def schools_moments(y, error, _school):
    y, error = y.numpy(), error.numpy()
    mu, log_tau = (g.ravel() for g in np.meshgrid(np.linspace(-30, 40, 701), np.linspace(-14, 7, 1401)))
    tau = np.exp(log_tau)
    variance = tau[:, None] ** 2 + error**2
    log_weight = -0.5 * ((y - mu[:, None]) ** 2 / variance + np.log(variance)).sum(1)
    log_weight += -0.5 * (mu / 5) ** 2 - np.log1p((tau / 5) ** 2) + log_tau
    return normal_hierarchy(y, error, mu, tau, log_weight)


def few(y):
    """Location and a half-Cauchy scale."""
    mu = pyro.sample("mu", dist.Normal(0.0, 10.0))
    tau = pyro.sample("tau", dist.HalfCauchy(5.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mu, tau), obs=y)


def few_groups(y):
    """Four effects seen with an error of one, and the half-Cauchy scale that they share."""
    tau = pyro.sample("tau", dist.HalfCauchy(1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(0.0, (tau.square() + 1.0).sqrt()), obs=y)


def uniform_scale(y):
    mu = pyro.sample("mu", dist.Normal(0.0, 10.0))
    sigma = pyro.sample("sigma", dist.Uniform(0.0, 100.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mu, sigma), obs=y)


def few_data(n=4, seed=30, size=3.0):
    return tensors(size * np.random.default_rng(seed).normal(size=n))


def inverse_gamma(y):
    """A variance with a vague inverse gamma prior, and effects of zero."""
    variance = pyro.sample("variance", dist.InverseGamma(0.1, 0.1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(0.0, (variance + 1.0).sqrt()), obs=y)


def funnel(y):
    """Neal's funnel in two dimensions, its neck narrowed by data."""
    v = pyro.sample("v", dist.Normal(0.0, 3.0))
    x = pyro.sample("x", dist.Normal(0.0, (v / 2).exp()))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x, 1.0), obs=y)


def funnel_data():
    return tensors(0.1 + np.random.default_rng(31).normal(size=8))


def funnel_nine(y, which):
    """Neal's funnel of nine, each seen twice."""
    v = pyro.sample("v", dist.Normal(0.0, 3.0))
    x = pyro.sample("x", dist.Normal(0.0, (v / 2).exp()).expand([9]).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x[which], 1.0), obs=y)


def funnel_nine_data():
    rng = np.random.default_rng(32)
    which = np.tile(np.arange(9), 2)
    return *tensors(0.4 * rng.normal(size=9)[which] + rng.normal(size=18)), torch.as_tensor(which)


def funnel_moments(y, which):
    """By quadrature over v: given v the nine are Gaussian."""
    y, which = y.numpy(), which.numpy()
    total, count = np.bincount(which, y), np.bincount(which)
    v = np.linspace(-25, 15, 8001)[:, None]
    precision = count + np.exp(-v)
    mean = total / precision
    log_weight = -0.5 * (v[:, 0] / 3) ** 2 + 0.5 * (total**2 / precision - np.log(precision) - v).sum(1)
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    average, first = weight @ v, weight @ mean
    return {
        "v": (average, np.sqrt(weight @ v**2 - average**2)),
        "x": (first, np.sqrt(weight @ (mean**2 + 1 / precision) - first**2)),
    }


def horseshoe(x, y):
    """Five coefficients under a horseshoe, non-centred."""
    tau = pyro.sample("tau", dist.HalfCauchy(1.0))
    lam = pyro.sample("lam", dist.HalfCauchy(1.0).expand([x.shape[1]]).to_event(1))
    z = pyro.sample("z", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ (tau * lam * z), 1.0), obs=y)


def horseshoe_centred(x, y):
    tau = pyro.sample("tau", dist.HalfCauchy(1.0))
    lam = pyro.sample("lam", dist.HalfCauchy(1.0).expand([x.shape[1]]).to_event(1))
    beta = pyro.sample("beta", dist.Normal(0.0, tau * lam).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ beta, 1.0), obs=y)


def orthogonal():
    """Columns at right angles, so that the coefficients are independent once the scale is known."""
    rng = np.random.default_rng(33)
    q, _ = np.linalg.qr(rng.normal(size=(40, 5)))
    x = q * math.sqrt(40)
    return tensors(x, x @ np.array([1.5, 0.0, 0.1, -0.6, 0.0]) + rng.normal(size=40))


def horseshoe_moments(x, y):
    """By quadrature over log tau and each log lambda: given both, a coefficient is Gaussian."""
    x, y = x.numpy(), y.numpy()
    n = float((x[:, 0] ** 2).sum())
    estimate = x.T @ y / n
    log_tau, log_lam = np.linspace(-16, 10, 521), np.linspace(-16, 16, 641)

    def half_cauchy(log_scale):
        return log_scale - np.log1p(np.exp(2 * log_scale))

    scale = np.exp(log_tau[:, None] + log_lam)  # of a coefficient: (T, L)
    names = ("z", "beta", "lam")
    log_marginal = half_cauchy(log_tau)
    firsts: dict[str, list[np.ndarray]] = {name: [] for name in names}
    seconds: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for value in estimate:
        variance = scale**2 + 1 / n
        log_weight = half_cauchy(log_lam) - 0.5 * (value**2 / variance + np.log(variance))
        top = log_weight.max(1, keepdims=True)
        weight = np.exp(log_weight - top)
        log_marginal = log_marginal + np.log(weight.sum(1)) + top[:, 0]
        weight /= weight.sum(1, keepdims=True)
        z_precision = 1 + n * scale**2
        z_mean = n * scale * value / z_precision
        lam = np.broadcast_to(log_lam, weight.shape)
        for name, first, second in (
            ("z", z_mean, z_mean**2 + 1 / z_precision),
            ("beta", scale * z_mean, scale**2 * (z_mean**2 + 1 / z_precision)),
            ("lam", lam, lam**2),
        ):
            firsts[name].append((weight * first).sum(1))
            seconds[name].append((weight * second).sum(1))
    outer = np.exp(log_marginal - log_marginal.max())
    outer /= outer.sum()
    mean = outer @ log_tau
    moments = {"tau": (np.array([mean]), np.sqrt(np.array([outer @ log_tau**2 - mean**2])))}
    for name in names:
        average = np.array([outer @ first for first in firsts[name]])
        spread = np.array([outer @ second for second in seconds[name]]) - average**2
        moments[name] = (average, np.sqrt(spread))
    return moments


def radon(x, y, county):
    """Varying intercepts of ten counties, centred."""
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfNormal(1.0))
    alpha = pyro.sample("alpha", dist.Normal(mu, tau).expand([10]).to_event(1))
    beta = pyro.sample("beta", dist.Normal(0.0, 2.0))
    sigma = pyro.sample("sigma", dist.HalfNormal(1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(alpha[county] + beta * x, sigma), obs=y)


def radon_apart(x, y, county):
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfNormal(1.0))
    raw = pyro.sample("raw", dist.Normal(0.0, 1.0).expand([10]).to_event(1))
    alpha = pyro.deterministic("alpha", mu + tau * raw)
    beta = pyro.sample("beta", dist.Normal(0.0, 2.0))
    sigma = pyro.sample("sigma", dist.HalfNormal(1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(alpha[county] + beta * x, sigma), obs=y)


def counties(spread=0.25):
    rng = np.random.default_rng(34)
    county = np.repeat(np.arange(10), [2, 3, 3, 4, 5, 6, 7, 8, 10, 12])
    x = rng.integers(0, 2, size=60).astype(float)
    y = 1.3 + spread * rng.normal(size=10)[county] - 0.6 * x + 0.8 * rng.normal(size=60)
    return *tensors(x, y), torch.as_tensor(county)


def by_county(x, y, county):
    return pf.partition.SortedBy(by=county)


def hierarchy(y):
    """Rows with effects of their own: normal, both scales unknown apart from the noise."""
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfNormal(2.0))
    with pyro.plate("data", len(y)):
        theta = pyro.sample("theta", dist.Normal(mu, tau))
        pyro.sample("y", dist.Normal(theta, 1.0), obs=y)


def hierarchy_marginal(y):
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfNormal(2.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mu, (tau.square() + 1.0).sqrt()), obs=y)


def overdispersed(y):
    """Counts with a normal effect of each row."""
    mu = pyro.sample("mu", dist.Normal(0.0, 2.0))
    tau = pyro.sample("tau", dist.HalfNormal(2.0))
    with pyro.plate("data", len(y)):
        eps = pyro.sample("eps", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Poisson((mu + tau * eps).exp()), obs=y)


NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(80)


def overdispersed_marginal(y):
    """The same with the effects integrated out at eighty nodes."""
    mu = pyro.sample("mu", dist.Normal(0.0, 2.0))
    tau = pyro.sample("tau", dist.HalfNormal(2.0))
    nodes, log_weights = torch.as_tensor(NODES), torch.as_tensor(np.log(WEIGHTS / WEIGHTS.sum()))
    rate = (mu + tau * nodes).clamp(max=30.0).exp()
    with pyro.plate("data", len(y)):
        pyro.factor("y", (dist.Poisson(rate).log_prob(y[:, None]) + log_weights).logsumexp(-1))


def overdispersed_data():
    rng = np.random.default_rng(35)
    return tensors(rng.poisson(np.exp(0.5 + 1.0 * rng.normal(size=30))))


def measured(x, y):
    """A covariate seen with error, its true value a latent of the row."""
    a = pyro.sample("a", dist.Normal(0.0, 2.0))
    b = pyro.sample("b", dist.Normal(0.0, 2.0))
    sigma = pyro.sample("sigma", dist.HalfNormal(1.0))
    with pyro.plate("data", len(x)):
        true = pyro.sample("true", dist.Normal(0.0, 1.0))
        pyro.sample("x", dist.Normal(true, 0.5), obs=x)
        pyro.sample("y", dist.Normal(a + b * true, sigma), obs=y)


def measured_marginal(x, y):
    a = pyro.sample("a", dist.Normal(0.0, 2.0))
    b = pyro.sample("b", dist.Normal(0.0, 2.0))
    sigma = pyro.sample("sigma", dist.HalfNormal(1.0))
    with pyro.plate("data", len(x)):
        pyro.factor("x", -0.5 * x.square() / 1.25)
        shrunk = 1.0 / 1.25
        variance = sigma.square() + b.square() * (1.0 - shrunk)
        pyro.sample("y", dist.Normal(a + b * shrunk * x, variance.sqrt()), obs=y)


def measured_data():
    rng = np.random.default_rng(36)
    true = rng.normal(size=50)
    return tensors(true + 0.5 * rng.normal(size=50), 0.5 + 1.2 * true + 0.4 * rng.normal(size=50))


def sorted_rows(*args):
    return pf.partition.SortedBy(by=args[-1])


SCALES = (
    Posterior(
        "schools",
        "hierarchy",
        schools,
        schools_data,
        Grid({"mu": (-30, 40), "tau": (-14, 7)}, model=schools_marginal),
        clients=8,
    ),
    Posterior(
        "schools_apart",
        "hierarchy",
        schools_apart,
        schools_data,
        Grid({"mu": (-30, 40), "tau": (-14, 7)}, model=schools_marginal),
        clients=8,
    ),
    Posterior("schools_global", "funnel", schools_global, schools_global_data, Nested(schools_moments), clients=8),
    Posterior("half_cauchy_n4", "heavy tails", few, few_data, Grid({"mu": (-60, 60), "tau": (-6, 8)}), clients=2),
    Posterior(
        "half_cauchy_groups",
        "heavy tails",
        few_groups,
        lambda: few_data(4, 37, 1.5),
        Grid({"tau": (-16, 12)}),
        clients=4,
    ),
    Posterior(
        "uniform_scale_n3",
        "heavy tails",
        uniform_scale,
        lambda: few_data(3, 38),
        Grid({"mu": (-80, 80), "sigma": (-12, 12)}, points=1601),
        clients=3,
    ),
    Posterior(
        "inverse_gamma",
        "heavy tails",
        inverse_gamma,
        lambda: few_data(12, 39, 1.2),
        Grid({"variance": (-60, 12)}, points=40001),
        clients=3,
    ),
    Posterior("funnel", "funnel", funnel, funnel_data, Grid({"v": (-20, 16), "x": (-6, 6)}, points=4001)),
    Posterior("funnel_nine", "funnel", funnel_nine, funnel_nine_data, Nested(funnel_moments), clients=3),
    Posterior("horseshoe", "funnel", horseshoe, orthogonal, Nested(horseshoe_moments)),
    Posterior("horseshoe_centred", "funnel", horseshoe_centred, orthogonal, Nested(horseshoe_moments)),
    Posterior("radon", "hierarchy", radon, counties, LongRun(radon_apart, accept=0.95), clients=5, partition=by_county),
    Posterior(
        "radon_strong",
        "hierarchy",
        radon,
        lambda: counties(1.0),
        LongRun(radon_apart, accept=0.95),
        clients=5,
        partition=by_county,
    ),
    Posterior(
        "hierarchy_rows",
        "latents of rows",
        hierarchy,
        lambda: few_data(24, 40, 1.5),
        Grid({"mu": (-6, 6), "tau": (-10, 3)}, model=hierarchy_marginal),
        partition=sorted_rows,
    ),
    Posterior(
        "overdispersed",
        "latents of rows",
        overdispersed,
        overdispersed_data,
        Grid({"mu": (-6, 6), "tau": (-8, 3)}, model=overdispersed_marginal, points=301),
        partition=sorted_rows,
    ),
    Posterior(
        "measured",
        "latents of rows",
        measured,
        measured_data,
        Grid({"a": (-3, 4), "b": (-3, 5), "sigma": (-12, 1.5)}, model=measured_marginal),
        partition=sorted_rows,
    ),
)
