"""Models whose density or a derivative of it stops existing at an edge: each is refused by name, or right.

Seven kinds, ten models of each. A model is

    refused    `Federation` or the run raises an error that names the site, or the line of the model
    right      by `pf.fit`: means within `FAR` SDs of the reference, SDs within `OFF`, of all parameters, unconstrained
    said       it is not right, and the result has a doubt, or there was a warning of the edge
    silent     it is not right, and nothing is said: a fault

The reference is quadrature on a grid, in double precision, of the same posterior written without the edge (`guarded`),
or where a model has no such form, of itself: no model has more than three parameters.

    python -m benchmarks.faults.edges [KIND ...] [--only WORDS]
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

import pyro_fed as pf
from benchmarks.helpers.tables import heading, row

#: SDs by which a mean may be off, and the share by which an SD may, of 1,000 draws.
FAR, OFF = 0.3, 0.3
#: The unconstrained box that grids begin with, their points by dimension, the nats below the highest point that end the
#: last box, the factor by which those of the box before are more, since its points are farther from the mode, how often
#: the box is narrowed, and the points whose densities are computed at once.
BOX, GRID, NATS, MORE_NATS, ZOOMS, AT_ONCE = 12.0, {1: 4001, 2: 301, 3: 61}, 25.0, 4.0, 7, 4096
ROWS, CLIENTS, SECONDS = 40, 4, 60.0
#: Characters of a text that the table shows.
TEXT = 220


class Edge(NamedTuple):
    """One model.

    Args:
        model: of covariates x, observations y, and whether it is written without the edge.
        x: (N,), zero in a part of the rows where the edge is that of rows.
        y: (N,).
    """

    model: Callable[[Tensor, Tensor, bool], None]
    x: Tensor
    y: Tensor


def _noise(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def _tensor(values: Any) -> Tensor:
    return torch.as_tensor(np.asarray(values), dtype=torch.float64)


def _grid(low: float, high: float, zeros: int = 0) -> Tensor:
    x = np.linspace(low, high, ROWS)
    x[:zeros] = 0.0
    return _tensor(x)


def _where(edge: Tensor, limit: float, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A function of x with a value of its own where it has an edge."""
    safe = torch.where(edge, torch.ones_like(x), x)
    return torch.where(edge, torch.full_like(x, limit), function(safe))


def _two(x: Tensor) -> tuple[Tensor, Tensor]:
    return pyro.sample("a", dist.Normal(x.new_tensor(0.0), 1.0)), pyro.sample("b", dist.Normal(x.new_tensor(0.0), 1.0))


def _observe(likelihood: Callable[[], Any], y: Tensor) -> None:
    with pyro.plate("data", len(y)):
        pyro.sample("y", likelihood(), obs=y)


def _edge(function: Callable[..., Any], x: Tensor, y: Any) -> Edge:
    """A model of a and b ~ N(0, 1): `function(a, b, x, guarded)` is the likelihood."""

    def model(x: Tensor, y: Tensor, guarded: bool) -> None:
        a, b = _two(x)
        _observe(lambda: function(a, b, x, guarded), y)

    return Edge(model, x, _tensor(y))


def _curve(
    function: Callable[[Tensor, Tensor, Tensor], Tensor],
    x: Tensor,
    truth: Any,
    noise: np.random.Generator,
    limit: float,
) -> Edge:
    """Measurements of a curve of a, b and x, whose value where x is zero is `limit`."""

    def likelihood(a: Tensor, b: Tensor, x: Tensor, guarded: bool) -> Any:
        mean = _where(x == 0, limit, lambda safe: function(a, b, safe), x) if guarded else function(a, b, x)
        return dist.Normal(mean, 0.2)

    return _edge(likelihood, x, truth + 0.2 * noise.normal(size=ROWS))


def rates_of_zero() -> dict[str, Edge]:
    """No exposure, and a count of zero."""
    x = _grid(0.2, 3.0, 8)
    g = _noise()
    counts = g.poisson(np.exp(0.3) * x.numpy())

    def keep(rate: Tensor, guarded: bool) -> Tensor:
        return rate.clamp_min(1e-30) if guarded else rate

    def thinned(a: Tensor, b: Tensor, x: Tensor, guarded: bool) -> Any:
        return dist.Poisson(keep(torch.exp(a) * x, guarded))

    return {
        "exposure": _edge(thinned, x, counts),
        "exposure and slope": _edge(
            lambda a, b, x, w: dist.Poisson(keep(torch.exp(a + b * x) * x, w)), x, g.poisson(x.numpy())
        ),
        "square": _edge(lambda a, b, x, w: dist.Poisson(keep(x**2 * torch.exp(a), w)), x, g.poisson(x.numpy() ** 2)),
        "gamma counts": _edge(
            lambda a, b, x, w: dist.GammaPoisson(keep(torch.exp(a) * x, w), torch.exp(b)), x, g.poisson(x.numpy())
        ),
        "probability": _edge(
            lambda a, b, x, w: dist.Binomial(5, probs=torch.sigmoid(a) * x / 3),
            x,
            g.binomial(5, 0.5 * x.numpy() / 3),
        ),
        "probability of one": _edge(
            lambda a, b, x, w: dist.Bernoulli(1 - torch.sigmoid(a) * x / 3.0), x, g.random(ROWS) > 0.5 * x.numpy() / 3
        ),
        "geometric": _edge(
            lambda a, b, x, w: dist.Geometric(1 - torch.sigmoid(a) * x / 3.1),
            x,
            g.geometric(1 - 0.5 * x.numpy() / 3.1) - 1,
        ),
        "negative binomial": _edge(
            lambda a, b, x, w: dist.NegativeBinomial(keep(torch.exp(a) * x, w), logits=b), x, g.poisson(x.numpy())
        ),
        "zero inflated": _edge(
            lambda a, b, x, w: dist.ZeroInflatedPoisson(keep(torch.exp(a) * x, w), gate_logits=b),
            x,
            g.poisson(x.numpy()),
        ),
        "scale": _edge(
            lambda a, b, x, w: dist.Normal(a, torch.exp(b) * x), x, np.where(x == 0, 0.0, g.normal(size=ROWS))
        ),
    }


def powers_of_zero() -> dict[str, Edge]:
    """A function of a covariate that is zero, whose second derivative is none."""
    x, g = _grid(0.1, 2.0, 4), _noise(1)

    def normal(function: Callable[[Tensor, Tensor, Tensor], Tensor], truth: Any, limit: float = 0.0) -> Edge:
        return _curve(function, x, truth, g, limit)

    v = x.numpy()
    return {
        "power": normal(lambda a, b, x: a * x ** torch.exp(b), v**1.2),
        "Hill": normal(lambda a, b, x: a * x ** torch.exp(b) / (0.5 + x ** torch.exp(b)), v / (0.5 + v)),
        "root": normal(lambda a, b, x: a * torch.sqrt(x * torch.exp(b)), v**0.5),
        "x log x": normal(lambda a, b, x: a * torch.xlogy(x, x * torch.exp(b)), v),
        "Weibull curve": normal(lambda a, b, x: 1 - torch.exp(-torch.exp(a) * x ** torch.exp(b)), 1 - np.exp(-v)),
        "norm": normal(lambda a, b, x: torch.sqrt((a * x) ** 2 + (b * x) ** 2), v),
        "quotient": normal(lambda a, b, x: a * torch.sin(torch.exp(b) * x) / x, np.sinc(v / np.pi), 1.0),
        "power of a power": normal(lambda a, b, x: a * (x ** torch.exp(b)) ** 0.7, v),
        "log1p of a power": normal(lambda a, b, x: a * torch.log1p(x ** torch.exp(b)), np.log1p(v)),
        "exp of minus one over": normal(
            lambda a, b, x: a * torch.exp(-torch.exp(b) / x), np.exp(-1 / np.maximum(v, 1e-9))
        ),
    }


def removable() -> dict[str, Edge]:
    """0 / 0 exactly where latents are zero."""
    x, g = _grid(0.3, 2.0), _noise(2)
    v = x.numpy()

    def normal(
        function: Callable[[Tensor, Tensor], Tensor], series: Callable[[Tensor, Tensor], Tensor], truth: Any
    ) -> Edge:
        """`function(b, x)`, and the first terms of its series in b."""

        def likelihood(a: Tensor, b: Tensor, x: Tensor, guarded: bool) -> Any:
            small = b.abs() < 1e-3
            safe = torch.where(small, torch.ones_like(b), b) if guarded else b
            mean = torch.where(small, series(b, x), function(safe, x)) if guarded else function(b, x)
            return dist.Normal(a + mean, 0.3)

        return _edge(likelihood, x, truth + 0.3 * g.normal(size=ROWS))

    return {
        "growth": normal(lambda b, x: (torch.exp(b * x) - 1) / b, lambda b, x: x + b * x**2 / 2, v),
        "Box-Cox": normal(lambda b, x: (x**b - 1) / b, lambda b, x: x.log() + b * x.log() ** 2 / 2, np.log(v)),
        "sinc": normal(lambda b, x: torch.sin(b * x) / b, lambda b, x: x - b**2 * x**3 / 6, v),
        "tanh": normal(lambda b, x: torch.tanh(b * x) / b, lambda b, x: x - b**2 * x**3 / 3, v),
        "log1p": normal(lambda b, x: torch.log1p(b**2 * x) / b**2, lambda b, x: x - b**2 * x**2 / 2, v),
        "cosine": normal(lambda b, x: (1 - torch.cos(b * x)) / b**2, lambda b, x: x**2 / 2 + 0 * b, v**2 / 2),
        "geometric sum": normal(
            lambda b, x: (1 - torch.exp(-3 * b * x)) / (1 - torch.exp(-b * x)), lambda b, x: 3 - 3 * b * x, 3.0 - 0 * v
        ),
        "absolute": normal(lambda b, x: x * b * b / torch.sqrt(b * b), lambda b, x: x * b.abs(), v),
        "norm": normal(lambda b, x: x * torch.sqrt(b * b), lambda b, x: x * b.abs(), v),
        "power of the latent": normal(lambda b, x: x * b * (b * b) ** 0.25, lambda b, x: x * b * b.abs().sqrt(), v),
    }


def shared_bounds() -> dict[str, Edge]:
    """Parameters that are none on a part of the priors' space."""
    x, g = _grid(0.2, 2.0), _noise(3)
    v = x.numpy()
    shares = g.beta(6, 3, ROWS)

    def by_sd(checked: bool | None) -> Edge:
        def model(x: Tensor, y: Tensor, guarded: bool) -> None:
            mean = pyro.sample("mean", dist.Beta(x.new_tensor(1.0), 1.0))
            root = (mean * (1 - mean)).sqrt()
            sd = pyro.sample(
                "sd", dist.HalfCauchy(x.new_tensor(1.0)) if not guarded else dist.Uniform(0.0 * root, root)
            )
            if guarded:
                pyro.factor("prior", -torch.log1p(sd**2) + root.log())
            size = mean * (1 - mean) / sd**2 - 1
            _observe(lambda: dist.Beta(mean * size, (1 - mean) * size, validate_args=checked), y)

        return Edge(model, x, _tensor(shares))

    def positive(likelihood: Callable[[Tensor, Tensor, Tensor], Any], y: Any) -> Edge:
        return _edge(lambda a, b, x, w: likelihood(a + 1, b, x), x, y)

    return {
        "Beta by mean and SD": by_sd(None),
        "Beta by mean and SD, unchecked": by_sd(False),
        "linear rate": positive(lambda a, b, x: dist.Poisson(a + b * x), g.poisson(1 + 0.3 * v)),
        "linear scale": positive(lambda a, b, x: dist.Normal(0.0, a + b * x), (1 + 0.3 * v) * g.normal(size=ROWS)),
        "linear probability": positive(
            lambda a, b, x: dist.Bernoulli(a / 2 + 0.2 * b * x), g.random(ROWS) < 0.5 + 0.1 * v
        ),
        "Gamma by mean and SD": positive(lambda a, b, x: dist.Gamma(a + b * x, a + b * x), g.gamma(1.3, 1 / 1.3, ROWS)),
        "difference of rates": positive(lambda a, b, x: dist.Exponential(a - b.abs()), g.exponential(1.0, ROWS)),
        "correlation": _edge(
            lambda a, b, x, w: dist.Normal(0.0, (1 - (a / 2) ** 2).sqrt()), x, 0.9 * g.normal(size=ROWS)
        ),
        "Student's df": positive(lambda a, b, x: dist.StudentT(a + 2 * b, 0.0, 1.0), g.standard_t(3, ROWS)),
        "log of a sum": _edge(lambda a, b, x, w: dist.Normal(torch.log(a + x), 0.3), x, np.log(0.3 + v)),
    }


def negative_probabilities() -> dict[str, Edge]:
    """Probabilities by differences, which are negative on a part of the space."""
    x, g = _grid(-1.5, 1.5), _noise(4)
    y = g.integers(0, 3, ROWS)

    def categories(function: Callable[[Tensor, Tensor, Tensor], list[Tensor]], checked: Any = None) -> Edge:
        def likelihood(a: Tensor, b: Tensor, x: Tensor, guarded: bool) -> Any:
            above = function(a, b, x)
            ends = [torch.zeros_like(x), *[one.expand_as(x) for one in above], torch.ones_like(x)]
            p = torch.stack([high - low for low, high in pairwise(ends)], -1)
            return dist.Categorical(probs=p, validate_args=checked)

        return _edge(likelihood, x, y)

    def cut(function: Callable[[Tensor], Tensor], slope: float, second: float) -> Edge:
        return categories(lambda a, b, x: [function(a - 0.7 + slope * b * x), function(0.7 - a + second * b * x)])

    def phi(t: Tensor) -> Tensor:
        return torch.special.ndtr(t)

    return {
        "logits": cut(torch.sigmoid, 0.5, -0.5),
        "probits": cut(phi, 0.4, -0.4),
        "one slope": cut(torch.sigmoid, 0.0, 0.8),
        "complementary log-log": cut(lambda t: 1 - torch.exp(-torch.exp(t)), 0.3, -0.3),
        "unchecked": categories(lambda a, b, x: [torch.sigmoid(a + b * x - 0.7), torch.sigmoid(0.7 - a)], False),
        "one-hot": _edge(
            lambda a, b, x, w: dist.Multinomial(
                1,
                torch.stack(
                    [
                        torch.sigmoid(a - 0.7),
                        torch.sigmoid(0.7 + b) - torch.sigmoid(a - 0.7),
                        1 - torch.sigmoid(0.7 + b),
                    ]
                ),
            ),
            x,
            np.eye(3)[y],
        ),
        "three cuts": categories(
            lambda a, b, x: [torch.sigmoid(a - 1), torch.sigmoid(b + 0 * x), torch.sigmoid(1 - a + 0.2 * x)]
        ),
        "difference": _edge(lambda a, b, x, w: dist.Bernoulli(torch.sigmoid(1 + a) - torch.sigmoid(b)), x, y > 0),
        "product": _edge(lambda a, b, x, w: dist.Bernoulli(0.5 + 0.25 * a + 0.1 * b * x), x, y > 0),
        "log of a difference": Edge(
            lambda x, y, w: _log_of_a_difference(x, y),
            x,
            _tensor(y),
        ),
    }


def _log_of_a_difference(x: Tensor, y: Tensor) -> None:
    a, b = _two(x)
    above = torch.stack([torch.zeros_like(a), torch.sigmoid(a - 0.7), torch.sigmoid(0.7 + b), torch.ones_like(a)])
    with pyro.plate("data", len(y)):
        pyro.factor("y", torch.log(above[y.long() + 1] - above[y.long()]) + 0 * x)


def vanishing_dispersion() -> dict[str, Edge]:
    """A dispersion whose best value is its edge, zero."""
    x, g = _grid(0.5, 1.5), _noise(5)
    counts = g.poisson(200, ROWS)

    def model(likelihood: Callable[[Tensor, Tensor], Any], y: Any, prior: Any = None) -> Edge:
        def run(x: Tensor, y: Tensor, guarded: bool) -> None:
            mean = pyro.sample("mean", dist.LogNormal(x.new_tensor(5.2), 0.5))
            spread = pyro.sample("spread", prior or dist.HalfNormal(x.new_tensor(1.0)))
            _observe(lambda: likelihood(mean, spread), y)

        return Edge(run, x, _tensor(y))

    def negative(mean: Tensor, spread: Tensor) -> Any:
        return dist.GammaPoisson(spread**-2, spread**-2 / mean)

    under = np.round(200 + 3 * g.normal(size=ROWS))
    hits = g.binomial(100, 0.6, ROWS)
    return {
        "Poisson": model(negative, counts),
        "less than Poisson": model(negative, under),
        "exponential prior": model(negative, counts, dist.Exponential(torch.tensor(5.0).double())),
        "by 1 / spread": model(lambda m, s: dist.GammaPoisson(1 / s, 1 / (s * m)), counts),
        "logits": model(lambda m, s: dist.NegativeBinomial(1 / s, logits=(m * s).log()), counts),
        "probs": model(lambda m, s: dist.NegativeBinomial(1 / s, probs=m * s / (1 + m * s)), counts),
        "uniform": model(negative, counts, dist.Uniform(torch.tensor(0.0).double(), 1.0)),
        "half-Cauchy": model(negative, counts, dist.HalfCauchy(torch.tensor(0.1).double())),
        "beta-binomial": model(lambda m, s: dist.BetaBinomial(m / (300 * s), (1 - m / 300) / s, 100.0), hits),
        "Student": model(lambda m, s: dist.StudentT(1 / s, m, 14.0), 200 + 14 * g.normal(size=ROWS)),
    }


def walls() -> dict[str, Edge]:
    """Log densities of -inf: by `factor`, as constraints and as supports."""
    x, g = _grid(0.2, 2.0), _noise(6)
    y = 0.5 + 0.6 * x.numpy() + 0.3 * g.normal(size=ROWS)

    def factor(inside: Callable[[Tensor, Tensor], Tensor]) -> Edge:
        def model(x: Tensor, y: Tensor, guarded: bool) -> None:
            a, b = _two(x)
            pyro.factor("wall", torch.where(inside(a, b), torch.zeros_like(a), torch.full_like(a, -torch.inf)))
            _observe(lambda: dist.Normal(a + b * x, 0.3), y)

        return Edge(model, x, _tensor(y))

    def of_rows(function: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor], y: Any) -> Edge:
        def model(x: Tensor, y: Tensor, guarded: bool) -> None:
            a, b = _two(x)
            with pyro.plate("data", len(y)):
                pyro.factor("row", function(a, b, x, y))

        return Edge(model, x, _tensor(y))

    def normal(residual: Tensor) -> Tensor:
        return -0.5 * (residual / 0.3) ** 2

    wall = torch.tensor(-torch.inf).double()
    return {
        "order": factor(lambda a, b: a < b),
        "positive": factor(lambda a, b: (a > 0) & (b > 0)),
        "disc": factor(lambda a, b: a**2 + b**2 < 1.5),
        "far wall": factor(lambda a, b: a > -1.0),
        "band": factor(lambda a, b: (a + b - 1.1).abs() < 0.3),
        "cut through the mass": factor(lambda a, b: a > 0.5),
        "wall of rows": of_rows(lambda a, b, x, y: torch.where(a + b * x > 0, normal(y - a - b * x), wall), y),
        "log of rows": of_rows(lambda a, b, x, y: torch.log(a + b * x) + normal(y - a - b * x), y),
        "threshold": _edge(
            lambda a, b, x, w: dist.TransformedDistribution(
                dist.Exponential(torch.exp(b)), [torch.distributions.AffineTransform(a, 1.0)]
            ),
            x,
            g.exponential(1.0, ROWS),
        ),
        "uniform": _edge(
            lambda a, b, x, w: dist.Uniform(-3.0 - torch.exp(a), 3.0 + torch.exp(b)), x, g.uniform(-3, 3, ROWS)
        ),
    }


KINDS: dict[str, Callable[[], dict[str, Edge]]] = {
    "rates": rates_of_zero,
    "powers": powers_of_zero,
    "removable": removable,
    "bounds": shared_bounds,
    "probabilities": negative_probabilities,
    "dispersion": vanishing_dispersion,
    "walls": walls,
}


def _moments(idata: Any) -> dict[str, tuple[float, float]]:
    posterior = idata["posterior"]
    return {name: (float(posterior[name].mean()), float(posterior[name].std())) for name in posterior.data_vars}


def _federation(edge: Edge, guarded: bool) -> pf.Federation:
    return pf.Federation(edge.model, (edge.x, edge.y, guarded), plate="data", num_clients=CLIENTS, seed=0)


def by_quadrature(problem: Any) -> tuple[Tensor, Tensor]:
    """Means and SDs (D,), unconstrained, on a grid over the box that has the mass, found by narrowing."""
    problem, count = problem.doubled(), GRID[problem.dim]
    low, high = torch.full((problem.dim,), -BOX).double(), torch.full((problem.dim,), BOX).double()
    for zoom in range(ZOOMS + 1):
        axes = [torch.linspace(float(a), float(b), count).double() for a, b in zip(low, high, strict=True)]
        points = torch.cartesian_prod(*axes).reshape(-1, problem.dim)
        both = problem.vmap(lambda z: problem.log_prior(z) + problem.log_lik(z))
        heights = torch.cat([both(some) for some in points.split(AT_ONCE)]).nan_to_num(-torch.inf, -torch.inf)
        weights = torch.softmax(heights, 0)
        if zoom < ZOOMS:
            inside, cell = (
                points[heights > heights.max() - NATS * MORE_NATS ** (ZOOMS - 1 - zoom)],
                2 * (high - low) / (count - 1),
            )
            low, high = inside.amin(0) - cell, inside.amax(0) + cell
    mean = (weights[:, None] * points).sum(0)
    return mean, (weights[:, None] * (points - mean) ** 2).sum(0).sqrt()


def _error(found: Any, problem: Any, reference: tuple[Tensor, Tensor]) -> float:
    """The worst error of a mean or an SD, as a share of what is allowed."""
    posterior, (mean, sd) = found["posterior"], reference
    values = {name: _tensor(posterior[name].values.reshape(-1, *posterior[name].shape[2:])) for name in posterior}
    count = len(next(iter(values.values())))
    draws = torch.stack([problem.unconstrain({name: each[i] for name, each in values.items()}) for i in range(count)])
    off = torch.maximum((draws.mean(0) - mean).abs() / sd / FAR, (draws.std(0) / sd - 1).abs() / OFF)
    return float(off.max())


def judged(edge: Edge) -> tuple[str, str]:
    """What comes of a model, and the text of its error, its doubts or its worst figure."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            federation = _federation(edge, False)
            result = pf.fit(federation, seed=0, progress=False, max_seconds=SECONDS)
        except pf.PyroFedError as error:
            named = any(word in str(error) for word in ("site '", "density of '", "the model fails at `"))
            return ("refused" if named else "error"), str(error)
    said = [str(one.message) for one in caught if "site '" in str(one.message)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        guarded = _federation(edge, True).problem
        reference = by_quadrature(guarded)
        off = _error(result, guarded.doubled(), reference)
    if off < 1:
        return "right", f"{off:.2f} of what is allowed; {result.attrs['doubts'] or 'no doubts'}"
    doubts = result.attrs["doubts"] or ". ".join(said)
    expected = [part.tolist() for part in reference]
    text = f"{off:.2f} times what is allowed: {_moments(result)}, expected, unconstrained, {expected}"
    return ("said" if doubts else "SILENT"), f"{text}; {doubts}"


def main(
    arguments: list[str],
    kinds: Mapping[str, Callable[[], Mapping[str, Any]]],
    judge: Callable[[Any], tuple[str, str]] = judged,
) -> int:
    """Print the tables of some kinds, all where none are named; 1 if anything is silent."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*", help=f"kinds of models: {', '.join(kinds)}")
    parser.add_argument("--only", default="", help="words that a model's name has")
    options, silent = parser.parse_args(arguments), 0
    for kind in options.kinds or list(kinds):
        print(heading("model of " + kind, "outcome", "seconds", "text"), flush=True)
        for name, written in kinds[kind]().items():
            if options.only not in name:
                continue
            start = time.perf_counter()
            outcome, text = judge(written)
            silent += outcome == "SILENT"
            seconds = f"{time.perf_counter() - start:.0f}"
            print(row(name, outcome, seconds, text[:TEXT].replace("\n", " ")), flush=True)
    return int(silent > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], KINDS))
