"""Runs on models with latents inside the plate: exact conjugate answers, what is sent, what the results hold."""

import dataclasses

import hierarchies
import numpy as np
import pytest
import torch

import pyro_fed as pf
from pyro_fed.infer.sites.gaussian_sites import gaussian, spread_points

QUIET = {"progress": False, "num_draws": 4, "log_likelihood": False, "compile": "off", "audit": False}
MEAN, COVARIANCE = hierarchies.means_posterior(hierarchies.SD, hierarchies.Y)


def watched(algorithm):
    """The algorithm, and the states that it drew from and the messages that it combined."""
    states, messages = [], []

    class Watched(type(algorithm)):
        def combine(self, shared, received, weights):
            messages.append(received)
            return super().combine(shared, received, weights)

        def sample(self, shared, num_draws, generator):
            states.append(shared)
            return super().sample(shared, num_draws, generator)

    return Watched(**{f.name: getattr(algorithm, f.name) for f in dataclasses.fields(algorithm)}), states, messages


def conditional_moments(problem, q):
    """Means and variances of the rows' latents under p(x | θ, y) q(θ), q of batch (1,), for a conjugate model: (N,)."""
    points = spread_points(q, 16).squeeze(1)
    centres = [problem.quadrature.centre(problem, point, problem.rows) for point in points]
    modes = torch.stack([centre.mode.squeeze(-1) for centre in centres])
    spread = torch.stack([centre.factor.squeeze((-2, -1)) ** -2 for centre in centres])
    return modes.mean(0), spread.mean(0) + modes.var(0, correction=0)


SERVER = {"tolerance": 1e-11}
PEER = {"tolerance": 1e-11, "gossip_tolerance": 1e-12}


@pytest.mark.parametrize(
    ("algorithm", "graph", "num_clients"),
    [
        *((pf.FedEP(**SERVER), None, number) for number in (1, 2, 7, hierarchies.J)),
        (pf.FedLaplace(**SERVER), None, 7),
        (pf.infer.PVI(**SERVER, client=pf.infer.tilted.Newton(steps=2)), None, 2),
        (pf.P2PVI(**PEER), pf.graph.complete, 7),
        (pf.P2PVI(**PEER), pf.graph.complete, hierarchies.J),
        (pf.infer.P2PEP(**PEER), pf.graph.complete, 3),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else type(value).__name__,
)
def test_global_and_local_posteriors_are_exact_for_a_conjugate_hierarchy(algorithm, graph, num_clients):
    algorithm, states, _ = watched(algorithm)
    fed = hierarchies.CASES["means"].federation(num_clients)
    pf.run(algorithm, fed, graph=None if graph is None else graph(num_clients), **QUIET)
    q = gaussian(states[-1])
    mean, spread = (part.reshape(-1)[0] for part in q.moments())
    assert float(mean) == pytest.approx(float(MEAN[0]), abs=1e-8)
    assert float(spread) == pytest.approx(float(COVARIANCE[0, 0]), abs=1e-8)
    one = type(q)(q.precision.reshape(-1, 1, 1)[:1], q.eta.reshape(-1, 1)[:1])
    means, variances = conditional_moments(fed.problem, one)
    torch.testing.assert_close(means, MEAN[1:], rtol=0, atol=1e-8)
    torch.testing.assert_close(variances, COVARIANCE.diagonal()[1:], rtol=0, atol=1e-8)


def test_several_latents_a_row_and_nested_rows_are_exact_too():
    algorithm, states, _ = watched(pf.FedEP(**SERVER))
    pf.run(algorithm, hierarchies.CASES["lines"].federation(4), **QUIET)
    design = torch.stack([torch.ones_like(hierarchies.X), hierarchies.X], -1)
    noise = hierarchies.SPREAD**2 * design @ design.mT + hierarchies.NOISE**2 * torch.eye(4, dtype=torch.float64)
    precision = (design.mT @ torch.linalg.solve(noise, design)).sum(0) + torch.eye(2) / hierarchies.PRIOR_SD**2
    eta = (design.mT @ torch.linalg.solve(noise, hierarchies.TABLE.unsqueeze(-1))).sum(0).squeeze(-1)
    found = gaussian(states[-1])
    torch.testing.assert_close(found.precision, precision, rtol=0, atol=1e-8)
    torch.testing.assert_close(found.eta, eta, rtol=0, atol=1e-8)


FEW = {"burn_in": 0, "target_ess": None, "local_steps": 3}
SENDERS = pytest.mark.parametrize(
    ("algorithm", "rounds"),
    [
        (pf.FedEP(start="prior", tolerance=1e-300), 2),
        (pf.FSGLD(**FEW), 4),
        (pf.DSVGD(num_particles=5, local_steps=3, start="gaussian"), 3),
    ],
    ids=lambda value: type(value).__name__,
)


@pytest.mark.filterwarnings("ignore::UserWarning")  # runs cut short say so
@SENDERS
def test_messages_tell_nothing_of_a_clients_effects(algorithm, rounds):
    """Two schools of a client trade outcomes so that its likelihood of mu keeps its site: nobody can tell."""
    sd = torch.full_like(hierarchies.SD, 0.9)
    traded = hierarchies.Y + torch.tensor([0.5, -0.5] + [0.0] * 7)
    clients = pf.partition.Explicit([[0, 1], [2, 3, 4], [5, 6, 7, 8]])
    sent = []
    for y in (hierarchies.Y, traded):
        kept, _, messages = watched(algorithm)
        fed = pf.Federation(hierarchies.means, (sd, y), plate="group", partition=clients)
        pf.run(kept, fed, num_rounds=rounds, **QUIET)
        sent.append(messages)
    assert len(sent[0]) == len(sent[1]) == rounds
    for first, second in zip(*sent, strict=True):
        for name in first.keys() - {"values", "value"}:  # levels of the log-likelihood, which the data move
            torch.testing.assert_close(first[name], second[name], rtol=1e-9, atol=1e-9)


@pytest.mark.filterwarnings("ignore::UserWarning")
@SENDERS
def test_the_size_of_a_message_does_not_depend_on_the_number_of_groups(algorithm, rounds):
    sizes = []
    for copies in (1, 5):
        args = tuple(part.repeat(copies) for part in hierarchies.CASES["means"].args)
        fed = pf.Federation(hierarchies.means, args, plate="group", num_clients=3)
        record = pf.run(algorithm, fed, num_rounds=rounds, **QUIET)["federation"]
        sizes.append(
            [np.unique(record[name].values[~np.isnan(record[name].values)]) for name in ("bytes_up", "bytes_down")]
        )
    for small, large in zip(*sizes, strict=True):
        np.testing.assert_array_equal(small, large)


def test_results_hold_the_effects_in_their_original_order():
    """8,000 draws; five standard errors of a mean, and of a variance."""
    fed = pf.Federation(
        hierarchies.means,
        hierarchies.CASES["means"].args,
        plate="group",
        partition=pf.partition.Explicit([[8, 1, 4], [0, 2], [7, 5, 3, 6]]),
        coords={"group": list("abcdefghi")},
    )
    idata = pf.run(pf.FedEP(**SERVER), fed, **{**QUIET, "num_draws": 8000, "log_likelihood": True})
    effect = idata["posterior"]["effect"]
    assert effect.dims == ("chain", "draw", "group")
    assert list(effect["group"].values) == list("abcdefghi")
    draws = torch.as_tensor(effect.values[0])
    sd = COVARIANCE.diagonal()[1:].sqrt()
    assert float(((draws.mean(0) - MEAN[1:]) / sd).abs().max()) < 5 / 8000**0.5
    assert float((draws.var(0) / sd.square() - 1).abs().max()) < 5 * (2 / 8000) ** 0.5
    both = torch.stack([torch.as_tensor(idata["posterior"]["mu"].values[0]), draws[:, 0]])
    exact = float(COVARIANCE[0, 1] / (COVARIANCE[0, 0] * COVARIANCE[1, 1]).sqrt())
    assert float(torch.corrcoef(both)[0, 1]) == pytest.approx(exact, abs=5 * (1 - exact**2) / 8000**0.5)
    expected = torch.distributions.Normal(draws, hierarchies.SD).log_prob(hierarchies.Y)
    np.testing.assert_allclose(idata["log_likelihood"]["y"].values[0], expected.numpy(), rtol=1e-10)


def test_a_real_federation_collects_no_effects():
    fed = hierarchies.CASES["scaled"].federation()
    idata = pf.run(pf.FedEP(), fed, **{**QUIET, "log_likelihood": True}, collect_local=False)
    assert set(idata["posterior"]) == {"mu", "tau", "log_tau"}
    theta = torch.stack([torch.as_tensor(idata["posterior"][name].values[0]) for name in ("mu", "log_tau")], -1)
    exact = torch.stack([hierarchies.scaled_log_lik(one, hierarchies.SD, hierarchies.Y) for one in theta])
    np.testing.assert_allclose(idata["log_likelihood"]["y"].values[0], exact.numpy(), rtol=1e-8)
    again = pf.run(pf.FedEP(), fed, **QUIET)
    np.testing.assert_array_equal(again["posterior"]["mu"].values, idata["posterior"]["mu"].values)
    assert set(again["posterior"]) == {"mu", "tau", "log_tau", "z", "effect"}


def test_new_groups_draw_their_effects_from_the_population_and_old_ones_keep_theirs():
    """20,000 draws: the predictive is Gaussian in closed form; five standard errors."""
    fed, count = hierarchies.CASES["means"].federation(), 20_000
    idata = pf.run(pf.FedEP(**SERVER), fed, **{**QUIET, "num_draws": count})
    for model, args, mean, variance in (
        (hierarchies.means, (torch.tensor([0.5, 2.0], dtype=torch.float64),), MEAN[0], COVARIANCE[0, 0] + 0.8**2),
        (fed, None, MEAN[1:], COVARIANCE.diagonal()[1:]),
    ):
        sd = hierarchies.SD if args is None else args[0]
        drawn = pf.predict(idata, model, args)["posterior_predictive"]
        assert list(drawn) == ["y"]
        y, variance = torch.as_tensor(drawn["y"].values[0]), variance + sd**2
        assert float(((y.mean(0) - mean) / variance.sqrt()).abs().max()) < 5 / count**0.5
        assert float((y.var(0) / variance - 1).abs().max()) < 5 * (2 / count) ** 0.5


def test_training_rows_have_their_effects_drawn_again_where_the_rows_are():
    fed = hierarchies.CASES["means"].federation()
    idata = pf.run(pf.FedEP(), fed, **{**QUIET, "num_draws": 2000}, collect_local=False)
    y = pf.predict(idata, fed)["posterior_predictive"]["y"].values[0]
    scale = (COVARIANCE.diagonal()[1:] + hierarchies.SD**2).sqrt()
    assert float(((torch.as_tensor(y.mean(0)) - MEAN[1:]) / scale).abs().max()) < 5 / 2000**0.5
    assert pf.predict(idata, fed, hierarchies.CASES["means"].args)["posterior_predictive"]["y"].shape == (1, 2000, 9)


@pytest.mark.filterwarnings("ignore::UserWarning")  # runs this short may say that they are
@pytest.mark.parametrize(
    ("algorithm", "joint"),
    [
        (pf.NUTS(num_chains=1, warmup_steps=150, num_samples=400), True),
        (pf.infer.SVI(num_steps=250, step_size=0.2, num_guide_draws=600), True),
        (pf.infer.SVGD(num_particles=60, start="gaussian"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_pooled_algorithms_report_the_effects_too(algorithm, joint):
    """Means within 0.35 SD (a mean's standard error is below 0.08) and SDs within a third."""
    fed = hierarchies.CASES["means"].federation()
    idata = pf.run(algorithm, fed, **{**QUIET, "num_draws": 1000, "compile": "auto"})
    draws = np.concatenate([idata["posterior"]["mu"].values[..., None], idata["posterior"]["effect"].values], -1)
    sd = COVARIANCE.diagonal().sqrt().numpy()
    assert float(np.abs((draws.mean((0, 1)) - MEAN.numpy()) / sd).max()) < 0.35
    assert float(np.abs(draws.std((0, 1)) / sd - 1).max()) < 0.34
    assert getattr(algorithm, "joint", False) is joint


def test_chains_and_agents_have_effects_too():
    """Draws of every chain, in the shape of the chains."""
    fed = hierarchies.CASES["means"].federation()
    idata = pf.run(pf.P2PVI(), fed, graph=pf.graph.ring(3), **QUIET)
    assert idata["posterior"]["effect"].shape == (3, 4, hierarchies.J)
