"""Likelihoods that end at an edge: supports that a latent moves, and parameters beyond their constraints."""

import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf

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
    with pytest.raises(pf.ModelError, match=r"'y': the support of Uniform depends on 't'.*pf.shared\('top'"):
        federated(top, Y)
    with pytest.warns(UserWarning, match="'y': the support of Uniform depends on 't'"):
        federated(wide, Y)  # all rows are in it at the first point


def test_the_cure_gives_the_posterior():
    nuts = pf.NUTS(num_chains=1, warmup_steps=200)
    idata = pf.run(nuts, federated(within, Y), num_draws=1500, seed=0, progress=False)
    t = idata["posterior"]["t"].values
    assert t.min() >= 2.4 and abs(np.log(t / 2.4).mean() * 7 - 1) < 0.2  # log(t / max y) is exponential of rate 7


def rate(x, y):
    b = pyro.sample("b", dist.Normal(0.0, 2.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Poisson(b * x), obs=y)


def probability(x, y):
    b = pyro.sample("b", dist.Normal(0.0, 2.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Bernoulli(0.5 + b * x), obs=y)


@pytest.mark.parametrize(
    ("model", "said"), [(rate, "rate of Poisson is -.* at least 0"), (probability, "probs of Bernoulli .* at most 1")]
)
def test_a_parameter_beyond_its_constraint_is_named(model, said):
    with pytest.warns(UserWarning, match=f"observed site 'y': {said}"):
        federated(model, X, (Y > 1).double())


def test_a_link_function_is_not_warned_of():
    def linked(x, y):
        b = pyro.sample("b", dist.Normal(0.0, 2.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Poisson(torch.exp(b * x)), obs=y)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        federated(linked, X, (Y > 1).double())
