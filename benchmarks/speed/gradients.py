"""What the layer costs: gradients and DSVGD steps against torch written by hand, on one thread.

    python -m benchmarks.speed.gradients

Ratios of medians measured in turn within one process:
  1. one gradient of all particles of a Pyro model against the same density by hand, under the same compile
     treatment (traced, Inductor); at most 1.3
  2. a DSVGD step (30 features, minibatch of 10, 6 particles) against plain eager torch; at least 8
  3. the steps of 20 clients together against those of one; at most 4
"""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

import pyro_fed as pf
from pyro_fed.density.compiling.compiler import Compiler
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import Batch, draw_minibatches
from pyro_fed.infer.papers.dsvgd import Approximation, Site
from pyro_fed.infer.sites.records import entries_as

REPEATS = 9


def model(x, y):
    """Hierarchical logistic regression: w ~ N(0, I / xi), xi ~ Gamma(1, 0.01)."""
    xi = pyro.sample("xi", dist.Gamma(x.new_tensor(1.0), x.new_tensor(0.01)))
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), xi.rsqrt()).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def log_density_by_hand(z: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """The same log density of one vector z = (log xi, w)."""
    log_xi, w = z[0], z[1:]
    prior = log_xi + math.log(0.01) - 0.01 * log_xi.exp()
    prior = prior + (0.5 * len(w)) * (log_xi - math.log(2 * math.pi)) - 0.5 * log_xi.exp() * w.square().sum()
    return prior - (weight * binary_cross_entropy_with_logits(x @ w, y, reduction="none")).sum()


def data(rows: int, columns: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Covariates and labels."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, generator=generator)
    return x, (x[:, 0] + 0.5 * torch.randn(rows, generator=generator) > 0).float()


def seconds(*functions: Callable[[], object], calls: int) -> list[float]:
    """Median seconds of one call of each function, measured in turn."""
    for function in functions:
        for _ in range(5):
            function()
    found: list[list[float]] = [[] for _ in functions]
    for _ in range(REPEATS):
        for function, times in zip(functions, found, strict=True):
            began = time.perf_counter()
            for _ in range(calls):
                function()
            times.append((time.perf_counter() - began) / calls)
    return [statistics.median(times) for times in found]


def model_score(problem: Problem, z: Tensor, batch: Batch) -> Tensor:
    """Score of all particles, by the Pyro model."""

    def log_joint(one: Tensor) -> Tensor:
        return problem.log_joint(one, batch)

    found: Tensor = problem.vmap(grad(log_joint))(z)
    return found


def gradients(rows: int, columns: int, particles: int) -> None:
    """Print the ratio of one gradient of all particles, traced and compiled."""
    x, y = data(rows, columns)
    problem = pf.Federation(model, (x, y), plate="data", num_clients=1).problem
    z = 0.1 * torch.randn(particles, columns + 1)
    weight = torch.ones(rows)
    by_hand = make_fx(vmap(grad(partial(log_density_by_hand, x=x, y=y, weight=weight))))(z)
    for level, treat in (("trace", lambda graph: graph), ("inductor", partial(torch.compile, dynamic=False))):
        problem = replace(problem, compiler=Compiler(level))
        layer = problem.mapped(model_score, (0, None))
        hand = treat(by_hand)
        batch = Batch((x, y), weight)
        torch.testing.assert_close(layer(z[None], batch)[0], hand(z), rtol=2e-3, atol=2e-3)
        mine, theirs = seconds(partial(layer, z[None], batch), partial(hand, z), calls=20)
        print(
            f"gradient, {rows} x {columns}, {particles} particles, {level}: {1e3 * mine:.3f} ms, by hand "
            f"{1e3 * theirs:.3f} ms, ratio {mine / theirs:.2f} (at most 1.3)"
        )


class EagerDSVGD:
    """Steps of Algorithm 1's global update in eager torch, one client, as one would write it down."""

    def __init__(self, x: Tensor, y: Tensor, particles: Tensor, site: Tensor) -> None:
        self.x, self.y = x, y
        self.received, self.site = particles, site

    def kde_score(self, z: Tensor, centres: Tensor) -> Tensor:
        """Score of the Gaussian KDE of bandwidth 0.55."""
        difference = centres[None] - z[:, None]
        weights = torch.softmax(-0.5 * difference.square().sum(-1) / 0.55**2, -1)
        return (weights[..., None] * difference).sum(1) / 0.55**2

    def likelihood_score(self, z: Tensor, rows: Tensor) -> Tensor:
        """Gradient of the minibatch log-likelihood, by autograd."""
        z = z.detach().requires_grad_()
        logits = z[:, 1:] @ self.x[rows].T
        total = (self.y[rows] * logits - softplus(logits)).sum() * (len(self.x) / len(rows))
        return torch.autograd.grad(total, z)[0]

    def run(self, steps: int) -> Tensor:
        """Move the particles."""
        z, history = self.received.clone(), torch.zeros_like(self.received)
        upper = torch.triu_indices(len(z), len(z), 1)
        for i in range(steps):
            rows = torch.randperm(len(self.x))[:10]
            score = self.kde_score(z, self.received) - self.kde_score(z, self.site) + self.likelihood_score(z, rows)
            squared = torch.cdist(z, z).square()
            width = squared[upper[0], upper[1]].sqrt().median() ** 2 / math.log(len(z))
            kernel = torch.exp(-squared / width)
            phi = (kernel @ score + 2 / width * (kernel.sum(1, keepdim=True) * z - kernel @ z)) / len(z)
            history = phi.square() if i == 0 else 0.9 * history + 0.1 * phi.square()
            z = z + 0.05 * phi / (1e-9 + history.sqrt())
        return z


def dsvgd(clients: int = 20, steps: int = 400) -> None:
    """Print a step's time against eager torch, and 20 clients together against one."""
    x, y = data(100 * clients, 30)
    fed = pf.Federation(model, (x, y), plate="data", num_clients=clients)
    problem = replace(fed.problem, compiler=Compiler("inductor"))
    algorithm = pf.papers.PaperDSVGD(num_particles=6, local_steps=steps, batch_size=10)
    shared, local = algorithm.init(problem, clients, torch.Generator().manual_seed(0), None)
    shared = shared | {"is_prior": torch.tensor(False)}
    local = local | {"visited": torch.ones(clients, dtype=torch.bool)}

    def work(count: int) -> Callable[[], object]:
        at = torch.arange(count)
        draws = [
            draw_minibatches(100, 10, steps, torch.Generator().manual_seed(k), torch.float32) for k in range(count)
        ]
        noise = type(draws[0])(*(torch.stack(parts, 1) for parts in zip(*draws, strict=True)))
        site = {name: value[at] for name, value in local.items()}
        received = algorithm.download(shared, at)
        records = entries_as(Approximation, received), entries_as(Site, site)
        return partial(algorithm.move_global, problem, *records, fed.client_data(range(count)), noise)

    eager = EagerDSVGD(x[:100], y[:100], shared["particles"], local["site"][0])
    one, many, plain = seconds(work(1), work(clients), partial(eager.run, steps), calls=1)
    print(
        f"DSVGD step, 30 features, minibatch 10, 6 particles: {1e3 * one / steps:.3f} ms, eager torch "
        f"{1e3 * plain / steps:.3f} ms, {plain / one:.1f} times faster (at least 8)"
    )
    print(f"{clients} clients together: {1e3 * many / steps:.3f} ms a step, {many / one:.1f} times one (at most 4)")


def main() -> None:
    """Print all ratios."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dsvgd()
    gradients(4000, 54, 20)
    gradients(500, 30, 100)


if __name__ == "__main__":
    main()
