"""FedEP and its kin against exact conjugate posteriors, long reference runs, and each other."""

import dataclasses
import functools
import warnings
from types import SimpleNamespace

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from posteriordb import CASES, WITHOUT_LOCAL, needs_data
from pyro.infer.autoguide import AutoDiagonalNormal, AutoIAFNormal, AutoMultivariateNormal

import pyro_fed as pf
from models import linear_regression
from pyro_fed.infer.sites.gaussian_sites import gaussian

QUIET = {"progress": False, "num_draws": 10, "log_likelihood": False, "compile": "trace"}
OFF = {"compile": "off"}  #: of runs so short that tracing costs more


@functools.cache
def train():
    """The rows, in float64."""
    return tuple(part.double() for part in linear_regression.load_data()[0])


@functools.cache
def exact():
    """Mean and covariance of the posterior."""
    mean, covariance = linear_regression.exact_posterior(train())
    return SimpleNamespace(mean=mean, covariance=covariance)


def regression(num_clients, partition=None):
    return pf.Federation(
        linear_regression.model,
        train(),
        plate="data",
        num_clients=num_clients,
        partition=partition or pf.partition.SortedBy(train()[0][:, 2]),
    )


def recorded(algorithm):
    """The algorithm, and a list that its server and client states of each round go to."""
    seen = []

    class Recorded(type(algorithm)):
        def feedback(self, after, clients):
            seen.append((after,))
            return super().feedback(after, clients)

        def settle(self, told, local):
            kept = super().settle(told, local)
            seen[-1] = (seen[-1][0], kept)  # at the server, which follows the sites, and then at the clients
            return kept

    return Recorded(**{f.name: getattr(algorithm, f.name) for f in dataclasses.fields(algorithm)}), seen


def run_recorded(algorithm, fed, **options):
    algorithm, seen = recorded(algorithm)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a run cut short says that it has not converged
        pf.run(algorithm, fed, **{**QUIET, "audit": False, **options})
    return seen


@pytest.mark.parametrize(
    ("num_clients", "client"), [(1, "newton"), (2, "newton"), (7, "newton"), (50, "newton"), (7, "laplace")]
)
def test_conjugate_regression_is_exact_after_one_round_and_after_every_later_one(num_clients, client):
    algorithm = pf.FedEP(client=client, damping=1.0, start="prior", tolerance=1e-300)
    seen = run_recorded(algorithm, regression(num_clients), num_rounds=3, **OFF)
    assert len(seen) == 3
    for after, _ in seen:
        mean, covariance = gaussian(after).moments()
        torch.testing.assert_close(mean, exact().mean, rtol=0, atol=1e-8)
        torch.testing.assert_close(covariance, exact().covariance, rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    "algorithm",
    [
        pf.FedEP(),
        pf.FedEP(covariance="diag"),
        pf.FedEP(client="laplace"),
        pf.FedEP(client=pf.infer.tilted.MCMC(steps=200)),
        pf.infer.PVI(order="synchronous", client=pf.infer.tilted.Newton(steps=2)),
    ],
    ids=lambda a: f"{type(a).__name__}-{a.client.kind()}-{a.covariance}",
)
def test_q_is_the_product_of_prior_and_sites_in_every_round(algorithm):
    for after, local in run_recorded(algorithm, regression(5), num_rounds=3):
        product = gaussian(local).product_over(0).product(gaussian(after, "prior_"))
        torch.testing.assert_close(gaussian(after).precision, product.precision)
        torch.testing.assert_close(gaussian(after).eta, product.eta)


def heavy_tails(y):
    theta = pyro.sample("theta", dist.StudentT(3.0, y.new_zeros(2), 0.5).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Poisson((theta[0] + theta[1]).exp()), obs=y)


@pytest.mark.parametrize("client", ["newton", "laplace"])
def test_q_is_the_product_where_the_prior_s_site_moves(client):
    """A prior that is not Gaussian has another site at each q, which takes part by the clients' rule."""
    y = torch.tensor([6.0, 9.0, 4.0, 7.0, 12.0, 8.0], dtype=torch.float64)
    fed = pf.Federation(heavy_tails, (y,), plate="data", num_clients=3, partition=pf.partition.IID(), seed=0)
    rounds = run_recorded(pf.FedEP(client=client, start="prior"), fed, num_rounds=5)
    priors = [gaussian(after, "prior_").precision for after, _ in rounds]
    assert any(not torch.allclose(priors[0], later, rtol=1e-3) for later in priors[1:])
    for after, local in rounds:
        product = gaussian(local).product_over(0).product(gaussian(after, "prior_"))
        torch.testing.assert_close(gaussian(after).precision, product.precision)
        torch.testing.assert_close(gaussian(after).eta, product.eta)


@pytest.mark.parametrize(
    "algorithm",
    [pf.infer.FedSEP(), pf.infer.PVI(), pf.infer.BCM(), pf.infer.FedPA(client="laplace")],
    ids=lambda a: type(a).__name__,
)
def test_the_kin_of_fedep_are_exact_for_a_conjugate_model(algorithm):
    after, _ = run_recorded(algorithm, regression(4), **OFF)[-1]
    mean, covariance = gaussian(after).moments()
    torch.testing.assert_close(mean, exact().mean, rtol=0, atol=1e-7)
    torch.testing.assert_close(covariance, exact().covariance, rtol=0, atol=1e-7)


def test_a_diagonal_q_has_the_exact_mean_and_the_mean_field_variances():
    after, _ = run_recorded(pf.FedEP(covariance="diag", tolerance=1e-6), regression(7))[-1]
    mean, variances = gaussian(after).moments()
    expected = 1 / torch.linalg.inv(exact().covariance).diagonal()
    torch.testing.assert_close(mean, exact().mean, rtol=0, atol=1e-5)
    torch.testing.assert_close(variances, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("client", ["mcmc", "ngvi", pf.infer.tilted.SVI(steps=200)], ids=["mcmc", "ngvi", "svi"])
def test_stochastic_inferences_come_near_the_exact_posterior(client):
    """Seeded; the errors measured are below half of these bounds."""
    after, _ = run_recorded(pf.FedEP(client=client), regression(4), num_rounds=8)[-1]
    mean, covariance = gaussian(after).moments()
    sds = exact().covariance.diagonal().sqrt()
    assert float(((mean - exact().mean) / sds).abs().max()) < 0.5
    assert float((covariance.diagonal().sqrt() / sds - 1).abs().max()) < 0.2


@pytest.mark.parametrize("kind", [pf.infer.tilted.Identity, pf.infer.tilted.MCMC, pf.infer.tilted.NGVI])
def test_the_noise_of_a_chain_on_a_gaussian_does_not_reach_the_mean(kind):
    """One client, started at the prior: the samples' own mean would be off by about a tenth of an SD."""
    options = {"client": kind(steps=200), "covariance": "full", "start": "prior", "damping": 1.0}
    after, _ = run_recorded(pf.FedEP(**options), regression(1), num_rounds=1)[-1]
    assert float(((gaussian(after).mean() - exact().mean) / exact().covariance.diagonal().sqrt()).abs().max()) < 1e-6


def correlated(num_clients):
    """Two classes and 60 positive, correlated covariates: the curvature is far from diagonal."""
    generator = torch.Generator().manual_seed(0)
    x = 1 + 0.3 * torch.randn(200, 60, generator=generator, dtype=torch.float64)
    y = (x @ torch.linspace(-1, 1, 60, dtype=torch.float64) > 0).double()

    def model(x, y):
        w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    return pf.Federation(model, (x, y), plate="data", num_clients=num_clients)


def accuracy_on(fed, mean):
    x, y = fed.problem.rows
    return float(((x @ mean > 0) == (y > 0)).double().mean())


def test_diagonal_steps_that_are_much_too_long_do_not_run_away():
    """Measured: not held back, the mean's length is 132 and half of the rows are right; held back 4.3 and 86 %."""
    fed, seen = correlated(20), []
    for control in (pf.infer.StepControl(reach=1e9, growth=1e9), pf.infer.StepControl()):
        algorithm = pf.FedEP(covariance="diag", start="prior", num_points=16, step_control=control)
        states = run_recorded(algorithm, fed, schedule=pf.schedule.UniformRandom(4), num_rounds=60)
        seen.append(gaussian(states[-1][0]).mean())
    free, held = seen
    assert held.norm() < 60**0.5 < free.norm() / 5
    assert accuracy_on(fed, held) > 0.8 > accuracy_on(fed, free)


def test_diagonal_steps_that_have_not_settled_are_told_with_their_cause():
    algorithm = pf.FedEP(covariance="diag", start="prior", num_points=16)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        pf.run(algorithm, correlated(1), num_rounds=2, audit=False, **QUIET)
    assert any("too long if parameters are correlated" in str(one.message) for one in told)


@needs_data
@pytest.mark.parametrize("sort", [False, True], ids=["iid", "sorted"])
@pytest.mark.parametrize("name", WITHOUT_LOCAL)
def test_real_posteriors_within_a_tenth_of_an_sd_in_20_rounds(name, sort):
    """The audit, which looks at all rows wherever they are, is silent; of 1,000 rows and more it is not asked."""
    options = QUIET | OFF | {"num_draws": 5000, "audit": sort and name not in ("diamonds", "gauss_mix")}
    idata = pf.run(pf.FedEP(), CASES[name].federation(5, sort), **options)
    error, low, high = CASES[name].error(idata)
    assert idata["federation"].sizes["round"] <= 20
    assert error < 0.1
    assert 0.9 < low <= high < 1.1


@needs_data
def test_rank_deficient_shards_of_diamonds():
    fed = CASES["diamonds"].federation(50, sort=True)
    idata = pf.run(pf.FedEP(), fed, **{**QUIET, **OFF, "num_draws": 5000, "audit": False})
    error, low, high = CASES["diamonds"].error(idata)
    assert error < 0.1
    assert 0.9 < low <= high < 1.1


def logistic(x, y):
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), 3.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def awkward_federation():
    """Clients of one row, of none, and of a single class each."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=generator, dtype=torch.float64)
    p = torch.sigmoid(x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64))
    y = (torch.rand(60, generator=generator, dtype=torch.float64) < p).double()
    order = torch.argsort(y).tolist()
    with pytest.warns(UserWarning, match="no rows"):
        return pf.Federation(
            logistic, (x, y), plate="data", partition=pf.partition.Explicit([order[:1], [], order[1:30], order[30:]])
        )


def test_one_row_no_rows_and_single_classes_do_not_matter():
    fed = awkward_federation()
    pooled = pf.Federation(logistic, fed.problem.rows, plate="data", num_clients=1)
    apart, together = (run_recorded(pf.FedEP(tolerance=1e-8), f, **OFF)[-1][0] for f in (fed, pooled))
    for a, b in zip(gaussian(apart).moments(), gaussian(together).moments(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_guides_name_the_family_and_others_are_refused():
    assert pf.FedEP(guide=AutoDiagonalNormal).covariance == "diag"
    assert pf.FedEP(guide=AutoMultivariateNormal(linear_regression.model)).covariance == "full"
    with pytest.raises(pf.errors.SettingError, match="AutoIAFNormal has no natural parameters"):
        pf.FedEP(guide=AutoIAFNormal)


@pytest.mark.parametrize("optimiser", ["adagrad", "adam"])
def test_optimisers_lead_to_the_posterior_and_say_that_the_invariant_is_gone(optimiser):
    algorithm = pf.FedEP(optimisers=pf.infer.Optimisers(server=optimiser), damping=0.2)
    with pytest.warns(UserWarning, match="not the product"):
        idata = pf.run(algorithm, regression(3), num_rounds=2, audit=False, **{**QUIET, **OFF})
    assert np.isfinite(idata["posterior"]["w"].values).all()


def test_fedavg_is_a_point_near_the_mode_of_a_flat_likelihood():
    fed = regression(3, pf.partition.IID())
    idata = pf.run(pf.FedAvg(chain_steps=50, step_size=0.05, prior=True), fed, num_rounds=100, audit=False, **QUIET)
    assert idata["posterior"].attrs["draws_are"] == "point"
    point = torch.tensor(idata["posterior"]["w"].values[0, 0])
    assert point.shape == exact().mean.shape
    assert float(((point - exact().mean) / exact().covariance.diagonal().sqrt()).abs().max()) < 1.0
