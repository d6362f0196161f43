"""What the comparison objects to, on draws whose errors are known: neither noise nor small errors, and all others."""

import re

import numpy as np
import pytest
import torch
import xarray as xr
from scipy import special

from pyro_fed.analysis.judging import moments
from pyro_fed.analysis.judging.compare import compare
from pyro_fed.analysis.judging.doubts import prior_count
from pyro_fed.analysis.judging.draws import Draws, blocks, effective_draws
from pyro_fed.analysis.judging.ksd import discrepancy
from pyro_fed.analysis.judging.metrics import loo
from pyro_fed.analysis.judging.moments import reference_doubts
from pyro_fed.codes.finding import texts
from pyro_fed.conventions.limits import MATTERS, NEGLIGIBLE
from pyro_fed.ops.kernels import IMQ
from pyro_fed.results.to_arviz import make_inference_data

COUNT = 1000


def standard(dim=2, chains=1, count=COUNT, memory=0.0, seed=0):
    """Draws of N(0, I), those of a chain with the autocorrelation `memory`: (chains, count, dim)."""
    noise = np.random.default_rng(seed).normal(size=(chains, count, dim))
    draws = noise.copy()
    for i in range(1, count):
        draws[:, i] = memory * draws[:, i - 1] + (1 - memory**2) ** 0.5 * noise[:, i]
    return draws


def draws_of(values, kind="independent"):
    return Draws(values, [f"w[{i}]" for i in range(values.shape[-1])], kind)


def test_worth_is_the_variance_of_a_mean():
    """AR(1): ESS = S (1 - ρ) / (1 + ρ); n distinct draws r times each are worth n; particles have no noise."""
    chain = standard(1, chains=4, count=5000, memory=0.8)
    assert effective_draws(chain, "chains")[0] == pytest.approx(20_000 * 0.2 / 1.8, rel=0.15)
    assert effective_draws(chain, "")[0] == effective_draws(chain, "chains")[0]
    assert effective_draws(chain, "independent")[0] == 20_000
    assert effective_draws(np.repeat(chain[:, :50], 4, 1), "independent")[0] == 200
    assert effective_draws(chain, "particles")[0] == np.inf
    assert effective_draws(np.zeros((3, 100, 1)), "chains")[0] == 3


def test_errors_of_means_and_sds_are_those_of_repeated_draws():
    """400 repetitions of 200 draws: SDs of the moments are known to 4 %."""
    many = standard(400, count=200, seed=1)
    found = moments.moments(draws_of(many))
    assert np.mean(found.mean_error) == pytest.approx(found.mean.std(), rel=0.15)
    assert np.mean(found.log_sd_error) == pytest.approx(np.log(found.sd).std(), rel=0.15)


@pytest.mark.parametrize(
    ("shift", "scale", "said"),
    [
        (0.0, 1.0, []),
        (0.1, 0.9, []),
        (0.0, 1.1, []),
        (0.5, 1.0, [r"the mean of 'w\[0\]' is 0\.[45]\d* ± 0\.0[45] reference SDs off"]),
        (0.0, 0.51, [r"the SD of 'w\[0\]' is 0\.5\d* of the reference's"]),
        (0.0, 1.6, [r"the SD of 'w\[0\]' is 1\.\d* times the reference's"]),
    ],
)
def test_moments_are_doubted_beyond_the_limits(shift, scale, said):
    """Errors of 0.045 SD and 3 %: each within 3 standard errors of its limit's other side."""
    values = standard()
    values[..., 0] = shift + scale * values[..., 0]
    found = moments.gap_warnings(moments.gaps(draws_of(values), draws_of(standard(seed=1))))
    assert len(found) == len(said)
    assert all(any(re.match(pattern, one.text) for one in found) for pattern in said)


def test_noise_is_not_doubted():
    """A chain worth 25 draws is 0.2 SD off by chance; as many parameters as 200 have larger gaps, all by chance."""
    for seed in range(10):
        chain = draws_of(standard(5, chains=4, count=250, memory=0.95, seed=seed), "chains")
        assert moments.gap_warnings(moments.gaps(chain, draws_of(standard(5, seed=99)))) == []
        few = draws_of(standard(200, count=100, seed=seed))
        assert moments.gap_warnings(moments.gaps(few, draws_of(standard(200, seed=99)))) == []


def test_a_reference_is_doubted_for_what_it_cannot_tell():
    def said(values, kind="chains", diverging=0):
        posterior = xr.Dataset({"w": (("chain", "draw", "i"), values)})
        flags = np.arange(values[..., 0].size).reshape(values.shape[:2]) < diverging
        groups = {"posterior": posterior, "sample_stats": xr.Dataset({"diverging": (("chain", "draw"), flags)})}
        return texts(reference_doubts(make_inference_data(groups, {}), Draws(values, ["w[0]", "w[1]"], kind)))

    good, apart = standard(chains=4), standard(chains=4)
    apart[0, :, 1] += 1.5
    assert said(good) == said(standard(), "independent") == []
    assert "its 4 chains disagree: R-hat is" in said(apart)[0]
    assert "'w[1]'" in said(apart)[0]
    assert "worth only" in said(standard(chains=4, count=100, memory=0.9))[0]
    assert said(good, diverging=7) == [
        "as a reference it is doubtful: 7 of its 4000 trajectories diverged. No distances to it are given"
    ]


def distance(values, kind="independent", scores=None):
    """The discrepancy to N(0, I), or to the density whose scores are given."""
    scores = -values if scores is None else scores
    flat, score = (torch.as_tensor(part.reshape(-1, part.shape[-1])) for part in (values, scores))
    return discrepancy(flat, score, blocks(np.concatenate([values, scores], 2), kind))


def test_the_discrepancy_of_a_shift_is_its_closed_form():
    """By Stein's identity S = |δ|² E k(θ, θ'), estimated on the same draws; a limit of one wrong coordinate."""
    values = standard(dim=2) + np.array([0.6, 0.0])
    found = distance(values)
    z = torch.as_tensor((values - values.mean(1))[0] / values.std(1))
    gram = IMQ().gram(z, z)
    alike = float((gram.sum() - COUNT) / (COUNT * (COUNT - 1)))
    assert found.value == pytest.approx(0.36 * alike, rel=0.25)
    assert found.limit == pytest.approx((MATTERS**2 + NEGLIGIBLE**2) * alike, rel=0.02)
    assert found.farthest == 0


@pytest.mark.parametrize("dim", [1, 2, 10])
def test_draws_of_the_posterior_and_small_errors_are_not_objected_to(dim):
    assert not distance(standard(dim)).is_wrong
    assert not distance(standard(dim) + 0.05).is_wrong
    assert not distance(standard(dim, chains=4, count=250, memory=0.9), "chains").is_wrong


@pytest.mark.parametrize("dim", [1, 2, 10])
def test_draws_of_other_densities_are(dim):
    unit = np.eye(dim)[0]
    assert distance(standard(dim) + 0.6 * unit).is_wrong
    assert distance(0.3 * standard(dim)).is_wrong
    assert distance(standard(dim, chains=4, count=250, memory=0.5) + 0.8 * unit, "chains").is_wrong


def test_right_moments_of_a_skewed_posterior_are_right():
    """θ = log g of a gamma of shape 5, and the Gaussian with its mean and SD."""
    values = special.digamma(5) + special.polygamma(1, 5) ** 0.5 * standard(1)
    assert not distance(values, scores=5 - np.exp(values)).is_wrong


def test_particles_are_held_against_independent_draws():
    """Quantiles are better than draws; the same too narrow, too few to tell, or far away."""
    quantiles = special.ndtri((np.arange(100) + 0.5) / 100)[None, :, None]
    good = distance(quantiles, "particles")
    assert not good.is_wrong
    assert 0 <= good.value < 0.1 * good.limit
    assert distance(quantiles + 0.6, "particles").is_wrong
    assert distance(0.3 * quantiles, "particles").is_wrong
    assert not distance(special.ndtri((np.arange(8) + 0.5) / 8)[None, :, None], "particles").is_wrong
    far = distance(1e3 + 1e-3 * quantiles, "particles")  # large scores do not raise the bar
    assert far.is_wrong
    assert far.limit == pytest.approx(good.limit, rel=1e-9)


def test_few_independent_draws_object_to_nothing():
    """Four chains that have not moved on: their autocorrelation leaves four draws, which may be anywhere."""
    slow = standard(2, chains=4, count=250, memory=0.9995, seed=3)
    assert not distance(slow, "chains").is_wrong
    assert len(np.unique(blocks(slow, "chains"))) == 4
    assert len(np.unique(blocks(standard(2), "independent"))) == COUNT
    assert blocks(standard(2), "particles") is None


@pytest.mark.parametrize("count", [10, 20])
def test_short_chains_of_independent_draws_are_objected_to(count):
    """Three SDs off. Blocks would leave two chains of ten draws four random signs, by which nothing can be unlikely."""
    values = standard(1, chains=2, count=count, seed=1)
    assert distance(values + 3.0, "chains").is_wrong and not distance(values, "chains").is_wrong


def gaussian(times, share, dim=3, count=COUNT, seed=0, memory=0.0):
    """Draws of prior^times × likelihood, both Gaussian, correlated, the prior with so much of the precision."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(dim, dim))
    likelihood = root @ root.T + 0.3 * np.eye(dim)
    prior = share / (1 - share) * np.trace(likelihood) / dim * np.eye(dim)
    peak = np.ones(dim)
    covariance = np.linalg.inv(times * prior + likelihood)
    noise = standard(dim, chains=1, count=count, memory=memory, seed=seed + 1)[0]
    z = covariance @ likelihood @ peak + noise @ np.linalg.cholesky(covariance).T
    return prior_count(*(torch.as_tensor(part) for part in (z, -z @ prior, -(z - peak) @ likelihood)))


@pytest.mark.parametrize("times", [0.0, 2.0, 5.0])
def test_an_informative_prior_counted_otherwise_is_flagged(times):
    for seed in range(5):
        found = gaussian(times, share=0.3, seed=seed)
        assert found.is_wrong
        assert found.value == pytest.approx(times, abs=4 * found.error)


def test_a_prior_counted_once_is_not_flagged_and_one_that_says_little_has_a_large_error():
    for seed in range(10):
        assert not gaussian(1.0, share=0.3, seed=seed).is_wrong
        assert not gaussian(1.0, share=0.003, seed=seed).is_wrong
        assert not gaussian(1.0, share=0.3, seed=seed, memory=0.8).is_wrong
    assert gaussian(2.0, share=0.003).error > 0.3


def test_the_error_of_the_count_is_that_of_maximum_likelihood():
    """Fisher's information of a, b known: n (|g|² + |A|²/2) of the prior's score g - A u in whitened coordinates."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(3, 3))
    likelihood = root @ root.T + 0.3 * np.eye(3)
    prior = 0.3 / 0.7 * np.trace(likelihood) / 3 * np.eye(3)
    covariance = np.linalg.inv(prior + likelihood)
    mean, factor = covariance @ likelihood @ np.ones(3), np.linalg.cholesky(covariance)
    slope, pull = factor.T @ prior @ factor, -factor.T @ prior @ mean
    best = (COUNT * (pull @ pull + np.square(slope).sum() / 2)) ** -0.5
    found = []
    for seed in range(60):
        z = mean + standard(3, seed=seed)[0] @ factor.T
        parts = (torch.as_tensor(part) for part in (z, -z @ prior, -(z - 1) @ likelihood))
        found.append(prior_count(*parts))
    values = np.array([one.value for one in found])
    assert np.mean(values) == pytest.approx(1, abs=5 * values.std() / 60**0.5)
    assert np.std(values) == pytest.approx(np.mean([one.error for one in found]), rel=0.3)
    assert best < np.std(values) < 2.0 * best


def test_a_gaussian_at_the_mode_is_not_called_a_prior_that_counts_otherwise():
    """The Laplace approximation of log g, g gamma of shape 3, prior exp(θ - e^θ), is off, and the prior is not why."""
    values = np.log(3) + 3**-0.5 * standard(1)[0]
    score = 3 - np.exp(values)
    found = prior_count(*(torch.as_tensor(part) for part in (values, score / 3, 2 * score / 3)))
    assert not found.is_wrong


def test_loo_says_when_it_cannot_be_relied_on():
    """Log-likelihoods of rows, N(0, s²) over the draws: importance ratios exp(-l) have no mean from s about 1 on."""
    rng = np.random.default_rng(0)

    def of(spread, draws=400, rows=50):
        values = rng.normal(size=(1, draws, rows)) * spread
        groups = {"log_likelihood": xr.Dataset({"y": (("chain", "draw", "row"), values)})}
        return loo(make_inference_data(groups, {}))

    values, said = of(np.full(50, 0.1))
    assert values["bad_pareto_k"] == 0
    assert said == []
    values, said = of(np.where(np.arange(50) < 15, 3.0, 0.1))
    assert 5 < values["bad_pareto_k"] <= 15
    assert f"{values['bad_pareto_k']} of 50 rows have a Pareto k above 0.7" in said[0].text
    assert [one.code for one in said] == ["loo_not_reliable"] and not said[0].is_doubt
    assert "says nothing against the posterior" in said[0].text
    assert of(np.full(50, np.nan))[0] == {}
    assert "(LOO) cannot be computed" in of(np.full(50, np.nan))[1][0].text
    assert of(np.full(50, 0.1), draws=10) == ({}, [])
    values, said = of(np.array([3.0]), rows=1)  # of one row, whose estimate has no standard error
    assert values["elpd_loo_se"] == 0 and [one.code for one in said] == ["loo_not_reliable"]


def test_a_doubtful_reference_condemns_nobody():
    rng = np.random.default_rng(0)

    def result(values):
        return make_inference_data({"posterior": xr.Dataset({"m": (("chain", "draw"), values)})}, {})

    apart = rng.normal(size=(2, 500)) + np.array([[0.0], [50.0]])
    table = compare({"reference": result(apart), "other": result(rng.normal(size=(2, 500)))}, "reference")
    assert "its 2 chains disagree" in table["warnings"]["reference"] and not table["warnings"]["other"]
    assert "mean_error" not in table or bool(table["mean_error"].isna().all())
