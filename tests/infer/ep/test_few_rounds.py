"""The recipe `files`: regressions over five unequal hospitals are near the pooled posterior after two or three rounds.

The pooled posterior is that of the formulas below, by importance sampling around its mode (100,000 draws, whose error
of a mean is below 0.01 SDs): no code of the package. One hospital of the survival data has no event.
"""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_expit
from scipy.stats import multivariate_t

import pyro_fed as pf
from pyro_fed.recipes import recipe

SIZES, EFFECTS, MONTHS = (65, 61, 71, 13, 19), np.array([0.2, -0.5, 0.5]), 30.0
#: Priors: N(0, 5²) of levels, N(0, 2²) of effects, N(0, 0.5²) of a log shape.
LEVEL, EFFECT, SHAPE = 5.0, 2.0, 0.5
#: Room for the sorted rows of the largest hospital, for Cox's model.
ROOM = 80


def logistic(x, y):
    level, effects = coefficients(x)
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=level + x @ effects), obs=y)


def poisson(x, y):
    level, effects = coefficients(x)
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Poisson((level + x @ effects).exp()), obs=y)


def weibull(x, died, time):
    level, effects = coefficients(x)
    shape = pyro.sample("log_shape", dist.Normal(x.new_zeros(()), SHAPE)).exp()
    scaled = time.log() - level - x @ effects
    with pyro.plate("data", len(x)):
        pyro.factor("time", died * (shape.log() + shape * scaled - time.log()) - (shape * scaled).exp())


def cox(x, died, here):
    """A row is a hospital, whose patients are sorted by falling time: the stratified partial likelihood."""
    effects = pyro.sample("effects", dist.Normal(x.new_zeros(x.shape[-1]), EFFECT).to_event(1))
    with pyro.plate("data", len(x)):
        eta = (x @ effects).masked_fill(~here, -1e9)
        pyro.factor("order", (died * (eta - eta.logcumsumexp(-1))).sum(-1))


def coefficients(x):
    level = pyro.sample("level", dist.Normal(x.new_zeros(()), LEVEL))
    return level, pyro.sample("effects", dist.Normal(x.new_zeros(x.shape[1]), EFFECT).to_event(1))


def hospitals(kind, seed):
    """Each hospital's rows, in which patients of later hospitals are older."""
    rng, found = np.random.default_rng(seed), []
    for number, size in enumerate(SIZES):
        x = np.column_stack(
            [rng.normal(size=size) + 0.3 * number - 0.5, rng.random(size) < 0.4, rng.integers(-1, 2, size)]
        ).astype(float)
        eta = x @ EFFECTS
        if kind == "logistic":
            found.append((x, (rng.random(size) < 1 / (1 + np.exp(-eta - 0.8))).astype(float)))
        elif kind == "poisson":
            found.append((x, rng.poisson(np.exp(eta + 0.5)).astype(float)))
        else:
            death = 12.0 * np.exp(-0.75 * eta) * rng.exponential(size=size) ** (1 / 1.3)
            end = MONTHS * np.sqrt(rng.random(size)) * (0.0 if number == 4 else 1.0) + 0.03
            found.append((x, (death <= end).astype(float), np.minimum(death, end) / 12.0))
    return found


def log_posterior(kind, rows):
    """The pooled log posterior as a function of points (S, D), written out."""
    x = np.concatenate([own[0] for own in rows])

    def of(points):
        level, effects = (points[:, :1], points[:, 1:4]) if kind != "cox" else (0.0, points)
        prior = -np.square(effects / EFFECT).sum(1) / 2
        if kind != "cox":
            prior = prior - np.square(level[:, 0] / LEVEL) / 2
        eta = level + effects @ x.T
        if kind == "cox":
            total = 0.0
            for own, died, time in rows:
                order = np.argsort(-time)  # no two are alike
                line = effects @ own[order].T
                total = total + (line - np.logaddexp.accumulate(line, axis=1)) @ died[order]
            return prior + total
        y = np.concatenate([own[1] for own in rows])
        if kind == "logistic":
            return prior + (y * log_expit(eta) + (1 - y) * log_expit(-eta)).sum(1)
        if kind == "poisson":
            return prior + (y * eta - np.exp(eta)).sum(1)
        time, log_shape = np.concatenate([own[2] for own in rows]), points[:, 4:5]
        scaled = np.exp(log_shape) * (np.log(time) - eta)
        prior = prior - np.square(log_shape[:, 0] / SHAPE) / 2
        return prior + (y * (log_shape + scaled - np.log(time)) - np.exp(scaled)).sum(1)

    return of


def pooled(kind, rows):
    """Means and SDs (D,) of the pooled posterior, by importance sampling."""
    density, dim = log_posterior(kind, rows), {"cox": 3, "weibull": 5}.get(kind, 4)
    best = minimize(lambda point: -density(point[None])[0], np.zeros(dim), method="BFGS", options={"gtol": 1e-4})
    proposal = multivariate_t(best.x, 1.3 * best.hess_inv, df=7, seed=1)
    draws = np.concatenate([proposal.rvs(20_000) for _ in range(5)])
    logs = np.concatenate([density(part) for part in np.split(draws, 50)]) - proposal.logpdf(draws)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    assert 1 / np.square(weights).sum() > 30_000
    mean = weights @ draws
    return mean, np.sqrt(weights @ np.square(draws - mean))


def federation(kind, rows):
    made = {}
    for name, own in zip("abcde", rows, strict=True):
        tensors = tuple(map(torch.from_numpy, own))
        if kind == "cox":
            x, died, time = tensors
            order, size = time.argsort(descending=True, stable=True), len(time)
            tensors = (torch.zeros(1, ROOM, 3).double(), torch.zeros(1, ROOM).double(), torch.arange(ROOM)[None] < size)
            tensors[0][0, :size], tensors[1][0, :size] = x[order], died[order]
        made[name] = tensors
    model = {"logistic": logistic, "poisson": poisson, "weibull": weibull, "cox": cox}[kind]
    return pf.Federation.from_clients(model, made, plate="data")


@pytest.mark.parametrize(
    ("kind", "rounds", "seed"), [("logistic", 2, 0), ("poisson", 2, 1), ("cox", 2, 0), ("weibull", 3, 1)]
)
def test_few_rounds_are_near_the_pooled_posterior(kind, rounds, seed):
    """Within 0.05 posterior SDs in every mean and 5 % in every SD; it stops by itself, without doubts."""
    rows = hospitals("weibull" if kind == "cox" else kind, seed)
    mean, sd = pooled(kind, rows)
    idata = pf.run(
        recipe.load("files").build(),
        federation(kind, rows),
        num_rounds=4,
        num_draws=20_000,
        progress=False,
        audit=False,
    )
    names = [name for name in ("level", "effects", "log_shape") if name in idata.posterior]
    draws = np.concatenate([idata.posterior[name].values.reshape(20_000, -1) for name in names], 1)
    assert idata.federation.sizes["round"] <= rounds
    assert np.abs((draws.mean(0) - mean) / sd).max() < 0.05
    assert np.abs(np.log(draws.std(0) / sd)).max() < 0.05
    assert idata.attrs["doubts"] == ""


def test_the_only_step_of_a_turn_is_at_q():
    with pytest.raises(pf.errors.SettingError, match="the only step is at q; set steps to 2 or more"):
        pf.infer.tilted.Newton(begin="mode")
