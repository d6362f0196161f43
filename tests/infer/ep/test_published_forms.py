"""Guo et al.'s client inferences as published: what they estimate, what is sent, and clients of unequal size."""

import functools
import math
import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from conjugate import data, exact, federation, model

import pyro_fed as pf
from pyro_fed.algorithm.contract import Start
from pyro_fed.density.derivatives.other_curvatures import fisher_information
from pyro_fed.density.rows.batches import draw_epochs, draw_independent_minibatches, epoch_length
from pyro_fed.errors import SettingError
from pyro_fed.infer.ep.tilted import Received
from pyro_fed.infer.ep.tilted.base import numerics_of
from pyro_fed.infer.sites.gaussian_sites import gaussian, sobol
from pyro_fed.ops.gaussian import DiagGaussian
from pyro_fed.policy import resolve

SGD = {"sampler": "sgd", "preconditioned": False, "unit": "epochs", "steps": 4, "burn_in": 0, "batch_size": 7}
SGD |= {"step_size": 0.02}
AVERAGING = pf.infer.Averaging(rounds=10, batch_size=7)
QUIET = {"progress": False, "log_likelihood": False, "audit": False, "num_draws": 50}


@functools.cache
def unequal():
    """Clients of 5, 20 and 35 rows."""
    x, y = data()
    parts = [list(range(5)), list(range(5, 25)), list(range(25, 60))]
    return pf.Federation(model, (x, y), plate="data", partition=pf.partition.Explicit(parts))


def received(precision):
    """q and cavities of three clients, at different places."""
    generator = torch.Generator().manual_seed(1)
    mean = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    q = DiagGaussian(2 * precision.expand(3, 3), 2 * precision * mean)
    return Received(q, DiagGaussian(precision.expand(3, 3), precision * mean))


def inferred(client):
    """What three clients find, and their noise."""
    named = pf.FedEP(client=client, start="prior", covariance="diag")
    algorithm = resolve(named, unequal().problem.traits).algorithm
    given = received(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    sizes = enumerate((5, 20, 35))
    every = [client.draw_noise(unequal().problem, n, torch.Generator().manual_seed(k)) for k, n in sizes]
    longest = max(len(noise[1].weight) for noise in every)

    def stacked(parts):
        return torch.stack([torch.cat([p, p.new_zeros(longest - len(p), *p.shape[1:])]) for p in parts], 1)

    picks = type(every[0][1])(*(stacked([noise[1][i] for noise in every]) for i in range(2)))
    rows = unequal().client_data()
    found = client.infer(unequal().problem, numerics_of(algorithm, unequal().problem), given, rows, ((), picks))
    samples, _ = client.samples(unequal().problem, numerics_of(algorithm, unequal().problem), given, rows, ((), picks))
    return found.site.product(given.cavity), samples, given, rows, every


def test_an_epoch_takes_every_row_once():
    picks = draw_epochs(23, 5, 3, torch.Generator().manual_seed(0), torch.float64)
    assert len(picks.position) == 3 * int(epoch_length(torch.tensor(23), 5))
    for epoch in range(3):
        part = slice(5 * epoch, 5 * (epoch + 1))
        used = picks.position[part][picks.weight[part] > 0]
        assert sorted(used.tolist()) == list(range(23))
    assert picks.weight.sum(1).allclose(torch.tensor(23.0, dtype=torch.float64))


def test_batches_drawn_anew_have_no_row_twice_and_all_rows_alike():
    picks = draw_independent_minibatches(12, 5, 4000, torch.Generator().manual_seed(0), torch.float64)
    assert all(len(set(row)) == 5 for row in picks.position.tolist())
    share = torch.bincount(picks.position.flatten(), minlength=12) / 4000
    assert (share - 5 / 12).abs().max() < 4 * (5 / 12 * 7 / 12 / 4000) ** 0.5


def test_a_chain_of_epochs_is_sgd_on_each_client_by_itself():
    """Against a loop for each client, whose numbers of steps are 4, 12 and 20; momentum 0.9, the potential a row."""
    client = pf.infer.tilted.Identity(scale=0.1, **SGD)
    _, samples, given, _, every = inferred(client)
    x, y = data()
    start = 0
    for k, count in enumerate((5, 20, 35)):
        own_x, own_y = x[start : start + count], y[start : start + count]
        start += count
        z, velocity, ends = given.q.mean()[k].clone(), torch.zeros(3, dtype=torch.float64), []
        cavity = (given.cavity.precision[k], given.cavity.eta[k])
        for step, (position, weight) in enumerate(zip(*every[k][1], strict=True), 1):
            resid = own_y[position] - own_x[position] @ z
            score = own_x[position].T @ (weight * resid) / 0.7**2 + cavity[1] - cavity[0] * z
            velocity = 0.9 * velocity + score / count
            z = z + 0.02 * velocity
            if step % -(-count // 7) == 0:
                ends.append(z)
        torch.testing.assert_close(samples[:, k], torch.stack(ends), rtol=1e-9, atol=1e-9)


def test_scaled_identity_adds_the_same_precision_a_row():
    tilted, samples, given, rows, _ = inferred(pf.infer.tilted.Identity(scale=0.3, **SGD))
    added = tilted.precision - given.cavity.precision
    torch.testing.assert_close(added, 0.3 * rows.num_rows.double()[:, None].expand(3, 3))
    torch.testing.assert_close(tilted.mean(), samples.mean(0))


def test_mcmc_shrinks_towards_the_identity_and_has_the_norm_of_the_scaled_identity():
    tilted, samples, given, rows, _ = inferred(pf.infer.tilted.MCMC(weight=0.2, scale=0.3, **SGD))
    precision = 1 / (0.2 + 0.8 * samples.var(0))
    wanted = given.cavity.precision + 0.3 * rows.num_rows.double()[:, None]
    expected = precision * wanted.norm(dim=1, keepdim=True) / precision.norm(dim=1, keepdim=True)
    torch.testing.assert_close(tilted.precision, expected)
    torch.testing.assert_close(tilted.mean(), samples.mean(0))


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_fisher_is_equation_4_at_the_chain_s_mean(scale):
    tilted, samples, given, rows, _ = inferred(pf.infer.tilted.Fisher(fisher_scale=scale, **SGD))
    for k, count in enumerate((5, 20, 35)):
        one = type(rows)(rows.rows, rows.row_index[k, :count], rows.num_rows[k])
        fisher = fisher_information(unequal().problem, samples.mean(0)[k], one.full_batch(), "diag")
        torch.testing.assert_close(tilted.precision[k], scale * fisher + given.cavity.precision[k])
    torch.testing.assert_close(tilted.mean(), samples.mean(0))


def chosen(x, y):
    """A logistic regression, whose Fisher information Σ_i p_i (1 - p_i) x_i x_i' is another at each θ."""
    w = pyro.sample("w", dist.Normal(x.new_zeros(3), 2.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def spread(x, y):
    """Of Gaussian rows whose SD is latent: Fisher information X'X / σ² of w and 2 n of log σ, by no labels."""
    w = pyro.sample("w", dist.Normal(x.new_zeros(3), 2.0).to_event(1))
    t = pyro.sample("t", dist.Normal(x.new_zeros(()), 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, t.exp()), obs=y)


def test_fisher_information_is_the_expectation_over_labels_of_the_model():
    """Whatever the labels are: of 20 rows, at a point where they are unlikely."""
    x, y = (part[:20] for part in data())
    z = torch.tensor([0.5, -1.0, 2.0, 0.3], dtype=torch.float64)
    expected = torch.zeros(4, 4, dtype=torch.float64)
    expected[:3, :3], expected[3, 3] = x.T @ x / math.exp(2 * 0.3), 2 * 20
    for labels in (y, 7 - y):
        fed = pf.Federation(spread, (x, labels), plate="data", num_clients=1)
        batch = fed.client_data().full_batch()
        one = type(batch)(*(torch.utils._pytree.tree_map(lambda part: part[0], part) for part in batch))
        found = fisher_information(fed.problem, z, one, "full")
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(fisher_information(fed.problem, z, one, "diag"), expected.diagonal())


@pytest.mark.parametrize("decay", [0.3, 0.8])
def test_ngvi_is_algorithm_5(decay):
    """s_t = β s_{t-1} + (1 - β) F/N_k, Σ_t = (N_k s_t + Λ_-k)⁻¹, F the mean of Fisher informations under N(μ, Σ_{t-1}).

    s_0 is F(μ)/N_k, and the draws of the paper's line 6 are standardised Sobol points.
    """
    x, y = data()
    fed = pf.Federation(chosen, (x, (y > 0).double()), plate="data", num_clients=1)
    client = pf.infer.tilted.NGVI(fisher_steps=3, fisher_samples=4, fisher_decay=decay, fisher_scale=1.5, **SGD)
    algorithm = resolve(pf.FedEP(client=client, start="prior", covariance="diag"), fed.problem.traits).algorithm
    cavity = torch.tensor([[0.5, 1.0, 2.0]], dtype=torch.float64)
    q = DiagGaussian(2 * cavity, torch.tensor([[0.4, -0.2, 0.6]], dtype=torch.float64))
    given = Received(q, DiagGaussian(cavity, 0.5 * q.eta))
    picks = client.draw_noise(fed.problem, len(x), torch.Generator().manual_seed(0))[1]
    noise = ((), type(picks)(*(part[:, None] for part in picks)))
    arguments = (fed.problem, numerics_of(algorithm, fed.problem), given, fed.client_data(), noise)
    mean = client.samples(*arguments)[0].mean(0)[0].numpy()

    def fisher(theta):
        p = 1 / (1 + np.exp(-x.numpy() @ theta))
        return (p * (1 - p)) @ x.numpy() ** 2

    rows, minus_k, points = len(x), cavity[0].numpy(), sobol(4, 3).numpy()
    s = fisher(mean) / rows
    for _ in range(3):
        sd = (rows * s + minus_k) ** -0.5
        s = decay * s + (1 - decay) * np.mean([fisher(mean + sd * point) / rows for point in points], 0)
    tilted = client.infer(*arguments).site.product(given.cavity)
    np.testing.assert_allclose(tilted.precision[0], 1.5 * rows * s + minus_k, rtol=1e-9)
    np.testing.assert_allclose(tilted.mean()[0], mean, rtol=1e-9)


def short_run(algorithm, executor="vectorised"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # three rounds settle nothing
        return pf.run(algorithm, unequal(), executor=executor, num_rounds=3, seed=0, **QUIET)


def test_one_number_stands_for_a_client_s_precision():
    """D + 1 numbers in place of 2 D are sent; the executors agree, clients of unequal size among them."""
    settings = {"covariance": "diag", "start": AVERAGING}
    client = pf.infer.tilted.Identity(scale=0.05, **SGD)
    short, full = pf.FedEP(client=client, **settings), pf.infer.FedSEP(client=client, **settings)
    assert short.isotropic and not full.isotropic
    halved, whole = short_run(short), short_run(full)
    fewer = whole["federation"]["bytes_up"].values[-1] - halved["federation"]["bytes_up"].values[-1]
    assert (fewer == 2 * 8).all()
    other = short_run(short, "sequential")
    np.testing.assert_allclose(halved.posterior["w"].values, other.posterior["w"].values, rtol=1e-9)


def test_published_burn_in_leaves_sites_of_alpha_a_row_at_the_averaged_point():
    named = pf.FedEP(start=AVERAGING, covariance="diag").point_sites()
    sites = resolve(named, unequal().problem.traits).algorithm
    point = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    shared, local = sites.init(unequal().problem, 3, torch.Generator(), Start({"point": point}, {}))
    message, local, _ = sites.local_step(
        unequal().problem, sites.download(shared, torch.arange(3)), local, unequal().client_data(), ()
    )
    rows = unequal().client_data().num_rows.double()
    torch.testing.assert_close(message["precision"], 0.05 * rows[:, None].expand(3, 3))
    q = gaussian(sites.combine(shared, message, torch.ones(3)))
    torch.testing.assert_close(q.mean(), point)


def test_epochs_are_of_minibatches():
    with pytest.raises(SettingError, match="needs batch_size"):
        pf.infer.tilted.MCMC(sampler="sgd", unit="epochs", batch_size=None)
    with pytest.raises(SettingError, match="unit='epochs' has no effect"):
        pf.infer.tilted.MCMC(unit="epochs", batch_size=5)
    with pytest.raises(SettingError, match="needs batch_size"):
        pf.FedAvg(unit="epochs")


def test_averages_over_clients_of_unequal_size_do_not_move_in_padding():
    """One client that has the same rows alone or beside a longer one ends at the same point."""
    settings = {"chain_steps": 3, "unit": "epochs", "batch_size": 4, "step_size": 0.05}
    found = []
    for fed in (unequal(), pf.Federation(model, tuple(t[:5] for t in data()), plate="data", num_clients=1)):
        algorithm = pf.FedAvg(**settings)
        noise = algorithm.draw_noise(fed.problem, 5, torch.Generator().manual_seed(3))
        longest = 3 * 9 if fed is unequal() else len(noise.weight)
        padded = type(noise)(*(torch.cat([p, p.new_zeros(longest - len(p), *p.shape[1:])])[:, None] for p in noise))
        rows = fed.client_data([0])
        order = rows._replace(row_index=torch.arange(rows.row_index.shape[1])[None] % 5)
        shared = {"point": torch.zeros(1, 3, dtype=torch.float64), "num_rows": torch.tensor([5])}
        found.append(algorithm.local_step(fed.problem, shared, {}, order, padded)[0]["delta"])
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


def test_streaming_vb_is_exact_where_it_is_conjugate_and_ends_after_one_pass():
    fed = federation()
    idata = pf.run(pf.infer.StreamingVB(), fed, **QUIET | {"num_draws": 4000})
    mean, covariance = exact(*data())
    draws = idata.posterior["w"].values[0]
    sd = covariance.diagonal().sqrt().numpy()
    assert idata["federation"].sizes["round"] == fed.num_clients
    assert np.abs((draws.mean(0) - mean.numpy()) / sd).max() < 0.06
    assert np.abs(np.cov(draws.T) - covariance.numpy()).max() < 0.1 * float(covariance.diagonal().max())


def test_a_client_s_only_turn_is_taken_whole():
    """From a wide prior, where FedEP would hold the first step back, and one with clients of unequal size."""
    (x, y), module = data(), model
    fed = pf.Federation(module, (100 * x, y), plate="data", num_clients=3)
    idata = pf.run(pf.infer.StreamingVB(), fed, **QUIET | {"num_draws": 4000})
    mean, covariance = exact(100 * x, y)
    draws = idata.posterior["w"].values[0]
    sd = covariance.diagonal().sqrt().numpy()
    assert np.abs((draws.mean(0) - mean.numpy()) / sd).max() < 0.06
    assert np.abs(draws.std(0) / sd - 1).max() < 0.06
