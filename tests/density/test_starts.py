"""Draws of the prior, and points where inference may start."""

import threading

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy.stats import beta
from torch.distributions import dirichlet
from zoo import CASES, case_named, federation
from zoo_data import Y

import pyro_fed as pf
from pyro_fed.density.running.torch_modes import OutOfPlace
from pyro_fed.density.starts import central_start, mapped_draws

ALL = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])


@ALL
def test_starts_have_a_finite_density_and_depend_on_the_generator_alone(case):
    problem = federation(case).problem
    draws = [problem.init(3, torch.Generator().manual_seed(seed)) for seed in (5, 5, 6)]
    assert draws[0].shape == (3, problem.dim)
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])
    assert bool((problem.log_prior(draws[0]) + problem.log_lik(draws[0])).isfinite().all())


def test_prior_draws_have_the_priors_moments():
    problem = federation(CASES[0]).problem
    draws = problem.sample_prior(1000, torch.Generator().manual_seed(0))
    # Three standard errors, w ~ N(0, 1), of seven numbers: before fixing the seed a false alarm in fifty.
    assert float(draws[:, :3].mean(0).abs().max()) < 3 / 1000**0.5
    assert float((draws[:, :3].var(0) - 1).abs().max()) < 3 * (2 / 1000) ** 0.5
    assert float(draws[:, 3].exp().mean()) == pytest.approx((2 / np.pi) ** 0.5, abs=3 * 0.603 / 1000**0.5)


#: Families of which torch draws by writing into a tensor, and others.
DRAWN = {
    "normal": dist.Normal(1.0, 2.0),
    "half-Cauchy": dist.HalfCauchy(2.0),
    "exponential": dist.Exponential(0.5),
    "Laplace": dist.Laplace(1.0, 2.0),
    "Student": dist.StudentT(4.0, 1.0, 2.0),
    "gamma": dist.Gamma(2.0, 3.0),
    "uniform": dist.Uniform(-1.0, 3.0),
    "Gumbel": dist.Gumbel(1.0, 2.0),
    "beta": dist.Beta(2.0, 5.0),
    "beta, near its ends": dist.Beta(0.02, 0.03),
}


@pytest.mark.parametrize("prior", DRAWN.values(), ids=DRAWN)
def test_draws_of_one_run_of_the_model_are_the_priors(prior):
    """And what depends on them has their values, draw by draw."""
    runs = []

    def model(y):
        runs.append(1)
        a = pyro.sample("a", prior)
        pyro.sample("b", dist.Normal(a, 1e-3))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(0.0 * a, 1.0), obs=y)

    problem = pf.Federation(model, (Y,), plate="data", num_clients=1).problem
    runs.clear()
    draws = problem.init(4000, torch.Generator().manual_seed(0), checked=False)
    assert len(runs) == 1
    assert torch.equal(draws, problem.init(4000, torch.Generator().manual_seed(0), checked=False))
    a = problem.constrain(draws, problem.fewest_rows)["a"]
    assert float((draws[:, 1] - a).abs().max()) < 5e-3
    # Quartiles within four standard errors, (3/16 / n)^½: a false alarm in 5,000 a family.
    quartiles = torch.tensor([0.25, 0.5, 0.75])
    for share, at in zip(quartiles, a.quantile(quartiles.to(a)), strict=True):
        torch.manual_seed(0)
        theirs = prior.sample((400_000,))
        assert abs(float((theirs <= at).double().mean() - share)) < 4 * (3 / 16 / 4000) ** 0.5


@pytest.mark.parametrize(
    "prior", [dist.Dirichlet(torch.tensor([0.5, 1.0, 4.0])), dist.LKJCholesky(3, 2.0)], ids=["Dirichlet", "LKJ"]
)
def test_draws_of_simplices_and_correlations_are_the_priors(prior):
    """Means within five standard errors of a mean by torch's own draws: a false alarm in 10^5."""

    def model(y):
        pyro.sample("a", prior)
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(torch.zeros(()), 1.0), obs=y)

    problem = pf.Federation(model, (Y,), plate="data", num_clients=1).problem
    drawn = problem.init(4000, torch.Generator().manual_seed(0), checked=False)
    own = problem.constrain(drawn, problem.fewest_rows)["a"].flatten(1)
    torch.manual_seed(0)
    theirs = prior.sample((100_000,)).flatten(1)
    error = (own.var(0) / len(own) + theirs.var(0) / len(theirs)).sqrt()
    assert bool(((own.mean(0) - theirs.mean(0)).abs() <= 5 * error + 1e-6).all())
    assert bool(((own.var(0) / theirs.var(0)).nan_to_num(nan=1.0) - 1).abs().max() < 0.15)


def test_draws_of_an_all_but_certain_simplex_are_finite():
    """Entries underflow in single precision; torch's own draws stay inside, where logarithms are finite."""
    concentration = torch.full((4,), 0.02)
    drawn = mapped_draws(lambda _: dist.Dirichlet(concentration).rsample(), torch.zeros(2000))
    torch.manual_seed(0)
    own = dist.Dirichlet(concentration).sample((2000,))
    for values in (drawn, own):
        assert bool((values > 0).all() & (values < 1).all())
        assert float((values < 1e-30).double().mean()) == pytest.approx(beta.cdf(1e-30, 0.02, 0.06), abs=0.02)


def test_slopes_of_draws_of_a_simplex_are_those_of_its_moments():
    """Of E[(w'x)²] in the concentrations, by the mean and the covariance of a Dirichlet distribution."""
    w = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)

    def exact(concentration):
        total = concentration.sum()
        mean = concentration / total
        return (w**2 @ mean - (w @ mean) ** 2) / (total + 1) + (w @ mean) ** 2

    concentration = torch.tensor([0.5, 1.0, 4.0], dtype=torch.float64, requires_grad=True)
    torch.manual_seed(0)
    drawn = mapped_draws(lambda _: dist.Dirichlet(concentration).rsample(), torch.zeros(100_000))
    (found,) = torch.autograd.grad((drawn @ w).square().mean(), concentration)
    (expected,) = torch.autograd.grad(exact(concentration), concentration)
    torch.testing.assert_close(found, expected, atol=2e-3, rtol=0)


def test_threads_that_draw_together_leave_torch_as_it_was():
    """The second enters before the first leaves, and leaves after it."""
    own, entered, left = vars(dirichlet)["_Dirichlet"], threading.Event(), threading.Event()

    def second():
        with OutOfPlace():
            entered.set()
            left.wait(10)

    thread = threading.Thread(target=second)
    with OutOfPlace():
        thread.start()
        assert entered.wait(10)
    left.set()
    thread.join()
    assert vars(dirichlet)["_Dirichlet"] is own


def of_weights(family):
    """120 weights of a family, or under half-Cauchy scales of their own and of all."""

    def model(y):
        scale = pyro.sample("overall", dist.HalfCauchy(1.0)) if family is None else torch.ones(())
        if family is None:
            scale = scale * pyro.sample("own", dist.HalfCauchy(torch.ones(120)).to_event(1))
        prior = dist.Normal(torch.zeros(120), scale) if family is None else family(torch.zeros(120), scale)
        w = pyro.sample("w", prior.to_event(1))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(w.sum(), 1.0), obs=y)

    return pf.Federation(model, (Y,), plate="data", num_clients=1).problem


@pytest.mark.parametrize("family", [None, dist.Cauchy], ids=["horseshoe", "Cauchy"])
def test_weights_of_heavy_tails_start_within_their_scales(family):
    """The mean of a hundred Cauchy draws is as wide as one: weights began at ten to a thousand times their scales."""
    problem = of_weights(family)
    point = central_start(problem, torch.Generator().manual_seed(0))
    found = problem.constrain(point[None], problem.fewest_rows)
    scale = found["overall"] * found["own"] if family is None else 1.0
    assert 0.01 < float((found["w"] / scale).square().mean().sqrt()) < 1


def test_weights_of_normal_tails_start_at_the_mean_of_draws():
    problem = of_weights(dist.Normal)
    drawn = problem.init(100, torch.Generator().manual_seed(0), checked=False)
    torch.testing.assert_close(central_start(problem, torch.Generator().manual_seed(0)), drawn.sum(0) / 100)


def test_draws_that_cannot_be_mapped_are_made_one_by_one():
    def model(y):
        p = pyro.sample("p", dist.VonMises(0.0, 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(p, 1.0), obs=y)

    problem = pf.Federation(model, (Y,), plate="data", num_clients=1).problem
    unchecked, checked = (problem.init(5, torch.Generator().manual_seed(0), checked=c) for c in (False, True))
    assert torch.equal(unchecked, checked) and len(unchecked.unique(dim=0)) == 5


def test_an_improper_prior_is_not_sampled_but_started_from():
    case = case_named("improper")
    problem = federation(case).problem
    with pytest.raises(pf.errors.ModelError, match=r"\['s', 'w'\] have improper priors.*init"):
        problem.sample_prior(2, torch.Generator())
    z = problem.init(200, torch.Generator().manual_seed(0), radius=3.0)
    assert 2 < float(z.abs().max()) < 3


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (pyro.infer.autoguide.init_to_feasible, 0.0),
        (
            pyro.infer.autoguide.init_to_value(values={"w": torch.full((3,), 2.0), "s": torch.tensor(1.0)}),
            2.0,
        ),
    ],
)
def test_pyros_init_strategies_start_improper_sites(strategy, expected):
    case = case_named("improper")
    problem = federation(case).problem
    z = problem.init(2, torch.Generator().manual_seed(0), strategy)
    torch.testing.assert_close(z[:, :3], torch.full((2, 3), expected, dtype=z.dtype))
    torch.testing.assert_close(z[:, 3], torch.zeros(2, dtype=z.dtype))


def test_init_to_uniform_stays_within_its_radius():
    case = case_named("improper")
    strategy = pyro.infer.autoguide.init_to_uniform(radius=0.5)
    z = federation(case).problem.init(50, torch.Generator().manual_seed(0), strategy)
    assert 0.4 < float(z.abs().max()) < 0.5


def impossible_together(y):
    """Each row is possible somewhere, and no two signs of rows are so together."""
    a = pyro.sample("a", dist.Uniform(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.factor("f", torch.where((a > 0.5) == (y > 0), y, -torch.inf))


def test_no_start_with_a_finite_density_says_so():
    def impossible(y):
        a = pyro.sample("a", dist.Uniform(0.0, 1.0))
        with pyro.plate("data", len(y)):
            pyro.factor("f", torch.where(a > 2, y, -torch.inf))

    with pytest.raises(
        pf.errors.ModelError, match=r"site 'f': the log density is not finite in 13 of the 13 rows .*factor"
    ):
        pf.Federation(impossible, (Y,), plate="data", num_clients=1)
    problem = pf.Federation(impossible_together, (Y,), plate="data", num_clients=1).problem
    with pytest.raises(pf.errors.ModelError, match="no starting point with a finite log density"):
        problem.init(1, torch.Generator().manual_seed(0))
