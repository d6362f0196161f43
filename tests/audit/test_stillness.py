"""Draws of a posterior hold still, and others are told how they are wrong; posteriors have known means and SDs."""

import math
import re
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.audit.moment_findings import (
    aim_error,
    missed_aim_findings,
    own_aim_findings,
    possibly_wrong_findings,
    sd_at_limit_findings,
    wrong_moment_findings,
)
from pyro_fed.audit.weighted_points import WeightedPoints
from pyro_fed.conventions.limits import Limits
from tests.helpers.evidence import evidence_of

CORRELATION = 0.9
DIM = 3


def conjugate(y):
    """With two rows of ones the posterior of a is N(2/3, 1/3)."""
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(a, 1.0), obs=y)


def correlated(y):
    """The rows say nothing: the posterior is the prior, of `DIM` correlated parameters."""
    b = pyro.sample("b", dist.MultivariateNormal(torch.zeros(DIM, dtype=y.dtype), shares(DIM)))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(0.0 * b.sum(), 1.0), obs=y)


def long_tailed(y):
    """Student's t with 5 degrees of freedom: an SD of sqrt(5/3)."""
    a = pyro.sample("a", dist.StudentT(y.new_tensor(5.0), 0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(0.0 * a, 1.0), obs=y)


def positive(y):
    """A gamma distribution, which on the logarithm is not Gaussian: mean 4, SD 2."""
    s = pyro.sample("s", dist.Gamma(y.new_tensor(4.0), 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(0.0 * s, 1.0), obs=y)


def funnel(y):
    """Neal's: the width of x is exp(v / 2)."""
    v = pyro.sample("v", dist.Normal(y.new_tensor(0.0), 3.0))
    x = pyro.sample("x", dist.Normal(y.new_zeros(4), (v / 2).exp()).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(0.0 * x.sum(), 1.0), obs=y)


def shares(dim):
    return torch.full((dim, dim), CORRELATION, dtype=torch.float64).fill_diagonal_(1.0)


def ones():
    return (torch.ones(2, dtype=torch.float64),)


def normal(count=1000, dim=1, seed=0):
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(
    ("shift", "width", "said"),
    [
        (0.0, 1.0, None),
        (0.15, 1.0, None),
        (0.0, 0.9, None),
        (0.4, 1.0, r"the mean of 'a' by 0\.(3[5-9]|4[0-5])"),
        (0.0, 0.7, r"the SD of 'a' by 1\.[3-6]\d ± 0\.0\d"),
        (0.0, 1.5, r"the SD of 'a' by 0\.6\d ± 0\.0\d"),
        (10.0, 1.0, "the mean of 'a' by more than 3 SDs"),
        (0.0, 0.1, "the SD of 'a' by more than 3"),
        (0.0, 20.0, r"the SD of 'a' by (less than a third|0\.[34]\d ± 0\.1\d)"),
    ],
)
@pytest.mark.parametrize("count", [40, 1000])
def test_an_answer_is_told_how_it_is_wrong(shift, width, said, count):
    """At quantiles, so that no chance is in the draws."""
    u = dist.Normal(0.0, 1.0).icdf((torch.arange(count, dtype=torch.float64) + 0.5) / count)
    draws = 2 / 3 + (u / u.std() * width + shift) * math.sqrt(1 / 3)
    found = wrong_moment_findings(evidence_of(conjugate, ones(), draws[:, None], pf.DSVGD()))
    assert len(found) == (said is not None)
    assert all(re.search(said, note.text) for note in found)


@pytest.mark.parametrize("seed", range(3))
def test_right_draws_are_not_doubted(seed):
    right = normal(dim=DIM, seed=seed) @ torch.linalg.cholesky(shares(DIM)).T
    assert wrong_moment_findings(evidence_of(correlated, ones(), right, seed=seed)) == []
    gamma = normal(dim=8, seed=seed).square().sum(1, keepdim=True) / 2
    assert wrong_moment_findings(evidence_of(positive, ones(), gamma.log(), seed=seed)) == []
    tails = normal(seed=seed) / normal(dim=5, seed=seed + 10).square().mean(1, keepdim=True).sqrt()
    assert wrong_moment_findings(evidence_of(long_tailed, ones(), tails, seed=seed)) == []


def test_lost_correlations_are_found_and_a_full_covariance_is_advised():
    """Of the best diagonal Gaussian each SD is that of a parameter given the others."""
    precision = shares(DIM).inverse().diagonal()
    evidence = evidence_of(correlated, ones(), normal(dim=DIM) / precision.sqrt())
    (said,) = wrong_moment_findings(evidence)
    assert re.search(r"the SD of 'b\[\d\]' by", said.text) and "covariance='full'" not in said.text
    evidence.shared.update(precision=precision, eta=torch.zeros(DIM))
    assert "covariance='full'" in wrong_moment_findings(evidence)[0].text


def test_tails_that_a_gaussian_lacks_are_found():
    """Importance ratios of the Gaussian's own draws do not see them."""
    (said,) = wrong_moment_findings(evidence_of(long_tailed, ones(), 0.55 * math.sqrt(5 / 3) * normal()))
    assert "the SD of 'a' by 1." in said.text


def test_a_site_is_judged_on_its_own_scale_too():
    """A log-normal with the moments of log s has 1.1 times the SD of s; with 1.2 times the SD of log s, 1.5 times."""
    four = torch.tensor(4.0, dtype=torch.float64)
    mean, sd = torch.special.digamma(four), torch.special.polygamma(1, four).sqrt()
    assert wrong_moment_findings(evidence_of(positive, ones(), mean + sd * normal(4000))) == []
    (said,) = wrong_moment_findings(evidence_of(positive, ones(), mean + 1.2 * sd * normal(4000)))
    assert "the SD of 's' by 0." in said.text


def test_draws_in_a_funnel_of_another_width_are_doubted():
    (said,) = wrong_moment_findings(evidence_of(funnel, ones(), torch.cat([-12 + normal(), normal(dim=4, seed=1)], 1)))
    assert "not the posterior's" in said.text


@pytest.mark.parametrize("seed", range(2))
def test_the_neck_of_a_funnel_is_entered(seed):
    """Draws of Neal's funnel hold still; those of its wide half alone, which no centred chain leaves, do not."""
    v = 3 * normal(4000, seed=seed)
    x = (v / 2).exp() * normal(4000, dim=4, seed=seed + 50)
    right = torch.cat([v, x], 1)
    assert wrong_moment_findings(evidence_of(funnel, ones(), right, seed=seed)) == []
    (said,) = wrong_moment_findings(evidence_of(funnel, ones(), right[v[:, 0] > 1.0], seed=seed))
    assert "'v'" in said.text and "LocScaleReparam" in said.text


def rows_with_effects(y):
    """An effect a row, whose scale is latent: chains on pooled data have all of them in the flat vector."""
    tau = pyro.sample("tau", dist.HalfNormal(y.new_ones(())))
    with pyro.plate("data", len(y)):
        x = pyro.sample("x", dist.Normal(y.new_zeros(()), tau))
        pyro.sample("y", dist.Normal(x, 1.0), obs=y)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of few draws
def test_effects_of_rows_are_audited_where_the_result_has_them():
    fed = pf.Federation(rows_with_effects, (normal(6)[:, 0],), plate="data", num_clients=2)
    found = pf.run(pf.NUTS(num_samples=60, warmup_steps=60, num_chains=1), fed, progress=False)
    assert {"tau", "tau (unconstrained)", "x[0]"} <= set(found["audit"]["parameter"].values)


def test_a_likelihood_to_a_power_is_judged_as_that():
    """With temperature 2 the two rows count as one: N(1/2, 1/2)."""
    draws = 0.5 + math.sqrt(0.5) * normal()
    assert wrong_moment_findings(evidence_of(conjugate, ones(), draws, pf.DSVGD(temperature=2.0))) == []
    assert len(wrong_moment_findings(evidence_of(conjugate, ones(), draws, pf.DSVGD()))) == 1


def test_draws_that_are_no_numbers_and_points_are_not_judged():
    assert wrong_moment_findings(evidence_of(conjugate, ones(), normal() * torch.nan)) == []
    assert wrong_moment_findings(evidence_of(conjugate, ones(), normal(), pf.FedAvg())) == []


def many_means(group, y):
    """Neyman & Scott (1948): with r rows a group the mode of log s is log(r / (r - 1)) / 2 too low."""
    s = pyro.sample("s", dist.LogNormal(0.0, 3.0))
    m = pyro.sample("m", dist.Normal(0.0, 100.0).expand([10]).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(m[group], s), obs=y)


def test_a_mode_that_is_off_is_said_by_the_run_and_the_expected_newton_step_is_not():
    group = torch.arange(10).repeat_interleave(8)
    fed = pf.Federation(many_means, (group, group + normal(80)[:, 0]), plate="data", num_clients=3)
    with pytest.warns(UserWarning, match="the mean of 's.*FedEP matches moments"):
        found = pf.run(pf.FedLaplace(), fed, progress=False)
    assert "the mean of 's" in pf.compare({"mode": found})["warnings"]["mode"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        judged = pf.run(pf.FedEP(), fed, progress=False)
    alone = pf.run(pf.FedEP(), fed, progress=False, audit=False)
    assert (judged.posterior["s"].values == alone.posterior["s"].values).all()


@pytest.mark.parametrize(
    ("ratio", "error", "off", "perhaps"),
    [
        (1.05, 0.02, 0.0, False),  # within the aim
        (1.09, 0.02, 1.10, False),  # within it, but not surely
        (1.12, 0.02, 1.38, False),  # off it, and surely within the limits
        (1.22, 0.03, 2.34, True),  # plainly off, and the limit, 1.25, is within chance
        (1.15, 0.15, 0.0, False),  # chance may be all of it
    ],
)
def test_an_estimate_beyond_a_finer_aim_is_told_from_one_that_may_be_wrong(ratio, error, off, perhaps):
    ratios = {"sd_ratio": np.array([1.0, ratio]), "sd_ratio_se": np.array([0.01, error])}
    found = {"parameter": np.array(["a", "b"]), "mean_error": np.zeros(2), "mean_error_se": np.full(2, 0.01)} | ratios
    aim = Limits(0.1, 1.1)
    assert aim_error(found, aim) == pytest.approx(off, abs=0.01)
    assert bool(possibly_wrong_findings(found, aim)) == perhaps
    said = missed_aim_findings(found, aim)
    assert [f"'b', its SD is {1 / ratio:.2f} times" in one.text for one in said] == [True] * bool(off)


@pytest.mark.parametrize(("errors", "missed"), [((0.08, 0.09), False), ((0.08, 0.15), True), ((0.14, 0.0), True)])
def test_an_algorithm_s_own_errors_beyond_an_aim_are_said(errors, missed):
    said = [one.text for one in own_aim_findings(errors, Limits(0.1, 1.1))]
    assert [f"{errors[0]:.2f} SDs off, and an SD {100 * errors[1]:.0f} %" in one for one in said] == [True] * missed


def test_points_that_an_earlier_stage_has_found_judge_draws_around_which_there_are_none(monkeypatch):
    sd, ones = 3**-0.5, (torch.ones(2, dtype=torch.float64),)
    normal = torch.randn(1000, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    right = evidence_of(conjugate, ones, 2 / 3 + sd * normal)
    narrow, alone = (evidence_of(conjugate, ones, 2 / 3 + 0.86 * sd * normal) for _ in range(2))
    assert right.by_weights is not None
    monkeypatch.setattr("pyro_fed.audit.evidence.sample_weighted_points", lambda *_: None)
    narrow.record.posterior_points = right.record.posterior_points
    assert alone.by_weights is None
    assert float(narrow.by_weights.log_sd.exp()) == pytest.approx(1 / 0.86 / float(normal.std()), abs=0.05)


@pytest.mark.parametrize("few", [None, SimpleNamespace()])
def test_points_by_few_rows_are_not_left_to_later_stages(few):
    """The density by few rows is right around the draws that it was chosen at, and later draws may lie elsewhere."""
    draws = torch.linspace(-1, 1, 50, dtype=torch.float64)[:, None]
    one = evidence_of(conjugate, (torch.ones(2, dtype=torch.float64),), draws)
    own = WeightedPoints(torch.full((50,), 0.02, dtype=torch.float64), draws)
    vars(one).update(few_rows_target=replace(one.target, few=few), _own_weighted_points=own)
    assert one.weighted_points is own
    assert len(one.record.posterior_points) == (few is None)


@pytest.mark.parametrize(
    ("ratio", "error", "doubted"),
    [
        (1.248, 0.014, True),  # beyond the limit, 1.25, with a chance of nearly one half
        (1.22, 0.014, False),  # surely within it: a note
        (1.22, 0.04, True),
        (1.15, 0.15, False),  # chance may be all of it
        (1 / 1.248, 0.014, False),  # intervals too wide are no such matter
    ],
)
def test_an_sd_too_small_by_the_limit_to_within_chance_is_doubted(monkeypatch, ratio, error, doubted):
    monkeypatch.setattr("pyro_fed.audit.moment_findings.cure", lambda evidence: "Weight them")
    ratios = {"sd_ratio": np.array([1.0, ratio]), "sd_ratio_se": np.array([0.01, error])}
    found = {"parameter": np.array(["a", "b"]), "mean_error": np.zeros(2), "mean_error_se": np.full(2, 0.01)} | ratios
    said = sd_at_limit_findings(SimpleNamespace(moment_figures=found))
    assert [f"'b', its SD is {1 / ratio:.2f} times" in one.text for one in said] == [True] * doubted
    assert sd_at_limit_findings(SimpleNamespace(moment_figures={})) == []


def test_of_nothing_measured_nothing_is_off():
    assert aim_error({}, Limits(0.1, 1.1)) == 0.0 and not possibly_wrong_findings({}, Limits(0.1, 1.1))
