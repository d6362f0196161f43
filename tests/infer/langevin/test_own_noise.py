"""What the noise that FALD's clients have of their own does to their average, against quadrature."""

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.density.traits import Traits
from pyro_fed.errors import SettingError
from pyro_fed.infer.surrogates.measuring import OwnNoise, longest_parallel_visit, noise_time

QUIET = {"progress": False, "log_likelihood": False, "audit": False, "compile": "off"}
pytestmark = pytest.mark.filterwarnings("ignore:only", "ignore:the .* chains disagree", "ignore:no draw")
PRIOR_VARIANCE = 9.0


def poisson(exposure, y):
    t = pyro.sample("t", dist.Normal(exposure.new_zeros(()), PRIOR_VARIANCE**0.5))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Poisson((t + exposure.log()).exp()), obs=y)


def case(number, one_informative):
    """Exposures and counts of clients with a row each: all alike, or one that has nearly all that is known."""
    if one_informative:
        exposure = torch.full((number,), 0.02, dtype=torch.float64)
        exposure[0], y = 2.0, torch.zeros(number, dtype=torch.float64)
        y[0] = 4.0
    else:
        exposure = torch.full((number,), 2.0 / number, dtype=torch.float64)
        y = torch.zeros(number, dtype=torch.float64)
        y[:4] += 4 / min(number, 4)
    return exposure + 1e-6 * torch.arange(number), y.round()


def surrogates(exposure, y):
    """Gaussians of the expected curvature under their own product, as FedEP has them; mean and variance of that."""
    mean, variance = 0.0, 1.0
    for _ in range(300):
        rate = exposure * math.exp(mean + variance / 2)
        eta = y - rate + rate * mean
        total = float(1 / PRIOR_VARIANCE + rate.sum())
        mean, variance = 0.5 * mean + 0.5 * float(eta.sum()) / total, 0.5 * variance + 0.5 / total
    return pf.infer.Given(rate[:, None, None], eta[:, None]), mean, variance


def federation(exposure, y):
    clients = [(e[None], n[None]) for e, n in zip(exposure, y, strict=True)]
    return pf.Federation.from_clients(poisson, clients, plate="data")


def posterior(exposure, y):
    """Mean and SD by quadrature."""
    grid = torch.linspace(-12, 8, 20_001, dtype=torch.float64)
    density = -(grid**2) / (2 * PRIOR_VARIANCE) + y.sum() * grid - exposure.sum() * grid.exp()
    weight = (density - density.max()).exp() / (density - density.max()).exp().sum()
    mean = (weight * grid).sum()
    return float(mean), float((weight * (grid - mean) ** 2).sum().sqrt())


def measured(number, one_informative=True):
    """The server's state after the round that measures, and the surrogates' moments."""
    exposure, y = case(number, one_informative)
    given, mean, variance = surrogates(exposure, y)
    kept = {}

    def combine(self, *args):
        kept.update(OwnNoise.combine(self, *args))
        return kept

    noted = type("Noted", (OwnNoise,), {"combine": combine})
    pf.run(noted(surrogates=given), federation(exposure, y), **QUIET)
    return kept, exposure, mean, variance


@pytest.mark.parametrize(("number", "one_informative"), [(1, True), (2, False), (10, True), (30, False)])
def test_what_is_measured_is_the_score_s_curvature_under_the_surrogates(number, one_informative):
    """Under N(m, v) the curvature of Σ_k -e_k exp(t) has the mean -r, r = Σ_k e_k exp(m + v/2), and -r √v with t - m.

    Shift and widening are (K - 1)/2 v^(3/2) and (K - 1)/2 v² times that: within 2 %, by 128 points and a difference.
    """
    kept, exposure, mean, variance = measured(number, one_informative)
    curvature = -float(exposure.sum()) * math.exp(mean + variance / 2)
    expected = (number - 1) / 2 * variance**1.5 * curvature
    assert float(kept["shift"]) == pytest.approx(expected, rel=0.02, abs=1e-12)
    assert float(kept["widening"]) == pytest.approx(expected * variance**0.5, rel=0.02, abs=1e-12)


def test_scores_that_are_linear_are_not_moved():
    def gaussian(x):
        mu = pyro.sample("mu", dist.Normal(x.new_zeros(()), 2.0))
        with pyro.plate("data", len(x)):
            pyro.sample("x", dist.Normal(mu, 1.0), obs=x)

    x = torch.arange(12, dtype=torch.float64)
    fed = pf.Federation(gaussian, (x,), plate="data", num_clients=6)
    idata = pf.run(pf.infer.FALD(num_chains=1, burn_in=0, target_ess=None), fed, num_rounds=2, **QUIET)
    assert idata["sample_stats"]["step_size"].values == pytest.approx(0.2 / 5)


def derived_visit(exposure, y, **settings):
    """h T that FALD derives."""
    sampler = pf.infer.FALD(num_chains=1, burn_in=0, target_ess=None, **settings)
    idata = pf.run(sampler, federation(exposure, y), num_rounds=2, **QUIET)
    return sampler.local_steps * float(idata["sample_stats"]["step_size"].values[0, -1])


def moments_of_the_chain(exposure, y, visit, chains, steps=5):
    """Mean and SD of the recursion in the header of `langevin.fald`, with the midpoint rule, and no bound.

    12 relaxation times after 8 of burn-in: about six effective draws a chain. In single precision, which is drawn and
    exponentiated in half the time.
    """
    given, mean, variance = surrogates(exposure, y)
    precision, eta = given.precision[:, 0, 0], given.eta[:, 0]
    number, h = len(y), visit / steps
    rng = np.random.default_rng(0)
    at = mean + np.float32(variance**0.5) * rng.standard_normal((chains, 1), dtype=np.float32)
    pull, slope = (eta.sum() - number * eta).float().numpy(), (precision.sum() - number * precision).float().numpy()
    exposure, y, kept = exposure.float().numpy(), y.float().numpy(), []
    for round_ in range(int(40 / visit)):
        own = np.repeat(at, number, 1)
        for _ in range(steps):
            noise = np.float32((h * number * variance) ** 0.5) * rng.standard_normal(own.shape, dtype=np.float32)
            where = own + noise / 2
            score = -where / PRIOR_VARIANCE + number * (y - exposure * np.exp(where)) + pull - slope * where
            own = own + h / 2 * variance * score + noise
        at = own.mean(1, keepdims=True)
        if round_ * visit >= 16:
            kept.append(where.mean(1))
    return float(np.mean(kept, dtype=float)), float(np.std(kept, dtype=float))


@pytest.mark.parametrize(
    ("number", "one_informative", "chains"),
    [(2, False, 4000), (5, True, 3000), (10, False, 1500), (10, True, 1500), (30, False, 200), (30, True, 200)],
)
def test_visits_are_so_short_that_the_average_is_the_posterior_s(number, one_informative, chains):
    """Within the 0.03 that is asked for, and four standard errors of 6 effective draws a chain."""
    exposure, y = case(number, one_informative)
    mean, sd = posterior(exposure, y)
    visit = derived_visit(exposure, y, surrogates=surrogates(exposure, y)[0])
    found_mean, found_sd = moments_of_the_chain(exposure, y, visit, chains)
    error = (6 * chains) ** -0.5
    assert abs(found_mean - mean) / sd < 0.03 + 4 * error
    assert abs(math.log(found_sd / sd)) < 0.015 + 4 * error


def test_a_visit_of_the_largest_length_is_biased_where_clients_are_many():
    """What the bound is for: ten clients of which one has the data, 0.15 SDs and more at h T = 0.2."""
    exposure, y = case(10, one_informative=True)
    mean, sd = posterior(exposure, y)
    assert (moments_of_the_chain(exposure, y, 0.2, 4000)[0] - mean) / sd < -0.15
    assert derived_visit(exposure, y, surrogates=surrogates(exposure, y)[0]) < 0.04


def test_one_step_without_the_midpoint_has_no_noise_before_its_score():
    exposure, y = case(10, one_informative=True)
    given = surrogates(exposure, y)[0]
    settings = {"surrogates": given, "local_steps": 1, "thin": 1, "step": pf.infer.step.Measured(midpoint=False)}
    assert derived_visit(exposure, y, **settings) == pytest.approx(0.2)
    assert noise_time(1, midpoint=False) == 0
    assert noise_time(1, midpoint=True) == 0.25
    assert noise_time(5, midpoint=True) == pytest.approx(np.mean(np.arange(5) + 0.25) / 5)


def test_the_longest_visit_keeps_the_larger_of_both():
    known = {"shift": torch.tensor([0.1, -0.4]), "widening": torch.tensor([2.0, 0.0])}
    assert longest_parallel_visit(0.03, known, 1, True, 1.0) == pytest.approx(0.03 / (2.0 * 0.25))
    assert longest_parallel_visit(0.03, known, 1, True, 0.01) == 0.01


STEPS = [pf.infer.step.Measured(), pf.infer.step.Measured(visit_error=0.01), pf.infer.step.ForVisits()]


@pytest.mark.parametrize("step", STEPS, ids=repr)
def test_a_large_model_is_not_measured_and_says_so(step, monkeypatch):
    """Also where a bound is given, as in the recipe; any model is run so by `pf.infer.step.ForVisits`."""
    if isinstance(step, pf.infer.step.Measured):
        monkeypatch.setattr(Traits, "large", lambda *sizes: True)
    exposure, y = case(4, one_informative=False)
    given = surrogates(exposure, y)[0]
    with pytest.warns(UserWarning, match="own noise moves their average is not measured on a model of 1 parameters"):
        assert derived_visit(exposure, y, surrogates=given, step=step) == pytest.approx(0.2)


def test_it_is_explained_that_a_large_model_is_not_measured(monkeypatch):
    fed = federation(*case(4, one_informative=False))
    assert ("step", pf.infer.step.Measured()) in choices(fed)
    monkeypatch.setattr(Traits, "large", lambda *sizes: True)
    assert ("step", pf.infer.step.ForVisits()) in choices(fed)
    assert "the clients' own noise is not measured on a large model (1 parameter)" in str(
        pf.explain(pf.infer.FALD(), fed)
    )
    assert ("step", pf.infer.step.Fixed(size=0.1)) in choices(
        fed, step=pf.infer.step.Fixed(size=0.1)
    )  # nothing is derived


def choices(fed, **settings):
    """FALD's settings that the policy looks at, with their values."""
    table = pf.explain(pf.infer.FALD(**settings), fed).table
    return list(table[table["algorithm"] == "FALD"][["setting", "value"]].itertuples(index=False, name=None))


@pytest.mark.filterwarnings("default:only", "default:.*disagree")
def test_chains_that_are_too_short_by_it_are_told_the_cure():
    exposure, y = case(10, one_informative=True)
    sampler = pf.infer.FALD(burn_in=0, surrogates=surrogates(exposure, y)[0])
    with pytest.warns(UserWarning, match="Visits last 0.031 in place of step.visit_time=0.2, .*local_steps=1 with"):
        pf.run(sampler, federation(exposure, y), num_rounds=20, **QUIET)


def test_a_bound_beside_a_given_step_is_refused():
    with pytest.raises(SettingError, match="Fixed has no setting 'visit_error'"):
        pf.infer.step.Fixed(size=0.1, visit_error=0.1)
