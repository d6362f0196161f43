"""U-DSVGD with one particle is gradient ascent on the tilted density of Gaussians of variance λ² (Appendix A.2)."""

import math

import torch
from conjugate import NOISE_SD, PRIOR_SD, data, federation

import pyro_fed as pf

STEPS, RATE, LAMBDA = 5, 0.05, 0.55


def test_it_equals_a_loop_over_the_formulas():
    """Scores of q and of the sites are linear: (θ_j - θ)/λ² of a round's particle, and the prior's own before."""
    fed, (x, y) = federation(num_clients=2), data()
    algorithm = pf.papers.UDSVGD(num_particles=1, local_steps=STEPS, kde_floor=0.0)
    shared, local = algorithm.init(fed.problem, 2, torch.Generator().manual_seed(0), None)
    theta, was_prior = shared["particles"][0].clone(), True
    memory = {0: [], 1: []}
    for turn in (0, 1, 0, 1):
        at = torch.tensor([turn])
        own = {name: value[at] for name, value in local.items()}
        rows = fed.client_data([turn])
        message, new, _ = algorithm.local_step(fed.problem, algorithm.download(shared, at), own, rows, ())
        local = widened(local, new, turn)
        shared = algorithm.combine(shared, message, torch.ones(1))

        mine = fed.client_rows[turn]
        received, square = theta.clone(), None
        for _ in range(STEPS):
            score = x[mine].T @ (y[mine] - x[mine] @ theta) / NOISE_SD**2
            score = score + (-theta / PRIOR_SD**2 if was_prior else (received - theta) / LAMBDA**2)
            for before, after, prior_then in memory[turn]:
                site = (after - theta) / LAMBDA**2
                site = site - (-theta / PRIOR_SD**2 if prior_then else (before - theta) / LAMBDA**2)
                score = score - site
            square = score**2 if square is None else 0.9 * square + 0.1 * score**2
            theta = theta + RATE * score / (1e-9 + square.sqrt())
        memory[turn].append((received, theta, was_prior))
        was_prior = False
        torch.testing.assert_close(shared["particles"][0], theta, rtol=1e-10, atol=1e-10)


def widened(local, new, turn):
    """The clients' states with one client's new one, whose buffer may have grown."""
    out = {}
    for name, value in local.items():
        if new[name].shape[1:] != value.shape[1:]:
            room = value.new_zeros(len(value), *new[name].shape[1:])
            room[:, : value.shape[1]] = value
            value = room
        out[name] = value.clone()
        out[name][turn] = new[name][0]
    return out


def test_a_run_has_one_finite_draw():
    fed = federation(num_clients=2)
    for kind in (pf.papers.UDSVGD, pf.papers.PaperDSVGD, pf.papers.PaperParallelDSVGD):
        algorithm = kind(num_particles=1, local_steps=3)
        idata = pf.run(algorithm, fed, num_rounds=2, progress=False, log_likelihood=False, audit=False)
        draws = idata.posterior["w"].values
        assert draws.shape[:2] == (1, 1)
        assert all(math.isfinite(value) for value in draws.ravel())
