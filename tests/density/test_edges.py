"""Likelihoods that end at an edge: supports that a latent moves, and parameters beyond their constraints."""

import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.distributions import AffineTransform, ExpTransform, PowerTransform, SigmoidTransform

import pyro_fed as pf

EXP, ONE = ExpTransform(), AffineTransform(0.0, 1.0)

Y = torch.tensor([0.3, 1.1, 2.4, 1.9, 0.7, 2.2]).double()
X = torch.tensor([-1.0, 0.5, 2.0, -0.3, 1.2, 0.1]).double()


def federated(model, *args):
    return pf.Federation(model, args, plate="data", num_clients=2, seed=0)


def top(y):
    t = pyro.sample("t", dist.Pareto(0.5, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Uniform(torch.zeros(()), t), obs=y)


def within(y):
    """The same posterior, by a prior that reaches where all rows are possible: Pareto(max y, 1 + 6)."""
    t = pyro.sample("t", dist.Pareto(pf.shared("top", lambda: y.max()), 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Uniform(torch.zeros(()), t), obs=y)


def wide(y):
    t = pyro.sample("t", dist.LogNormal(2.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Uniform(-3.0 * t, 3.0 * t), obs=y)


def test_a_support_that_a_latent_moves_is_no_fault_of_the_data():
    with pytest.raises(pf.errors.ModelError, match=r"'y': the support of Uniform depends on 't'.*pf.shared\('top'"):
        federated(top, Y)
    with pytest.warns(UserWarning, match="'y': the support of Uniform depends on 't'"):
        federated(wide, Y)  # all rows are in it at the first point


def test_the_cure_gives_the_posterior():
    nuts = pf.NUTS(num_chains=1, warmup_steps=200)
    idata = pf.run(nuts, federated(within, Y), num_draws=1500, seed=0, compile="trace", progress=False)
    t = idata["posterior"]["t"].values
    assert t.min() >= 2.4 and abs(np.log(t / 2.4).mean() * 7 - 1) < 0.2  # log(t / max y) is exponential of rate 7


def shifted(base, sign=1.0):
    """A base from a threshold on, above it or below."""

    def model(y):
        m = pyro.sample("m", dist.Normal(0.0, 2.0))
        s = pyro.sample("s", dist.HalfNormal(3.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.TransformedDistribution(base(s), [AffineTransform(m, sign)]), obs=y)

    return model


def written(likelihood):
    """A likelihood as the model writes it, of a location, a scale and the rows."""

    def model(y):
        m = pyro.sample("m", dist.Normal(0.0, 2.0))
        s = pyro.sample("s", dist.HalfNormal(3.0))
        with pyro.plate("data", len(y)):
            fn, value = likelihood(m, s, y)
            pyro.sample("y", fn, obs=value)

    return model


def transformed(base, *transforms):
    return dist.TransformedDistribution(base, list(transforms))


def mixed(component):
    return dist.MixtureSameFamily(dist.Categorical(torch.ones(2)), component)


def pair(m):
    return torch.stack([m, m - 1.0])


ABOVE = {
    "exponential": shifted(lambda s: dist.Exponential(1 / s)),
    "gamma": shifted(lambda s: dist.Gamma(2.0, 1 / s)),
    "lognormal": shifted(lambda s: dist.LogNormal(0.0, s)),
    "lognormal, composed": written(lambda m, s, y: (transformed(dist.Normal(0 * s, s), EXP, AffineTransform(m, 1)), y)),
    "power": written(lambda m, s, y: (transformed(dist.Exponential(s), PowerTransform(s), AffineTransform(m, s)), y)),
    "twice": written(lambda m, s, y: (transformed(transformed(dist.Gamma(2.0, s), AffineTransform(m, s)), ONE), y)),
    "vectors": written(
        lambda m, s, y: (
            transformed(dist.Exponential(s.expand(len(y), 1)).to_event(1), AffineTransform(m, 1.0, event_dim=1)),
            y.unsqueeze(-1),
        )
    ),
    "expanded": written(lambda m, s, y: (transformed(dist.Exponential(s), AffineTransform(m, 1)).expand([len(y)]), y)),
    "below": shifted(lambda s: transformed(dist.Gamma(2.0, 1 / s), AffineTransform(-5.0, 1.0)), -1.0),
    "beta": written(lambda m, s, y: (dist.AffineBeta(2.0, 2.0, m, 10 + s), y)),
    "pareto": written(lambda m, s, y: (dist.Pareto(m.exp() / 4, 1 / s), y)),
    "of the value": written(lambda m, s, y: (dist.Exponential(1 / s), y - m)),
    "mixture": written(
        lambda m, s, y: (mixed(transformed(dist.Exponential(pair(s).abs() + 1), AffineTransform(pair(m), 1.0))), y)
    ),
}


@pytest.mark.parametrize("name", ABOVE)
def test_a_density_that_goes_on_beyond_an_edge_is_refused(name):
    """There torch gives a number, or none, where the density is zero."""
    with pytest.raises(
        pf.errors.ModelError, match=r"observed site 'y': the support of .* depends on .*'m'.* below all rows"
    ):
        federated(ABOVE[name], Y + 1)


def test_a_density_that_is_zero_beyond_is_warned_of_when_transformed_too():
    for model in (shifted(dist.HalfNormal), written(lambda m, s, y: (dist.HalfNormal(s), y - m))):
        with pytest.warns(UserWarning, match="support of HalfNormal .*depends on 'm'"):
            federated(model, Y + 1)


FIXED = {
    "location and scale": written(lambda m, s, y: (transformed(dist.Normal(0.0, 1.0), AffineTransform(m, s)), y)),
    "student": written(lambda m, s, y: (transformed(dist.StudentT(4.0), AffineTransform(m, s)), y)),
    "lognormal": written(lambda m, s, y: (dist.LogNormal(m, s), y)),
    "lognormal, composed": written(lambda m, s, y: (transformed(dist.Normal(0.0, 1.0), AffineTransform(m, s), EXP), y)),
    "scaled": written(lambda m, s, y: (transformed(dist.Exponential(1.0), AffineTransform(0.0, s)), y)),
    "scaled rows": written(lambda m, s, y: (dist.Exponential(1.0), y / s)),
    "weibull": written(lambda m, s, y: (dist.Weibull(s, m.exp()), y)),
    "power": written(lambda m, s, y: (transformed(dist.Exponential(1.0), PowerTransform(m.exp())), y)),
    "gumbel": written(lambda m, s, y: (dist.Gumbel(m, s), y)),
    "sigmoid": written(lambda m, s, y: (transformed(dist.Normal(m, s), SigmoidTransform()), y / (1 + y))),
    "mixture": written(lambda m, s, y: (mixed(dist.Gamma(pair(s.exp()) + 1, 1.0)), y)),
    "masked": written(
        lambda m, s, y: (transformed(dist.Exponential(1 / s), AffineTransform(m, 1.0)).mask(y.isnan()), y)
    ),
}


@pytest.mark.parametrize("name", FIXED)
def test_what_holds_all_rows_whatever_the_latents_is_not_warned_of(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        federated(FIXED[name], Y)


def test_censoring_is_not_warned_of():
    def censored(y):
        s = pyro.sample("s", dist.HalfNormal(3.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Weibull(s, 1.5).mask(y < 2), obs=y)
            pyro.factor("later", -((y / s) ** 1.5) * (y >= 2))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        federated(censored, Y)


def test_the_cure_of_a_threshold_gives_the_posterior():
    """With a flat prior on the threshold and Exponential(2) rows: min y - m is exponential of rate 2 N = 12."""

    def model(y):
        gap = pyro.sample("gap", dist.HalfNormal(100.0))
        low = pf.shared("low", lambda: y.min())
        with pyro.plate("data", len(y)):
            pyro.sample("y", transformed(dist.Exponential(2.0), AffineTransform(low - gap, 1.0)), obs=y)

    nuts = pf.NUTS(num_chains=1, warmup_steps=200)
    found = pf.run(nuts, federated(model, Y), num_draws=1500, seed=0, compile="trace", progress=False)
    gap = found["posterior"]["gap"].values
    assert abs(gap.mean() * 12 - 1) < 0.2 and abs(gap.std() * 12 - 1) < 0.3


def test_a_prior_that_does_not_reach_the_edge_is_not_refused():
    """It is warned of: how far the posterior reaches is not known."""

    def model(y):
        m = pyro.sample("m", dist.Normal(0.0, 0.01))
        with pyro.plate("data", len(y)):
            pyro.sample("y", transformed(dist.Exponential(1.0), AffineTransform(m, 1.0)), obs=y)

    with pytest.warns(UserWarning, match="depends on 'm'"):
        federated(model, Y + 1)


def rate(x, y):
    b = pyro.sample("b", dist.Normal(0.0, 2.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Poisson(b * x), obs=y)


def probability(x, y):
    b = pyro.sample("b", dist.Normal(0.0, 2.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Bernoulli(0.5 + b * x), obs=y)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (rate, r"rate of Poisson is -.* \(b = .*at least 0"),
        (probability, r"probs of Bernoulli is .* \(b = .*at most 1"),
    ],
)
def test_a_parameter_beyond_its_constraint_is_named(model, said):
    with pytest.warns(UserWarning, match=f"observed site 'y': {said}"):
        federated(model, X, (Y > 1).double())


def test_a_parameter_beyond_its_constraint_in_one_of_many_rows_is_named():
    x = torch.zeros(5000).double()
    x[4321] = 1.0
    with pytest.warns(UserWarning, match="observed site 'y': probs of Bernoulli is"):
        fed = federated(probability, x, (torch.arange(5000) % 2).double())
    assert float(fed.problem.log_lik(torch.tensor([2.0]).double())) == -np.inf  # 0.5 + 2 is no probability


def test_a_link_function_is_not_warned_of():
    def linked(x, y):
        b = pyro.sample("b", dist.Normal(0.0, 2.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Poisson(torch.exp(b * x)), obs=y)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        federated(linked, X, (Y > 1).double())


def of_gammas(likelihood, count):
    def model(y):
        latents = [pyro.sample(f"p{i}", dist.Gamma(y.new_tensor(2.0), 1.0)) for i in range(count)]
        with pyro.plate("data", len(y)):
            pyro.sample("y", likelihood(*latents), obs=y)

    return model


INSIDE = torch.tensor([0.3, 0.6, 0.2, 0.7, 0.5, 0.4]).double()


@pytest.mark.parametrize(
    ("likelihood", "count", "end", "words"),
    [
        (dist.Beta, 2, 1.0, "1 of 6 values lie at the end of the support of Beta, 1,"),
        (dist.Beta, 2, 0.0, "the support of Beta, 0,"),
        (dist.Gamma, 2, 0.0, "the support of Gamma, 0,"),
        (lambda a, b: dist.Beta(a, b).mask(torch.tensor(True)), 2, 0.0, "the support of Beta, 0,"),
        (lambda a, b: dist.Dirichlet(torch.stack([a, b])), 2, [1.0, 0.0], "the support of Dirichlet, 0,"),
        (lambda a, b: dist.Beta(a, b).expand([6, 2]).to_event(1), 2, [0.5, 1.0], "the support of Beta, 1,"),
    ],
)
def test_values_at_the_end_of_a_support_are_refused_with_their_row(likelihood, count, end, words):
    y = INSIDE if isinstance(end, float) else torch.stack([INSIDE, 1 - INSIDE], 1)
    y = y.clone()
    y[3] = torch.tensor(end).double()
    with pytest.raises(pf.errors.DataError, match=rf"client \d, row 3: observed site 'y': .*{words}.*hurdle"):
        federated(of_gammas(likelihood, count), y)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("likelihood", "count", "end"),
    [
        (dist.Exponential, 1, 0.0),
        (dist.HalfNormal, 1, 0.0),
        (lambda a: dist.Beta(a, 1.0), 1, 1.0),
    ],
)
def test_ends_that_have_a_density_are_data_like_others(likelihood, count, end):
    y = INSIDE.clone()
    y[3] = end
    federated(of_gammas(likelihood, count), y)


@pytest.mark.filterwarnings("error")
def test_zeros_that_a_hurdle_leaves_out_are_no_gamma_s():
    def hurdle(y):
        a, p = pyro.sample("a", dist.Gamma(y.new_tensor(2.0), 1.0)), pyro.sample("p", dist.Beta(y.new_tensor(1.0), 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("there", dist.Bernoulli(p), obs=(y > 0).to(y))
            with pyro.poutine.mask(mask=y > 0):
                pyro.sample("y", dist.Gamma(a, 1.0), obs=y)

    y = INSIDE.clone()
    y[3] = 0.0
    federated(hurdle, y)


@pytest.mark.filterwarnings("ignore:these draws are not", "ignore:not converged after")
def test_an_edge_that_a_factor_makes_is_told_where_steps_end_at_it():
    def model(y):
        mu, rate = (
            pyro.sample("mu", dist.Normal(y.new_tensor(0.0), 5.0)),
            pyro.sample("r", dist.Gamma(y.new_tensor(2.0), 1.0)),
        )
        with pyro.plate("data", len(y)):
            pyro.factor("edge", torch.where(y > mu, rate.log() - rate * (y - mu), torch.full_like(y, -torch.inf)))

    y = 2.0 + dist.Exponential(1.0).icdf(torch.linspace(0.02, 0.98, 30)).double()
    with pytest.warns(UserWarning, match="as where it has steps, an edge or several modes"):
        pf.run(pf.FedEP(), federated(model, y), seed=0, progress=False)
