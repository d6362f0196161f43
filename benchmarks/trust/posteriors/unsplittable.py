"""Models whose likelihood is no sum over rows: whoever splits them over clients answers another question.

The reference is the posterior of the model as it stands, on the pooled data. A refusal counts as said.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pyro
import pyro.distributions as dist
import torch

import pyro_fed as pf
from benchmarks.trust.posterior import Grid, Posterior, Undefined
from benchmarks.trust.posteriors.regressions import tensors


def line(model):
    """Slope and intercept of a function of the pooled rows."""

    def whole(x, y):
        a = pyro.sample("a", dist.Normal(0.0, 5.0))
        b = pyro.sample("b", dist.Normal(0.0, 5.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(a + b * model(x), 1.0), obs=y)

    return whole


def centred(x):
    return x - x.mean()


def standardised(x):
    return (x - x.mean()) / x.std()


def squeezed(x):
    return 4.0 * (x - x.min()) / (x.max() - x.min())


def ranks(x):
    return x.argsort().argsort().to(x.dtype) / len(x)


def lagged(x):
    return torch.cat([x[:1], x[:-1]])


def trend(x):
    return torch.arange(len(x), dtype=x.dtype) / 100.0


def running(x):
    return x.cumsum(0) / 100.0


def noisy(x):
    return x + torch.randn_like(x)


def lines(dtype, seed=80):
    """Rows whose covariate has a mean far from zero, and grows: enough of them that a few say little."""
    rng = np.random.default_rng(seed)
    x = np.linspace(1.0, 5.0, 300) + 0.3 * rng.normal(size=300)
    return tensors(x, 0.5 + 1.0 * x + rng.normal(size=300), dtype=dtype)


def sorted_by_x(x, *_):
    return pf.partition.SortedBy(by=x)


def prior_of_data(y):
    """A prior that looks at the data."""
    mu = pyro.sample("mu", dist.Normal(y.mean(), 0.2))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def prior_scale_of_data(y):
    mu = pyro.sample("mu", dist.Normal(0.0, 0.1 * y.abs().max()))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def group_means(x, y, group):
    """A covariate's mean in each group, computed in the model."""
    b = pyro.sample("b", dist.Normal(0.0, 5.0))
    c = pyro.sample("c", dist.Normal(0.0, 5.0))
    same = (group[:, None] == group).to(x.dtype)
    means = same @ x / same.sum(1)
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(b * x + c * means, 1.0), obs=y)


def grouped(dtype):
    rng = np.random.default_rng(81)
    group = np.tile(np.arange(4), 10)
    x = rng.normal(size=40) + group
    means = np.array([x[group == g].mean() for g in group])
    return *tensors(x, 0.5 * x + 1.0 * means + rng.normal(size=40), dtype=dtype), torch.as_tensor(group)


GROUPS = torch.tensor(np.random.default_rng(82).integers(0, 2, size=40))


def closure(y):
    """The group of a row from a table outside, by its position."""
    a = pyro.sample("a", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(a[GROUPS[: len(y)]], 1.0), obs=y)


def closure_data(dtype):
    rng = np.random.default_rng(83)
    return tensors(np.array([-1.0, 2.0])[GROUPS.numpy()] + rng.normal(size=40), dtype=dtype)


def step_at(y, row):
    """A jump at a row's number among all rows."""
    before = pyro.sample("before", dist.Normal(0.0, 3.0))
    after = pyro.sample("after", dist.Normal(0.0, 3.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(torch.where(torch.arange(len(y)) < row, before, after), 1.0), obs=y)


def steps(n, row):
    rng = np.random.default_rng(84)
    return tensors(np.where(np.arange(n) < row, -1.0, 2.0) + rng.normal(size=n))


def size_from_values(y, group):
    """As many effects as the rows at hand have groups."""
    count = int(group.max()) + 1
    mu = pyro.sample("mu", dist.Normal(0.0, 3.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mu * group / count, 1.0), obs=y)


def smoothed(y):
    """Autocorrelated errors: the likelihood of a row has its neighbour in it."""
    mu = pyro.sample("mu", dist.Normal(0.0, 3.0))
    rho = pyro.sample("rho", dist.Uniform(0.0, 1.0))
    error = y - mu
    before = torch.cat([torch.zeros_like(error[:1]), error[:-1]])
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mu + rho * before, 0.5), obs=y)


def walk():
    rng = np.random.default_rng(85)
    error = [0.0]
    for _ in range(40):
        error.append(0.8 * error[-1] + 0.5 * rng.normal())
    return tensors(1.0 + np.array(error[1:]), dtype=torch.float32)


def weighted_by_size(y):
    """The noise falls with the number of rows at hand."""
    mu = pyro.sample("mu", dist.Normal(0.0, 3.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mu, 8.0 / len(y) ** 0.5), obs=y)


def of_rows(name, transform, dtype=torch.float32):
    box = {"a": (-20.0, 20.0), "b": (-20.0, 20.0)}
    return Posterior(
        name, "does not split", line(transform), partial(lines, dtype), Grid(box, points=401), partition=sorted_by_x
    )


def first_rows_apart(*args):
    """Clients that hold the rows in their order."""
    n = len(args[0])
    return pf.partition.Explicit([list(range(k * n // 4, (k + 1) * n // 4)) for k in range(4)])


UNSPLITTABLE = (
    of_rows("centred_inside", centred),
    of_rows("centred_inside_float64", centred, torch.float64),
    of_rows("standardised_inside", standardised),
    of_rows("squeezed_inside", squeezed),
    of_rows("ranks_inside", ranks),
    of_rows("lagged_inside", lagged),
    of_rows("trend_inside", trend),
    of_rows("running_inside", running),
    Posterior(
        "noise_inside",
        "does not split",
        line(noisy),
        partial(lines, torch.float32),
        Undefined(),
        partition=sorted_by_x,
    ),
    Posterior(
        "prior_of_data",
        "does not split",
        prior_of_data,
        lambda: tensors(np.linspace(0, 4, 12), dtype=torch.float32),
        Grid({"mu": (-5, 10)}),
        partition=lambda y: pf.partition.SortedBy(by=y),
    ),
    Posterior(
        "prior_scale_of_data",
        "does not split",
        prior_scale_of_data,
        lambda: tensors(np.linspace(0, 8, 12), dtype=torch.float32),
        Grid({"mu": (-5, 10)}),
        partition=lambda y: pf.partition.SortedBy(by=y),
    ),
    Posterior(
        "group_means",
        "does not split",
        group_means,
        partial(grouped, torch.float32),
        Grid(default=(-10, 10)),
        partition=lambda x, y, group: pf.partition.SortedBy(by=x),
    ),
    Posterior(
        "closure_beside_rows",
        "does not split",
        closure,
        partial(closure_data, torch.float32),
        Grid(default=(-8, 8)),
        partition=lambda y: pf.partition.SortedBy(by=y),
    ),
    Posterior(
        "step_at_row",
        "does not split",
        partial(step_at, row=200),
        partial(steps, 400, 200),
        Grid(default=(-8, 8)),
        partition=first_rows_apart,
    ),
    Posterior(
        "step_at_row_early",
        "does not split",
        partial(step_at, row=9),
        partial(steps, 60, 9),
        Grid(default=(-8, 8)),
        partition=first_rows_apart,
    ),
    Posterior(
        "size_from_values",
        "does not split",
        size_from_values,
        lambda: (
            *tensors(np.random.default_rng(86).normal(size=40) + np.repeat(np.arange(4), 10)),
            torch.as_tensor(np.repeat(np.arange(4), 10)),
        ),
        Grid({"mu": (-15, 15)}, loop=True, points=401),
        partition=lambda y, group: pf.partition.ByGroup(by=group),
    ),
    Posterior("autocorrelated", "does not split", smoothed, walk, Grid(default=(-12, 12)), partition=first_rows_apart),
    Posterior(
        "noise_by_size",
        "does not split",
        weighted_by_size,
        lambda: tensors(np.random.default_rng(87).normal(size=64), dtype=torch.float32),
        Grid({"mu": (-12, 12)}),
    ),
)
