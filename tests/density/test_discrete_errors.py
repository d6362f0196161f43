"""Discrete latents that cannot be summed out are refused by name."""

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf

Y = torch.linspace(-1.0, 1.0, 7)


def discrete_outside(y):
    k = pyro.sample("k", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
    loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(loc + k, 1.0), obs=y)


def infinite(y):
    loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        k = pyro.sample("k", dist.Poisson(2.0), infer={"enumerate": "parallel"})
        pyro.sample("y", dist.Normal(loc + k, 1.0), obs=y)


def leaks(y):
    loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        k = pyro.sample("k", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
        pyro.sample("y", dist.Normal(loc + k, 1.0), obs=y)
    pyro.factor("outside", k.sum(-1, keepdim=True))


def misshapen(y):
    loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        k = pyro.sample("k", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
        pyro.sample("y", dist.Normal(loc + k + torch.zeros(3, 1, 1), 1.0), obs=y)


def unmarked(y):
    weights, loc = torch.full((2,), 0.5), pyro.sample("loc", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(y)):
        k = pyro.sample("k", dist.Categorical(weights))
        pyro.sample("y", dist.Normal(loc[k], 1.0), obs=y)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (discrete_outside, r"'k' \(Bernoulli\) is discrete and outside the partitioned plate: all clients would share"),
        (infinite, r"'k' \(Poisson\) cannot be summed out: its support is not a finite list"),
        (leaks, r"'outside', outside plate 'data', depends on a discrete latent inside it"),
        (misshapen, r"site 'y' has dimensions that belong to no plate and no discrete latent.*Invalid tensor shape"),
        (unmarked, r"'k' \(Categorical\) is discrete.*config_enumerate\(model\)"),
    ],
)
def test_what_cannot_be_summed_out_is_refused_by_name(model, message):
    with pytest.raises(pf.errors.ModelError, match=message) as error:
        pf.Federation(model, (Y,), plate="data", num_clients=1)
    assert "Trace Shapes" not in str(error.value)
