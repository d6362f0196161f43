"""Several modes, curved ridges and jumps."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from scipy.special import digamma, gammaln, polygamma

import pyro_fed as pf
from benchmarks.trust.posterior import Grid, Nested, Posterior
from benchmarks.trust.posteriors.regressions import tensors


def sorted_rows(y, *_):
    return pf.partition.SortedBy(by=y)


def squared(y):
    theta = pyro.sample("theta", dist.Normal(0.0, 2.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(theta.square(), 1.0), obs=y)


def squared_uneven(y):
    """The prior prefers one of the two modes, three to one or so."""
    theta = pyro.sample("theta", dist.Normal(0.5, 2.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(theta.square(), 1.0), obs=y)


def around(centre, n, seed, size=1.0):
    return tensors(centre + size * np.random.default_rng(seed).normal(size=n))


def magnitude(x, y):
    """A slope whose sign is not seen, beside one whose sign is."""
    a = pyro.sample("a", dist.Normal(0.0, 2.0))
    b = pyro.sample("b", dist.Normal(0.0, 2.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(a + b.abs() * x, 1.0), obs=y)


def slope():
    rng = np.random.default_rng(41)
    x = rng.normal(size=40)
    return tensors(x, 1.0 + 1.5 * x + rng.normal(size=40))


def two_components(y):
    """Half of the rows around theta, half around zero... or the other way round."""
    theta = pyro.sample("theta", dist.Normal(0.0, 5.0))
    phi = pyro.sample("phi", dist.Normal(0.0, 5.0))
    weights = y.new_tensor([0.5, 0.5])
    with pyro.plate("data", len(y)):
        parts = dist.Normal(torch.stack([theta, phi]), 1.0)
        pyro.sample("y", dist.MixtureSameFamily(dist.Categorical(weights), parts), obs=y)


def components_apart(y):
    """Priors that tell the components apart."""
    theta = pyro.sample("theta", dist.Normal(-3.0, 1.0))
    phi = pyro.sample("phi", dist.Normal(3.0, 1.0))
    weights = y.new_tensor([0.4, 0.6])
    with pyro.plate("data", len(y)):
        parts = dist.Normal(torch.stack([theta, phi]), 1.0)
        pyro.sample("y", dist.MixtureSameFamily(dist.Categorical(weights), parts), obs=y)


def uneven_components(y):
    """Weights 0.3 and 0.7: the labels are told apart by the data alone, weakly."""
    theta = pyro.sample("theta", dist.Normal(0.0, 3.0))
    phi = pyro.sample("phi", dist.Normal(0.0, 3.0))
    weights = y.new_tensor([0.3, 0.7])
    with pyro.plate("data", len(y)):
        parts = dist.Normal(torch.stack([theta, phi]), 1.0)
        pyro.sample("y", dist.MixtureSameFamily(dist.Categorical(weights), parts), obs=y)


def two_heaps(n=40, low=-2.0, high=2.0, share=0.5):
    rng = np.random.default_rng(42)
    return tensors(np.where(rng.uniform(size=n) < share, low, high) + rng.normal(size=n))


def gmm(y):
    """Pyro's tutorial: weights, locations and a common scale, the assignments discrete latents of the rows."""
    weights = pyro.sample("weights", dist.Dirichlet(0.5 * y.new_ones(2)))
    scale = pyro.sample("scale", dist.LogNormal(0.0, 2.0))
    with pyro.plate("components", 2):
        locs = pyro.sample("locs", dist.Normal(0.0, 10.0))
    with pyro.plate("data", len(y)):
        assignment = pyro.sample("assignment", dist.Categorical(weights), infer={"enumerate": "parallel"})
        pyro.sample("y", dist.Normal(locs[assignment], scale), obs=y)


def gmm_marginal(y):
    weights = pyro.sample("weights", dist.Dirichlet(0.5 * y.new_ones(2)))
    scale = pyro.sample("scale", dist.LogNormal(0.0, 2.0))
    with pyro.plate("components", 2):
        locs = pyro.sample("locs", dist.Normal(0.0, 10.0))
    with pyro.plate("data", len(y)):
        parts = dist.Normal(locs, scale)
        pyro.sample("y", dist.MixtureSameFamily(dist.Categorical(weights), parts), obs=y)


def gmm_moments(y):
    """Over all assignments of a few rows and a grid of the scale: given both, weights are Beta, locations Gaussian."""
    y = y.numpy()
    log_scale = np.linspace(-4, 6, 2001)
    variance = np.exp(2 * log_scale)
    terms = []
    for assigned in itertools.product([False, True], repeat=len(y)):
        second = np.array(assigned)
        log_weight = -0.5 * (log_scale / 2.0) ** 2
        first, square = [], []
        for mine in (~second, second):
            n, total, squares = mine.sum(), y[mine].sum(), (y[mine] ** 2).sum()
            precision = n / variance + 0.01
            mean = total / variance / precision
            log_weight = log_weight - 0.5 * (n * np.log(variance) + np.log(precision) + squares / variance)
            log_weight = log_weight + 0.5 * precision * mean**2 + gammaln(0.5 + n)
            first.append(mean)
            square.append(mean**2 + 1 / precision)
        a, b = 0.5 + (~second).sum(), 0.5 + second.sum()
        logit = digamma(a) - digamma(b)
        one = np.ones_like(log_scale)
        first += [log_scale, logit * one]
        square += [log_scale**2, (logit**2 + polygamma(1, a) + polygamma(1, b)) * one]
        terms.append((log_weight, np.stack(first), np.stack(square)))
    top = max(log_weight.max() for log_weight, _, _ in terms)
    total = sum(np.exp(log_weight - top).sum() for log_weight, _, _ in terms)
    mean = sum(part @ np.exp(log_weight - top) for log_weight, part, _ in terms) / total
    sd = np.sqrt(sum(part @ np.exp(log_weight - top) for log_weight, _, part in terms) / total - mean**2)
    return {"locs": (mean[:2], sd[:2]), "scale": (mean[2:3], sd[2:3]), "weights": (mean[3:], sd[3:])}


def gmm_scale(y):
    """Two components with names and a common scale: one mode."""
    low = pyro.sample("low", dist.Normal(-3.0, 1.0))
    high = pyro.sample("high", dist.Normal(3.0, 1.0))
    scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
    weights = y.new_tensor([0.5, 0.5])
    with pyro.plate("data", len(y)):
        parts = dist.Normal(torch.stack([low, high]), scale)
        pyro.sample("y", dist.MixtureSameFamily(dist.Categorical(weights), parts), obs=y)


def contaminated(y):
    """A location with a broad component: bimodal where half of the rows are far."""
    theta = pyro.sample("theta", dist.Normal(0.0, 10.0))
    scales, weights = y.new_tensor([0.5, 10.0]), y.new_tensor([0.6, 0.4])
    with pyro.plate("data", len(y)):
        parts = dist.Normal(theta + torch.zeros_like(scales), scales)
        pyro.sample("y", dist.MixtureSameFamily(dist.Categorical(weights), parts), obs=y)


def cauchy(y):
    """The location of a narrow Cauchy: a mode at each heap."""
    theta = pyro.sample("theta", dist.Normal(0.0, 10.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Cauchy(theta, 0.5), obs=y)


def heaps():
    rng = np.random.default_rng(43)
    return tensors(np.concatenate([-4 + 0.5 * rng.normal(size=5), 3 + 0.5 * rng.normal(size=5)]))


def banana(y):
    a = pyro.sample("a", dist.Normal(0.0, 1.5))
    b = pyro.sample("b", dist.Normal(0.0, 1.5))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(a + b.square(), 1.0), obs=y)


def product(y):
    """Only a·b is seen: two hyperbolas."""
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    b = pyro.sample("b", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(a * b, 1.0), obs=y)


def frequency(t, y):
    """The frequency of a sine: a comb of modes."""
    omega = pyro.sample("omega", dist.Normal(2.0, 2.0))
    with pyro.plate("data", len(t)):
        pyro.sample("y", dist.Normal((omega * t).sin(), 1.0), obs=y)


def wave():
    rng = np.random.default_rng(44)
    t = rng.uniform(0, 6, size=12)
    return tensors(t, np.sin(1.3 * t) + rng.normal(size=12))


def changepoint(t, y):
    """A jump of the mean at an unknown time."""
    when = pyro.sample("when", dist.Uniform(0.0, 1.0))
    before = pyro.sample("before", dist.Normal(0.0, 3.0))
    after = pyro.sample("after", dist.Normal(0.0, 3.0))
    with pyro.plate("data", len(t)):
        pyro.sample("y", dist.Normal(torch.where(t < when, before, after), 1.0), obs=y)


def changepoint_moments(t, y):
    """Over the rows between which the jump is: given them both means are Gaussian, and the time is uniform."""
    t, y = t.numpy(), y.numpy()
    order = np.argsort(t)
    t, y = t[order], y[order]
    ends = np.concatenate([[0.0], t, [1.0]])
    terms = []
    for k in range(len(t) + 1):
        nodes = ends[k] + (ends[k + 1] - ends[k]) * (np.arange(4000) + 0.5) / 4000
        when = np.log(nodes / (1 - nodes))
        log_weight = np.log(ends[k + 1] - ends[k])
        first, square = [when.mean()], [(when**2).mean()]
        for part in (y[:k], y[k:]):
            precision = len(part) + 1 / 9
            mean = part.sum() / precision
            log_weight += 0.5 * precision * mean**2 - 0.5 * np.log(precision)
            first.append(mean)
            square.append(mean**2 + 1 / precision)
        terms.append((log_weight, np.array(first), np.array(square)))
    weight = np.exp(np.array([term[0] for term in terms]) - max(term[0] for term in terms))
    weight /= weight.sum()
    mean = weight @ np.stack([term[1] for term in terms])
    sd = np.sqrt(weight @ np.stack([term[2] for term in terms]) - mean**2)
    return {name: (mean[i : i + 1], sd[i : i + 1]) for i, name in enumerate(("when", "before", "after"))}


def changepoint_smooth(t, y):
    """The same, the jump a steep sigmoid."""
    when = pyro.sample("when", dist.Uniform(0.0, 1.0))
    before = pyro.sample("before", dist.Normal(0.0, 3.0))
    after = pyro.sample("after", dist.Normal(0.0, 3.0))
    with pyro.plate("data", len(t)):
        share = torch.sigmoid(30.0 * (t - when))
        pyro.sample("y", dist.Normal(before + (after - before) * share, 1.0), obs=y)


def jump():
    rng = np.random.default_rng(45)
    t = (np.arange(50) + 0.5) / 50
    return tensors(t, np.where(t < 0.4, 0.0, 1.5) + rng.normal(size=50))


def by_time(t, y):
    return pf.partition.SortedBy(by=t)


def network_one(x, y):
    """A network of one unit: the sign of both weights is not seen."""
    w = pyro.sample("w", dist.Normal(0.0, 2.0))
    v = pyro.sample("v", dist.Normal(0.0, 2.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(v * (w * x).tanh(), 0.5), obs=y)


def network(x, y):
    """Two units: eight copies of each answer."""
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    v = pyro.sample("v", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal((x[:, None] * w).tanh() @ v, 0.5), obs=y)


def curve():
    rng = np.random.default_rng(46)
    x = rng.normal(size=24)
    return tensors(x, 1.3 * np.tanh(0.9 * x) + 0.5 * rng.normal(size=24))


def angle(y):
    """An angle seen on the circle, its prior on the line: copies at every turn."""
    theta = pyro.sample("theta", dist.Normal(0.0, 4.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.VonMises(theta, 4.0), obs=y)


def angles():
    rng = np.random.default_rng(47)
    return tensors(np.clip(1.0 + 0.5 * rng.normal(size=20), -math.pi, math.pi))


def clumps(y):
    """A location in long tails: the smaller of two clumps holds 0.03 % of the mass, and half of the variance."""
    theta = pyro.sample("theta", dist.StudentT(1.0, 0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.StudentT(2.0, theta, 0.3), obs=y)


def plateau(y):
    """A mean that is one of two, by the side of a half on which theta lies: scores see the prior alone."""
    theta = pyro.sample("theta", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal((theta > 0.5).to(y.dtype), 0.5), obs=y)


MODES = (
    Posterior("squared", "two modes", squared, lambda: around(4.0, 20, 48), Grid({"theta": (-5, 5)})),
    Posterior("squared_uneven", "two modes", squared_uneven, lambda: around(2.0, 6, 49), Grid({"theta": (-6, 6)})),
    Posterior("magnitude", "two modes", magnitude, slope, Grid(default=(-5, 5))),
    Posterior("two_components", "two modes", two_components, two_heaps, Grid(default=(-8, 8)), partition=sorted_rows),
    Posterior(
        "two_components_close",
        "two modes",
        two_components,
        lambda: two_heaps(20, -0.7, 0.7),
        Grid(default=(-12, 12)),
        partition=sorted_rows,
    ),
    Posterior(
        "components_apart",
        "easy",
        components_apart,
        lambda: two_heaps(40, -3.0, 3.0, 0.4),
        Grid(default=(-8, 8)),
        partition=sorted_rows,
    ),
    Posterior(
        "components_uneven",
        "two modes",
        uneven_components,
        lambda: two_heaps(30, -1.5, 1.5, 0.35),
        Grid(default=(-8, 8)),
        partition=sorted_rows,
    ),
    Posterior(
        "gmm_tutorial",
        "two modes",
        gmm,
        lambda: tensors([0.0, 1.0, 10.0, 11.0, 12.0]),
        Nested(gmm_moments),
        clients=2,
        partition=sorted_rows,
    ),
    Posterior(
        "gmm_sorted",
        "two modes",
        gmm,
        lambda: two_heaps(24, -3.0, 3.0),
        Grid({"weights": (-5, 5), "scale": (-2, 3), "locs": (-12, 12)}, model=gmm_marginal),
        clients=3,
        partition=sorted_rows,
    ),
    Posterior(
        "gmm_named",
        "easy",
        gmm_scale,
        lambda: two_heaps(40, -2.5, 2.5),
        Grid({"low": (-8, 3), "high": (-3, 8), "scale": (-2, 2)}),
        partition=sorted_rows,
    ),
    Posterior("contaminated", "two modes", contaminated, heaps, Grid({"theta": (-20, 20)}), partition=sorted_rows),
    Posterior("cauchy", "two modes", cauchy, heaps, Grid({"theta": (-20, 20)}), clients=2, partition=sorted_rows),
    Posterior("banana", "curved", banana, lambda: around(1.0, 20, 50), Grid(default=(-8, 8))),
    Posterior("product", "curved", product, lambda: around(1.0, 20, 51), Grid(default=(-7, 7))),
    Posterior("frequency", "many modes", frequency, wave, Grid({"omega": (-12, 16)}), partition=by_time),
    Posterior(
        "changepoint",
        "jump",
        changepoint,
        jump,
        Nested(changepoint_moments),
        partition=by_time,
    ),
    Posterior(
        "changepoint_smooth",
        "jump",
        changepoint_smooth,
        jump,
        Grid({"when": (-14, 14), "before": (-14, 14), "after": (-14, 14)}, points=121),
        partition=by_time,
    ),
    Posterior("network_one", "two modes", network_one, curve, Grid(default=(-12, 12)), partition=by_time),
    Posterior("network", "many modes", network, curve, Grid(default=(-6, 6), points=49), partition=by_time),
    Posterior("angle", "many modes", angle, angles, Grid({"theta": (-25, 25)})),
    Posterior(
        "faint_mode",
        "two modes",
        clumps,
        lambda: tensors([-4.0, -4.1, -3.9, 4.0, 4.2, 3.9, 3.8]),
        Grid({"theta": (-30, 30)}, points=20001),
        clients=3,
    ),
    Posterior("plateau", "jump", plateau, lambda: around(1.0, 10, 52), Grid({"theta": (-8, 8)}, points=20001)),
)
