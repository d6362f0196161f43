"""Models whose rows need one another, each in one line of arithmetic, and the data that they are given.

Every entry is an ordinary Pyro model of (x, y, g): covariates (N, 2), targets (N,) and whole numbers (N,) of 0..4. What
makes it one that does not split is on the line marked `# here`, of which a refusal should tell.
"""

import math

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine

OUTSIDE: torch.Tensor | None = None


def linear(x, y, scale=5.0, prior=0.0):
    """The likelihood that most of these models end in."""
    w = pyro.sample("w", dist.Normal(prior, 10.0).expand([x.shape[1]]).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x @ w, scale), obs=y)


def level(offset, y):
    """A level, and what is added to it row by row."""
    b = pyro.sample("b", dist.Normal(0.0, 10.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(b + offset, 5.0), obs=y)


def centred(x, y, g):
    linear(x - x.mean(0), y)  # here


def centred_target(x, y, g):
    linear(x, y - y.mean())  # here


def scaled_by_sd(x, y, g):
    linear(x / x.std(0), y)  # here


def scaled_by_median(x, y, g):
    linear(x / x.median(0).values, y)  # here


def min_max(x, y, g):
    low, high = x.amin(0), x.amax(0)  # here
    linear((x - low) / (high - low + 1e-6), y)


def ranks(x, y, g):
    linear(x.argsort(0).argsort(0).to(x.dtype), y)  # here


def ranks_by_counting(x, y, g):
    level((x[:, 0, None] > x[:, 0]).to(x.dtype).sum(1), y)  # here


def lagged(x, y, g):
    before = torch.cat([y.new_zeros(1), y[:-1]])  # here
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(a * before, 1.0), obs=y)


def rolled(x, y, g):
    linear(x.roll(1, 0), y)  # here


def differences(x, y, g):
    change = torch.diff(y, prepend=y[:1])  # here
    level(change, y)


def group_means(x, y, g):
    means = y.new_zeros(5).index_add(0, g, y) / y.new_zeros(5).index_add(0, g, torch.ones_like(y)).clamp(min=1)  # here
    level(means[g], y)


def group_counts(x, y, g):
    counts = y.new_zeros(5).index_add(0, g, torch.ones_like(y))  # here
    level(counts[g].log(), y)


def cumulative(x, y, g):
    level(y.cumsum(0) / 100, y)  # here


def first_row(x, y, g):
    level(y[0], y)  # here


def last_row(x, y, g):
    level(0.01 * x[-1, 0], y)  # here


def empirical_prior(x, y, g):
    linear(x, y, prior=y.mean())  # here


def empirical_scale(x, y, g):
    b = pyro.sample("b", dist.Normal(0.0, y.std()))  # here
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(b, 1.0), obs=y)


def empirical_support(x, y, g):
    b = pyro.sample("b", dist.Uniform(y.min() - 1, y.max() + 1))  # here
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(b, 1.0), obs=y)


def prior_by_count(x, y, g):
    w = pyro.sample("w", dist.Normal(0.0, math.sqrt(len(y))).expand([2]).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def trend(x, y, g):
    t = torch.arange(len(x))  # here
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(a * t, 1.0), obs=y)


def trend_from_0_to_1(x, y, g):
    t = torch.linspace(0, 1, len(x))  # here
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(a * t, 1.0), obs=y)


def small_trend(x, y, g):
    """An effect of a thousandth over all rows."""
    level(torch.arange(len(x)) * (1e-3 / len(y)), y)  # here


def changepoint(x, y, g):
    low = pyro.sample("low", dist.Normal(0.0, 10.0))
    high = pyro.sample("high", dist.Normal(0.0, 10.0))
    t = torch.arange(len(y))  # here
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(torch.where(t < 200, low, high), 1.0), obs=y)


def latent_changepoint(x, y, g):
    low = pyro.sample("low", dist.Normal(0.0, 10.0))
    high = pyro.sample("high", dist.Normal(0.0, 10.0))
    when = pyro.sample("when", dist.Uniform(0.0, 400.0))
    t = torch.arange(len(y))  # here
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(low + (high - low) * torch.sigmoid(t - when), 1.0), obs=y)


def closure(x, y, g):
    weight = OUTSIDE[: len(y)].to(y)  # here
    level(weight, y)


def noise(x, y, g):
    linear(x + 0.1 * torch.randn(x.shape), y)  # here


def small_noise(x, y, g):
    linear(x, y + 1e-4 * torch.rand_like(y))  # here


def dropout(x, y, g):
    linear(torch.nn.functional.dropout(x, 0.2), y)  # here


def python_noise(x, y, g):
    import random

    level(random.random(), y)  # here


def groups_by_largest(x, y, g):
    n = int(g.max()) + 1  # here
    with pyro.plate("groups", n):
        a = pyro.sample("a", dist.Normal(0.0, 10.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(a[g], 1.0), obs=y)


def groups_by_unique(x, y, g):
    values, place = torch.unique(g, return_inverse=True)  # here
    a = pyro.sample("a", dist.Normal(0.0, 10.0).expand([len(values)]).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(a[place], 1.0), obs=y)


def one_hot(x, y, g):
    columns = torch.nn.functional.one_hot(g).to(y.dtype)  # here
    w = pyro.sample("w", dist.Normal(0.0, 10.0).expand([columns.shape[1]]).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(columns @ w, 1.0), obs=y)


def normalised_weights(x, y, g):
    weight = y.exp() / y.exp().sum() * len(y)  # here
    b = pyro.sample("b", dist.Normal(0.0, 10.0))
    with pyro.plate("data", len(y)), poutine.scale(scale=weight):
        pyro.sample("y", dist.Normal(b, 1.0), obs=y)


def sorted_target(x, y, g):
    linear(x, y.sort().values)  # here


def sorted_columns(x, y, g):
    linear(x.sort(0).values, y)  # here


def softmax_over_rows(x, y, g):
    linear(torch.softmax(x, 0), y)  # here


def attention(x, y, g):
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    mixed = torch.softmax(x @ x.T, -1) @ x  # here
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mixed @ w, 1.0), obs=y)


def latent_softmax(x, y, g):
    """Only where the weights are not zero."""
    w = pyro.sample("w", dist.Normal(0.0, 10.0).expand([2]).to_event(1))
    share = torch.log_softmax(x @ w, 0)  # here
    with pyro.plate("data", len(y)):
        pyro.factor("choice", y * share)


def batch_norm(x, y, g):
    linear(torch.nn.functional.batch_norm(x, None, None, training=True), y)  # here


def scale_by_count(x, y, g):
    linear(x, y, scale=1.0 + 1.0 / len(y))


def tempered(x, y, g):
    w = pyro.sample("w", dist.Normal(0.0, 10.0).expand([2]).to_event(1))
    with pyro.plate("data", len(y)), poutine.scale(scale=1.0 / len(y)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def scale_by_pooled_residual(x, y, g):
    w = pyro.sample("w", dist.Normal(0.0, 10.0).expand([2]).to_event(1))
    spread = (y - x @ w).std(unbiased=False) + 1e-3  # here
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x @ w, spread), obs=y)


def total_factor(x, y, g):
    w = pyro.sample("w", dist.Normal(0.0, 10.0).expand([2]).to_event(1))
    total = (y - x @ w).square().sum()  # here
    with pyro.plate("data", len(y)):
        pyro.factor("fit", -total / len(y))


def factor_outside(x, y, g):
    linear(x, y)
    pyro.factor("balance", -((y.mean()) ** 2))  # here


def one_event(x, y, g):
    w = pyro.sample("w", dist.Normal(0.0, 10.0).expand([2]).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x @ w, 1.0).to_event(1), obs=y)  # here


def outlier_by_place(x, y, g):
    """One place among the rows is another."""
    odd = torch.arange(len(y)) == 2  # here
    level(torch.where(odd, 5.0, 0.0), y)


def only_for_large_weights(x, y, g):
    """At small weights every row is for itself."""
    w = pyro.sample("w", dist.Normal(0.0, 10.0).expand([2]).to_event(1))
    shift = torch.relu(w.abs().max() - 1.0) * x.mean()  # here
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x @ w + shift, 1.0), obs=y)


#: Everything; those whose count of groups is read from values are refused for another reason.
INSIDE = [
    *(centred, centred_target, scaled_by_sd, scaled_by_median, min_max, ranks, ranks_by_counting, lagged, rolled),
    *(differences, group_means, group_counts, cumulative, first_row, last_row, trend, trend_from_0_to_1, small_trend),
    *(closure, normalised_weights, sorted_target, sorted_columns, softmax_over_rows, attention, latent_softmax),
    *(batch_norm, scale_by_count, tempered, scale_by_pooled_residual, total_factor, one_event),
    *(outlier_by_place, only_for_large_weights),
]
CHANGEPOINTS = [changepoint, latent_changepoint]
OUTSIDE_PLATE = [empirical_prior, empirical_scale, empirical_support, prior_by_count, factor_outside]
RANDOM = [noise, small_noise, dropout, python_noise]
SIZES = [groups_by_largest, groups_by_unique, one_hot]


#: Those that take a number for every pair of rows.
SQUARE = [ranks_by_counting, attention]


def rows(count, *, order="random", offset=0.0, target=1.0, seed=0):
    """Data (x, y, g) in float64.

    `order` "sorted" has the rows by target; `offset` puts a column far from zero; `target` multiplies the target, so
    that densities near zero weights are minus millions.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 2, generator=generator, dtype=torch.float64)
    g = torch.randint(5, (count,), generator=generator)
    g[torch.randperm(count, generator=generator)[:5]] = torch.arange(5)[: min(5, count)]
    y = x @ torch.tensor([1.0, -0.5]).double() + torch.randn(count, generator=generator, dtype=torch.float64)
    x, y = x + torch.tensor([offset, 0.0]), target * y
    if order == "sorted":
        by = y.argsort()
        x, y, g = x[by], y[by], g[by].sort().values
    return x, y, g
