"""Guides of every kind, fitted federated and by Pyro's SVI on the pooled data, beside exact posteriors.

    python -m benchmarks.accuracy.guides                       # all guides: a table of Markdown
    python -m benchmarks.accuracy.guides --only IAF banana     # those whose name has one of these words
    python -m benchmarks.accuracy.guides --steps 2000

Five clients. `FedEP` federates a guide that is an exponential family, `FedLaplace` the Laplace guide, `SFVI` the rest.
Pooled is `pyro.infer.SVI` with the same guide, steps, draws a step, Adam, rates and average of the second half of its
parameters as SFVI, and random numbers of its own. SFVI makes the first half of its steps at the server, towards FedEP's
Gaussian, so that clients compute half as many gradients. Errors of means are in SDs of the exact posterior, of SDs in
logarithms, the largest of all parameters; 4,000 draws add 0.016 and 0.011. Draws of SFVI's and of the pooled guide are
made with the same random numbers. "Chance" is the largest SD of their distance by the random numbers of their steps: √2
standard errors of the pooled run's average, by ten batches of its parameters. The reference is exact (conjugate), or a
fine grid. KL is that of the guide to the posterior, in nats, by 4,000 draws and the grid's evidence. Rounds include
FedEP's. Bytes are those of one client in all rounds, seconds the whole run's without its audit.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer import autoguide as auto
from pyro.nn import PyroModule, PyroParam
from pyro.optim import PyroLRScheduler
from torch import Tensor, nn

import pyro_fed as pf
from benchmarks.helpers.tables import heading, row
from pyro_fed.guides.program import flat, guide_program

F64 = torch.float64
positive = dist.constraints.positive
GENERATOR = torch.Generator().manual_seed(0)
OPTIONS: dict[str, Any] = {"progress": False, "audit": False, "log_likelihood": False, "num_draws": 4000, "seed": 0}


def number(value: float) -> Tensor:
    return torch.tensor(float(value), dtype=F64)


def param(name: str, value: Any, constraint: Any = dist.constraints.real) -> Tensor:
    found: Tensor = pyro.param(name, torch.as_tensor(value, dtype=F64).clone(), constraint=constraint)
    return found


# -- models, each with its exact means and SDs -----------------------------------------------------------------------
LINES_X = 0.5**0.5 * (torch.randn(60, 1, generator=GENERATOR) + torch.randn(60, 3, generator=GENERATOR)).double()
LINES_Y = LINES_X @ torch.tensor([1.0, -0.5, 0.3], dtype=F64) + torch.randn(60, generator=GENERATOR).double()
COUNTS = torch.poisson(torch.full((40,), 4.0, dtype=F64), generator=GENERATOR)
FLIPS = (torch.rand(40, generator=GENERATOR) < 0.3).double()
LABELS = torch.randint(0, 3, (40,), generator=GENERATOR)
NOISE = 1.3 * torch.randn(40, generator=GENERATOR).double()
GROUP_SD = torch.randn(9, generator=GENERATOR).double().square() + 0.5
GROUP_Y = 1.0 + 1.5 * torch.randn(9, generator=GENERATOR).double()


def lines(x: Tensor, y: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(3, dtype=F64), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def lines_exact() -> tuple[Tensor, Tensor]:
    precision = torch.eye(3, dtype=F64) + LINES_X.T @ LINES_X
    return torch.linalg.solve(precision, LINES_X.T @ LINES_Y), torch.linalg.inv(precision).diagonal().sqrt()


def scaled(x: Tensor, y: Tensor) -> None:
    s = pyro.sample("s", dist.Gamma(number(2), number(2)))
    w = pyro.sample("w", dist.Normal(torch.zeros(3, dtype=F64), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, s), obs=y)


def scaled_exact() -> tuple[Tensor, Tensor]:
    """By a grid of s, given which w is normal."""
    grid = torch.linspace(0.5, 2.5, 2000, dtype=F64)
    logs, means, seconds = [], [], []
    for s in grid:
        precision = torch.eye(3, dtype=F64) + LINES_X.T @ LINES_X / s**2
        cover = torch.linalg.inv(precision)
        mean = cover @ LINES_X.T @ LINES_Y / s**2
        marginal = dist.MultivariateNormal(
            torch.zeros(60, dtype=F64), s**2 * torch.eye(60, dtype=F64) + LINES_X @ LINES_X.T
        )
        logs.append(marginal.log_prob(LINES_Y) + dist.Gamma(number(2), number(2)).log_prob(s))
        means.append(torch.cat([s[None], mean]))
        seconds.append(torch.cat([s[None] ** 2, mean**2 + cover.diagonal()]))
    weight = torch.stack(logs).softmax(0)
    mean = weight @ torch.stack(means)
    return mean, (weight @ torch.stack(seconds) - mean**2).sqrt()


def counts(y: Tensor) -> None:
    rate = pyro.sample("rate", dist.Gamma(number(2), number(0.5)))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Poisson(rate), obs=y)


def flips(y: Tensor) -> None:
    p = pyro.sample("p", dist.Beta(number(1.5), number(2)))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Bernoulli(p), obs=y)


def labels(y: Tensor) -> None:
    p = pyro.sample("p", dist.Dirichlet(torch.ones(3, dtype=F64)))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Categorical(p), obs=y)


def variance(y: Tensor) -> None:
    v = pyro.sample("v", dist.InverseGamma(number(3), number(2)))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(number(0), v.sqrt()), obs=y)


def of(fn: Any) -> Callable[[], tuple[Tensor, Tensor]]:
    return lambda: (fn.mean.reshape(-1), fn.variance.sqrt().reshape(-1))


def on_grid(log_density: Callable[[Tensor], Tensor], low: list[float], high: list[float], size: int = 1200) -> Any:
    """Means, SDs and the log evidence of a density of one or two parameters."""
    axes = [torch.linspace(a, b, size, dtype=F64) for a, b in zip(low, high, strict=True)]
    points = torch.cartesian_prod(*axes).reshape(-1, len(axes))
    logs = log_density(points)
    weight = logs.softmax(0)
    mean = weight @ points
    cell = sum(math.log(float(axis[1] - axis[0])) for axis in axes)
    return mean, (weight @ points.square() - mean**2).sqrt(), float(logs.logsumexp(0)) + cell


def half_cauchy_counts(y: Tensor) -> None:
    rate = pyro.sample("rate", dist.HalfCauchy(number(1)))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Poisson(rate), obs=y)


FEW = COUNTS[:2] * 0


def few_exact() -> tuple[Tensor, Tensor]:
    mean, sd, _ = on_grid(lambda z: dist.HalfCauchy(number(1)).log_prob(z[:, 0]) - 2 * z[:, 0], [1e-6], [14.0], 200_000)
    return mean, sd


BANANA_Y = torch.tensor([1.6, 1.1, 1.9, 1.4, 1.2, 1.5], dtype=F64)


def banana(y: Tensor) -> None:
    a = pyro.sample("a", dist.Normal(number(0), 1.0))
    b = pyro.sample("b", dist.Normal(number(0), 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(b + (a + 1).square(), 0.6), obs=y)


def banana_exact() -> tuple[Tensor, Tensor, float]:
    def log_density(z: Tensor) -> Tensor:
        prior = dist.Normal(number(0), 1.0).log_prob(z).sum(1)
        return prior + dist.Normal((z[:, 1] + (z[:, 0] + 1).square())[:, None], 0.6).log_prob(BANANA_Y).sum(1)

    return on_grid(log_density, [-5.0, -6.0], [4.0, 5.0])


FUNNEL_Y = torch.tensor([0.3, -0.4], dtype=F64)


def funnel(y: Tensor) -> None:
    t = pyro.sample("t", dist.Normal(number(0), 1.5))
    x = pyro.sample("x", dist.Normal(number(0), t.exp()))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x, 2.0), obs=y)


def funnel_exact() -> tuple[Tensor, Tensor, float]:
    """Given t, x is normal: a grid of t, and the moments of x."""
    t = torch.linspace(-9, 7, 40_000, dtype=F64)
    precision = (-2 * t).exp() + 2 / 4
    mean, var = FUNNEL_Y.sum() / 4 / precision, 1 / precision
    cover = (2 * t).exp()[:, None, None] * torch.ones(2, 2, dtype=F64) + 4 * torch.eye(2, dtype=F64)
    logs = dist.MultivariateNormal(torch.zeros(2, dtype=F64), cover).log_prob(FUNNEL_Y)
    logs = logs + dist.Normal(number(0), 1.5).log_prob(t)
    weight = logs.softmax(0)
    first = torch.stack([weight @ t, weight @ mean])
    second = torch.stack([weight @ t**2, weight @ (mean**2 + var)])
    return first, (second - first**2).sqrt(), float(logs.logsumexp(0)) + math.log(float(t[1] - t[0]))


def groups(sd: Tensor, y: Tensor) -> None:
    mu = pyro.sample("mu", dist.Normal(number(0), 2.0))
    with pyro.plate("data", len(sd)):
        effect = pyro.sample("effect", dist.Normal(mu, 0.8))
        pyro.sample("y", dist.Normal(effect, sd), obs=y)


def groups_exact() -> tuple[Tensor, Tensor]:
    weight = 1 / (GROUP_SD**2 + 0.8**2)
    precision = weight.sum() + 0.25
    return (weight @ GROUP_Y / precision)[None], precision.rsqrt()[None]


# -- guides -----------------------------------------------------------------------------------------------------------
def beta_guide(y: Tensor) -> None:
    pyro.sample("p", dist.Beta(param("a", 2, positive), param("b", 2, positive)))


def gamma_guide(y: Tensor) -> None:
    a = param("a", 3, positive)
    pyro.sample("rate", dist.Gamma(a, a / param("mean", 3, positive)))


def dirichlet_guide(y: Tensor) -> None:
    pyro.sample("p", dist.Dirichlet(param("a", [2, 2, 2], positive)))


def own_normals(x: Tensor, y: Tensor) -> None:
    pyro.sample("w", dist.Normal(param("loc", [0, 0, 0]), param("sd", [0.5, 0.5, 0.5], positive)).to_event(1))


def own_joint(x: Tensor, y: Tensor) -> None:
    tril = param("tril", torch.eye(3) / 2, dist.constraints.lower_cholesky)
    pyro.sample("w", dist.MultivariateNormal(param("loc", [0, 0, 0]), scale_tril=tril))


def own_low_rank(x: Tensor, y: Tensor) -> None:
    factor, diagonal = param("factor", [[0.1]] * 3), param("diagonal", [0.1] * 3, positive)
    pyro.sample("w", dist.LowRankMultivariateNormal(param("loc", [0, 0, 0]), factor, diagonal))


def normals_and_gamma(x: Tensor, y: Tensor) -> None:
    a = param("a", 20, positive)
    pyro.sample("s", dist.Gamma(a, a / param("mean", 1, positive)))
    own_normals(x, y)


def log_normal_guide(y: Tensor) -> None:
    pyro.sample("v", dist.LogNormal(param("loc", 0), param("sd", 0.5, positive)))


def inverse_gamma_guide(y: Tensor) -> None:
    a = param("a", 3, positive)
    pyro.sample("v", dist.InverseGamma(a, a * param("mean", 1, positive)))


def half_normal_guide(y: Tensor) -> None:
    pyro.sample("rate", dist.HalfNormal(param("sd", 1, positive)))


def exponential_guide(y: Tensor) -> None:
    pyro.sample("rate", dist.Exponential(param("rate_of", 1, positive)))


def point_and_gamma(x: Tensor, y: Tensor) -> None:
    a = param("a", 20, positive)
    pyro.sample("s", dist.Gamma(a, a / param("mean", 1, positive)))
    pyro.sample("w", dist.Delta(param("loc", [0, 0, 0]), event_dim=1))


def dependent(x: Tensor, y: Tensor) -> None:
    """w given s, as in the posterior its SDs follow s."""
    a = param("a", 20, positive)
    s = pyro.sample("s", dist.InverseGamma(a, a * param("mean", 1, positive)))
    tril = param("tril", torch.eye(3) / 5, dist.constraints.lower_cholesky)
    pyro.sample("w", dist.MultivariateNormal(param("loc", [0, 0, 0]), scale_tril=s * tril))


class Module(PyroModule):
    """A network from s to the means of w."""

    net: Any
    sd: Any
    mean: Any
    spread: Any

    def __init__(self) -> None:
        super().__init__()
        linear: Any = PyroModule[nn.Linear]
        self.net = linear(1, 3).double()
        self.sd = PyroParam(torch.full((3,), 0.3, dtype=F64), positive)
        self.mean, self.spread = PyroParam(number(0)), PyroParam(number(0.2), positive)

    def forward(self, x: Tensor, y: Tensor) -> None:
        s = pyro.sample("s", dist.LogNormal(self.mean, self.spread))
        pyro.sample("w", dist.Normal(self.net(s.reshape(1)), self.sd).to_event(1))


def amortised() -> Callable[..., None]:
    """q(mu) q(effect_k | y_k, sd_k, mu) by a network."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 2)).double()

    def guide(sd: Tensor, y: Tensor) -> None:
        mu = pyro.sample("mu", dist.Normal(param("loc", 0), param("scale", 0.5, positive)))
        pyro.module("net", net)
        out = net(torch.stack([y, sd.log(), mu.expand(len(y))], -1))
        with pyro.plate("data", len(sd)):
            pyro.sample("effect", dist.Normal(out[..., 0], out[..., 1].exp()))

    return guide


def flow(model: Any) -> Any:
    """Two affine autoregressive transforms, which can bend as one cannot."""
    return auto.AutoIAFNormal(model, hidden_dim=[12], num_transforms=2)


def spline(model: Any) -> Any:
    return auto.AutoNormalizingFlow(
        model, lambda dim: dist.transforms.iterated(1, dist.transforms.spline_autoregressive, dim)
    )


LINES, SCALED = (lines, (LINES_X, LINES_Y), lines_exact), (scaled, (LINES_X, LINES_Y), scaled_exact)
GAMMA = (counts, (COUNTS,), of(dist.Gamma(2 + COUNTS.sum(), number(40.5))))
BETA = (flips, (FLIPS,), of(dist.Beta(1.5 + FLIPS.sum(), 2 + (1 - FLIPS).sum())))
DIRICHLET = (labels, (LABELS,), of(dist.Dirichlet(1 + torch.bincount(LABELS).double())))
VARIANCE = (variance, (NOISE,), of(dist.InverseGamma(number(23), 2 + NOISE.square().sum() / 2)))
RATE = (half_cauchy_counts, (FEW,), few_exact)
GROUPS = (groups, (GROUP_SD, GROUP_Y), groups_exact)
BANANA, FUNNEL = (banana, (BANANA_Y,), banana_exact), (funnel, (FUNNEL_Y,), funnel_exact)


@dataclass(frozen=True)
class Case:
    """A guide of a model."""

    name: str
    by: str
    problem: Any
    guide: Any


CASES = [
    Case("Beta", "FedEP", BETA, beta_guide),
    Case("Gamma", "FedEP", GAMMA, gamma_guide),
    Case("Dirichlet", "FedEP", DIRICHLET, dirichlet_guide),
    Case("LogNormal of a variance", "FedEP", VARIANCE, log_normal_guide),
    Case("MultivariateNormal", "FedEP", LINES, own_joint),
    Case("Normal, mean-field", "FedEP", LINES, own_normals),
    Case("Normal × Gamma", "FedEP", SCALED, normals_and_gamma),
    Case("AutoNormal", "FedEP", SCALED, auto.AutoNormal),
    Case("AutoDiagonalNormal", "FedEP", SCALED, auto.AutoDiagonalNormal),
    Case("AutoMultivariateNormal", "FedEP", SCALED, auto.AutoMultivariateNormal),
    Case("AutoLaplaceApproximation", "FedLaplace", SCALED, auto.AutoLaplaceApproximation),
    Case("AutoMultivariateNormal", "SFVI", SCALED, auto.AutoMultivariateNormal),
    Case("AutoLowRankMultivariateNormal", "SFVI", SCALED, lambda m: auto.AutoLowRankMultivariateNormal(m, rank=1)),
    Case("AutoIAFNormal", "SFVI", SCALED, auto.AutoIAFNormal),
    Case("AutoNormalizingFlow (spline)", "SFVI", SCALED, spline),
    Case(
        "AutoStructured",
        "SFVI",
        SCALED,
        lambda m: auto.AutoStructured(m, conditionals={"s": "normal", "w": "mvn"}, dependencies={"w": {"s": "linear"}}),
    ),
    Case("AutoDelta, a MAP point", "SFVI", SCALED, auto.AutoDelta),
    Case("LowRankMultivariateNormal", "SFVI", LINES, own_low_rank),
    Case("dependent sites", "SFVI", SCALED, dependent),
    Case("PyroModule, a network", "SFVI", SCALED, Module),
    Case("Delta × Gamma", "SFVI", SCALED, point_and_gamma),
    Case("InverseGamma", "SFVI", VARIANCE, inverse_gamma_guide),
    Case("HalfNormal", "SFVI", RATE, half_normal_guide),
    Case("Exponential", "SFVI", RATE, exponential_guide),
    Case("amortised effects", "SFVI", GROUPS, amortised),
    Case("banana: Gaussian", "SFVI", BANANA, auto.AutoMultivariateNormal),
    Case("banana: two IAFs", "SFVI", BANANA, flow),
    Case("funnel: Gaussian", "SFVI", FUNNEL, auto.AutoMultivariateNormal),
    Case("funnel: two IAFs", "SFVI", FUNNEL, flow),
]
#: Guides that are made from nothing, or from the model, anew for each side.
MADE = (Module, amortised)


def instance(case: Case) -> Any:
    """The guide as it is given to an algorithm."""
    model, guide = case.problem[0], case.guide
    if guide in MADE:
        torch.manual_seed(0)
        return guide()
    return guide(model) if guide in (flow, spline) or getattr(guide, "__name__", "") == "<lambda>" else guide


def federated(case: Case, fed: Any, steps: int, particles: int, rate: float) -> tuple[Any, Any, dict[str, Any]]:
    """Draws (S, D) of a federated run, the guide's parameters, and figures."""
    kept: dict[str, Any] = {}

    class Kept(pf.infer.SFVI):
        def conclude(self, problem: Any, shared: Any) -> Any:
            kept.update(shared)
            return super().conclude(problem, shared)

        def delegate(self) -> Any:
            return self

    begun = time.perf_counter()
    if case.by == "FedEP":
        algorithm: Any = pf.FedEP(guide=instance(case))
    elif case.by == "FedLaplace":
        algorithm = pf.FedLaplace()
    else:
        algorithm = Kept(guide=instance(case), num_steps=steps, num_particles=particles, step_size=rate)
    idata = pf.run(algorithm, fed, **OPTIONS)
    seconds = time.perf_counter() - begun
    if case.by == "SFVI":
        draws = fitted_draws(guide_program(instance(case), fed.problem), kept["average"])
    else:
        values = [torch.as_tensor(idata["posterior"][name].values[0]).reshape(4000, -1) for name in fed.problem.sites]
        draws = torch.cat(values, 1)
    rounds, clients = idata.attrs["num_rounds"], fed.num_clients
    sent = sum(float(idata["federation"][name].sum()) for name in ("bytes_up", "bytes_down")) / clients
    return draws, kept.get("average"), {"rounds": rounds, "kB": sent / 1000, "s": seconds}


def pooled(case: Case, fed: Any, steps: int, particles: int, rate: float) -> tuple[Any, Any, Any]:
    """Draws (S, D) of Pyro's SVI on the pooled data, the guide's parameters, and chance's SDs of the means, (D,)."""
    program = guide_program(instance(case), fed.problem)
    final, reached = pf.infer.SFVI().final_share, []

    def share(step: int) -> float:
        return final ** max(0.0, 2 * step / steps - 1)

    settings = {"optimizer": torch.optim.Adam, "optim_args": {"lr": rate, "betas": (0.9, 0.99)}, "lr_lambda": share}
    optim = PyroLRScheduler(torch.optim.lr_scheduler.LambdaLR, settings)
    with program.at(program.start, 1, program.own_start), torch.enable_grad():
        svi = SVI(case.problem[0], program.guide, optim, Trace_ELBO(num_particles=particles))
        for step in range(steps):
            svi.step(*case.problem[1])
            optim.step()
            if step >= steps // 2:
                reached.append(flat(program.leaves))
    params = torch.stack(reached).mean(0)
    batches = [fitted_draws(program, part.mean(0), 500).mean(0) for part in torch.stack(reached).tensor_split(10)]
    return fitted_draws(program, params), params, torch.stack(batches).std(0) / 10**0.5


def fitted_draws(program: Any, params: Tensor, count: int = 4000) -> Tensor:
    """Draws (S, D) of a guide at its parameters."""
    values = program.problem.constrain(program.points(params, count, 2))
    return torch.cat([values[name].reshape(count, -1) for name in program.problem.sites], 1)


def errors(draws: Tensor, mean: Tensor, sd: Tensor) -> tuple[str, str]:
    """Of means in SDs, and of logarithms of SDs, where all have one."""
    spread = draws.std(0)
    moved = f"{float(((draws.mean(0) - mean) / sd).abs().max()):.3f}"
    return moved, f"{float((spread / sd).log().abs().max()):.3f}" if bool((spread > 1e-9).all()) else "a point"


def divergence(case: Case, fed: Any, params: Any, evidence: float) -> float:
    """KL(q ‖ posterior), by 4,000 draws."""
    program = guide_program(instance(case), fed.problem)
    with torch.no_grad(), program.draws(params, 4000, 3) as found:
        log_joint = fed.problem.log_prior(found.z) + fed.problem.log_lik(found.z)
        return evidence - float((log_joint - found.log_density).mean())


def lines_of_table(only: list[str], steps: int, particles: int, rate: float) -> Iterator[str]:
    """The rows of the table, as they end."""
    yield heading(
        *("guide", "by", "rounds", "kB a client", "s", "mean", "log SD"),
        *("pooled: mean", "log SD", "apart, SDs", "chance", "KL", "pooled: KL"),
    )
    for case in CASES:
        if only and not any(word.lower() in case.name.lower() or word == case.by for word in only):
            continue
        model, data, exact = case.problem
        clients = min(5, len(data[0]) // 2) or 1
        fed = pf.Federation(model, data, plate="data", num_clients=clients, dtype=F64)
        mean, sd, *evidence = exact()
        draws, params, figures = federated(case, fed, steps, particles, rate)
        mine, theirs, other, both = errors(draws, mean, sd), ("", ""), ("", ""), ("", "")
        if case.by != "FedLaplace":
            pool, fitted, chance = pooled(case, fed, steps, particles, rate)
            theirs = errors(pool, mean, sd)
            apart = (draws.mean(0) - pool.mean(0)).abs()
            other = f"{float((apart / sd).max()):.3f}", f"{2**0.5 * float((chance / sd).max()):.3f}"
            if evidence:
                mine_kl, their_kl = (f"{divergence(case, fed, one, evidence[0]):.3f}" for one in (params, fitted))
                both = mine_kl, their_kl
        cost = (figures["rounds"], f"{figures['kB']:,.0f}", f"{figures['s']:.0f}")
        yield row(case.name, case.by, *cost, *mine, *theirs, *other, *both)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="words of guides' names")
    parser.add_argument("--steps", type=int, default=1000, help="steps of Adam")
    parser.add_argument("--particles", type=int, default=4, help="draws a step")
    parser.add_argument("--rate", type=float, default=0.03, help="Adam's rate")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    for line in lines_of_table(asked.only, asked.steps, asked.particles, asked.rate):
        print(line, flush=True)


if __name__ == "__main__":
    main()
