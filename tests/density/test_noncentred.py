"""The non-centred form is the same distribution in other coordinates: its density is that times the Jacobian."""

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.density.forms import noncentred_form
from pyro_fed.errors import ModelError


def chain_of_scales(group, y):
    """An effect whose loc and scale are latents', and a positive one whose scale is the first one's own."""
    mu = pyro.sample("mu", dist.Normal(y.new_zeros(()), 2.0))
    tau = pyro.sample("tau", dist.HalfCauchy(y.new_tensor(5.0)))
    theta = pyro.sample("theta", dist.Normal(mu, tau).expand([3]).to_event(1))
    with pyro.plate("groups", 3):
        s = pyro.sample("s", dist.LogNormal(theta, 0.1 + tau))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(theta[group], s[group]), obs=y)


def slopes(group, y):
    """Correlated effects, whose Cholesky factor is made of latents."""
    tau = pyro.sample("tau", dist.HalfNormal(y.new_ones(2)).to_event(1))
    corr = pyro.sample("corr", dist.LKJCholesky(2, y.new_tensor(2.0)))
    b = pyro.sample(
        "b", dist.MultivariateNormal(y.new_zeros(2), scale_tril=tau[:, None] * corr).expand([3]).to_event(1)
    )
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(b[group].sum(-1), 1.0), obs=y)


def flat(group, y):
    a = pyro.sample("a", dist.Normal(y.new_zeros(()), 1.0))
    tau = pyro.sample("tau", dist.HalfNormal(y.new_ones(())))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(a, tau), obs=y)


def inside(group, y):
    """An effect a row, in the plate that is split, and one outside of it."""
    tau = pyro.sample("tau", dist.HalfNormal(y.new_ones(())))
    a = pyro.sample("a", dist.Normal(y.new_zeros(()), tau))
    with pyro.plate("data", len(y)):
        x = pyro.sample("x", dist.Normal(a, 0.5 + tau))
        pyro.sample("y", dist.Normal(x, 1.0), obs=y)


def federation_of(model):
    data = torch.tensor([0, 1, 2, 0]), torch.randn(4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return pf.Federation(model, data, plate="data", num_clients=1, dtype=torch.float64)


def problem_of(model, joint=False):
    return federation_of(model).joint.problem if joint else federation_of(model).problem


@pytest.mark.parametrize(
    ("model", "joint", "effects"),
    [
        (chain_of_scales, False, ("theta", "s")),
        (slopes, False, ("b",)),
        (inside, False, ("a",)),  # the rows' own are integrated out
        (inside, True, ("a", "x")),
    ],
)
def test_it_is_the_same_distribution(model, joint, effects):
    problem = problem_of(model, joint)
    form = noncentred_form(problem)
    assert form.effects == effects
    z = problem.init(4, torch.Generator().manual_seed(1))
    e = form.to_noncentred(z)
    assert float((e - z).abs().max()) > 0.1
    torch.testing.assert_close(form.centred(e), z, rtol=1e-12, atol=1e-12)
    jacobian = torch.stack([torch.func.jacrev(lambda point: form.centred(point[None])[0])(point) for point in e])
    there = problem.log_prior(z) + problem.log_lik(z) + torch.linalg.slogdet(jacobian)[1]
    torch.testing.assert_close(form.log_prior(e) + form.log_lik(e), there, rtol=1e-10, atol=1e-10)


def test_a_rows_own_effect_counts_with_its_row():
    """The densities of single rows add up to that of all, Jacobians and all."""
    form = noncentred_form(problem_of(inside, joint=True))
    e = form.init(1, torch.Generator().manual_seed(5))[0]
    prior, terms = form.log_parts(e, form.all_rows)
    for i in range(4):
        one = tuple(leaf[i : i + 1] for leaf in form.all_rows)
        alone_prior, alone = form.log_parts(e, one)
        torch.testing.assert_close(alone_prior, prior)
        torch.testing.assert_close(alone[0], terms[i])


def test_matrices_are_found_where_a_run_computes_without_derivatives():
    with torch.no_grad():
        assert noncentred_form(problem_of(slopes)).effects == ("b",)


def test_effects_are_standard_in_the_prior():
    problem = problem_of(chain_of_scales)
    form = noncentred_form(problem)
    e = form.to_noncentred(problem.sample_prior(720, torch.Generator().manual_seed(2)))[:, 2:]
    # Six numbers of 720 draws: beyond three standard errors once in thirty times, before fixing the seed.
    assert float(e.mean(0).abs().max()) < 3 / 720**0.5
    assert float((e.std(0) - 1).abs().max()) < 3 / 1440**0.5


def test_a_model_without_latent_scales_has_none():
    assert noncentred_form(problem_of(flat)) is None
    with pytest.raises(ModelError, match=r"no non-centred form: of its latents \['a', 'tau'\]"):
        _ = federation_of(flat).noncentred


def test_values_are_taken_and_given_on_the_models_own_scale():
    problem = problem_of(chain_of_scales)
    form = noncentred_form(problem)
    e = form.init(5, torch.Generator().manual_seed(3))
    torch.testing.assert_close(form.centred(e), problem.init(5, torch.Generator().manual_seed(3)))
    values = form.constrain(e)
    torch.testing.assert_close(values["theta"], problem.constrain(form.centred(e))["theta"])
    torch.testing.assert_close(form.unconstrain({name: value[0] for name, value in values.items()}), e[0])
