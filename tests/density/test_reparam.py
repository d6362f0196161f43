"""Reparameterised models are the same models: their densities, and the hint that names what to reparameterise."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer.reparam import AutoReparam, LocScaleReparam, TransformReparam
from torch.distributions import transforms

import pyro_fed as pf
from pyro_fed.density.checks.funnels import funnels

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
    idata = pf.run(
        pf.NUTS(num_samples=8, warmup_steps=8, num_chains=4, max_tree_depth=2), fed, progress=False, compile="off"
    )
    assert "the scale of 'theta' depends on 'tau', itself latent" in idata.attrs["warnings"]
    assert "poutine.reparam(model, config={'theta': LocScaleReparam(0.0)})" in idata.attrs["warnings"]
