"""Latents whose densities have tails that no Gaussian of their curvature covers: integrals and draws."""

import ast
import math
import re
import warnings

import hierarchies
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.func import grad, hessian

import pyro_fed as pf
from pyro_fed.density.latents.draws import draw_locals
from pyro_fed.density.latents.quadrature import ORDERS, Quadrature
from pyro_fed.density.latents.tails import Profile, line
from pyro_fed.runtime import integral_checks as collecting
from pyro_fed.runtime.integral_checks import integral_findings, integration_error

TRIALS = 6
HITS = torch.arange(TRIALS + 1).double()
COUNTS = torch.tensor([0.0, 1, 2, 5, 20, 100]).double()
SMALL = [0.02, 0.1, 0.5, 1.0, 5.0, 20.0]


def beta_binomial(y):
    a, b = (pyro.sample(name, dist.LogNormal(hierarchies.number(0), 1.0)) for name in "ab")
    with pyro.plate("group", len(y)):
        p = pyro.sample("p", dist.Beta(a, b))
        pyro.sample("y", dist.Binomial(TRIALS, p), obs=y)


def beta_binomial_log_lik(theta, y):
    a, b = theta.exp()
    whole = dist.BetaBinomial(a, b, total_count=TRIALS)
    return whole.log_prob(y)


CASES = {
    "beta-binomial": (beta_binomial, HITS, beta_binomial_log_lik),
    "gamma-Poisson": (hierarchies.rates, COUNTS, hierarchies.rates_log_lik),
}
#: Of a row's log-likelihood, by how many nodes. A probability that is 1 but for less than rounding is 1, and exp(-36 b)
#: of a Beta lies there: where b is small, a row of nothing but hits is not looked at.
TOLERANCE = {None: 5e-6, 11: 2e-3, 21: 5e-6, 41: 2e-6, 101: 2e-6}


def federation(name, **rule):
    model, y, _ = CASES[name]
    return pf.Federation(model, (y,), plate="group", num_clients=2, quadrature=pf.Quadrature(**rule))


def known(name, theta):
    """The rows whose log-likelihood at θ rounding leaves as it is."""
    _, y, _ = CASES[name]
    return (y < TRIALS) | (theta[1].exp() > 0.6) if name == "beta-binomial" else y < math.inf


@pytest.mark.parametrize("order", TOLERANCE)
@pytest.mark.parametrize("name", CASES)
def test_a_rows_log_likelihood_is_its_integral_wherever_a_posterior_goes(name, order):
    problem, (_, y, log_lik) = federation(name, order=order).problem, CASES[name]
    assert problem.quadrature.tails
    assert problem.num_nodes == (order or 21)
    theta = torch.cartesian_prod(*[torch.tensor(SMALL).double().log()] * 2)
    found = problem.vmap(problem.pointwise_log_lik)(theta)
    for one, value in zip(theta, found, strict=True):
        at = known(name, one)
        torch.testing.assert_close(value[at], log_lik(one, y)[at], rtol=0, atol=TOLERANCE[order])


@pytest.mark.parametrize("name", CASES)
def test_its_derivatives_are_those_of_the_integral(name):
    problem, (_, y, log_lik) = federation(name).problem, CASES[name]
    for theta in torch.tensor([[-1.0, -0.5], [-0.3, 0.2], [1.0, 2.0]]).double():
        for derivative in (grad, hessian):
            found = derivative(problem.log_lik)(theta)
            expected = derivative(lambda z: log_lik(z, y).sum())(theta)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("likelihood", ["Bernoulli", "Poisson"])
def test_models_whose_integrals_are_accurate_keep_gauss_hermite_nodes(likelihood):
    def model(y):
        mu = pyro.sample("mu", dist.Normal(hierarchies.number(0), 1.0))
        tau = pyro.sample("tau", dist.HalfNormal(hierarchies.number(1)))
        with pyro.plate("group", len(y)):
            effect = pyro.sample("effect", dist.Normal(mu, tau))
            fn = dist.Bernoulli(logits=effect) if likelihood == "Bernoulli" else dist.Poisson(3 * effect.exp())
            pyro.sample("y", fn, obs=y)

    y = torch.tensor([0.0, 1, 1, 0, 1, 0, 0, 1]).double() + 4 * (likelihood == "Poisson")
    rule = pf.Federation(model, (y,), plate="group", num_clients=2).problem.quadrature
    assert not rule.tails and rule.order in ORDERS  # as few as they need


def patients_in_hospitals(x, group, count, y):
    mu = pyro.sample("mu", dist.Normal(x.new_tensor(0.0), 1.5))
    tau = pyro.sample("tau", dist.HalfNormal(x.new_tensor(1.0)))
    beta = pyro.sample("beta", dist.Normal(x.new_zeros(2), 1.0).to_event(1))
    with pyro.plate("hospital", count):
        effect = pyro.sample("effect", dist.Normal(mu, tau))
    with pyro.plate("patient", len(y)):
        logits = (x * beta.unsqueeze(-2)).sum(-1) + effect[..., group]
        pyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def test_rounding_of_large_sums_does_not_ask_for_more_nodes():
    generator = torch.Generator().manual_seed(0)
    group = torch.arange(4).repeat_interleave(1000)
    x = torch.randn(len(group), 2, generator=generator)
    y = (torch.rand(len(group), generator=generator) < (x[:, 0] + 0.5 * group - 1).sigmoid()).float()

    def rule(dtype):
        args = (x.to(dtype), group, 4, y.to(dtype))
        rows, options = {"patient": "group"}, {"plate": "hospital", "num_clients": 2, "dtype": dtype}
        return pf.Federation(patients_in_hospitals, args, rows=rows, **options).problem.quadrature

    single, double = rule(torch.float32), rule(torch.float64)
    assert not single.tails and not double.tails
    assert single.order == double.order and single.mode_steps <= double.mode_steps


def test_a_rule_of_few_nodes_is_placed_by_the_curvature():
    assert not federation("gamma-Poisson", order=5).problem.quadrature.tails
    assert not Quadrature(order=5, tails=True).by_tails(1)
    assert not Quadrature(order=21, tails=True).by_tails(2)


DENSITIES = {
    "normal": (lambda x: -0.5 * (x - 3).square(), 0.5 * math.log(2 * math.pi), 1e-7),
    "narrow normal": (lambda x: -0.5 * (1e3 * (x - 3)).square(), 0.5 * math.log(2e-6 * math.pi), 1e-7),
    "Student, 4 degrees": (lambda x: -2.5 * torch.log1p((x - 3).square() / 4), math.log(8 / 3), 1e-4),
    "Cauchy": (lambda x: -torch.log1p((x - 3).square()), math.log(math.pi), 5e-2),
    "extreme value": (lambda x: 0.01 * x - x.exp(), math.lgamma(0.01), 1e-4),
}


@pytest.mark.parametrize("name", DENSITIES)
@pytest.mark.parametrize("away", [0.0, 2.0])
def test_the_line_of_nodes_covers_a_density(name, away):
    """From a mode that is `away` SDs off."""
    density, exact, tolerance = DENSITIES[name]
    mode, sd = (-4.6, 10.0) if name == "extreme value" else (3.0, 1e-3 if name == "narrow normal" else 1.0)
    for order, at_most in ((21, tolerance), (81, max(1e-3 * tolerance, 1e-11))):
        placed = line(density, torch.tensor([mode + away * sd]).double(), torch.tensor([sd]).double(), order)
        place, log_slope = placed.at(torch.linspace(0, 1, order, dtype=torch.float64).unsqueeze(-1))
        found = torch.logsumexp(density(place) + log_slope, 0) + placed.log_step(order)
        assert float(found) == pytest.approx(exact, abs=at_most)


def test_the_linear_density_between_nodes_has_its_own_inverse():
    placed = line(lambda x: -0.5 * x.square(), torch.zeros(1).double(), torch.ones(1).double(), 21)
    place, log_slope = placed.at(torch.linspace(0, 1, 21, dtype=torch.float64).unsqueeze(-1))
    profile = Profile(placed, -0.5 * place.square() + log_slope)
    uniform = (torch.arange(20_000).double().unsqueeze(-1) + 0.5) / 20_000
    place, log_slope, log_density = profile.inverse(uniform)
    t = ((place - placed.centre) / placed.scale).asinh()
    density = log_density.exp()
    nodes = torch.linspace(0, 1, 21, dtype=torch.float64) * (placed.high - placed.low) + placed.low
    whole = torch.trapezoid((profile.log_weight - profile.log_weight.amax(0)).exp()[:, 0], nodes)
    slope = t.diff(dim=0) * 0.5 * (density[1:] + density[:-1]) / whole
    torch.testing.assert_close(slope[20:-20], uniform.diff(dim=0)[20:-20], rtol=1e-2, atol=0)


def check_logits(draws, a, b):
    """Moments of logits (S, 7) of p given all numbers of hits, by digamma functions; five standard errors."""
    count, a, b = len(draws), a + HITS, b + TRIALS - HITS
    mean = torch.digamma(a) - torch.digamma(b)
    variance = torch.polygamma(1, a) + torch.polygamma(1, b)
    assert float(((draws.mean(0) - mean) / variance.sqrt()).abs().max()) < 5 / math.sqrt(count)
    assert float((draws.var(0) / variance - 1).abs().max()) < 5 * math.sqrt(8 / count)


def test_draws_of_such_latents_have_their_conditional_distribution():
    """Of 2,000 draws at a Beta(0.2, 0.5), also after a result whose draws need no tails."""
    problem = federation("beta-binomial").problem
    for a, b in ((5.0, 5.0), (0.2, 0.5)):
        theta = torch.tensor([a, b]).double().log().expand(2_000, 2)
        draws = draw_locals(problem, theta, problem.rows, torch.Generator().manual_seed(0))
        check_logits(draws[..., 0], a, b)


def test_latents_of_few_draws_that_need_tails_have_their_conditional_distribution():
    """One draw in ten is a Beta(0.2, 0.5), none of which are evenly spaced among all; the others need no tails."""
    problem, bad = federation("beta-binomial").problem, slice(7, None, 10)
    theta = torch.tensor([5.0, 5.0]).double().log().repeat(10_000, 1)
    theta += 0.1 * torch.randn(theta.shape, generator=torch.Generator().manual_seed(1)).double()
    theta[bad] = torch.tensor([0.2, 0.5]).double().log()
    draws = draw_locals(problem, theta, problem.rows, torch.Generator().manual_seed(0))
    check_logits(draws[bad, :, 0], 0.2, 0.5)


def test_a_rule_that_is_advised_is_one_that_is_accurate(monkeypatch):
    monkeypatch.setattr(collecting, "NEGLIGIBLE", 0.005)  # of few rows
    coarse = federation("beta-binomial", order=21, tails=False).problem
    theta = -1.0 + 0.4 * torch.randn(16, 2, generator=torch.Generator().manual_seed(0)).double()
    (note,) = integral_findings(coarse, theta)
    assert "quadrature=pf.Quadrature(order=41, tails=True)" in note.text
    assert integration_error(federation("beta-binomial", order=41, tails=True).problem, theta) < 1e-3
    assert integral_findings(federation("beta-binomial").problem, theta) == []


def test_no_rule_is_advised_where_none_is_accurate():
    def model(y):
        mu = pyro.sample("mu", dist.Normal(hierarchies.number(0), 1.0))
        with pyro.plate("group", len(y)):
            x = pyro.sample("x", dist.Normal(mu, 1.0))
            pyro.factor("many modes", 20 * torch.cos(40 * x))
            pyro.sample("y", dist.Normal(x, 1.0), obs=y)

    problem = pf.Federation(model, (hierarchies.Y,), plate="group", num_clients=2).problem
    (note,) = integral_findings(problem, torch.linspace(-1, 1, 16).double().unsqueeze(-1))
    assert "miss modes: given the other latents, 9 of 9 rows" in note.text
    assert "and other starting points do not find it. Integrate these latents out by hand" in note.text


def test_places_are_advised_for_a_spike_on_top_of_a_slab_and_they_suffice():
    def model(y):
        tau = pyro.sample("tau", dist.HalfNormal(2.0))
        sds = torch.tensor([0.01, 2.0]).to(tau)
        with pyro.plate("group", len(y)):
            x = pyro.sample("x", dist.MixtureSameFamily(dist.Categorical(torch.ones(2).to(tau)), dist.Normal(0.0, sds)))
            pyro.sample("y", dist.Normal(x, tau + 0.1), obs=y)

    theta = torch.linspace(-1, 1, 16).double().unsqueeze(-1)

    def worst(problem):
        """The largest error of a row's integral in nats, by the trapezoidal rule."""
        fine = [torch.linspace(-end, end, 20_001, dtype=torch.float64) for end in (0.1, 12.0)]
        x = torch.cat(fine).sort().values
        prior = torch.logaddexp(dist.Normal(0.0, 0.01).log_prob(x), dist.Normal(0.0, 2.0).log_prob(x)) - math.log(2)
        errors = []
        for z in theta:
            rows = prior + dist.Normal(x, float(z.exp()) + 0.1).log_prob(hierarchies.Y.double().unsqueeze(1))
            errors.append(problem.log_parts(z, problem.all_rows)[1] - torch.trapezoid(rows.exp(), x).log())
        return float(torch.stack(errors).abs().max())

    def made(rule=None):
        return pf.Federation(model, (hierarchies.Y,), plate="group", num_clients=2, quadrature=rule).problem

    (note,) = integral_findings(made(), theta)
    places = re.search(r"quadrature=pf\.Quadrature\(starts=(\(.*\))\)", note.text).group(1)
    better = made(pf.Quadrature(starts=ast.literal_eval(places)))
    assert worst(made()) > 2
    assert worst(better) < 0.05
    assert integral_findings(better, theta) == []


def test_draws_are_not_doubted_by_densities_that_are_known_to_be_off():
    y = torch.tensor([0.0] * 8 + [6] * 7 + [1, 2, 3, 4, 5]).double()
    rule = pf.Quadrature(order=7, tails=False)
    fed = pf.Federation(beta_binomial, (y,), plate="group", num_clients=2, quadrature=rule)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        idata = pf.run(pf.FedLaplace(), fed, num_rounds=2, num_draws=50, progress=False)
    assert "integrals over ['p']" in idata.attrs["doubts"]
    assert "exact chain" not in idata.attrs["doubts"]
    assert any("not audited" in str(one.message) for one in said)
    assert not idata.attrs["audited"]


@pytest.mark.parametrize(("dtype", "cure"), [(torch.float32, "float64"), (torch.float64, "by hand")])
@pytest.mark.parametrize("hits", [2, 40])
def test_mass_where_probabilities_round_to_one_is_missed_and_said(dtype, cure, hits):
    """Rows of nothing but hits, under small shapes: what is lost is the difference from the closed form."""
    y = torch.tensor([0.0, 2.0, 3.0] + [float(TRIALS)] * hits, dtype=dtype)
    problem = pf.Federation(beta_binomial, (y,), plate="group", num_clients=2, dtype=dtype).problem
    b = (0.11 if dtype == torch.float64 else 0.25) * torch.linspace(-0.4, 0.4, 16).exp()
    theta = torch.stack([torch.full_like(b, 0.5), b], 1).log().to(dtype)
    found = problem.vmap(problem.log_lik)(theta).double()
    exact = torch.stack([beta_binomial_log_lik(one, y.double()).sum() for one in theta.double()])
    off = float((exact - found).std(correction=0))
    findings = integral_findings(problem, theta)
    assert [one.code for one in findings] == ["integrals_lose_rounded_mass"] * (off > 0.1) and (off > 0.1) == (hits > 2)
    for one in findings:
        assert one.figures["error"] == pytest.approx(off, rel=0.2)
        assert cure in one.text


def test_real_latents_with_heavy_tails_are_not_rounded():
    """A Cauchy effect has mass at any distance, and no value of it is rounded to a bound."""

    def model(y):
        scale = pyro.sample("scale", dist.LogNormal(hierarchies.number(0), 1.0))
        with pyro.plate("group", len(y)):
            effect = pyro.sample("effect", dist.Cauchy(hierarchies.number(0), scale))
            pyro.sample("y", dist.Normal(effect, 1.0), obs=y)

    problem = pf.Federation(model, (torch.linspace(-2, 40, 12).double(),), plate="group", num_clients=2).problem
    codes = [one.code for one in integral_findings(problem, torch.linspace(-1, 1, 16).double().unsqueeze(-1))]
    assert "integrals_lose_rounded_mass" not in codes
