"""Speed of the Stein iterations, on one thread: the accurate form against the published one, and against eager torch.

    python -m benchmarks.speed.stein_speed

Bayesian neural network of 502 parameters (8 covariates, 50 hidden units), 20 particles, minibatches of 100; and
logistic regression of 31. Medians measured in turn within one process:
  1. a compiled step of `DSVGD` against one of `PaperDSVGD`, global update; at most 1.5
  2. a compiled step of `PaperDSVGD` on the network, global update, against the same step run eagerly (compile="off",
     `torch.func.vmap` of the Pyro model), at least 10; and against a loop written by hand with batched matrix products

Whitening and the other clients' sites are dense for the regression, diagonal for the network.
"""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.nn.functional import relu

import pyro_fed as pf
from benchmarks.speed.gradients import EagerDSVGD, data, seconds
from benchmarks.speed.gradients import model as logistic
from models import bnn_regression
from pyro_fed.density.compiling.compiler import Compiler
from pyro_fed.density.rows.batches import draw_minibatches, with_batches
from pyro_fed.infer.papers.dsvgd import Approximation, Site
from pyro_fed.infer.sites.records import entries_as
from pyro_fed.ops.step_sizes import AdaGradState

STEPS, PARTICLES, ROWS = 50, 20, 1000


def problem_of(model, columns, level="inductor"):
    """A federation of one client, its steps compiled by Inductor."""
    fed = pf.Federation(model, data(ROWS, columns), plate="data", num_clients=1)
    fed.problem = replace(fed.problem, compiler=Compiler(level))
    return fed


def minibatches(batch_size):
    """Noise of `STEPS` steps of one client."""
    drawn = draw_minibatches(ROWS, batch_size, STEPS, torch.Generator().manual_seed(0), torch.float32)
    return type(drawn)(*(part.unsqueeze(1) for part in drawn))


def published(algorithm, fed, noise):
    """The global update of DSVGD, or SVGD, after the first visit."""
    shared, local = algorithm.init(fed.problem, 1, torch.Generator().manual_seed(0), None)
    received = algorithm.download(shared | {"is_prior": torch.tensor(False)}, torch.zeros(1, dtype=torch.int64))
    site = local | {"visited": torch.ones(1, dtype=torch.bool)}
    records = entries_as(Approximation, received), entries_as(Site, site)
    return partial(algorithm.move_global, fed.problem, *records, fed.client_data(), noise)


def accurate(algorithm, fed, noise, dense):
    """The same of the accurate DSVGD, with whitening and sites of some size."""
    dim = fed.problem.dim
    matrix = torch.eye(dim) if dense else torch.ones(dim)
    const = {"mean": torch.zeros(1, dim), "factor": matrix[None], "precision": matrix[None].clone()}
    const |= {"tilt": torch.zeros(1, PARTICLES, dim), "eta": torch.zeros(1, dim)}
    const |= {"own_weight": torch.ones(1), "step_factor": torch.ones(1)}
    rows, dims = with_batches(fed.client_data(), algorithm.batch_size)
    white = torch.randn(1, PARTICLES, dim, generator=torch.Generator().manual_seed(0))
    carry = (white, AdaGradState(torch.zeros_like(white), torch.zeros(1)))
    axes = (dict.fromkeys(const, 0), dims)
    return partial(fed.problem.scan, algorithm._step, carry, (const, rows), noise, STEPS, axes)


def eager_network(fed, noise):
    """The global update on the network as one would write it down."""
    (x, y), hidden = fed.problem.rows, 50
    received = torch.randn(PARTICLES, fed.problem.dim, generator=torch.Generator().manual_seed(0))
    kde_score = EagerDSVGD(x, y, received, received).kde_score

    def log_density(z, x, y):
        log_gamma, w1 = z[:, 0], z[:, 1:401].reshape(-1, 8, hidden)
        b1, w2, b2 = z[:, 401:451], z[:, 451:501], z[:, 501]
        mean = torch.einsum("nmh,nh->nm", relu(x @ w1 + b1.unsqueeze(1)), w2) + b2.unsqueeze(1)
        likelihood = 0.5 * log_gamma.unsqueeze(1) - 0.5 * log_gamma.exp().unsqueeze(1) * (y - mean).square()
        return (likelihood.sum(1) * ROWS / len(y)).sum()

    def run():
        z = received.clone()
        history, upper = torch.zeros_like(z), torch.triu_indices(PARTICLES, PARTICLES, 1)
        for picks in noise.position[:, 0]:
            free = z.detach().requires_grad_()
            (score,) = torch.autograd.grad(log_density(free, x[picks], y[picks]), free)
            score = score + kde_score(z, received) - kde_score(z, received)
            squared = torch.cdist(z, z).square()
            width = squared[upper[0], upper[1]].sqrt().median() ** 2 / math.log(PARTICLES)
            kernel = torch.exp(-squared / width)
            phi = (kernel @ score + 2 / width * (kernel.sum(1, keepdim=True) * z - kernel @ z)) / PARTICLES
            history = 0.9 * history + 0.1 * phi.square()
            z = z + 0.001 * phi / (1e-6 + history.sqrt())
        return z

    return run


def main():
    """Print all ratios."""
    torch.set_num_threads(1)
    for name, model, columns, dense in (
        ("logistic", logistic, 30, True),
        ("network", partial(bnn_regression.model, hidden=50), 8, False),
    ):
        fed, noise = problem_of(model, columns), minibatches(100)
        settings: dict[str, Any] = {"num_particles": PARTICLES, "batch_size": 100, "local_steps": STEPS}
        paper = published(pf.papers.PaperDSVGD(**settings), fed, noise)
        mine = accurate(pf.DSVGD(**settings), fed, noise, dense)
        a, b = (1e3 * t / STEPS for t in seconds(mine, paper, calls=1))
        print(f"{name}, d = {fed.problem.dim}: DSVGD {a:.3f} ms, published {b:.3f} ms, ratio {a / b:.2f} (at most 1.5)")
    single = published(pf.papers.PaperDSVGD(**settings), fed, noise)
    eager = published(pf.papers.PaperDSVGD(**settings), problem_of(model, columns, "off"), noise)
    for name, other in {"eager vmap (at least 10)": eager, "eager by hand": eager_network(fed, noise)}.items():
        a, b = (1e3 * t / STEPS for t in seconds(single, other, calls=1))
        print(f"network: published DSVGD {1e3 / a:.0f} steps a second, {b / a:.1f} times {name}")


if __name__ == "__main__":
    main()
