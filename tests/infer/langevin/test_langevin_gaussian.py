"""Langevin samplers at Gaussian posteriors, where everything is known in closed form."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from gaussian_case import analytic_surrogates, exact, federation, moments, shards
from stationary import stationary_variance

import pyro_fed as pf

QUIET = {"progress": False, "log_likelihood": False, "compile": "trace"}
PLAIN = {"control_variate": False, "target_ess": None}


# Each chain is short: the variance is over all of them.
@pytest.mark.filterwarnings("ignore:the 400 chains disagree", "ignore:only")
@pytest.mark.parametrize(("product", "midpoint"), [(0.4, True), (1.6, False), (3.0, False), (3.0, True)])
def test_sgld_has_the_stationary_variance_of_its_recursion(product, midpoint):
    """θ' = (1 - hλ/2) θ + sqrt(h) ξ has variance V = (1 - hλ/2)² V + h, so V = 1 / (λ (1 - hλ/4)): within 3 %.

    At θ + sqrt(h) ξ / 2, with ξ the noise of the step to come, it is 1/λ for every stable h. 400 chains × 300
    draws; squares decorrelate by (1 - hλ/2)² a step, at least 24,000 effective ones: the standard error of a variance
    is 0.9 % at most, and 3 % more than 3.2 of them at the smallest step, more than 5 at the others.
    """
    x = shards(num_clients=1, rows=24)
    mean, variance = exact(x)
    h = product * variance
    algorithm = pf.infer.SGLD(
        **PLAIN,
        surrogates=analytic_surrogates(x),
        step=pf.infer.step.Fixed(size=h, precondition=False, midpoint=midpoint),
        batch_size=None,
        num_chains=400,
        local_steps=50,
        burn_in=100,
        thin=1,
    )
    idata = pf.run(algorithm, federation(x), num_rounds=8, seed=1, audit=False, **QUIET)  # it is not the posterior
    found_mean, found = moments(idata)
    expected = variance if midpoint else float(stationary_variance(torch.tensor(1 / variance, dtype=torch.float64), h))
    assert expected == pytest.approx(variance / (1.0 if midpoint else 1 - product / 4), rel=1e-12)
    assert torch.allclose(found.diagonal(), torch.tensor(expected, dtype=torch.float64), rtol=0.03)
    assert float((found_mean - mean).abs().max()) < 0.05 * variance**0.5


def test_fsgld_with_exact_surrogates_is_sgld_on_all_rows():
    """All clients have the same linear score, whatever the length of a visit, and the midpoint rule has no bias.

    The run stops at 2,000 effective draws: a mean has standard error 0.022 SD and an SD 1.6 %, so the bounds are
    4.5 and 5 of them, for 2 + 2 numbers: probability of failure below 1e-4 before fixing the seed.
    """
    x = shards()
    mean, variance = exact(x)
    step = pf.infer.step.Measured(visit_time=20.0)
    algorithm = pf.FSGLD(surrogates=analytic_surrogates(x), step=step, batch_size=10, num_chains=16)
    found_mean, found = moments(pf.run(algorithm, federation(x), audit=False, **QUIET))
    assert float((found_mean - mean).abs().max()) < 0.1 * variance**0.5
    assert torch.allclose(found.diagonal().sqrt(), torch.tensor(variance, dtype=torch.float64).sqrt(), rtol=0.08)


def long_visits(algorithm, steps=200):
    """Error of the mean, and covariance, in units of the posterior's SD: the paper's h and m, 96 chains."""
    x = shards()
    mean, variance = exact(x)
    federated = algorithm is pf.FSGLD
    given = analytic_surrogates(x) if federated else None
    unbounded = {"conducive": pf.infer.Conducive(trust=None)} if federated else {}
    settings = PLAIN | {
        **unbounded,
        "sweeps": False,
        "control_variate": federated,
        "step": pf.infer.step.Fixed(size=1e-4, precondition=False, midpoint=False),
        "batch_size": 10,
        "num_chains": 96,
        "local_steps": steps,
        "burn_in": 400,
        "thin": 20,
    }
    idata = pf.run(
        algorithm(surrogates=given, **settings), federation(x), num_rounds=7, seed=3, audit=federated, **QUIET
    )
    found, covariance = moments(idata)
    return float((found - mean).abs().max() / variance**0.5), covariance.diagonal() / variance


@pytest.mark.filterwarnings("ignore:the 96 chains disagree", "ignore:only")
def test_dsgld_drifts_to_the_mixture_with_long_visits():
    """Section 5.1: the spread grows to that of the mixture of local posteriors.

    The shards' means have variance 12 a coordinate, 24,000 posterior variances; a chain forgets a shard after
    about ten steps (h λ / 2 = 0.1) and stays for 200.
    """
    _, spread = long_visits(pf.infer.DSGLD)
    assert float(spread.min()) > 1_000


@pytest.mark.filterwarnings("ignore:only")  # so many chains are wanted longer
def test_fsgld_does_not_drift():
    """Section 5.1 with a control variate: 96 chains of 50 relaxation times, so that ESS is at least 3,000.

    SDs: 1 / sqrt(1 - hλ/4) is 1.027 here, and the standard error 1.3 %.
    """
    error, spread = long_visits(pf.FSGLD)
    assert error < 0.1
    assert torch.allclose(spread.sqrt(), torch.ones(2, dtype=torch.float64), rtol=0.1)


@pytest.mark.filterwarnings("ignore:only", "ignore:the 100 chains disagree")  # each of them is short
@pytest.mark.parametrize("conducive", [None, pf.infer.Conducive()])
def test_fald_averages_to_the_posterior(conducive):
    """With exact surrogates, or one local step, the average is SGLD on the pooled data.

    Draws decorrelate by 3/4 a step at h = 0.5: 100 chains of 60 kept steps have 850 effective ones, and the bounds are
    four standard errors or more.
    """
    x = shards(num_clients=4, rows=30)
    mean, variance = exact(x)
    steps = 5 if conducive else 1
    given = analytic_surrogates(x)
    chains = {"num_chains": 100, "burn_in": 20, "thin": 5 if conducive else 2, "target_ess": None}
    step = pf.infer.step.Measured(visit_time=1.0 * steps)
    algorithm = pf.infer.FALD(surrogates=given, conducive=conducive, local_steps=steps, step=step, **chains)
    found_mean, found = moments(pf.run(algorithm, federation(x), num_rounds=80 // steps, audit=False, **QUIET))
    assert float((found_mean - mean).abs().max()) < 0.15 * variance**0.5
    assert torch.allclose(found.diagonal().sqrt(), torch.tensor(variance, dtype=torch.float64).sqrt(), rtol=0.1)


def test_local_sgld_finds_the_shards_likelihoods():
    """The product of N(mean of the shard, I / n) over shards is N(mean of all rows, I / N), without the prior.

    2,000 draws at hλ = 0.2 have about 100 effective ones: the means' error averages over three shards to 0.06 SD,
    the precisions' (14 % each) to 8 %, and the step's bias is 5 %.
    """
    x = shards(num_clients=3, rows=40)
    local = pf.infer.LocalSGLD(num_samples=2000, burn_in=200)
    idata = pf.run(local, federation(x), num_draws=20_000, audit=False, **QUIET)  # without the prior
    mean, covariance = moments(idata)
    assert float((mean - x.mean((0, 1))).abs().max()) < 0.35 / 120**0.5
    sds = covariance.diagonal().sqrt() * 120**0.5
    assert float(sds.min()) > 0.75 and float(sds.max()) < 1.25
    assert idata["federation"]["tempered"].values.sum() == 0


def logistic(x, y):
    """w ~ N(0, 9 I), y_i ~ Bernoulli(sigmoid(x_i · w))."""
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), 3.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


@pytest.mark.filterwarnings("ignore:only", "ignore:the 4 chains")
def test_a_client_whose_likelihood_is_improper_gets_a_tempered_surrogate_and_is_named():
    """Separable classes at one client: FSGLD runs on, warns, and names it."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(120, 2, generator=generator, dtype=torch.float64)
    y = (torch.rand(120, generator=generator) < torch.sigmoid(x[:, 0])).double()
    separable = torch.tensor([[1.0, 0.3], [0.8, -0.2], [-1.0, 0.1], [-0.7, 0.4]], dtype=torch.float64)
    clients = {"a": (x[:60], y[:60]), "b": (x[60:], y[60:]), "split": (separable, (separable[:, 0] > 0).double())}
    fed = pf.Federation.from_clients(logistic, clients, plate="data")
    local = pf.infer.LocalSGLD(num_samples=500, burn_in=200)
    algorithm = pf.FSGLD(surrogates=local, target_ess=None, num_chains=4, local_steps=10, burn_in=0)
    with pytest.warns(UserWarning, match="clients .*split.* are flat or improper"):
        idata = pf.run(algorithm, fed, num_rounds=60, **QUIET)
    assert idata["federation"]["tempered"].sel(client="split").max() == 1
