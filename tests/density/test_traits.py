"""The traits of a model: what is known from the beginning, and what is looked for when it is asked for, once."""

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.density import traits_search as search


def lasso(x, y):
    w = pyro.sample("w", dist.Laplace(torch.zeros(3), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def median(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Laplace(x @ w, 1.0), obs=y)


def groups(x, y):
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    w = pyro.sample("w", dist.Normal(torch.zeros(3), scale).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def flat(x, y):
    w = pyro.sample("w", dist.ImproperUniform(dist.constraints.real, (), (3,)))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def traits_of(model, rows=12, clients=3):
    x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(0))
    args = x, (x.sum(1) > 0).float()
    return pf.Federation(model, args, plate="data", num_clients=clients).problem.traits


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (lasso, {"non_smooth_scores": False, "kinked_prior": True, "latent_scales": False, "labels": False}),
        (median, {"non_smooth_scores": True, "kinked_prior": False, "non_smooth_rows": False}),
        (groups, {"labels": True, "observed_values": 2, "latent_scales": True, "effects": ("w",)}),
        (flat, {"improper": frozenset({"w"}), "kinked_prior": False, "effects": ()}),
    ],
)
def test_traits_say_what_a_model_is(model, expected):
    traits = traits_of(model)
    assert traits.linear_predictors and not traits.layers and not traits.large()
    assert (traits.num_rows, traits.evaluations, traits.num_clients, traits.local_dim) == (12, 12, 3, 0)
    assert {name: getattr(traits, name) for name in expected} == expected


def test_a_trait_that_takes_a_run_of_the_model_is_found_once(monkeypatch):
    traits, asked = traits_of(groups), []
    inner = search.observation_distribution
    monkeypatch.setattr(search, "observation_distribution", lambda *at: asked.append(1) or inner(*at))
    assert [traits.labels for _ in range(3)] == [True] * 3
    assert len(asked) == 1


def test_sizes_cost_no_run_of_the_model(monkeypatch):
    for name in ("linear_predictors", "layers", "labels", "observed_values", "prior_kinks", "effects"):
        monkeypatch.setattr(search.ModelTraits, name, property(lambda self: pytest.fail("a look at the model")))
    traits = traits_of(median)
    assert (traits.dim, traits.large(), traits.dtype) == (3, False, torch.float32)
