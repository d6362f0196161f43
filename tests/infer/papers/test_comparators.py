"""PMD and NPV: closed forms of Gaussian targets, importance sampling by hand, two modes."""

import dataclasses
import warnings
from typing import ClassVar

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from conjugate import NOISE_SD, PRIOR_SD, data, exact, model

import pyro_fed as pf
from pyro_fed.conventions import seeding
from pyro_fed.errors import ModelError, SettingError
from pyro_fed.infer.papers.npv import _log_overlap
from pyro_fed.infer.papers.pmd import Estimate

QUIET = {"progress": False, "log_likelihood": False, "audit": False, "compile": "off"}


def pooled():
    return pf.Federation(model, data(), plate="data", num_clients=1)


def run(algorithm, federation, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # what a short run says of itself
        return pf.run(algorithm, federation, **{**QUIET, **options})


def log_evidence():
    x, y = data()
    covariance = NOISE_SD**2 * torch.eye(len(y), dtype=x.dtype) + PRIOR_SD**2 * x @ x.T
    return float(dist.MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y))


def two_hills(x):
    """A posterior with modes at -3 and 3, three times the mass and half the width at the latter."""
    theta = pyro.sample("theta", dist.Normal(0.0, 100.0))
    with pyro.plate("data", len(x)):
        where = torch.stack([torch.stack([theta + 3, theta - 3])]) / torch.tensor([[1.0, 0.5]])
        hills = -0.5 * where.square() - torch.tensor([[1.0, 0.5]]).log() + torch.tensor([[0.25, 0.75]]).log()
        pyro.factor("hills", hills.logsumexp(-1).expand(len(x)))


# -- NPV ------------------------------------------------------------------------------------------------------------
def test_one_component_is_the_mode_and_the_mean_curvature():
    """L_2 of one component is largest at the mode and σ² = D / tr P."""
    mean, covariance = exact(*data())
    algorithm = pf.papers.NPV(num_components=1, tolerance=1e-9)
    kept = kept_state(algorithm)
    run(kept, pooled())
    state = kept.states[-1]
    np.testing.assert_allclose(state["means"][0], mean, atol=1e-7)
    variance = len(mean) / float(torch.linalg.inv(covariance).trace())
    assert float(state["log_variances"][0].exp()) == pytest.approx(variance, rel=1e-6)


def kept_state(algorithm):
    """The algorithm, which keeps the states that it draws from."""

    class Kept(type(algorithm)):
        states: ClassVar[list] = []

        def sample(self, shared, num_draws, generator):
            self.states.append(shared)
            return super().sample(shared, num_draws, generator)

    return Kept(**{field.name: getattr(algorithm, field.name) for field in dataclasses.fields(algorithm)})


def test_more_components_come_nearer_to_the_evidence_and_stay_below():
    """f is quadratic, so that L_2 bounds the evidence."""
    bounds = [
        float(
            run(pf.papers.NPV(num_components=n), pooled(), seed=1, num_rounds=5)["federation"]["bound"].values[-1].max()
        )
        for n in (1, 3, 8)
    ]
    assert bounds[0] < bounds[1] < bounds[2] < log_evidence()


def test_two_modes_have_their_widths():
    federation = pf.Federation(two_hills, (torch.zeros(1),), plate="data", num_clients=1)
    algorithm = kept_state(pf.papers.NPV(num_components=2, tolerance=1e-8))
    algorithm_start = torch.tensor([[-2.0], [2.0]])
    type(algorithm).init = lambda self, *_: ({"means": algorithm_start, "log_variances": torch.full((2,), -2.0)}, {})
    run(algorithm, federation)
    state = algorithm.states[-1]
    np.testing.assert_allclose(state["means"][:, 0], [-3.0, 3.0], atol=1e-3)
    np.testing.assert_allclose((state["log_variances"] / 2).exp(), [1.0, 0.5], rtol=1e-2)


def test_a_component_s_density_is_the_mixture_with_both_variances():
    """log q_n = log 1/N Σ_j N(μ_n | μ_j, (σ_n² + σ_j²) I), of near components of unequal widths."""
    means = torch.tensor([[0.0, 0.3], [0.5, -0.2], [-0.4, 0.9]], dtype=torch.float64)
    sd = torch.tensor([0.3, 1.0, 2.0], dtype=torch.float64)
    expected = []
    for mean, own in zip(means, sd, strict=True):
        terms = [dist.Normal(m, (own**2 + s**2).sqrt()).log_prob(mean).sum() for m, s in zip(means, sd, strict=True)]
        expected.append(torch.stack(terms).logsumexp(0) - np.log(3))
    torch.testing.assert_close(_log_overlap(means, 2 * sd.log()), torch.stack(expected))


# -- PMD ------------------------------------------------------------------------------------------------------------
def test_the_first_whole_step_is_importance_sampling_from_the_prior():
    algorithm = kept_state(pf.papers.PMD(num_particles=300, local_steps=1, min_effective=None))
    federation = pooled()
    run(algorithm, federation, num_rounds=1, seed=5)
    start = algorithm.init(federation.problem, 1, seeding.torch_generator(5, seeding.SERVER, 0), None)[0]["particles"]
    weights = torch.softmax(federation.problem.log_lik(start), 0)
    np.testing.assert_allclose(algorithm.states[-1]["log_weights"].exp(), weights, atol=1e-12)


def test_a_step_is_mirror_descent_on_the_estimate():
    """The second step: weights exp(-γ g) with q the mixture that the first left, written out with densities of Pyro."""
    made = [kept_state(pf.papers.PMD(num_particles=40, local_steps=n, bandwidth=0.3, step_size=0.4)) for n in (1, 2)]
    federation = pooled()
    for algorithm in made:
        run(algorithm, federation, num_rounds=1, seed=5)
    one, two = (algorithm.states[-1] for algorithm in made)
    kernels = dist.MultivariateNormal(one["particles"], covariance_matrix=0.09 * torch.eye(3, dtype=torch.float64))
    q = dist.MixtureSameFamily(dist.Categorical(logits=one["log_weights"]), kernels)
    at, problem = two["particles"], federation.problem
    gain = problem.log_prior(at) + problem.log_lik(at) - q.log_prob(at)
    ratio = two["log_weights"][1:] - two["log_weights"][:-1]
    gamma = float((ratio / gain.diff())[0])
    assert 0 < gamma <= 0.4
    np.testing.assert_allclose(ratio, gamma * gain.diff(), rtol=1e-8)
    assert float(1 / two["log_weights"].exp().square().sum()) >= 0.3 * 40 - 1e-6


def test_draws_of_the_estimate_have_the_kernels_covariance():
    root = torch.tensor([[1.0, 0.0], [2.0, 0.5]], dtype=torch.float64)
    estimate = Estimate(
        torch.tensor([[3.0, 4.0], [5.0, 6.0]], dtype=torch.float64), torch.tensor([0.25, 0.75]).log(), root
    )
    found = estimate.draws(torch.tensor([0.2, 0.3]), torch.eye(2, dtype=torch.float64))
    np.testing.assert_allclose(found, [[4.0, 6.0], [5.0, 6.5]])  # L e_1 = (1, 2), L e_2 = (0, 0.5)


def test_by_default_it_ends_at_the_posterior():
    """500 particles worth at least 150: errors of 0.08 SD in a mean and of 6 % in an SD, bounds of 3.5 of them."""
    mean, covariance = exact(*data())
    idata = run(pf.papers.PMD(), pooled(), num_draws=4000)
    draws, sd = idata.posterior["w"].values[0], covariance.diagonal().sqrt().numpy()
    assert np.abs((draws.mean(0) - mean.numpy()) / sd).max() < 0.28
    np.testing.assert_allclose(draws.std(0), sd, rtol=0.2)


def test_an_improper_prior_is_refused():
    def flat(y):
        mu = pyro.sample("mu", dist.ImproperUniform(dist.constraints.real, (), ()))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    with pytest.raises(ModelError, match=r"PMD: its particles start as draws of the prior.*sites \['mu'\]"):
        pf.run(pf.papers.PMD(), pf.Federation(flat, (torch.ones(4),), plate="data", num_clients=1), **QUIET)


@pytest.mark.parametrize(
    "settings", [{"num_particles": 1}, {"step_size": 1.5}, {"min_effective": 1.0}, {"bandwidth": 0}]
)
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(SettingError):
        pf.papers.PMD(**settings)
