"""Every agent ends at the exact pooled posterior of a conjugate model, whatever graph, whoever sleeps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conjugate import NOISE_SD, PRIOR_SD, KeptEP, KeptVI, beliefs, data, exact, federation

import pyro_fed as pf

DIRECTED = [[0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0.5, 0.5], [0.3, 0.3, 0, 0.4]]
SECTION_V_A = [[0.5, 0.5, 0, 0], [0.3, 0.1, 0.3, 0.3], [0, 0.5, 0.5, 0], [0, 0.5, 0, 0.5]]
SHARP = {"tolerance": 1e-10, "num_points": 16}
CASES = {
    "ring": (pf.graph.ring(4), {}, {}),
    "complete": (pf.graph.complete(4), {}, {}),
    "section V-A": (pf.graph.from_matrix(SECTION_V_A), {}, {}),
    "directed": (pf.graph.from_matrix(DIRECTED), {}, {}),
    "periodic, directed": (
        pf.graph.Periodic([pf.graph.from_matrix(DIRECTED), pf.graph.star(4, 0.3)]),
        {},
        {},
    ),
    "one step a round": (pf.graph.star(4, 0.3), {"gossip_steps": 1}, {}),
    "start at the prior": (pf.graph.ring(4), {"start": "prior"}, {}),
    "local start": (pf.graph.ring(4), {"start": "local"}, {}),
    "several local steps": (pf.graph.ring(4), {"update": pf.infer.update.Newton(steps=3)}, {}),
    "damped": (pf.graph.ring(4), {"damping": 0.5}, {}),
    "links fail": (pf.graph.LinkFailures(pf.graph.ring(4), 0.3), {"gossip_steps": 1}, {"num_rounds": 300}),
    "gossip": (pf.graph.GossipPairs(pf.graph.ring(4)), {"gossip_steps": 1}, {"num_rounds": 400}),
    "sleepers": (
        pf.graph.ring(4),
        {"gossip_steps": 1},
        {"schedule": pf.schedule.UniformRandom(3), "num_rounds": 400},
    ),
    "sequential": (pf.graph.ring(4), {}, {"executor": "sequential"}),
}


@pytest.mark.parametrize("name", CASES)
def test_all_rows_in_every_round_count_once(name: str) -> None:
    graph, settings, options = CASES[name]
    mean, covariance, idata = beliefs(KeptVI(**SHARP, **settings), federation(), graph, **options)
    want_mean, want_covariance = exact(*data())
    for i in range(4):
        torch.testing.assert_close(mean[i], want_mean, atol=1e-7, rtol=1e-7)
        torch.testing.assert_close(covariance[i], want_covariance, atol=1e-8, rtol=1e-7)
    assert idata.attrs["converged"] == 1


@pytest.mark.parametrize("update", ["laplace", pf.infer.tilted.Laplace(steps=2), pf.infer.tilted.Newton(steps=2)])
def test_agents_solve_by_any_tilted_inference(update: object) -> None:
    """The belief stands for FedEP's q, and the belief without the agent's site for its cavity."""
    algorithm = KeptVI(update=update, start="prior", damping=0.5, tolerance=1e-10)
    mean, covariance, _ = beliefs(algorithm, federation(), pf.graph.ring(4), num_rounds=120)
    want_mean, want_covariance = exact(*data())
    torch.testing.assert_close(mean, want_mean.expand(4, -1), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(covariance, want_covariance.expand(4, -1, -1), atol=1e-7, rtol=1e-6)


def test_agents_and_clients_share_their_solvers() -> None:
    assert pf.infer.update.IVON is pf.infer.tilted.IVON
    assert issubclass(pf.infer.update.Newton, pf.infer.tilted.Newton) and issubclass(
        pf.infer.update.SVI, pf.infer.tilted.TiltedInference
    )
    assert set(pf.infer.update.Update.kinds()) == set(pf.infer.tilted.TiltedInference.kinds())
    assert (
        pf.P2PVI(update="svi").update == pf.infer.update.SVI()
        and pf.FedEP(client="svi").client == pf.infer.tilted.SVI()
    )
    assert pf.P2PVI(update="ivon").default_rounds(3) == 20 and pf.FedEP(client="ivon").default_rounds(3) == 40


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pf.FedEP(client=pf.infer.update.Newton(memory=2)), "client must be one of pf.infer.tilted"),
        (lambda: pf.P2PVI(update="laplace", start="consensus"), "update='laplace' works around a proper belief"),
        (lambda: pf.P2PVI(update="mcmc", num_points=64), "num_points=64 has no effect"),
        (lambda: pf.P2PVI(update="ivon", curvature="fisher"), "curvature='fisher' has no effect"),
        (lambda: pf.P2PVI(update=pf.infer.update.Newton(memory=2, steps=2)), "memory=2 has no effect"),
    ],
)
def test_settings_without_effect_on_an_update_are_refused(make: object, message: str) -> None:
    with pytest.raises(pf.errors.SettingError, match=message):
        make()


def test_rotating_groups_end_at_the_pooled_posterior() -> None:
    mean, covariance, _ = beliefs(KeptVI(**SHARP), federation(5), pf.graph.rotating_stars(4, 2), num_rounds=300)
    want_mean, want_covariance = exact(*data())
    torch.testing.assert_close(mean, want_mean.expand(5, -1), atol=1e-7, rtol=1e-7)
    torch.testing.assert_close(covariance, want_covariance.expand(5, -1, -1), atol=1e-8, rtol=1e-7)


@pytest.mark.parametrize("graph", [pf.graph.from_matrix(DIRECTED), pf.graph.LinkFailures(pf.graph.star(4, 0.3), 0.2)])
def test_a_stream_of_batches_each_used_once(graph: pf.graph.Graph) -> None:
    algorithm = KeptVI(**SHARP, batch_size=4, gossip_steps=2)
    mean, covariance, idata = beliefs(algorithm, federation(), graph, num_rounds=150)
    want_mean, want_covariance = exact(*data())
    torch.testing.assert_close(mean, want_mean.expand(4, -1), atol=1e-7, rtol=1e-7)
    torch.testing.assert_close(covariance, want_covariance.expand(4, -1, -1), atol=1e-8, rtol=1e-7)
    last = idata["federation"]["rows_left"].values[-1]
    np.testing.assert_array_equal(last, 0)


def test_a_stream_that_is_cut_short_says_how_many_rows_are_left() -> None:
    with pytest.warns(UserWarning, match="rows were never used|not converged") as caught:
        beliefs(KeptVI(batch_size=2, start="prior"), federation(), pf.graph.ring(4), num_rounds=3)
    assert any("36 rows were never used: run at least 5 more rounds" in str(w.message) for w in caught)


@pytest.mark.parametrize("graph", [pf.graph.ring(4), pf.graph.LinkFailures(pf.graph.ring(4), 0.3)])
def test_serverless_ep_has_the_exact_fixed_point(graph: pf.graph.Graph) -> None:
    algorithm = KeptEP(tolerance=1e-9, num_points=16, tilted_points=64)
    mean, covariance, idata = beliefs(algorithm, federation(), graph)
    want_mean, want_covariance = exact(*data())
    torch.testing.assert_close(mean, want_mean.expand(4, -1), atol=1e-7, rtol=1e-7)
    torch.testing.assert_close(covariance, want_covariance.expand(4, -1, -1), atol=1e-8, rtol=1e-7)
    np.testing.assert_allclose(idata["federation"]["effective_points"].values[-1], 1, atol=1e-9)


def test_diagonal_beliefs_have_the_exact_mean_and_the_precision_s_diagonal() -> None:
    mean, variances, _ = beliefs(
        KeptVI(tolerance=1e-8, num_points=16, covariance="diag", damping=0.5),
        federation(),
        pf.graph.ring(4),
        num_rounds=200,
    )
    want_mean, want_covariance = exact(*data())
    torch.testing.assert_close(mean, want_mean.expand(4, -1), atol=1e-6, rtol=1e-6)
    want = 1 / torch.linalg.inv(want_covariance).diagonal()
    torch.testing.assert_close(variances, want.expand(4, -1), atol=1e-9, rtol=1e-7)


PUBLISHED = pytest.mark.filterwarnings("ignore:weighting='paper' does not end at the posterior")


@PUBLISHED
@pytest.mark.parametrize("matrix", [SECTION_V_A, DIRECTED])
def test_as_published_each_datum_counts_by_its_agent_s_centrality(matrix: list[list[float]]) -> None:
    graph = pf.graph.from_matrix(matrix)
    fed = federation()
    algorithm = KeptVI(weighting="paper", batch_size=15, gossip_steps=1, num_points=16, tolerance=1e-10)
    mean, covariance, _ = beliefs(algorithm, fed, graph, num_rounds=120)
    power = torch.empty(fed.num_rows, dtype=torch.float64)
    for v, rows in zip(graph.centrality(), fed.client_rows, strict=True):
        power[rows] = v
    want_mean, want_covariance = exact(*data(), power=power)
    torch.testing.assert_close(mean, want_mean.expand(4, -1), atol=1e-7, rtol=1e-7)
    torch.testing.assert_close(covariance, want_covariance.expand(4, -1, -1), atol=1e-8, rtol=1e-7)


@PUBLISHED
@pytest.mark.filterwarnings("ignore:.* rows were never used", "ignore:not converged", "ignore:agents disagree")
@pytest.mark.parametrize("rounds", [1, 2, 3])
@pytest.mark.parametrize("matrix", [SECTION_V_A, DIRECTED])
def test_as_published_a_round_is_equation_3_and_equation_8(matrix: list[list[float]], rounds: int) -> None:
    """b_i = q_i × the likelihood of agent i's next rows; Λ_i = Σ_j W_ij Λ(b_j), and so Λ_i μ_i."""
    fed, (x, y) = federation(), (part.numpy() for part in data())
    algorithm = KeptVI(weighting="paper", batch_size=5, gossip_steps=1, num_points=16)
    mean, covariance, _ = beliefs(algorithm, fed, pf.graph.from_matrix(matrix), num_rounds=rounds)
    precision, eta = np.tile(np.eye(3) / PRIOR_SD**2, (4, 1, 1)), np.zeros((4, 3))
    for t in range(rounds):
        public_precision, public_eta = precision.copy(), eta.copy()
        for i in range(4):
            mine = np.asarray(fed.client_rows[i])[5 * t : 5 * t + 5]
            public_precision[i] += x[mine].T @ x[mine] / NOISE_SD**2
            public_eta[i] += x[mine].T @ y[mine] / NOISE_SD**2
        for i in range(4):
            precision[i] = sum(matrix[i][j] * public_precision[j] for j in range(4))
            eta[i] = sum(matrix[i][j] * public_eta[j] for j in range(4))
    for i in range(4):
        np.testing.assert_allclose(covariance[i], np.linalg.inv(precision[i]), rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(mean[i], np.linalg.solve(precision[i], eta[i]), rtol=1e-7, atol=1e-8)


def test_as_published_data_used_again_count_again() -> None:
    graph = pf.graph.complete(4)
    algorithm = KeptVI(weighting="paper", gossip_steps=1, num_points=16)
    with pytest.warns(UserWarning, match="does not end at the posterior: .* again in every round, .* about 2 times"):
        mean, covariance, idata = beliefs(algorithm, federation(), graph, num_rounds=8)
    assert "converged" not in idata.attrs
    want_mean, want_covariance = exact(*data(), power=8 / 4)
    torch.testing.assert_close(mean, want_mean.expand(4, -1), atol=1e-7, rtol=1e-7)
    torch.testing.assert_close(covariance, want_covariance.expand(4, -1, -1), atol=1e-8, rtol=1e-7)


def test_bayes_by_backprop_is_near_the_pooled_posterior() -> None:
    algorithm = KeptVI(update=pf.infer.update.SVI(num_samples=4, step_size=0.03), damping=0.5)
    mean, covariance, _ = beliefs(algorithm, federation(), pf.graph.complete(4), num_rounds=8, compile="trace")
    want_mean, want_covariance = exact(*data())
    sd = want_covariance.diagonal().sqrt()
    # A stochastic optimiser with a fixed seed; its noise is about 0.1 SD and 10 %.
    assert ((mean - want_mean) / sd).abs().max() < 0.5
    assert (covariance.diagonal(dim1=-2, dim2=-1).sqrt() / sd - 1).abs().max() < 0.4


@pytest.mark.parametrize("units", ["sds", "parameters"])
def test_the_first_step_of_adam_is_its_rate_in_the_units_asked_for(units: str) -> None:
    """Adam's first step is the rate, up or down; that of log σ has no units."""
    update = pf.infer.update.SVI(steps=1, step_size=0.01, units=units)
    algorithm = KeptVI(weighting="paper", covariance="diag", gossip_steps=1, update=update)
    with pytest.warns(UserWarning, match="does not end at the posterior"):
        mean, variance, _ = beliefs(algorithm, federation(1), pf.graph.complete(1), num_rounds=1)
    rate = torch.full((3,), 0.01, dtype=torch.float64)
    torch.testing.assert_close(mean[0].abs(), rate * (PRIOR_SD if units == "sds" else 1), atol=1e-9, rtol=0)
    torch.testing.assert_close((variance[0].sqrt() / PRIOR_SD).log().abs(), rate, atol=1e-9, rtol=0)


def test_the_parameters_own_units_are_of_diagonal_beliefs() -> None:
    with pytest.raises(pf.errors.SettingError, match="needs covariance='diag'; received 'auto'"):
        pf.P2PVI(weighting="paper", update=pf.infer.update.SVI(units="parameters"))


def test_the_rate_of_a_visit_is_the_first_times_powers_of_the_decay() -> None:
    """η ε^t, Tables I and II: a visit of one step moves every mean by the rate, up or down, since Adam begins anew."""
    update = pf.infer.update.SVI(steps=1, step_size=0.01, units="parameters", round_decay=0.5)
    algorithm = KeptVI(weighting="paper", covariance="diag", gossip_steps=1, update=update)
    means = [torch.zeros(3, dtype=torch.float64)]
    for rounds in (1, 2, 3):
        with pytest.warns(UserWarning, match="does not end at the posterior"):
            mean, _, _ = beliefs(algorithm, federation(1), pf.graph.complete(1), num_rounds=rounds)
        means.append(mean[0])
    moves = torch.stack(means).diff(dim=0)[1:].abs()
    rates = torch.tensor([0.005, 0.0025], dtype=torch.float64)
    torch.testing.assert_close(moves, rates[:, None].expand(2, 3), atol=1e-9, rtol=0)
