"""Posteriors that do not exist are named as such (separable classes under a flat prior), and others are not."""

import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.density.derivatives.few_rows import log_likelihoods_at
from pyro_fed.infer.surrogates.proposals import log_likelihoods_beyond_rounding

QUIET = {"progress": False, "num_draws": 10, "log_likelihood": False, "compile": "off", "audit": False}


def flat(x, y):
    w = pyro.sample("w", dist.ImproperUniform(dist.constraints.real_vector, (), (x.shape[1],)))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def federation(noise):
    """Sixty rows that a plane separates, where there is no noise."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=generator, dtype=torch.float64)
    score = x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    y = (score + noise * torch.randn(60, generator=generator, dtype=torch.float64) > 0).double()
    return pf.Federation(flat, (x, y), plate="data", num_clients=3)


def test_a_mode_at_infinity_is_reported():
    with pytest.warns(UserWarning, match="posterior is improper"):
        pf.run(pf.FedLaplace(), federation(0.0), **QUIET)


def test_fedep_refuses_it_before_its_first_round():
    with pytest.raises(pf.errors.ModelError, match="FedEP: the posterior is improper"):
        pf.run(pf.FedEP(), federation(0.0), **QUIET)


@pytest.mark.parametrize("algorithm", [pf.FedLaplace(), pf.FedEP()], ids=lambda a: type(a).__name__)
def test_a_mode_that_exists_is_not(algorithm):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pf.run(algorithm, federation(2.0), **QUIET)


def test_the_committee_machine_needs_a_proper_prior():
    with pytest.raises(
        pf.errors.ModelError, match=r"BCM: every client has a copy of the whole prior.*\['w'\].*proper priors"
    ):
        pf.run(pf.infer.BCM(), federation(2.0), **QUIET)


def overdispersed(y):
    a = pyro.sample("a", dist.LogNormal(torch.zeros(3, dtype=y.dtype), 1.5).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.DirichletMultinomial(a, total_count=8), obs=y)


def overdispersed_by_hand(y):
    """The same, written by a user as differences of logarithms of Γ, whose digits cancel far away."""
    a = pyro.sample("a", dist.LogNormal(torch.zeros(3, dtype=y.dtype), 1.5).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.factor("y", log_beta(a.sum(), y.new_tensor(8.0)) - log_beta(a, y).sum(-1))


def log_beta(a, n):
    return torch.lgamma(1 + n) + torch.lgamma(a) - torch.lgamma(n + a)


@pytest.fixture(scope="module")
def counts():
    """Rows, and the posterior's means and SDs of the logarithms on a grid."""
    g = torch.Generator().manual_seed(1)
    p = torch._sample_dirichlet(torch.tensor([0.6, 1.5, 4.0], dtype=torch.float64).expand(30, 3), generator=g)
    y = torch.nn.functional.one_hot(torch.multinomial(p, 8, replacement=True, generator=g), 3).sum(1).double()
    axis = torch.linspace(-3.0, 4.5, 40, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis, axis)
    log_p = -grid.square().sum(1) / (2 * 1.5**2)
    log_p = log_p + sum(dist.DirichletMultinomial(grid.exp(), total_count=8).log_prob(row) for row in y)
    weights = log_p.softmax(0)
    mean = weights @ grid
    return y, mean, (weights @ (grid - mean).square()).sqrt()


@pytest.mark.parametrize("algorithm", [pf.FedLaplace(), pf.FedEP(), pf.FedAIS()], ids=["FedLaplace", "FedEP", "FedAIS"])
@pytest.mark.filterwarnings("ignore::UserWarning")  # of Laplace's approximation
def test_a_density_that_is_rounding_far_away_has_its_mode(counts, algorithm):
    """lgamma(a + n) - lgamma(a) at a = e^50 is thousands of nats too high: that is no mode at infinity, and no draw."""
    y, mean, sd = counts
    fed = pf.Federation(overdispersed, (y,), plate="data", num_clients=5)
    draws = pf.run(algorithm, fed, **QUIET | {"num_draws": 1000}, seed=0).posterior["a"].values.reshape(-1, 3)
    found = torch.as_tensor(draws).double().log()
    near = 0.6 if isinstance(algorithm, pf.FedLaplace) else 0.15
    assert float(((found.mean(0) - mean) / sd).abs().max()) < near
    assert float((found.std(0) / sd).min()) > 0.75 and float((found.std(0) / sd).max()) < 1.25


def test_rounding_is_seen_where_one_place_beside_a_draw_has_it_too(counts):
    """Of draws with an impossible log-likelihood (positive, of counts) one place misses 17 %, several 3 %."""
    y, mean, sd = counts
    fed = pf.Federation(overdispersed_by_hand, (y,), plate="data", num_clients=5)
    generator = torch.Generator().manual_seed(0)
    near = mean + sd * torch.randn(20, 3, generator=generator, dtype=torch.float64)
    far = 36 + 8 * torch.rand(300, 3, generator=generator, dtype=torch.float64)
    draws, data = torch.cat([near, far]).expand(5, -1, -1).contiguous(), fed.client_data()
    impossible = (log_likelihoods_at(fed.problem, draws, data) > 0).any(0)
    unknown = log_likelihoods_beyond_rounding(fed.problem, draws, data).isnan().any(0)
    assert not unknown[:20].any() and int(impossible.sum()) > 100
    assert float((impossible & ~unknown).sum() / impossible.sum()) < 0.06


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_line_of_modes_is_named(dtype):
    """Two levels under flat priors: their sum is known, and their difference is not, unless one is about zero."""

    def model(x, y, proper):
        a, slope = (pyro.sample(n, dist.ImproperUniform(dist.constraints.real, (), ())) for n in ("a", "slope"))
        b = pyro.sample("b", dist.Normal(y.new_zeros(()), 10.0) if proper else improper)
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(a + b + slope * x, 1.0), obs=y)

    improper = dist.ImproperUniform(dist.constraints.real, (), ())
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 60, generator=generator, dtype=torch.float64).to(dtype)
    fed = {proper: pf.Federation(model, (x, y, proper), plate="data", num_clients=4) for proper in (False, True)}
    for run in (lambda: pf.run(pf.FedEP(), fed[False], **QUIET), lambda: pf.fit(fed[False], progress=False)):
        with pytest.raises(
            pf.errors.ModelError, match=r"posterior is improper: along '(a' - 'b|b' - 'a)' the density is flat"
        ):
            run()
    pf.run(pf.FedEP(), fed[True], **QUIET)
