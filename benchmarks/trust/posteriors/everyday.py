"""Small models of everyday, in single precision, as torch's default is: ordered grades, times, extremes, groups, walks.

Densities that overflow or are no number far out, and those that rise without end into a funnel's neck.
"""

from __future__ import annotations

import numpy as np
import pyro
import pyro.distributions as dist
import torch

import pyro_fed as pf
from benchmarks.trust.posterior import Grid, Nested, Posterior
from benchmarks.trust.posteriors.regressions import tensors


def singles(*arrays):
    return tensors(*arrays, dtype=torch.float32)


def by_last(*args):
    return pf.partition.SortedBy(by=args[-1])


def by_group(group, *_):
    return pf.partition.SortedBy(by=group)


def by_time(x, time, event):
    return pf.partition.SortedBy(by=time)


def ordered(x, y):
    """Grades: two cuts in order, of which far ones leave a grade no probability."""
    b = pyro.sample("b", dist.Normal(0.0, 3.0))
    c = pyro.sample("c", cuts())
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.OrderedLogistic(b * x, c), obs=y)


def cuts():
    base = dist.Normal(torch.zeros(2), 4.0 * torch.ones(2)).to_event(1)
    return dist.TransformedDistribution(base, dist.transforms.OrderedTransform())


def ordered_sums(x, y):
    """The same, with grades' probabilities as differences, which a grid can be mapped over."""
    b = pyro.sample("b", dist.Normal(0.0, 3.0))
    c = pyro.sample("c", cuts())
    low, high = torch.sigmoid(c[0] - b * x), torch.sigmoid(c[1] - b * x)
    share = torch.where(y == 0, low, torch.where(y == 1, high - low, 1 - high))
    with pyro.plate("data", len(y)):
        pyro.factor("y", share.clamp(min=1e-300).log())


def grades():
    rng = np.random.default_rng(7004)
    x = rng.normal(size=36)
    z = 1.5 * x + rng.logistic(size=36)
    return (*singles(x), torch.as_tensor((z > -0.5).astype(int) + (z > 1.2)))


def survival(x, time, event):
    """Weibull times, some of them censored: in the tails of its shape the hazard is no number."""
    shape = pyro.sample("shape", dist.LogNormal(0.0, 0.5))
    a = pyro.sample("a", dist.Normal(0.0, 2.0))
    b = pyro.sample("b", dist.Normal(0.0, 1.0))
    scale = (a + b * x).exp()
    with pyro.plate("data", len(time)):
        log_hazard = shape.log() - scale.log() + (shape - 1) * (time / scale).log()
        pyro.factor("y", event * log_hazard - (time / scale) ** shape)


def times():
    rng = np.random.default_rng(7006)
    x = rng.normal(size=30)
    time = np.exp(0.7 + 0.6 * x) * rng.weibull(1.6, 30)
    return singles(x, np.minimum(time, 2.5), time < 2.5)


def extremes(y):
    """Maxima: a density whose double exponential leaves the range of numbers."""
    loc = pyro.sample("loc", dist.Normal(0.0, 10.0))
    s = pyro.sample("s", dist.LogNormal(0.0, 2.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Gumbel(loc, s), obs=y)


def maxima():
    return singles(3 + 2 * np.random.default_rng(7022).gumbel(size=9))


def absolute(x, y):
    """A regression to the median: scores that jump, curvatures of zero."""
    a = pyro.sample("a", dist.Normal(0.0, 5.0))
    b = pyro.sample("b", dist.Normal(0.0, 5.0))
    s = pyro.sample("s", dist.HalfNormal(2.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Laplace(a + b * x, s), obs=y)


def jumps():
    rng = np.random.default_rng(7021)
    x = rng.normal(size=15)
    return singles(x, 1 + 0.5 * x + rng.laplace(size=15))


def bioassay(x, y):
    """Fourteen doses, one animal each: a slope whose tail is long on one side."""
    a = pyro.sample("a", dist.Normal(0.0, 5.0))
    b = pyro.sample("b", dist.Normal(0.0, 5.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Bernoulli(logits=a + b * x), obs=y)


def doses():
    x = np.linspace(-1.5, 1.5, 14)
    return singles(x, np.random.default_rng(9101).random(14) < 1 / (1 + np.exp(-(0.5 + 1.5 * x))))


def excess_zeros(y):
    """Counts with more zeros than a Poisson has, perhaps: the share of them may be next to none."""
    p = pyro.sample("p", dist.Beta(1.0, 1.0))
    rate = pyro.sample("rate", dist.Gamma(2.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.ZeroInflatedPoisson(rate, gate=p), obs=y)


def visits():
    rng = np.random.default_rng(9108)
    return singles(rng.poisson(1.6, 20) * (rng.random(20) < 0.6))


def rise_and_fall(x, y):
    """Counts with a peak: a Poisson regression with a square."""
    a = pyro.sample("a", dist.Normal(0.0, 3.0))
    b = pyro.sample("b", dist.Normal(0.0, 3.0))
    c = pyro.sample("c", dist.Normal(0.0, 3.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Poisson((a + b * x + c * x.square()).exp()), obs=y)


def catches():
    x = np.linspace(-1.5, 1.5, 12)
    return singles(x, np.random.default_rng(9118).poisson(np.exp(0.5 + 0.6 * x - 0.8 * x**2)))


def groups(group, y):
    """Five groups of four, centred: in double precision a climb goes deep into the neck, in single it overflows."""
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfNormal(2.0))
    with pyro.plate("groups", 5):
        theta = pyro.sample("theta", dist.Normal(mu, tau))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(theta[group], 1.0), obs=y)


def five_groups():
    rng = np.random.default_rng(7012)
    group = np.repeat(np.arange(5), 4)
    return torch.as_tensor(group), *singles(1.0 + (0.8 * rng.normal(size=5))[group] + rng.normal(size=20))


def groups_moments(group, y):
    """By a sum over tau: given it, everything is normal."""
    group, y = group.numpy(), y.double().numpy()
    means = np.array([y[group == number].mean() for number in range(5)])
    u = np.linspace(-12, 3, 3001)
    tau2, noise = np.exp(2 * u), 1.0 / 4
    total = tau2 + noise
    precision = 5 / total + 1 / 25
    centre = means.sum() / total / precision
    value = -2.5 * np.log(total) - (means**2).sum() / total / 2 + centre**2 * precision / 2 - np.log(precision) / 2
    weights = _weights(value - tau2 / 8 + u)
    shrunk = tau2 / total
    given = [(shrunk * one + (1 - shrunk) * centre, shrunk * noise + (1 - shrunk) ** 2 / precision) for one in means]
    theta = np.array([_mixed(weights, *one) for one in given]).T
    found = {"mu": _mixed(weights, centre, 1 / precision), "tau": _mixed(weights, u, 0 * u)}
    return {name: tuple(np.array([part]) for part in pair) for name, pair in found.items()} | {"theta": tuple(theta)}


def walk(day, y):
    """Six days of a random walk with an unknown step: latents in a chain."""
    q = pyro.sample("q", dist.HalfNormal(1.0))
    first = pyro.sample("first", dist.Normal(0.0, 2.0))
    steps = pyro.sample("steps", dist.Normal(torch.zeros(5), q).to_event(1))
    level = torch.cat([first[None], first + steps.cumsum(-1)])
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(level[day], 0.5), obs=y)


def six_days():
    rng = np.random.default_rng(7013)
    day = np.repeat(np.arange(6), 3)
    level = np.cumsum(0.5 * rng.normal(size=6))
    return torch.as_tensor(day), *singles(level[day] + 0.5 * rng.normal(size=18))


def walk_moments(day, y):
    """By a sum over q: given it, everything is normal."""
    design, y = np.tril(np.ones((6, 6)))[day.numpy()], y.double().numpy()
    u = np.linspace(-12, 3, 2001)
    values, means, variances = [], [], []
    for q in np.exp(u):
        prior = np.diag([1 / 4] + [q**-2] * 5)
        precision, eta = prior + design.T @ design / 0.25, design.T @ y / 0.25
        covariance = np.linalg.inv(precision)
        mean = covariance @ eta
        dets = np.linalg.slogdet(prior)[1] - np.linalg.slogdet(precision)[1]
        values.append(dets / 2 + eta @ mean / 2 - q**2 / 2)
        means.append(mean)
        variances.append(covariance.diagonal())
    weights = _weights(np.array(values) + u)
    mean, sd = np.array(
        [_mixed(weights, *pair) for pair in zip(np.array(means).T, np.array(variances).T, strict=True)]
    ).T
    q_mean, q_sd = _mixed(weights, u, 0 * u)
    return {
        "q": (np.array([q_mean]), np.array([q_sd])),
        "first": (mean[:1], sd[:1]),
        "steps": (mean[1:], sd[1:]),
    }


def _weights(log_values):
    weights = np.exp(log_values - log_values.max())
    return weights / weights.sum()


def _mixed(weights, means, variances):
    """Mean and SD of a mixture."""
    mean = weights @ means
    return mean, np.sqrt(weights @ (variances + means**2) - mean**2)


EVERYDAY = (
    Posterior(
        "ordered",
        "easy",
        ordered,
        grades,
        Grid({"b": (-2, 7), "c": (-8, 5)}, model=ordered_sums),
        clients=3,
        partition=by_last,
    ),
    Posterior(
        "survival",
        "easy",
        survival,
        times,
        Grid({"shape": (-3, 3), "a": (-3, 4), "b": (-3, 4)}),
        clients=4,
        partition=by_time,
    ),
    Posterior("extremes", "skewed", extremes, maxima, Grid({"loc": (-15, 20), "s": (-3, 5)}), clients=3),
    Posterior("absolute", "jump", absolute, jumps, Grid({"a": (-5, 7), "b": (-6, 7), "s": (-3, 3)}), clients=5),
    Posterior(
        "bioassay",
        "skewed",
        bioassay,
        doses,
        Grid({"a": (-8, 12), "b": (-6, 22)}),
        clients=4,
        partition=by_last,
    ),
    Posterior(
        "excess_zeros",
        "skewed",
        excess_zeros,
        visits,
        Grid({"p": (-14, 6), "rate": (-6, 4)}),
        clients=4,
        partition=by_last,
    ),
    Posterior(
        "rise_and_fall",
        "skewed",
        rise_and_fall,
        catches,
        Grid({"a": (-3, 3), "b": (-3, 5), "c": (-8, 2)}),
        clients=4,
        partition=by_last,
    ),
    Posterior("five_groups", "funnel", groups, five_groups, Nested(groups_moments), clients=5, partition=by_group),
    Posterior("walk", "funnel", walk, six_days, Nested(walk_moments), clients=3, partition=by_group),
)
