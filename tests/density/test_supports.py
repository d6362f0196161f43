"""Latents of transformed distributions: each density is that of the base's latent, transformed in the model."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.distributions import transforms

import pyro_fed as pf

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(12, generator=GENERATOR).double()
Y = 0.5 * X + torch.randn(12, generator=GENERATOR).double()

#: Base and transforms, of which PyTorch states too wide a support: what it says is a number outside of theirs.
KINDS = {
    "correlation": (lambda: dist.Beta(2.0, 3.0), lambda: [transforms.AffineTransform(-1.0, 2.0)]),
    "shifted": (lambda: dist.Exponential(1.5), lambda: [transforms.AffineTransform(0.75, 1.0)]),
    "negative": (lambda: dist.HalfNormal(1.5), lambda: [transforms.AffineTransform(0.0, -1.0)]),
    "two": (
        lambda: dist.Normal(0.3, 1.5),
        lambda: [transforms.SigmoidTransform(), transforms.AffineTransform(-1.0, 2.0)],
    ),
    "bounded": (lambda: dist.Uniform(1.0, 4.0), lambda: [transforms.AffineTransform(2.0, 0.5)]),
    "ordered rates": (
        lambda: dist.Normal(torch.zeros(3), 1.0).to_event(1),
        lambda: [transforms.OrderedTransform(), transforms.ExpTransform()],
    ),
    "vector": (lambda: dist.HalfNormal(torch.ones(3)).to_event(1), lambda: [transforms.AffineTransform(1.0, 2.0)]),
    "angle": (lambda: dist.VonMises(0.0, 1.0), lambda: [transforms.AffineTransform(1.0, 2.0)]),
}
#: And those of which it states what their values are.
WELL_STATED = {
    "log": (lambda: dist.Normal(0.3, 1.5), lambda: [transforms.ExpTransform()]),
    "ordered": (lambda: dist.Normal(torch.zeros(3), 1.0).to_event(1), lambda: [transforms.OrderedTransform()]),
    "root": (lambda: dist.HalfNormal(1.0), lambda: [transforms.PowerTransform(torch.tensor(0.5))]),
}


def transformed(base, parts):
    def model(x, y):
        r = pyro.sample("r", dist.TransformedDistribution(base(), parts()))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(r.sum() * x, 1.0), obs=y)

    return pf.Federation(model, (X, Y), plate="data", num_clients=3)


def by_hand(base, parts):
    def model(x, y):
        r = pyro.sample("b", base())
        for part in parts():
            r = part(r)
        pyro.deterministic("r", r)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(r.sum() * x, 1.0), obs=y)

    return pf.Federation(model, (X, Y), plate="data", num_clients=3)


@pytest.mark.parametrize("name", KINDS)
def test_densities_are_those_of_the_base_in_its_own_coordinates(name):
    one, other = (make(*KINDS[name]).problem for make in (transformed, by_hand))
    assert one.dim == other.dim
    z = torch.randn(20, one.dim, generator=torch.Generator().manual_seed(1)).double() * 2
    for part in ("log_prior", "log_lik"):
        found, expected = (torch.stack([getattr(p, part)(each) for each in z]) for p in (one, other))
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(one.constrain(z)["r"], other.constrain(z)["r"])


@pytest.mark.parametrize("name", WELL_STATED)
def test_where_the_support_is_what_is_stated_coordinates_are_its(name):
    base, parts = WELL_STATED[name]
    fn = dist.TransformedDistribution(base(), parts())
    problem = transformed(base, parts).problem
    z = torch.linspace(-1.0, 1.0, problem.dim).double()
    expected = torch.distributions.biject_to(fn.support)(z if fn.event_shape else z[0])
    torch.testing.assert_close(problem.constrain(z[None])["r"][0].double(), expected)


def test_a_shifted_prior_has_no_draws_below_its_shift():
    """3/4 + Exponential(1), against data that want less: the answer was 0.72 with an SD of 0.12, in silence."""
    x = torch.linspace(-2, 2, 40).double()
    y = 0.7 * x + 0.6 * torch.randn(40, generator=torch.Generator().manual_seed(2)).double()

    def model(x, y):
        shifted = dist.TransformedDistribution(dist.Exponential(1.0), [transforms.AffineTransform(0.75, 1.0)])
        r = pyro.sample("r", shifted)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(r * x, 0.6), obs=y)

    idata = pf.run(pf.DSVGD(), pf.Federation(model, (x, y), plate="data", num_clients=4), progress=False, audit=False)
    draws = idata.posterior["r"].values.ravel()
    grid = torch.linspace(0.75, 2.5, 20_001).double()
    mass = torch.softmax(-0.5 * ((y[:, None] - grid * x[:, None]) / 0.6).square().sum(0) - grid, 0)
    mean = float(mass @ grid)
    sd = float((mass @ (grid - mean).square()).sqrt())
    assert draws.min() >= 0.75
    assert abs(draws.mean() - mean) < 0.2 * sd
    assert np.std(draws) == pytest.approx(sd, rel=0.15)
