"""Speed of the Langevin steps: logistic regression, 30 features, m = 10, one thread, processor time.

Updates a second of one chain, against an eager loop over the gradient of the traced Pyro model; 64 chains against
one; conducive gradient against none; 10 clients against 10,000.

    python -m benchmarks.speed.fsgld_speed
"""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from typing import Any

import pyro
import torch
from pyro import poutine

import pyro_fed as pf
from models import logistic_regression
from pyro_fed.algorithm.states import select
from pyro_fed.density.compiling.compiler import Compiler
from pyro_fed.runtime.executors.base import Work
from pyro_fed.runtime.executors.local import Vectorised

UNBOUNDED = pf.infer.Conducive(trust=None)
PAPER: dict[str, Any] = {
    "step": pf.infer.step.Fixed(size=1e-4, precondition=False, midpoint=False),
    "control_variate": False,
    "batch_size": 10,
    "local_steps": 1_000,
    "target_ess": None,
    "thin": 1_000,
}


def federation(num_clients, rows):
    (x, y), _ = logistic_regression.load_data()
    at = torch.randint(len(x), (num_clients * rows,), generator=torch.Generator().manual_seed(0))
    return pf.Federation(logistic_regression.model, (x[at, :30], y[at]), plate="data", num_clients=num_clients)


def given(fed):
    ones = torch.ones(fed.num_clients, fed.problem.dim)
    return pf.infer.Given(torch.diag_embed(ones), torch.zeros_like(ones))


def seconds_a_step(algorithm, fed, repeats=3):
    """Processor seconds of one step of all chains, the best of several visits, compiled by Inductor."""
    problem = replace(fed.problem, compiler=Compiler("inductor"))
    with torch.no_grad(), pyro.validation_enabled(False):
        shared, local = algorithm.init(problem, fed.num_clients, torch.Generator().manual_seed(0), None)
        if "ready" in local:
            local["ready"][:] = True  # the stability check is no part of a step
        executor = Vectorised()
        executor.start(algorithm, problem, fed.client_data(), local)
        clients = [k % fed.num_clients for k in range(algorithm.num_chains)]
        at, best = torch.tensor(clients), float("inf")
        for repeat in range(repeats + 1):
            work = Work(repeat, 0, clients, algorithm.download(shared, at))
            noise = executor.noise(work)
            rows = fed.client_data(clients)
            began = time.process_time()
            algorithm.local_step(problem, work.shared, select(local, at), rows, noise)
            if repeat:
                best = min(best, time.process_time() - began)
    return best / algorithm.local_steps


def eager_seconds_a_step(fed, steps=300):
    """Processor seconds of a hand-written loop: trace the Pyro model on a minibatch, differentiate, step."""
    (x, y), z = fed.problem.rows, torch.zeros(fed.problem.dim)
    generator = torch.Generator().manual_seed(0)
    began = time.process_time()
    for _ in range(steps):
        picks = torch.randint(len(x), (10,), generator=generator)
        free = z.clone().requires_grad_()
        xi, w = free[0].exp(), free[1:]
        conditioned = poutine.condition(logistic_regression.model, {"xi": xi, "w": w})
        scaled = poutine.scale(conditioned, len(x) / 10)
        density = poutine.trace(scaled).get_trace(x[picks], y[picks]).log_prob_sum()
        (score,) = torch.autograd.grad(torch.as_tensor(density), free)
        z = z + 0.5e-4 * score + 1e-2 * torch.randn(len(z), generator=generator)
    return (time.process_time() - began) / steps


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    fed = federation(10, 45)
    eager = eager_seconds_a_step(fed)
    paper: dict[str, Any] = {"surrogates": given(fed), "conducive": UNBOUNDED, **PAPER}
    one, many = (seconds_a_step(pf.FSGLD(**paper, num_chains=n), fed) for n in (1, 64))
    without = seconds_a_step(pf.infer.DSGLD(surrogates=None, num_chains=1, **PAPER), fed)
    wide = federation(10_000, 2)
    large = seconds_a_step(pf.FSGLD(surrogates=given(wide), num_chains=1, conducive=UNBOUNDED, **PAPER), wide)
    default: dict[str, Any] = PAPER | {"step": pf.infer.step.Fixed(size=1e-4), "control_variate": True}
    full = seconds_a_step(pf.FSGLD(surrogates=given(fed), num_chains=1, **default), fed)
    print(f"eager loop        {1 / eager:9.0f} updates/s")
    print(f"FSGLD, 1 chain    {1 / one:9.0f} updates/s, {eager / one:.1f} times the eager loop")
    print(f"FSGLD, 64 chains  {64 / many:9.0f} updates/s in all; a step takes {many / one:.2f} times one chain's")
    print(f"DSGLD, 1 chain    {1 / without:9.0f} updates/s; conducive gradient adds {100 * (one / without - 1):.0f} %")
    print(f"10,000 clients    {1 / large:9.0f} updates/s, {large / one:.2f} times the time of 10 clients")
    print(f"all deviations on {1 / full:9.0f} updates/s")


if __name__ == "__main__":
    main()
