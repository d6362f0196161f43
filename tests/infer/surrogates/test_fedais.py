"""FedAIS against exact posteriors and evidences: conjugate models, and a precision shared by many effects."""

import math
from dataclasses import dataclass, field

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from algorithms import line, line_data
from scipy import stats

import pyro_fed as pf
from pyro_fed.ops.importance import LARGEST_PARETO_K

QUIET = {"progress": False, "log_likelihood": False, "compile": "trace"}


def last(idata, name):
    return float(idata["federation"][name].values[-1])


def evidence_of_line(x, y):
    """log N(y; 0, I + x x')."""
    covariance = torch.eye(len(y), dtype=y.dtype) + x @ x.T
    return float(torch.distributions.MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y))


@pytest.mark.parametrize(("surrogates", "num_clients"), [("auto", 1), ("auto", 5), ("auto", 49), ("laplace", 5)])
def test_a_conjugate_regression_has_equal_weights_and_the_exact_evidence(num_clients, surrogates):
    data = line_data(rows=49)
    fed = pf.Federation(line, data, plate="data", num_clients=num_clients)
    idata = pf.run(pf.FedAIS(surrogates=surrogates, num_proposals=500, freedom=None), fed, **QUIET)
    assert last(idata, "effective_draws") == pytest.approx(500, rel=1e-6)
    assert last(idata, "log_evidence") == pytest.approx(evidence_of_line(*data), abs=1e-6)


@dataclass(frozen=True, kw_only=True)
class Kept(pf.FedAIS):
    """Keeps the server's last state."""

    kept: list = field(default_factory=list, compare=False)

    def sample(self, shared, num_draws, generator):
        self.kept.append(shared)
        return super().sample(shared, num_draws, generator)


def pooled_log_joint(x, y, z):
    """log p_0(z) + Σ_k log p_k(z) of `line`, at each z."""
    normal = dist.Normal(torch.zeros((), dtype=z.dtype), 1.0)
    return normal.log_prob(z).sum(-1) + normal.log_prob(y - z @ x.T).sum(-1)


@pytest.mark.filterwarnings("ignore:the sites do not fit", "ignore:the weights are worth", "ignore:.*Pareto k")
@pytest.mark.parametrize("freedom", [None, 4.0])
@pytest.mark.parametrize("clients_in_turn", [False, True])
def test_without_annealing_weights_are_the_posterior_over_q_whatever_the_sites(freedom, clients_in_turn):
    """log w = log p_0 + Σ_k log p_k - log q at every draw: random sites, and their tails, drop out."""
    x, y = line_data()
    generator = torch.Generator().manual_seed(1)
    roots = torch.randn(3, 2, 2, generator=generator, dtype=torch.float64)
    precision, eta = roots @ roots.mT + torch.eye(2), torch.randn(3, 2, generator=generator, dtype=torch.float64)
    fed = pf.Federation(line, (x, y), plate="data", num_clients=3)
    algorithm = Kept(surrogates=pf.infer.Given(precision, eta), flat=1e9, freedom=freedom, num_proposals=60)
    schedule = pf.schedule.RoundRobin() if clients_in_turn else None
    pf.run(algorithm, fed, audit=False, schedule=schedule, **QUIET)
    z, found = (algorithm.kept[-1][name] for name in ("draws", "log_weights"))
    whole = precision.sum(0) + torch.eye(2)
    q = torch.distributions.MultivariateNormal(torch.linalg.solve(whole, eta.sum(0)), precision_matrix=whole)
    torch.testing.assert_close(found, pooled_log_joint(x, y, z) - q.log_prob(z), rtol=1e-9, atol=1e-9)


def test_wider_tails_cost_some_draws_and_leave_the_evidence_as_it_is():
    """Five standard errors."""
    data = line_data()
    idata = pf.run(pf.FedAIS(freedom=5.0), pf.Federation(line, data, plate="data", num_clients=5), **QUIET)
    assert last(idata, "pareto_k") < LARGEST_PARETO_K
    assert 4000 < last(idata, "effective_draws") < 7990
    assert abs(last(idata, "log_evidence") - evidence_of_line(*data)) < 5 * last(idata, "log_evidence_se")


def weights(x, y):
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def test_a_weight_far_out_in_its_prior_leaves_the_evidence_and_most_of_the_draws():
    """Twenty prior SDs: the tails of the sites' product must not hand it over to the prior. Five standard errors."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 20, generator=generator, dtype=torch.float64)
    x[:, 0] *= 0.3
    w = torch.randn(20, generator=generator, dtype=torch.float64)
    w[0] = 20.0
    data = x, x @ w + torch.randn(60, generator=generator, dtype=torch.float64)
    fed = pf.Federation(weights, data, plate="data", num_clients=5)
    idata = pf.run(pf.FedAIS(), fed, audit=False, **QUIET)
    assert abs(last(idata, "log_evidence") - evidence_of_line(*data)) < 5 * last(idata, "log_evidence_se") < 0.15
    assert last(idata, "effective_draws") > 2000


def unknown_scale(y):
    """Few rows of an unknown scale: the mean's tails are those of a t-distribution of few degrees of freedom."""
    mean = pyro.sample("mean", dist.Normal(y.new_zeros(()), 10.0))
    scale = pyro.sample("scale", dist.HalfCauchy(y.new_tensor(5.0)))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mean, scale), obs=y)


def test_four_rows_of_an_unknown_scale_have_the_evidence_and_the_spread_of_a_grid():
    """Four standard errors; a grid of 601 x 401 points. The weights were worth 840 to 1,690 draws with 40 degrees."""
    y = torch.tensor([1.2, -0.7, 2.9, 0.4], dtype=torch.float64)
    fed = pf.Federation(unknown_scale, (y,), plate="data", num_clients=2)
    idata = pf.run(pf.FedAIS(), fed, num_draws=8000, audit=False, **QUIET)
    axes = torch.linspace(-60, 60, 601, dtype=torch.float64), torch.linspace(-4, 8, 401, dtype=torch.float64)
    z = torch.cartesian_prod(*axes)
    log_density = torch.cat([fed.problem.log_prior(part) + fed.problem.log_lik(part) for part in z.split(30_000)])
    evidence = float(torch.logsumexp(log_density, 0)) + math.log(120 / 600 * 12 / 400)
    assert abs(last(idata, "log_evidence") - evidence) < 4 * last(idata, "log_evidence_se") < 0.1
    assert last(idata, "effective_draws") > 4000
    weights = log_density.softmax(0)
    mean = weights @ z
    sd = (weights @ (z - mean).square()).sqrt()
    assert float(idata["posterior"]["mean"].std()) == pytest.approx(float(sd[0]), rel=0.15)
    assert float(np.log(idata["posterior"]["scale"]).std()) == pytest.approx(float(sd[1]), rel=0.1)


def overdispersed(y):
    """Of a scale that these counts do not need: its logarithm has a likelihood without a lower end."""
    mean = pyro.sample("mean", dist.Gamma(y.new_tensor(2.0), 0.5))
    over = pyro.sample("over", dist.HalfNormal(y.new_tensor(0.5)))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.GammaPoisson(1 / over, 1 / (over * mean)), obs=y)


def test_a_likelihood_without_an_end_is_followed_beyond_its_sites():
    """The SD of log(over), by a grid; draws of prior times sites alone had 0.75 of one like it."""
    y = torch.tensor([3.0, 5.0, 4.0, 2.0, 6.0, 4.0, 3.0, 5.0], dtype=torch.float64)
    fed = pf.Federation(overdispersed, (y,), plate="data", num_clients=2)
    axes = torch.linspace(-1, 4, 61, dtype=torch.float64), torch.linspace(-16, 2, 301, dtype=torch.float64)
    z = torch.cartesian_prod(*axes)
    weights = torch.cat([fed.problem.log_prior(part) + fed.problem.log_lik(part) for part in z.split(25_000)]).softmax(
        0
    )
    mean = weights @ z
    sd = (weights @ (z - mean).square()).sqrt()
    ratios = []
    for seed in range(2):
        idata = pf.run(pf.FedAIS(), fed, num_draws=8000, audit=False, seed=seed, **QUIET)
        ratios.append(float(np.log(idata["posterior"]["over"]).std()) / float(sd[1]))
    assert ratios == pytest.approx([1.0] * 2, abs=0.1)


def counts(y):
    """Poisson counts under a Gamma prior: on log rate, a skewed posterior."""
    rate = pyro.sample("rate", dist.Gamma(torch.tensor(2.0, dtype=torch.float64), 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Poisson(rate), obs=y)


def test_gamma_and_poisson_give_the_conjugate_posterior_and_evidence():
    """Five standard errors each; 20,000 draws."""
    y = torch.tensor([0.0, 1.0, 0.0, 2.0, 1.0], dtype=torch.float64)
    fed = pf.Federation(counts, (y,), plate="data", num_clients=5)
    idata = pf.run(pf.FedAIS(num_proposals=20_000), fed, num_draws=20_000, **QUIET)
    shape, rate = 2 + float(y.sum()), 1.0 + len(y)
    effective = last(idata, "effective_draws")
    rates = idata["posterior"]["rate"].values
    assert abs(rates.mean() - shape / rate) < 5 * (shape**0.5 / rate) / effective**0.5
    assert rates.var() == pytest.approx(shape / rate**2, rel=5 * (2 + 6 / shape) ** 0.5 / effective**0.5)
    exact = math.lgamma(shape) - math.lgamma(2) - shape * math.log(rate) - float(torch.lgamma(y + 1).sum())
    assert abs(last(idata, "log_evidence") - exact) < 5 * last(idata, "log_evidence_se")


EFFECTS = 12


def shared_precision(group, y):
    """Effects with a precision of their own, which no Gaussian follows."""
    precision = pyro.sample("precision", dist.Gamma(torch.tensor(1.0, dtype=torch.float64), 0.5))
    zero = torch.zeros(EFFECTS, dtype=torch.float64)
    effect = pyro.sample("effect", dist.Normal(zero, precision.rsqrt()).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(effect[group], 1.0), obs=y)


def grouped_data():
    generator = torch.Generator().manual_seed(0)
    group = torch.arange(EFFECTS).repeat(2)
    effect = 0.8 * torch.randn(EFFECTS, generator=generator, dtype=torch.float64)
    return group, effect[group] + torch.randn(len(group), generator=generator, dtype=torch.float64)


def by_quadrature(group, y):
    """log p(y), and mean and SD of the log precision: given it, the groups' means are N(0, 1/precision + 1/2)."""
    t = torch.linspace(-12, 8, 40_001, dtype=torch.float64)
    sums = torch.zeros(EFFECTS, dtype=torch.float64).index_add(0, group, y)
    mean = sums / 2
    within = (
        -0.5 * (y - mean[group]).square().sum() - 0.5 * EFFECTS * math.log(2.0) - 0.5 * len(y) * math.log(2 * math.pi)
    )
    spread = torch.exp(-t)[:, None] + 0.5
    between = (-0.5 * mean.square() / spread - 0.5 * spread.log()).sum(1)
    log_density = within + between + dist.Gamma(1.0, 0.5).log_prob(t.exp()) + t
    weights = (log_density - log_density.max()).exp()
    step = float(t[1] - t[0])
    evidence = float(log_density.max()) + math.log(float(weights.sum()) * step)
    weights = weights / weights.sum()
    centre = float(weights @ t)
    return evidence, centre, float((weights @ (t - centre).square()) ** 0.5)


@pytest.fixture(scope="module")
def hierarchy():
    data = grouped_data()
    fed = pf.Federation(shared_precision, data, plate="data", num_clients=4)
    return data, fed, pf.run(pf.FedAIS(), fed, num_draws=8000, **QUIET)


@pytest.mark.filterwarnings("ignore:these draws are not the posterior")
def test_a_shared_precision_is_exact_where_fedeps_gaussian_is_too_narrow(hierarchy):
    """The likelihood is Gaussian, so that annealing does it all; five standard errors, and the SD within 8 %."""
    data, fed, idata = hierarchy
    evidence, centre, sd = by_quadrature(*data)
    effective = last(idata, "effective_draws")
    found = np.log(idata["posterior"]["precision"].values)
    assert abs(found.mean() - centre) < 5 * sd / effective**0.5
    assert found.std() == pytest.approx(sd, rel=0.08)
    assert abs(last(idata, "log_evidence") - evidence) < 5 * last(idata, "log_evidence_se")
    gaussian = np.log(pf.run(pf.FedEP(), fed, **QUIET)["posterior"]["precision"].values)
    assert gaussian.std() < 0.8 * sd


def test_clients_in_turn_give_the_weights_of_all_at_once(hierarchy):
    _, fed, together = hierarchy
    in_turn = pf.run(pf.FedAIS(), fed, num_draws=8000, schedule=pf.schedule.RoundRobin(), audit=False, **QUIET)
    assert in_turn["federation"].sizes["round"] == together["federation"].sizes["round"] + 3
    np.testing.assert_allclose(in_turn["posterior"]["effect"], together["posterior"]["effect"], rtol=1e-10)


def test_a_run_without_some_clients_answers_says_so(hierarchy):
    with pytest.warns(UserWarning, match="25 % of the clients have answered"):
        pf.run(pf.FedAIS(), hierarchy[1], num_rounds=1, schedule=pf.schedule.RoundRobin(), audit=False, **QUIET)


def test_sites_that_do_not_fit_are_found_out(hierarchy):
    """Sites of a tenth of the right width."""
    _, fed, _ = hierarchy
    dim = fed.problem.dim
    precision = torch.eye(dim, dtype=torch.float64).repeat(4, 1, 1) * 50
    sites = pf.infer.Given(precision, torch.zeros(4, dim, dtype=torch.float64))
    with pytest.warns(UserWarning, match=r"the sites do not fit: the weights' Pareto k is \d"):
        idata = pf.run(pf.FedAIS(surrogates=sites), fed, audit=False, **QUIET)
    assert last(idata, "pareto_k") > LARGEST_PARETO_K


def bounded(y):
    """A scale below which the data are impossible."""
    end = pyro.sample("end", dist.LogNormal(torch.tensor(1.0, dtype=torch.float64), 0.5))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Uniform(0.0, end, validate_args=False), obs=y)


def test_impossible_draws_have_no_weight():
    y = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)
    prior = pf.infer.Given(torch.zeros(3, 1, dtype=torch.float64), torch.zeros(3, 1, dtype=torch.float64))
    with pytest.warns(UserWarning, match="observed site 'y': the support of Uniform depends on 'end'"):
        fed = pf.Federation(bounded, (y,), plate="data", num_clients=3)
        idata = pf.run(pf.FedAIS(surrogates=prior), fed, **QUIET)
    assert idata["posterior"]["end"].values.min() >= 2.0
    t = torch.linspace(math.log(2.0), 6, 20_001, dtype=torch.float64)  # of log end
    density = (dist.Normal(1.0, 0.5).log_prob(t) - 3 * t).exp()
    exact = math.log(float(torch.trapezoid(density, t)))
    assert abs(last(idata, "log_evidence") - exact) < 5 * last(idata, "log_evidence_se")


def unknown_above(limit, whose="rows"):
    """A density, of the rows or of the prior, that is no number above a limit, as overflow has it far out."""

    def model(y):
        mu = pyro.sample("mu", dist.Normal(torch.tensor(0.0, dtype=torch.float64), 1.0))
        no_number = torch.where(mu > limit, torch.nan, torch.zeros_like(mu))
        pyro.factor("more", no_number if whose == "prior" else torch.zeros_like(mu))
        with pyro.plate("data", len(y)):
            pyro.factor("y", dist.Normal(mu, 1.0).log_prob(y) + (no_number if whose == "rows" else 0.0))

    prior = pf.infer.Given(torch.zeros(3, 1, dtype=torch.float64), torch.zeros(3, 1, dtype=torch.float64))
    fed = pf.Federation(model, (torch.tensor([-0.5, 0.0, -1.0], dtype=torch.float64),), plate="data", num_clients=3)
    return pf.FedAIS(surrogates=prior), fed


@pytest.mark.filterwarnings("ignore:.*mode")  # flat sites say nothing of the curvature
@pytest.mark.parametrize("whose", ["rows", "prior"])
def test_draws_where_a_density_is_no_number_have_no_weight(whose):
    """The posterior N(-1.5 / 4, 1 / 4) has 1e-9 of its mass above 2.6, where the proposals have a hundredth."""
    algorithm, fed = unknown_above(2.6, whose)
    mu = pf.run(algorithm, fed, num_draws=4000, audit=False, **QUIET)["posterior"]["mu"].values
    assert mu.max() <= 2.6
    assert abs(mu.mean() + 0.375) < 0.06 and abs(mu.std() - 0.5) < 0.05


@pytest.mark.filterwarnings("ignore:0 % of the clients have answered")
def test_a_prior_that_is_mostly_no_number_has_failed():
    algorithm, fed = unknown_above(0.0, "prior")
    with pytest.raises(pf.errors.DivergenceError, match=r"the prior's density is NaN at \d+ of 80"):
        pf.run(algorithm, fed, audit=False, **QUIET)


@pytest.mark.filterwarnings("ignore:.*mode")  # flat sites say nothing of the curvature
def test_rows_without_a_number_on_a_half_of_the_prior_are_a_wall():
    """The posterior N(-1.5 / 4, 1 / 4) below zero."""
    with pytest.warns(UserWarning, match="the log density of pyro.factor is NaN at a draw of the prior"):
        algorithm, fed = unknown_above(0.0, "rows")
    mu = pf.run(algorithm, fed, num_draws=4000, audit=False, **QUIET)["posterior"]["mu"].values
    exact = stats.truncnorm(-math.inf, 0.75, loc=-0.375, scale=0.5)
    assert mu.max() <= 0
    assert abs(mu.mean() - exact.mean()) < 0.06 and abs(mu.std() - exact.std()) < 0.05


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_proposals": 1}, "num_proposals must be a whole number of at least 2"),
        ({"levels": 0}, "levels must be a whole number of at least 1"),
        ({"step_size": 0.0}, "step_size must be positive"),
        ({"freedom": 0.0}, "freedom must be positive"),
        ({"surrogates": "ep"}, "surrogates"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(pf.errors.SettingError, match=message):
        pf.FedAIS(**settings)
