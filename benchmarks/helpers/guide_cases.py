"""Models with exact posteriors, guides of every kind, and their fits: federated, and by Pyro's SVI on all rows."""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer import autoguide as auto
from pyro.nn import PyroModule, PyroParam
from pyro.optim import PyroLRScheduler
from torch import Tensor, nn

import pyro_fed as pf
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


def banana_log_density(z: Tensor) -> Tensor:
    """Of a and b, without the evidence, at points (S, 2)."""
    prior = dist.Normal(number(0), 1.0).log_prob(z).sum(1)
    return prior + dist.Normal((z[:, 1] + (z[:, 0] + 1).square())[:, None], 0.6).log_prob(BANANA_Y).sum(1)


def banana_exact() -> tuple[Tensor, Tensor, float]:
    return on_grid(banana_log_density, [-5.0, -6.0], [4.0, 5.0])


FUNNEL_Y = torch.tensor([0.3, -0.4], dtype=F64)


def funnel(y: Tensor) -> None:
    t = pyro.sample("t", dist.Normal(number(0), 1.5))
    x = pyro.sample("x", dist.Normal(number(0), t.exp()))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x, 2.0), obs=y)


def funnel_log_density(z: Tensor) -> Tensor:
    """Of t and x, without the evidence, at points (S, 2)."""
    t, x = z.unbind(1)
    prior = dist.Normal(number(0), 1.5).log_prob(t) + dist.Normal(number(0), t.exp()).log_prob(x)
    return prior + dist.Normal(x[:, None], 2.0).log_prob(FUNNEL_Y).sum(1)


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


MANY_X = torch.randn(10_000, 2, generator=GENERATOR).double()
MANY_Y = torch.bernoulli((MANY_X @ torch.tensor([1.0, -0.5], dtype=F64)).sigmoid(), generator=GENERATOR)


def classes(x: Tensor, y: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(2, dtype=F64), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def classes_exact() -> tuple[Tensor, Tensor]:
    def log_density(w: Tensor) -> Tensor:
        logits = MANY_X @ w.T
        found: Tensor = dist.Normal(number(0), 1.0).log_prob(w).sum(1)
        return found + MANY_Y @ logits - nn.functional.softplus(logits).sum(0)

    mean, sd, _ = on_grid(log_density, [0.85, -0.65], [1.15, -0.35], 120)
    return mean, sd


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


def spline_and_affine(model: Any) -> Any:
    """Splines of the box [-3, 3], whose place and size an affine transform gives."""
    return auto.AutoNormalizingFlow(
        model,
        lambda dim: dist.transforms.ComposeTransformModule(
            [dist.transforms.spline_autoregressive(dim), dist.transforms.affine_autoregressive(dim)]
        ),
    )


LINES, SCALED = (lines, (LINES_X, LINES_Y), lines_exact), (scaled, (LINES_X, LINES_Y), scaled_exact)
GAMMA = (counts, (COUNTS,), of(dist.Gamma(2 + COUNTS.sum(), number(40.5))))
BETA = (flips, (FLIPS,), of(dist.Beta(1.5 + FLIPS.sum(), 2 + (1 - FLIPS).sum())))
DIRICHLET = (labels, (LABELS,), of(dist.Dirichlet(1 + torch.bincount(LABELS).double())))
VARIANCE = (variance, (NOISE,), of(dist.InverseGamma(number(23), 2 + NOISE.square().sum() / 2)))
RATE = (half_cauchy_counts, (FEW,), few_exact)
GROUPS = (groups, (GROUP_SD, GROUP_Y), groups_exact)
CLASSES = (classes, (MANY_X[MANY_Y.argsort()], MANY_Y.sort().values), classes_exact)
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
    Case("AutoNormalizingFlow (spline, affine)", "SFVI", SCALED, spline_and_affine),
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
    Case("AutoMultivariateNormal, rows by label", "P2PSFVI", CLASSES, auto.AutoMultivariateNormal),
    Case("AutoIAFNormal, rows by label", "P2PSFVI", CLASSES, auto.AutoIAFNormal),
]
BY_NAME = {f"{case.by} / {case.name}": case for case in CASES}
#: Guides that are made from nothing, or from the model, anew for each side.
MADE = (Module, amortised)


def instance(case: Case) -> Any:
    """The guide as it is given to an algorithm."""
    model, guide = case.problem[0], case.guide
    if guide in MADE:
        torch.manual_seed(0)
        return guide()
    return (
        guide(model)
        if guide in (flow, spline, spline_and_affine) or getattr(guide, "__name__", "") == "<lambda>"
        else guide
    )


@dataclass(frozen=True)
class Settings:
    """Of Adam, on both sides."""

    steps: int
    particles: int
    rate: float


class OneByOne(pf.infer.SFVI):
    """SFVI that makes its draws one after the other, as Pyro's SVI, and keeps what it has fitted."""

    kept: ClassVar[dict[str, Any]] = {}

    def program(self, problem: Any) -> Any:
        return dataclasses.replace(super().program(problem), mappable=False)

    def conclude(self, problem: Any, shared: Any) -> Any:
        self.kept.update(shared)
        return super().conclude(problem, shared)

    def delegate(self) -> Any:
        return self


def federated(case: Case, fed: Any, settings: Settings) -> tuple[Any, dict[str, Any]]:
    """Draws (S, D) of a federated run, (A, S, D) of agents on a ring, and figures."""
    adam: dict[str, Any] = {
        "num_steps": settings.steps,
        "num_particles": settings.particles,
        "step_size": settings.rate,
    }
    options = OPTIONS
    begun = time.process_time()
    if case.by == "FedEP":
        algorithm: Any = pf.FedEP(guide=instance(case))
    elif case.by == "FedLaplace":
        algorithm = pf.FedLaplace()
    elif case.by == "P2PSFVI":
        algorithm = pf.infer.P2PSFVI(guide=instance(case), **adam)
        options = {**OPTIONS, "graph": pf.graph.ring(fed.num_clients)}
    else:
        algorithm = OneByOne(guide=instance(case), **adam)
    idata = pf.run(algorithm, fed, **options)
    if case.by == "SFVI":
        draws = fitted_draws(guide_program(instance(case), fed.problem), OneByOne.kept["average"])
    else:
        values = [torch.as_tensor(idata["posterior"][name].values) for name in fed.problem.sites]
        draws = torch.cat([value.reshape(*value.shape[:2], -1) for value in values], -1).squeeze(0)
    rounds, clients = idata.attrs["num_rounds"], fed.num_clients
    sent = sum(float(idata["federation"][name].sum()) for name in ("bytes_up", "bytes_down")) / clients
    return draws, {"rounds": rounds, "kB": sent / 1000, "cpu": time.process_time() - begun}


def pooled(case: Case, fed: Any, settings: Settings, seed: int) -> tuple[Any, Any, Any]:
    """Draws (S, D) of Pyro's SVI on the pooled data, the guide's parameters, and chance's SDs of the means, (D,).

    Step s has the random numbers of `seed` + s, as those of an SFVI with that seed.
    """
    program = guide_program(instance(case), fed.problem)
    final, steps, reached = pf.infer.SFVI().final_share, settings.steps, []

    def share(step: int) -> float:
        return final ** max(0.0, 2 * step / steps - 1)

    adam = {"optim_args": {"lr": settings.rate, "betas": (0.9, 0.99)}, "lr_lambda": share}
    optim = PyroLRScheduler(torch.optim.lr_scheduler.LambdaLR, {"optimizer": torch.optim.Adam, **adam})
    with program.at(program.start, 1, program.own_start), torch.enable_grad():
        svi = SVI(case.problem[0], program.guide, optim, Trace_ELBO(num_particles=settings.particles))
        for step in range(steps):
            torch.manual_seed(seed + step)
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


def errors(draws: Tensor, mean: Tensor, sd: Tensor) -> dict[str, float]:
    """Largest error of means in SDs, and of logarithms of SDs, where all have one, of all agents' draws (..., S, D)."""
    spread = draws.std(-2)
    found = {"mean": float(((draws.mean(-2) - mean) / sd).abs().max())}
    return {**found, "log_sd": float((spread / sd).log().abs().max())} if bool((spread > 1e-9).all()) else found


def divergence(case: Case, fed: Any, params: Any, evidence: float) -> float:
    """KL(q ‖ posterior), by 4,000 draws."""
    program = guide_program(instance(case), fed.problem)
    with torch.no_grad(), program.draws(params, 4000, 3) as found:
        log_joint = fed.problem.log_prior(found.z) + fed.problem.log_lik(found.z)
        return evidence - float((log_joint - found.log_density).mean())


def measured(name: str, settings: Settings) -> dict[str, Any]:
    """The record of a case: errors of both sides, how far they are apart, and what a federated run costs."""
    warnings.simplefilter("ignore")
    pyro.enable_validation(False)
    case = BY_NAME[name]
    model, data, exact = case.problem
    clients = min(5, len(data[0]) // 2)
    parts = pf.partition.Explicit([part.tolist() for part in torch.arange(len(data[0])).tensor_split(clients)])
    partition = {"partition": parts} if case.problem is CLASSES else {"num_clients": clients}
    fed = pf.Federation(model, data, plate="data", dtype=F64, **partition)
    mean, sd, *evidence = exact()
    draws, figures = federated(case, fed, settings)
    record = {**dataclasses.asdict(settings), **figures, **errors(draws, mean, sd)}
    if case.by == "FedLaplace":
        return record
    seed = int(OneByOne.kept.get("seed", 0))
    pool, params, chance = pooled(case, fed, settings, seed)
    record |= {f"pooled_{what}": error for what, error in errors(pool, mean, sd).items()}
    record["apart"] = float(((draws.mean(-2) - pool.mean(0)) / sd).abs().max())
    record["log_sd_apart"] = float((draws.std(-2) / pool.std(0)).log().abs().nan_to_num().max())
    record["chance"] = 2**0.5 * float((chance / sd).max())
    if evidence:
        record["kl"] = divergence(case, fed, OneByOne.kept["average"], evidence[0])
        record["pooled_kl"] = divergence(case, fed, params, evidence[0])
    return record
