"""Reparameterised models are the same models: their densities, and the hint that names what to reparameterise."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer.reparam import (
    AutoReparam,
    DiscreteCosineReparam,
    HaarReparam,
    LatentStableReparam,
    LocScaleReparam,
    ProjectedNormalReparam,
    SplitReparam,
    SymmetricStableReparam,
    TransformReparam,
)
from torch.distributions import transforms

import pyro_fed as pf
from pyro_fed.density.forms import funnels

GENERATOR = torch.Generator().manual_seed(0)
GROUP = torch.tensor([0, 0, 1, 2, 2, 2, 3, 4, 4, 0])
Y = torch.randn(10, generator=GENERATOR, dtype=torch.float64)


def schools(group, y):
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    tau = pyro.sample("tau", dist.HalfNormal(1.0))
    with pyro.plate("school", 5):
        theta = pyro.sample("theta", dist.Normal(mu, tau))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(theta[group], 1.0), obs=y)


def lognormal_schools(group, y):
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    with pyro.plate("school", 5):
        base = dist.Normal(mu, 0.5)
        theta = pyro.sample("theta", dist.TransformedDistribution(base, [transforms.ExpTransform()]))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(theta[group], 1.0), obs=y)


REPARAMS = {
    "noncentred": (schools, {"theta": LocScaleReparam(0.0)}),
    "partial": (schools, {"theta": LocScaleReparam(0.3)}),
    "learnt": (schools, {"theta": LocScaleReparam()}),
    "auto": (schools, AutoReparam()),
    "auto_noncentred": (schools, AutoReparam(centered=0.0)),
    "transform": (lognormal_schools, {"theta": TransformReparam()}),
    "auto_transform": (lognormal_schools, AutoReparam()),
}


@pytest.mark.parametrize("name", REPARAMS)
def test_latents_inside_the_plate_integrate_to_the_same_likelihood(name):
    """The marginal density of the others does not depend on the form of those that are integrated out."""
    model, config = REPARAMS[name]
    options = {"plate": "school", "rows": {"data": "group"}, "num_clients": 2}
    options["quadrature"] = pf.Quadrature(order=31, mode_steps=12)
    plain = pf.Federation(model, (GROUP, Y), **options).problem
    other = pf.Federation(poutine.reparam(model, config=config), (GROUP, Y), **options).problem
    assert list(plain.layout.local) == ["theta"]
    assert "theta" in other.layout.depends_on_local
    # `AutoReparam` gives the sites outside the plate other coordinates as well; go by their constrained values.
    z = 0.3 * torch.randn(plain.dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    there = 0.3 * torch.randn(other.dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    z = plain.unconstrain(other.constrain(there)) if "auto" in name else z
    there = there if "auto" in name else z
    torch.testing.assert_close(other.pointwise_log_lik(there), plain.pointwise_log_lik(z), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("config", [{"theta": LocScaleReparam(0.0)}, AutoReparam(centered=0.0), AutoReparam()])
def test_latents_outside_the_plate_keep_their_joint_density(config):
    """log p(theta) differs by the log-Jacobian of theta = theta(theta', mu, tau), which autograd gives."""
    plain = pf.Federation(schools, (GROUP, Y), plate="data", num_clients=2).problem
    other = pf.Federation(poutine.reparam(schools, config=config), (GROUP, Y), plate="data", num_clients=2).problem
    z = 0.4 * torch.randn(other.dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def back(v):
        values = other.constrain(v)
        return torch.cat([values["mu"].reshape(1), values["tau"].log().reshape(1), values["theta"]])

    jacobian = torch.linalg.slogdet(torch.func.jacrev(back)(z)).logabsdet
    joint = plain.log_prior(back(z)) + plain.log_lik(back(z)) + jacobian
    torch.testing.assert_close(other.log_prior(z) + other.log_lik(z), joint)


def walk(t, y):
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    steps = pyro.sample("steps", dist.Normal(torch.zeros(4), 1.0).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal((scale * steps).cumsum(-1)[t], 1.0), obs=y)


@pytest.mark.parametrize(
    "config",
    [HaarReparam(dim=-1), DiscreteCosineReparam(dim=-1), SplitReparam([1, 3], dim=-1)],
    ids=lambda config: type(config).__name__,
)
def test_what_wavelets_cosines_and_parts_make_is_in_the_result(config):
    """It is orthogonal: the joint density is that at the same steps, and the result has these."""
    t = torch.arange(10) % 4
    plain = pf.Federation(walk, (t, Y), plate="data", num_clients=2).problem
    other = pf.Federation(poutine.reparam(walk, config={"steps": config}), (t, Y), plate="data", num_clients=2).problem
    z = torch.randn(3, other.dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    values = other.constrain(z)
    there = torch.cat([z[:, :1], values["steps"]], 1)
    assert values["steps"].shape == (3, 4)
    for one, two in zip(z, there, strict=True):
        torch.testing.assert_close(other.log_prior(one) + other.log_lik(one), plain.log_prior(two) + plain.log_lik(two))
    assert "steps" not in other.layout.observed and "steps" in other.layout.reported


def on_the_circle(group, y):
    at = pyro.sample("at", dist.ProjectedNormal(torch.tensor([1.0, 0.5])))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(at[0] + at[1] * group, 1.0), obs=y)


def stable(group, y):
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    noise = pyro.sample("noise", dist.Stable(1.7, 0.0, torch.ones(5), 0.0).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal((scale * noise)[group], 1.0), obs=y)


@pytest.mark.parametrize(
    ("model", "config"),
    [(on_the_circle, {"at": ProjectedNormalReparam()}), (stable, {"noise": LatentStableReparam()})],
    ids=["projected", "stable"],
)
def test_what_pyro_writes_through_data_is_mapped(model, config):
    """`Tensor.data`, which `vmap` refuses, as its second derivatives do."""
    problem = pf.Federation(poutine.reparam(model, config=config), (GROUP, Y), plate="data", num_clients=2).problem
    assert not problem.looped and set(config) <= set(problem.layout.reported)
    z = 0.3 * torch.randn(problem.dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    joint = lambda z: problem.log_prior(z) + problem.log_lik(z)  # noqa: E731
    assert bool(torch.func.hessian(joint)(z).isfinite().all())


def test_latents_of_rows_that_would_be_taken_one_by_one_are_refused_with_the_line():
    def model(y):
        m = pyro.sample("m", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y)):
            e = pyro.sample("e", dist.Normal(m, 1.0))
            if (e > 30.0).any():
                e = e.clamp(max=30.0)
            pyro.sample("y", dist.Poisson(e.exp()), obs=y)

    with pytest.raises(
        pf.errors.ModelError, match=r"'e', .*takes hours.*`if \(e > 30.0\).any\(\):` \(test_reparam.py:\d+\)"
    ):
        pf.Federation(model, (torch.ones(12),), plate="data", num_clients=2)

    def noise(y):
        m = pyro.sample("m", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Stable(1.7, 0.0, 1.0, m), obs=y)

    with pytest.raises(pf.errors.ModelError, match=r"'y_uniform'.*StableReparam\(\)"):
        symmetric = poutine.reparam(noise, config={"y": SymmetricStableReparam()})
        pf.Federation(symmetric, (torch.ones(12),), plate="data", num_clients=2)


def test_the_hint_names_centred_sites_and_their_scales_alone():
    plain = pf.Federation(schools, (GROUP, Y), plate="data", num_clients=2).problem
    assert funnels(plain) == {"theta": ["tau"]}
    noncentred = poutine.reparam(schools, config={"theta": LocScaleReparam(0.0)})
    assert funnels(pf.Federation(noncentred, (GROUP, Y), plate="data", num_clients=2).problem) == {}
    inside = pf.Federation(schools, (GROUP, Y), plate="school", rows={"data": "group"}, num_clients=2)
    assert funnels(inside.problem) == {}  # integrated out: no chain sees it
    assert funnels(inside.joint.problem) == {"theta": ["tau"]}


@pytest.mark.filterwarnings("ignore")
def test_chains_that_disagree_get_the_hint():
    """Eight steps a chain cannot agree on an R-hat of 1.01."""
    fed = pf.Federation(schools, (GROUP, Y), plate="data", num_clients=2)
    short = pf.NUTS(num_samples=8, warmup_steps=8, num_chains=4, max_tree_depth=2)
    idata = pf.run(short, fed, progress=False, compile="off")
    assert "the scale of 'theta' depends on 'tau', itself latent" in idata.attrs["warnings"]
    assert "poutine.reparam(model, config={'theta': LocScaleReparam(0.0)})" in idata.attrs["warnings"]
