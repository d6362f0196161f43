"""Consensus Monte Carlo against exact posteriors and products of densities in closed form."""

import contextlib
import math
import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from algorithms import line, line_data

import pyro_fed as pf
from pyro_fed.density.forms import necks_of_rows
from pyro_fed.infer.subposteriors import consensus_mc


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def factors(count, apart=1.0):
    """Draws (K, S, D) of three Gaussians, and the mean and covariance of their product."""
    means = apart * torch.tensor([[0.0, 1.0], [2.0, -1.0], [1.0, 0.5]], dtype=torch.float64)
    roots = torch.tensor([[[1.0, 0.0], [0.8, 0.6]], [[0.5, 0.0], [0.0, 2.0]], [[1.5, 0.0], [-1.0, 0.7]]]).double()
    precisions = torch.linalg.inv(roots @ roots.mT)
    covariance = torch.linalg.inv(precisions.sum(0))
    mean = covariance @ (precisions @ means[..., None]).sum(0)[:, 0]
    draws = means[:, None] + torch.einsum("kde,kse->ksd", roots, normal(3, count, 2))
    return draws, mean, covariance


@pytest.mark.parametrize("rule", ["weighted", "gaussian", "nonparametric"])
def test_the_product_of_gaussians(rule):
    """Beyond five standard errors of 4,000 independent draws once in 10^6; a walk's draws are worth a tenth of that.

    Estimates of densities know little of their tails: for them the factors are nearer to each other.
    """
    draws, mean, covariance = factors(4000, apart=0.25 if rule == "nonparametric" else 1.0)
    generator = torch.Generator().manual_seed(1)
    found = {
        "weighted": lambda: consensus_mc.average_draws(draws),
        "gaussian": lambda: consensus_mc.draw_gaussian_product(draws, generator),
        "nonparametric": lambda: consensus_mc.draw_density_product(draws, generator),
    }[rule]()
    sd = covariance.diagonal().sqrt()
    count = 400 if rule == "nonparametric" else 4000
    assert float(((found.mean(0) - mean) / sd).abs().max()) < 5 / math.sqrt(count)
    # The density estimates are wider than the densities, by the mean of h² = i^(-1/3): 1.046 in the SD.
    wider = 1.046 if rule == "nonparametric" else 1.0
    assert float((found.std(0) / sd / wider).log().abs().max()) < 5 / math.sqrt(2 * count)


def test_draws_of_one_factor_are_its_own():
    draws = normal(1, 50, 3)
    torch.testing.assert_close(consensus_mc.average_draws(draws), draws[0])


def test_a_product_that_is_no_gaussian_is_followed_by_density_estimates_alone():
    """Two factors with two modes each, of which one is common: the product has one, the average three."""
    sign = torch.where(normal(2, 3000, 1, seed=4) > 0, 1.0, -1.0).double()
    draws = torch.stack([4 * sign[0], 4 * sign[1].clamp(min=0) - 12 * (sign[1] < 0)]) + 0.5 * normal(2, 3000, 1, seed=5)
    exact_mean = 4.0
    walked = consensus_mc.draw_density_product(draws, torch.Generator().manual_seed(0))[1000:]
    averaged = consensus_mc.average_draws(draws)
    # The kernels are as wide as h times a factor's SD: the walk's mode is wider than the product's own, 0.35.
    assert abs(float(walked.mean()) - exact_mean) < 0.5 < 3 < abs(float(averaged.mean()) - exact_mean)
    assert float(walked.std()) < 1.5 < 3 < float(averaged.std())


@pytest.mark.parametrize("sorted_rows", [False, True])
def test_a_conjugate_posterior_is_exact_whoever_holds_which_rows(sorted_rows, monkeypatch):
    """Errors in Monte Carlo SDs: beyond 5 by chance in four numbers once in 400,000 runs, were ESS what ArviZ says."""
    import arviz as az

    seen = []
    monkeypatch.setattr(consensus_mc, "_place_watcher", lambda problem, clients: seen.append)
    x, y = line_data()
    partition = pf.partition.SortedBy(y) if sorted_rows else pf.partition.IID()
    fed = pf.Federation(line, (x, y), plate="data", num_clients=3, partition=partition)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the chains have not mixed")  # R-hat of 1.01 asks for longer chains
        found = pf.run(pf.infer.ConsensusMC(num_samples=100, warmup_steps=100), fed, progress=False, audit=False)
    assert len(seen) >= 200 and seen[0].shape == (6, 2)  # two chains of each client, after each step
    precision = x.T @ x + torch.eye(2, dtype=x.dtype)
    covariance = torch.linalg.inv(precision)
    mean, sd = (covariance @ x.T @ y).numpy(), covariance.diagonal().sqrt().numpy()
    w = found.posterior["w"].values
    assert w.shape == (2, 100, 2)
    assert abs((w.mean((0, 1)) - mean) / az.mcse({"w": w})["w"].values).max() < 5
    assert abs((w.std((0, 1)) - sd) / az.mcse({"w": w}, method="sd")["w"].values).max() < 5
    assert found.attrs["num_rounds"] == 1


def schools(y):
    """A level a school, whose scale is half of a latent; what a school measures has an SD of one."""
    mu = pyro.sample("mu", dist.Normal(y.new_zeros(()), 1.0))
    tau = pyro.sample("tau", dist.HalfNormal(y.new_ones(())))
    with pyro.plate("school", len(y)):
        level = pyro.sample("level", dist.Normal(mu, 0.5 * tau))
        pyro.sample("y", dist.Normal(level, 1.0), obs=y)


@pytest.fixture(scope="module")
def eight_schools():
    return pf.Federation(schools, (normal(8, seed=1).float(),), plate="school", num_clients=8)


def test_groups_that_do_not_tell_the_scale_of_their_levels_end_a_run(eight_schools, monkeypatch):
    far = np.array([[0.0, 1.0], [0.0, -16.0]], dtype=np.float32)
    monkeypatch.setattr(consensus_mc.Lanes, "run", lambda self, *_: self.watch(far))
    with pytest.raises(pf.errors.ModelError, match=r"scale of 'level' of .*keep \['tau'\] away.*1/8.*fewer clients"):
        pf.run(pf.infer.ConsensusMC(), eight_schools, progress=False, audit=False, log_likelihood=False)


@pytest.mark.parametrize("log_tau, far", [(-15.0, False), (-15.5, True)])
def test_how_far_down_a_scale_may_go(eight_schools, log_tau, far):
    (neck,) = necks_of_rows(eight_schools.problem)  # 0.5 tau is single precision's rounding at log tau = -15.25
    assert (
        neck.scales == ["tau"] and neck.slope.tolist() == [0.0, 1.0] and neck.log_scale == pytest.approx(-math.log(2))
    )
    look, z = (
        consensus_mc._place_watcher(eight_schools.problem, 8),
        np.array([[0.0, 1.0], [-30.0, log_tau]], dtype=np.float32),
    )
    with pytest.raises(pf.errors.ModelError) if far else contextlib.nullcontext():
        look(z)


def test_rows_without_levels_have_no_scale_to_tell():
    assert necks_of_rows(pf.Federation(line, line_data(), plate="data", num_clients=3).problem) == []
