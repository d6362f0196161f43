"""The prior's curvature beside diagonal surrogates, without all of its Hessian."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.func import grad, jacrev

import pyro_fed as pf
from pyro_fed.infer.surrogates import surrogates


def federation(size, scaled):
    """Weights of a scale, which is a latent or given, and Student's tails besides."""

    def model(y):
        scale = pyro.sample("scale", dist.LogNormal(y.new_zeros(()), 1.0))
        w = pyro.sample("w", dist.Normal(y.new_zeros(size), scale if scaled else 2.0).to_event(1))
        tails = pyro.sample("tails", dist.StudentT(3.0, y.new_zeros(5), 1.0).to_event(1))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(w[0] + tails.sum(), 1.0), obs=y)

    return pf.Federation(model, (torch.arange(6.0, dtype=torch.float64),), plate="data", num_clients=3, seed=0)


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("size", [40, 120])
def test_the_diagonal_is_that_of_the_whole_hessian_where_it_is_positive(scaled, size):
    """Of a few parameters, and of many, whose diagonals are taken by random signs."""
    problem = federation(size, scaled).problem
    eta = torch.randn(3, problem.dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target = surrogates.fitted_surrogates(problem, pf.infer.Given(torch.ones_like(eta), eta), None)[1]
    whole = -jacrev(grad(problem.log_prior))(target.mean()).diagonal()
    torch.testing.assert_close(target.precision, 3 + whole.clamp_min(0), rtol=1e-5, atol=1e-5)


def test_surrogates_of_many_parameters_take_no_hessian_of_the_prior():
    """All of it would have 3.6e10 numbers: 75,010 parameters of a network ended a process of 24 GB."""
    size = 200_000
    fed = federation(size, scaled=False)
    dim = fed.problem.dim
    given = pf.infer.Given(torch.ones(3, dim, dtype=torch.float64), torch.ones(3, dim, dtype=torch.float64))
    sites, target = surrogates.fitted_surrogates(fed.problem, given, None)
    w = slice(*(at + fed.problem.sites["w"].start for at in (0, size)))
    torch.testing.assert_close(target.precision[w], torch.full((size,), 3 + 0.25, dtype=torch.float64))
    torch.testing.assert_close(target.mean()[w], torch.full((size,), 3 / 3.25, dtype=torch.float64))
    assert len(sites.eta) == 3
