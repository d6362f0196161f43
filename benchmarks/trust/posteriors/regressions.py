"""Regressions: easy ones, and those that are hard by their data: skewed clients, scales, outliers, few counts."""

from __future__ import annotations

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import constraints

import pyro_fed as pf
from benchmarks.trust.posterior import Grid, LongRun, Posterior, Quadratic
from models import logistic_regression


def tensors(*arrays, dtype=torch.float64):
    return tuple(torch.as_tensor(np.asarray(a)).to(dtype) for a in arrays)


def covariates(n, d, seed, intercept=True):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    if intercept:
        x[:, 0] = 1.0
    return x, rng


def by_first(x, *_):
    return pf.partition.SortedBy(by=x[:, 1] if x.shape[1] > 1 else x[:, 0])


def by_label(x, y, *_):
    return pf.partition.SortedBy(by=y)


def by_mix(x, y, *_):
    return pf.partition.Dirichlet(0.3, by=y)


# -- Gaussian ------------------------------------------------------------------------------------------------
def linear(x, y):
    beta = pyro.sample("beta", dist.Normal(0.0, 5.0).expand([x.shape[1]]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ beta, 1.0), obs=y)


def linear_wide(x, y):
    beta = pyro.sample("beta", dist.Normal(0.0, 1000.0).expand([x.shape[1]]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ beta, 1.0), obs=y)


def linear_data(n=80, d=4, seed=1, dtype=torch.float64):
    x, rng = covariates(n, d, seed)
    return tensors(x, x @ np.linspace(-1, 1, d) + rng.normal(size=n), dtype=dtype)


def years():
    """A covariate that is a year, not centred: the intercept hangs on the slope by 0.99999."""
    rng = np.random.default_rng(2)
    year = rng.integers(1990, 2020, size=90).astype(float)
    return tensors(np.column_stack([np.ones(90), year]), 0.05 * year - 98.0 + rng.normal(size=90), dtype=torch.float32)


def badly_scaled(dtype=torch.float32):
    """Columns of sizes 1e-2 to 1e4."""
    x, rng = covariates(100, 4, 3)
    size = np.array([1.0, 1e4, 1e-2, 30.0])
    return tensors(x * size, x @ np.array([1.0, 0.5, -1.0, 2.0]) + rng.normal(size=100), dtype=dtype)


def large_offset():
    """Values near 1e5 known to 0.02: seven digits are too few."""
    rng = np.random.default_rng(4)
    return tensors(np.ones((60, 1)), 1e5 + 0.1 * rng.normal(size=60), dtype=torch.float32)


def offset(x, y):
    mu = pyro.sample("mu", dist.Normal(1e5, 10.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(mu * x[:, 0], 0.1), obs=y)


def collinear(rho=0.999, n=100):
    rng = np.random.default_rng(5)
    a = rng.normal(size=n)
    x = np.column_stack([a, rho * a + np.sqrt(1 - rho**2) * rng.normal(size=n)])
    return tensors(x, x.sum(1) + rng.normal(size=n))


def sums(x, y):
    """Only a + b is seen."""
    a = pyro.sample("a", dist.Normal(0.0, 10.0))
    b = pyro.sample("b", dist.Normal(0.0, 10.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(a + b, 1.0), obs=y)


def linear_flat(x, y):
    with pyro.plate("columns", x.shape[1]):
        beta = pyro.sample("beta", dist.ImproperUniform(constraints.real, (), ()))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ beta, 1.0), obs=y)


def linear_scale(x, y):
    beta = pyro.sample("beta", dist.Normal(0.0, 5.0).expand([x.shape[1]]).to_event(1))
    sigma = pyro.sample("sigma", dist.HalfNormal(2.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)


def flat_scale(x, y):
    """Improper priors on a mean and on log sigma; proper once there are two rows."""
    mu = pyro.sample("mu", dist.ImproperUniform(constraints.real, (), ()))
    log_sigma = pyro.sample("log_sigma", dist.ImproperUniform(constraints.real, (), ()))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(mu * x[:, 0], log_sigma.exp()), obs=y)


def disagreeing():
    """Each client's own mean is twenty SDs from the next one's."""
    rng = np.random.default_rng(6)
    return tensors(np.ones((40, 1)), np.repeat([-30.0, -10.0, 10.0, 30.0], 10) + rng.normal(size=40))


def quadratic_columns():
    """1, t, t², t³ over 0..10: a condition number of 1e6."""
    rng = np.random.default_rng(7)
    t = np.linspace(0, 10, 60)
    return tensors(np.column_stack([t**k for k in range(4)]), np.sin(t) + rng.normal(size=60), dtype=torch.float32)


# -- generalised linear models --------------------------------------------------------------------------------
def logistic(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def logistic_wide(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 10.0).expand([x.shape[1]]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def logistic_cauchy(x, y):
    w = pyro.sample("w", dist.Cauchy(0.0, 2.5).expand([x.shape[1]]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def logistic_data(n, d, seed, size=1.0, shift=0.0):
    x, rng = covariates(n, d, seed)
    logits = shift + x @ np.linspace(-size, size, d)
    return tensors(x, rng.uniform(size=n) < 1 / (1 + np.exp(-logits)))


def readme():
    from sklearn.datasets import load_breast_cancer
    from sklearn.preprocessing import scale

    x, y = load_breast_cancer(return_X_y=True)
    return tensors(scale(x)[:, :8], y)


def separated():
    """A step: every row below zero is 0, every row above it 1."""
    x = np.linspace(-2, 2, 20)
    return tensors(np.column_stack([np.ones(20), x]), x > 0)


def uneven(x, y):
    """One client with most rows, and three with two each."""
    n = len(x)
    return pf.partition.Explicit([list(range(6, n)), [0, 1], [2, 3], [4, 5]])


def each_alone(x, *_):
    return pf.partition.Explicit([[i] for i in range(len(x))])


def probit_t(x, y):
    """Binomial counts out of 20 with a strong dependence."""
    a = pyro.sample("a", dist.Normal(0.0, 3.0))
    b = pyro.sample("b", dist.Normal(0.0, 3.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Binomial(20, logits=a + b * x[:, 1]), obs=y)


def binomial_data():
    x, rng = covariates(24, 2, 8)
    return tensors(x, rng.binomial(20, 1 / (1 + np.exp(-(0.5 - 1.5 * x[:, 1])))))


def poisson(x, y):
    a = pyro.sample("a", dist.Normal(0.0, 3.0))
    b = pyro.sample("b", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Poisson((a + b * x[:, 1]).exp()), obs=y)


def rare_counts():
    """Three events in sixty rows; most clients have none."""
    x, _ = covariates(60, 2, 9)
    y = np.zeros(60)
    y[np.argsort(x[:, 1])[-3:]] = 1
    return tensors(x, y)


def poisson_intercepts(x, y, client):
    """Intercepts of five clients, with a common mean and scale."""
    mu = pyro.sample("mu", dist.Normal(0.0, 2.0))
    tau = pyro.sample("tau", dist.HalfNormal(1.0))
    a = pyro.sample("a", dist.Normal(mu, tau).expand([5]).to_event(1))
    b = pyro.sample("b", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Poisson((a[client] + b * x).exp()), obs=y)


def poisson_intercepts_apart(x, y, client):
    """The same, non-centred: a reference."""
    mu = pyro.sample("mu", dist.Normal(0.0, 2.0))
    tau = pyro.sample("tau", dist.HalfNormal(1.0))
    raw = pyro.sample("raw", dist.Normal(0.0, 1.0).expand([5]).to_event(1))
    a = pyro.deterministic("a", mu + tau * raw)
    b = pyro.sample("b", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Poisson((a[client] + b * x).exp()), obs=y)


def counts_by_client():
    rng = np.random.default_rng(10)
    client = np.repeat(np.arange(5), 16)
    x = rng.normal(size=80)
    a = np.array([-0.5, 0.2, 0.6, 1.0, 1.5])
    y = rng.poisson(np.exp(a[client] + 0.4 * x))
    return *tensors(x, y), torch.as_tensor(client)


def zero_inflated(x, y):
    """Counts with too many zeros, by the distribution."""
    gate = pyro.sample("gate", dist.Beta(1.0, 1.0))
    rate = pyro.sample("rate", dist.Gamma(2.0, 0.5))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.ZeroInflatedPoisson(rate, gate=gate), obs=y)


def zero_inflated_data():
    rng = np.random.default_rng(11)
    y = rng.poisson(1.2, size=40) * (rng.uniform(size=40) > 0.5)
    return tensors(np.ones((40, 1)), y)


def student(x, y):
    """A line with t errors of three degrees of freedom."""
    a = pyro.sample("a", dist.Normal(0.0, 10.0))
    b = pyro.sample("b", dist.Normal(0.0, 10.0))
    sigma = pyro.sample("sigma", dist.HalfNormal(2.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.StudentT(3.0, a + b * x[:, 1], sigma), obs=y)


def outliers():
    x, rng = covariates(50, 2, 12)
    y = 1 + 2 * x[:, 1] + 0.3 * rng.normal(size=50)
    y[np.argsort(x[:, 1])[-6:]] -= 15.0
    return tensors(x, y)


def autoregression(lag, y):
    """Lags as a column: it does split."""
    phi = pyro.sample("phi", dist.Normal(0.0, 1.0))
    sigma = pyro.sample("sigma", dist.HalfNormal(1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(phi * lag, sigma), obs=y)


def series():
    rng = np.random.default_rng(13)
    y = [0.0]
    for _ in range(80):
        y.append(0.9 * y[-1] + rng.normal() * 0.5)
    return tensors(y[:-1], y[1:])


REGRESSIONS = (
    Posterior("linear", "Gaussian", linear, linear_data, Quadratic()),
    Posterior("linear_sorted", "Gaussian", linear, linear_data, Quadratic(), partition=by_first),
    Posterior("linear_float32", "Gaussian", linear, lambda: linear_data(dtype=torch.float32), Quadratic()),
    Posterior("linear_disagreeing", "clients disagree", linear, disagreeing, Quadratic(), partition=by_label),
    Posterior("linear_improper", "flat prior", linear_flat, linear_data, Quadratic(), partition=by_first),
    Posterior("years_float32", "precision", linear_wide, years, Quadratic(), partition=by_first),
    Posterior("badly_scaled_float32", "precision", linear_wide, badly_scaled, Quadratic()),
    Posterior("powers_float32", "precision", linear_wide, quadratic_columns, Quadratic()),
    Posterior("offset_float32", "precision", offset, large_offset, Quadratic()),
    Posterior("collinear", "degenerate", linear, collinear, Quadratic()),
    Posterior("sum_only", "degenerate", sums, lambda: linear_data(d=1), Quadratic()),
    Posterior(
        "linear_scale", "easy", linear_scale, lambda: linear_data(n=60, d=2), Grid({"beta": (-4, 4), "sigma": (-2, 2)})
    ),
    Posterior(
        "linear_scale_sorted",
        "easy",
        linear_scale,
        lambda: linear_data(n=60, d=2),
        Grid({"beta": (-4, 4), "sigma": (-2, 2)}),
        partition=by_first,
    ),
    Posterior(
        "flat_scale_n5",
        "flat prior",
        flat_scale,
        lambda: linear_data(n=5, d=1, seed=14),
        Grid({"mu": (-60, 60), "log_sigma": (-4, 6)}, points=1601),
        clients=2,
    ),
    Posterior("readme", "easy", logistic, readme, LongRun(), clients=10, partition=by_mix),
    Posterior(
        "readme_hierarchy",
        "scale",
        logistic_regression.model,
        lambda: logistic_regression.load_data()[0],
        LongRun(draws=500),
        clients=10,
        partition=by_mix,
    ),
    Posterior("logistic_iid", "easy", logistic, lambda: logistic_data(60, 3, 15), Grid({"w": (-5, 5)})),
    Posterior(
        "logistic_labels",
        "label skew",
        logistic,
        lambda: logistic_data(60, 3, 15),
        Grid({"w": (-5, 5)}),
        partition=by_label,
    ),
    Posterior(
        "logistic_covariates",
        "covariate skew",
        logistic,
        lambda: logistic_data(60, 3, 15),
        Grid({"w": (-5, 5)}),
        partition=by_first,
    ),
    Posterior(
        "logistic_separated", "skewed", logistic_wide, separated, Grid({"w": (-60, 60)}), clients=2, partition=by_label
    ),
    Posterior(
        "logistic_cauchy",
        "heavy tails",
        logistic_cauchy,
        lambda: logistic_data(30, 2, 16, size=3.0),
        Grid({"w": (-40, 60)}, points=1601),
    ),
    Posterior(
        "logistic_alone",
        "one row a client",
        logistic,
        lambda: logistic_data(14, 2, 17),
        Grid({"w": (-6, 6)}),
        clients=14,
        partition=each_alone,
    ),
    Posterior(
        "logistic_uneven",
        "uneven clients",
        logistic,
        lambda: logistic_data(80, 2, 18),
        Grid({"w": (-5, 5)}),
        partition=uneven,
    ),
    Posterior(
        "logistic_rare",
        "label skew",
        logistic_wide,
        lambda: logistic_data(100, 2, 19, shift=-4.0),
        Grid({"w": (-40, 40)}, points=1601),
        partition=by_label,
    ),
    Posterior("logistic_d50", "many dimensions", logistic, lambda: logistic_data(150, 50, 20, size=0.5), LongRun()),
    Posterior("binomial", "easy", probit_t, binomial_data, Grid(default=(-6, 6)), partition=by_first),
    Posterior(
        "poisson_rare", "few counts", poisson, rare_counts, Grid({"a": (-20, 5), "b": (-6, 8)}), partition=by_first
    ),
    Posterior(
        "poisson_intercepts",
        "client effects",
        poisson_intercepts,
        counts_by_client,
        LongRun(poisson_intercepts_apart),
        clients=5,
        partition=lambda x, y, client: pf.partition.ByGroup(by=client),
    ),
    Posterior("zero_inflated", "easy", zero_inflated, zero_inflated_data, Grid(default=(-8, 8))),
    Posterior(
        "student_outliers",
        "outliers",
        student,
        outliers,
        Grid({"a": (-8, 8), "b": (-8, 8), "sigma": (-4, 3)}, points=201),
        partition=by_first,
    ),
    Posterior(
        "autoregression",
        "easy",
        autoregression,
        series,
        Grid({"phi": (-1, 2), "sigma": (-2, 1)}),
        partition=lambda lag, y: pf.partition.SortedBy(by=y),
    ),
)
