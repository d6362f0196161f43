"""Images of a point: of the same likelihood where a model's components are relabelled, or its signs changed."""

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf

Y = torch.linspace(-3, 3, 12).double()


def hidden_markov(y):
    """Places, scales and first shares of K states, and a matrix of transitions."""
    first = pyro.sample("first", dist.Dirichlet(torch.tensor([1.0, 2.0, 3.0])))
    with pyro.plate("state", 3):
        rows = pyro.sample("rows", dist.Dirichlet(torch.tensor([2.0, 1.0, 1.0])))
        place = pyro.sample("place", dist.Normal(torch.arange(3.0), 1.0))
        scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
    for _ in range(3):
        first = first @ rows
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.MixtureSameFamily(dist.Categorical(first), dist.Normal(place, scale)), obs=y)


def loadings(y):
    u = pyro.sample("u", dist.Normal(1.0, 1.0))
    v = pyro.sample("v", dist.Normal(1.0, 1.0))
    s = pyro.sample("s", dist.HalfNormal(1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(u * v, s), obs=y)


def ten_groups(y):
    pyro.sample("rate", dist.Gamma(2.0 * torch.ones(10), 1.0).to_event(1))
    top = pyro.sample("top", dist.HalfNormal(1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(0.0, top), obs=y)


def ordered(y):
    cut = dist.transforms.OrderedTransform()
    places = pyro.sample("places", dist.TransformedDistribution(dist.Normal(torch.zeros(2), 1.0).to_event(1), [cut]))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(places.mean(), 1.0), obs=y)


def problem_of(model):
    return pf.Federation(model, (Y,), plate="data", num_clients=2).problem


def likelihood(problem, points):
    return problem.vmap(problem.log_lik)(points)


def test_components_in_every_order_have_one_likelihood():
    problem = problem_of(hidden_markov)
    point = problem.init(1, torch.Generator().manual_seed(0))[0]
    found = problem.images(point)
    together = found[:5]  # the orders of three, then changed signs
    values, moved = problem.constrain(point[None]), problem.constrain(together)
    assert len(torch.cat([together, point[None]]).unique(dim=0)) == 6
    expected = likelihood(problem, point[None]).expand(5)
    torch.testing.assert_close(likelihood(problem, together), expected, rtol=1e-9, atol=1e-9)
    for name in ("first", "place", "scale"):
        torch.testing.assert_close(moved[name].sort(1).values, values[name].sort(1).values.expand(5, 3))


def test_signs_change_together_and_one_by_one_on_the_real_line_alone():
    problem = problem_of(loadings)
    point = torch.tensor([0.75, 1.25, -0.5]).to(problem.dtype)
    found = problem.images(point)
    assert (found / point).tolist() == [[-1, -1, 1], [-1, 1, 1], [1, -1, 1]]
    torch.testing.assert_close(likelihood(problem, found)[:1], likelihood(problem, point[None]))


@pytest.mark.parametrize("model", [ten_groups, ordered])
def test_what_has_no_images_has_none(model):
    problem = problem_of(model)
    point = problem.init(1, torch.Generator().manual_seed(0))[0]
    found = problem.images(point)
    assert found.shape == (0, problem.dim)
