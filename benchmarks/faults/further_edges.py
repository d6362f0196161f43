"""Ten more models of each kind of `edges`, from the fields in which such densities are common.

python -m benchmarks.faults.further_edges [KIND ...] [--only WORDS]
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from benchmarks.faults.edges import ROWS, Edge, _curve, _edge, _grid, _noise, _observe, _tensor, _two, main


def _latents(likelihood: Callable[..., Any], x: Tensor, y: Any, **priors: Callable[[Tensor], Any]) -> Edge:
    """A model of latents by name; `likelihood(x, guarded, **latents)` is the rows'."""

    def model(x: Tensor, y: Tensor, guarded: bool) -> None:
        found = {name: pyro.sample(name, prior(x.new_tensor(1.0))) for name, prior in priors.items()}
        _observe(lambda: likelihood(x, guarded, **found), y)

    return Edge(model, x, _tensor(y))


def _by_factor(log_density: Callable[[Tensor, Tensor, Tensor, Tensor, bool], Tensor], x: Tensor, y: Any) -> Edge:
    """A model of a and b ~ N(0, 1) whose rows are a `pyro.factor`."""

    def model(x: Tensor, y: Tensor, guarded: bool) -> None:
        a, b = _two(x)
        with pyro.plate("data", len(y)):
            pyro.factor("row", log_density(a, b, x, y, guarded))

    return Edge(model, x, _tensor(y))


def rates_of_zero() -> dict[str, Edge]:
    """Rates, totals and shapes that are zero in some rows."""
    x, g = _grid(0.2, 3.0, 8), _noise(10)
    v = x.numpy()
    counts = g.poisson(1.2 * v)

    def floor(rate: Tensor, guarded: bool) -> Tensor:
        return rate.clamp_min(1e-30) if guarded else rate

    def pair(a: Tensor, b: Tensor, x: Tensor, guarded: bool) -> Any:
        return dist.Poisson(floor(torch.stack([a.exp() * x, b.exp() * x], -1), guarded)).to_event(1)

    return {
        "offset of log 0": _edge(
            lambda a, b, x, w: dist.Poisson(floor(torch.exp(a + b * x + torch.log(x)), w)), x, counts
        ),
        "pairs of counts": _edge(pair, x, g.poisson(np.stack([v, 1.5 * v], -1))),
        "y log r by factor": _by_factor(
            lambda a, b, x, y, w: y * torch.log(floor(a.exp() * x, w)) - a.exp() * x - 0.1 * (b - a) ** 2, x, counts
        ),
        "xlogy by factor": _by_factor(
            lambda a, b, x, y, w: torch.xlogy(y, floor(a.exp() * x, w)) - a.exp() * x - 0.1 * (b - a) ** 2, x, counts
        ),
        "no trials": _edge(
            lambda a, b, x, w: dist.Binomial((4 * (x > 0)).to(x), logits=a + b * x),
            x,
            g.binomial(np.where(v > 0, 4, 0), 0.6),
        ),
        "a chance by exposure": _edge(
            lambda a, b, x, w: dist.Bernoulli(1 - torch.exp(-a.exp() * x)), x, g.random(ROWS) < 1 - np.exp(-v)
        ),
        "a sum of two sources": _edge(
            lambda a, b, x, w: dist.Poisson(floor(a.exp() * x + b.exp() * x**2, w)), x, g.poisson(v + v**2)
        ),
        "shape of zero": _edge(
            lambda a, b, x, w: dist.Gamma(floor(a.exp() * x, w), b.exp()), x, np.where(v > 0, g.gamma(v + 0.1), 0.5)
        ),
        "hazard of zero": _edge(
            lambda a, b, x, w: dist.Exponential(a.exp() * x), x, g.exponential(1 / np.maximum(v, 0.3))
        ),
        "relu": _edge(lambda a, b, x, w: dist.Poisson(floor(torch.relu(1 + a + b * x), w)), x, g.poisson(1 + 0.5 * v)),
    }


def powers_of_zero() -> dict[str, Edge]:
    """Curves at a dose, distance or time of zero."""
    x, g = _grid(0.1, 2.0, 4), _noise(11)
    v = x.numpy()

    def normal(function: Callable[[Tensor, Tensor, Tensor], Tensor], truth: Any, limit: float = 0.0) -> Edge:
        return _curve(function, x, truth, g, limit)

    return {
        "Emax on the log scale": normal(lambda a, b, x: 2 * torch.sigmoid(b.exp() * (x.log() - a)), 2 * v / (1 + v)),
        "power of a ratio": normal(lambda a, b, x: (x / a.exp()) ** b.exp(), v),
        "Hill by a ratio": normal(lambda a, b, x: 1 / (1 + (a.exp() / x) ** b.exp()), v / (1 + v)),
        "stretched exponential": normal(lambda a, b, x: torch.exp(-((x / a.exp()) ** b.exp())), np.exp(-v), 1.0),
        "distance": normal(lambda a, b, x: torch.exp(-torch.sqrt((a.exp() * x) ** 2)), np.exp(-v), 1.0),
        "angle": normal(lambda a, b, x: torch.atan2(a.exp() * x, b.exp() * x), np.arctan2(v, v + 1e-300), 0.0),
        "arc of a cosine": normal(lambda a, b, x: a + torch.acos(torch.cos(b.exp() * x / 3)), v / 3),
        "log of zero": normal(lambda a, b, x: a * x * torch.log(b.exp() * x), v * np.log(np.maximum(v, 1e-9))),
        "saturation": normal(lambda a, b, x: 2 * x / (a.exp() + x), 2 * v / (1 + v)),
        "hazard of Weibull": _by_factor(
            lambda a, b, x, y, w: (
                torch.where(x == 0, 0.0, y * (a + (b.exp() - 1) * torch.where(x == 0, 1.0, x).log())) - a.exp() * x
                if w
                else y * torch.log(a.exp() * x ** (b.exp() - 1)) - a.exp() * x
            ),
            x,
            (v > 0) & (g.random(ROWS) < 0.6),
        ),
    }


def removable() -> dict[str, Edge]:
    """0 / 0 where latents are zero, or equal."""
    x, g = _grid(0.3, 2.0), _noise(12)
    v = x.numpy()

    def normal(function: Callable[..., Tensor], series: Callable[..., Tensor], truth: Any, equal: bool = False) -> Edge:
        """`function(a, b, x)`, and its form near b = 0, or where `equal` near a = b."""

        def likelihood(a: Tensor, b: Tensor, x: Tensor, guarded: bool) -> Any:
            small = ((b - a) if equal else b).abs() < 1e-3
            safe = torch.where(small, (a if equal else torch.zeros_like(b)) + 0.5, b) if guarded else b
            mean = torch.where(small, series(a, b, x), function(a, safe, x)) if guarded else function(a, b, x)
            return dist.Normal(mean, 0.3)

        return _edge(likelihood, x, truth + 0.3 * g.normal(size=ROWS))

    def bateman(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
        return a.exp() / (a.exp() - b.exp()) * (torch.exp(-b.exp() * x) - torch.exp(-a.exp() * x))

    return {
        "one compartment": normal(bateman, lambda a, b, x: a.exp() * x * torch.exp(-a.exp() * x), v * np.exp(-v), True),
        "logarithmic mean": normal(
            lambda a, b, x: x * (a.exp() - b.exp()) / (a - b), lambda a, b, x: x * ((a + b) / 2).exp(), v, True
        ),
        "expm1": normal(lambda a, b, x: a + torch.expm1(b * x) / b, lambda a, b, x: a + x + b * x**2 / 2, v),
        "generalised Pareto": normal(
            lambda a, b, x: a + torch.log1p(b**2 * x) / b**2, lambda a, b, x: a + x - b**2 * x**2 / 2, v
        ),
        "sinh": normal(lambda a, b, x: a + torch.sinh(b * x) / torch.sinh(b), lambda a, b, x: a + x + 0 * b, v),
        "Langevin's function": normal(
            lambda a, b, x: a + 1 / torch.tanh(b * x) - 1 / (b * x), lambda a, b, x: a + b * x / 3, v / 3
        ),
        "q-exponential": normal(
            lambda a, b, x: a + (1 + b**2 * x) ** (-1 / b**2), lambda a, b, x: a + torch.exp(-x) + 0 * b, np.exp(-v)
        ),
        "Yeo and Johnson": normal(
            lambda a, b, x: a + ((1 + x) ** b - 1) / b,
            lambda a, b, x: a + torch.log1p(x) + b * torch.log1p(x) ** 2 / 2,
            np.log1p(v),
        ),
        "Debye": normal(lambda a, b, x: a + b * x / torch.expm1(b * x), lambda a, b, x: a + 1 - b * x / 2, 1 - 0 * v),
        "Gompertz's hazard": _by_factor(
            lambda a, b, x, y, w: (
                y * (a + b * x)
                - a.exp()
                * (
                    torch.where(
                        b.abs() < 1e-3,
                        x + b * x**2 / 2,
                        torch.expm1(torch.where(b.abs() < 1e-3, 1.0, b) * x) / torch.where(b.abs() < 1e-3, 1.0, b),
                    )
                    if w
                    else torch.expm1(b * x) / b
                )
            ),
            x,
            g.random(ROWS) < 0.6,
        ),
    }


def shared_bounds() -> dict[str, Edge]:
    """Parameters by means, variances, differences and ratios."""
    x, g = _grid(0.2, 2.0), _noise(13)
    v = x.numpy()
    arm = x > 1.0

    def half(one: Tensor) -> Any:
        return dist.HalfNormal(2 * one)

    def uniform(one: Tensor) -> Any:
        return dist.Uniform(0 * one, one)

    def normal(one: Tensor) -> Any:
        return dist.Normal(0 * one, one)

    def by_variance(x: Tensor, w: bool, mean: Tensor, variance: Tensor) -> Any:
        return dist.GammaPoisson(mean**2 / (variance - mean), mean / (variance - mean))

    def covariance(x: Tensor, w: bool, r: Tensor, s: Tensor, t: Tensor) -> Any:
        one = torch.ones_like(r)
        rows = [torch.stack(row) for row in ([one, r, s], [r, one, t], [s, t, one])]
        return dist.MultivariateNormal(x.new_zeros(3), covariance_matrix=torch.stack(rows))

    def wide(one: Tensor) -> Any:
        return dist.Uniform(-one, one)

    trio = g.multivariate_normal(np.zeros(3), [[1, 0.5, 0.3], [0.5, 1, 0.4], [0.3, 0.4, 1]], ROWS)
    hits = g.random(ROWS) < np.where(arm.numpy(), 0.55, 0.35)
    return {
        "negative binomial by variance": _latents(
            by_variance,
            x,
            g.negative_binomial(3, 0.5, ROWS),
            mean=lambda o: dist.Gamma(3 * o, o),
            variance=lambda o: dist.Gamma(3 * o, 0.5 * o),
        ),
        "risk difference": _latents(
            lambda x, w, p, d: dist.Bernoulli(p + d * (x > 1.0)),
            x,
            hits,
            p=uniform,
            d=lambda o: dist.Normal(0 * o, 0.5 * o),
        ),
        "relative risk": _latents(
            lambda x, w, p, r: dist.Bernoulli(p * torch.where(x > 1.0, r, torch.ones_like(r))),
            x,
            hits,
            p=uniform,
            r=lambda o: dist.LogNormal(0 * o, o),
        ),
        "remaining share": _latents(
            lambda x, w, p, q: dist.Categorical(probs=torch.stack([p, q, 1 - p - q])),
            x,
            g.choice(3, ROWS, p=[0.3, 0.3, 0.4]),
            p=uniform,
            q=uniform,
        ),
        "covariance of three": _latents(covariance, x, trio, r=wide, s=wide, t=wide),
        "linear hazard": _latents(
            lambda x, w, p, d: dist.Exponential(p + d * x), x, g.exponential(1 / (0.5 + 0.3 * v)), p=half, d=normal
        ),
        "linear variance": _latents(
            lambda x, w, p, d: dist.Normal(0 * x, (p + d * x).sqrt()),
            x,
            g.normal(size=ROWS) * (1 + 0.3 * v) ** 0.5,
            p=half,
            d=normal,
        ),
        "shape less one": _latents(
            lambda x, w, shape, mean: dist.InverseGamma(shape, mean * (shape - 1)),
            x,
            1 / g.gamma(4, 1 / 3, ROWS),
            shape=lambda o: dist.Gamma(4 * o, o),
            mean=half,
        ),
        "beta by mean and variance": _latents(
            lambda x, w, mean, variance: dist.Beta(
                mean * (mean * (1 - mean) / variance - 1), (1 - mean) * (mean * (1 - mean) / variance - 1)
            ),
            x,
            g.beta(4, 2, ROWS),
            mean=uniform,
            variance=lambda o: dist.HalfNormal(0.3 * o),
        ),
        "lognormal by mean and variance": _latents(
            lambda x, w, mean, gap: dist.LogNormal(mean.log(), torch.log(1 + gap / mean**2).sqrt()),
            x,
            g.lognormal(0.3, 0.5, ROWS),
            mean=half,
            gap=normal,
        ),
    }


def negative_probabilities() -> dict[str, Edge]:
    """Shares that are computed from others."""
    x, g = _grid(-1.5, 1.5), _noise(14)
    y = g.choice(3, ROWS, p=[0.3, 0.4, 0.3])

    def stacked(function: Callable[[Tensor, Tensor, Tensor], list[Tensor]], y: Any = y) -> Edge:
        return _edge(
            lambda a, b, x, w: dist.Categorical(probs=torch.stack([p + 0 * x for p in function(a, b, x)], -1)), x, y
        )

    def wall_log(function: Callable[[Tensor, Tensor, Tensor], list[Tensor]]) -> Edge:
        def rows(a: Tensor, b: Tensor, x: Tensor, y: Tensor, w: bool) -> Tensor:
            p = torch.stack([p + 0 * x for p in function(a, b, x)], -1)
            return p.gather(-1, y.long()[:, None])[:, 0].log()

        return _by_factor(rows, x, y)

    def mixture(a: Tensor, b: Tensor, x: Tensor, guarded: bool) -> Any:
        weights = torch.stack([0.4 + 0.2 * a, 0.4 + 0.2 * b, 0.2 - 0.2 * (a + b)])
        means = x.new_tensor([-2.0, 0.0, 2.0])
        return dist.MixtureSameFamily(dist.Categorical(probs=weights), dist.Normal(means, 0.5))

    blocks = 2.0 * g.choice([-1, 0, 1], ROWS, p=[0.4, 0.4, 0.2]) + 0.5 * g.normal(size=ROWS)
    return {
        "shares of two, one left": stacked(lambda a, b, x: [0.3 + 0.2 * a, 0.4 + 0.2 * b, 0.3 - 0.2 * (a + b)]),
        "log of these": wall_log(lambda a, b, x: [0.3 + 0.2 * a, 0.4 + 0.2 * b, 0.3 - 0.2 * (a + b)]),
        "two thresholds of Gumbel": stacked(
            lambda a, b, x: [
                torch.exp(-torch.exp(0.2 - a)),
                torch.exp(-torch.exp(-0.8 - b)) - torch.exp(-torch.exp(0.2 - a)),
                1 - torch.exp(-torch.exp(-0.8 - b)),
            ]
        ),
        "thresholds as they are drawn": _edge(
            lambda a, b, x, w: dist.OrderedLogistic(0.3 * x, torch.stack([a - 0.8, b + 0.8])), x, y
        ),
        "weights of a mixture": _edge(mixture, x, blocks),
        "zero inflation": _edge(
            lambda a, b, x, w: dist.ZeroInflatedPoisson(torch.exp(b), gate=0.3 + 0.3 * a),
            x,
            g.poisson(1.0, ROWS) * (g.random(ROWS) > 0.3),
        ),
        "binomial": _edge(
            lambda a, b, x, w: dist.Binomial(5, probs=0.5 + 0.2 * a + 0.1 * b * x), x, g.binomial(5, 0.5, ROWS)
        ),
        "geometric": _edge(
            lambda a, b, x, w: dist.Geometric(0.5 + 0.3 * a + 0.1 * b * x), x, g.geometric(0.5, ROWS) - 1
        ),
        "multinomial": _edge(
            lambda a, b, x, w: dist.Multinomial(5, torch.stack([0.3 + 0.2 * a, 0.4 + 0.2 * b, 0.3 - 0.2 * (a + b)])),
            x,
            g.multinomial(5, [0.3, 0.4, 0.3], ROWS),
        ),
        "probit difference": _by_factor(
            lambda a, b, x, y, w: torch.log(torch.special.ndtr(y - 0.5 + b) - torch.special.ndtr(y - 1.5 + a)), x, y
        ),
    }


def vanishing_dispersion() -> dict[str, Edge]:
    """Scales, weights and shapes whose best value is the end of their range."""
    x, g = _grid(0.5, 1.5), _noise(15)
    v = x.numpy()
    counts = g.poisson(1000, 300)
    few = g.poisson(8, ROWS)

    def half(scale: float) -> Callable[[Tensor], Any]:
        return lambda one: dist.HalfNormal(scale * one)

    def around(mean: float, sd: float) -> Callable[[Tensor], Any]:
        return lambda one: dist.LogNormal(math.log(mean) * one, sd * one)

    def negative(x: Tensor, w: bool, m: Tensor, s: Tensor) -> Any:
        return dist.GammaPoisson(s**-2, s**-2 / m)

    def inverse(x: Tensor, w: bool, m: Tensor, k: Tensor) -> Any:
        return dist.GammaPoisson(k, k / m)

    def pairs(x: Tensor, w: bool, r: Tensor, m: Tensor) -> Any:
        cov = torch.stack([torch.stack([torch.ones_like(r), r]), torch.stack([r, torch.ones_like(r)])])
        return dist.MultivariateNormal(m.expand(2), covariance_matrix=cov)

    one = g.normal(size=ROWS)
    return {
        "300 rows": _latents(negative, _tensor(np.ones(300)), counts, m=around(900, 0.5), s=half(1)),
        "300 rows, exponential": _latents(
            negative, _tensor(np.ones(300)), counts, m=around(900, 0.5), s=lambda o: dist.Exponential(5 * o)
        ),
        "concentration": _latents(inverse, x, few, m=around(8, 0.5), k=lambda o: dist.LogNormal(2 * o, 2 * o)),
        "concentration of Gamma": _latents(inverse, x, few, m=around(8, 0.5), k=lambda o: dist.Gamma(o, 0.01 * o)),
        "log link": _edge(
            lambda a, b, x, w: dist.GammaPoisson(torch.exp(-5 * b), torch.exp(-5 * b - 2 - a * x)),
            x,
            g.poisson(np.exp(2 + 0.3 * v)),
        ),
        "beta-binomial": _latents(
            lambda x, w, p, r: dist.BetaBinomial(p * (1 / r - 1), (1 - p) * (1 / r - 1), 50.0),
            x,
            g.binomial(50, 0.3, ROWS),
            p=lambda o: dist.Beta(o, o),
            r=lambda o: dist.Beta(o, 5 * o),
        ),
        "zero inflation": _latents(
            lambda x, w, m, p: dist.ZeroInflatedPoisson(m, gate=p),
            x,
            few,
            m=around(8, 0.5),
            p=lambda o: dist.Beta(o, o),
        ),
        "degrees of freedom": _latents(
            lambda x, w, m, s, n: dist.StudentT(1 / n, m, s),
            x,
            g.normal(size=ROWS),
            m=lambda o: dist.Normal(0 * o, o),
            s=half(1),
            n=half(0.5),
        ),
        "correlation of one": _latents(
            pairs,
            x,
            np.stack([one, one + 0.03 * g.normal(size=ROWS)], -1),
            r=lambda o: dist.Uniform(-o, o),
            m=lambda o: dist.Normal(0 * o, o),
        ),
        "extra variance": _latents(
            lambda x, w, m, s: dist.Normal(m, (x**2 + s**2).sqrt()),
            x,
            0.5 * v * g.normal(size=ROWS),
            m=lambda o: dist.Normal(0 * o, o),
            s=half(1),
        ),
    }


def walls() -> dict[str, Edge]:
    """Hard constraints and truncation, as people write them."""
    x, g = _grid(0.2, 2.0), _noise(16)
    y = 0.5 + 0.6 * x.numpy() + 0.3 * g.normal(size=ROWS)
    low = -torch.inf

    def constraint(write: Callable[[Tensor, Tensor], Any]) -> Edge:
        def model(x: Tensor, y: Tensor, guarded: bool) -> None:
            a, b = _two(x)
            write(a, b)
            _observe(lambda: dist.Normal(a + b * x, 0.3), y)

        return Edge(model, x, _tensor(y))

    def factor(log: Callable[[Tensor, Tensor], Tensor]) -> Edge:
        return constraint(lambda a, b: pyro.factor("constraint", log(a, b)))

    def penalty(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(a > b, torch.full_like(a, low), torch.zeros_like(a))

    def three(x: Tensor, y: Tensor, guarded: bool) -> None:
        m = pyro.sample("m", dist.Normal(x.new_zeros(3), 2.0).to_event(1))
        ordered = (m[..., 1:] > m[..., :-1]).all(-1)
        pyro.factor("order", torch.where(ordered, 0.0, low).to(x))
        with pyro.plate("data", len(y)):
            mixture = dist.MixtureSameFamily(dist.Categorical(torch.ones(3).to(x)), dist.Normal(m, 0.5))
            pyro.sample("y", mixture, obs=y)

    def truncated(a: Tensor, b: Tensor, x: Tensor, y: Tensor, w: bool) -> Tensor:
        s = b.exp()
        return dist.Normal(a, s).log_prob(y) - torch.log(1 - torch.special.ndtr(-a / s))

    three_groups = np.repeat([-2.0, 0.0, 2.0], [14, 13, 13]) + 0.5 * g.normal(size=ROWS)
    return {
        "order, a above b": factor(penalty),
        "log of a comparison": factor(lambda a, b: torch.log((a < b).to(a))),
        "minus infinity times a comparison": factor(lambda a, b: low * (a > b).to(a)),
        "large penalty": factor(lambda a, b: -1e10 * (a > b).to(a)),
        "masked fill": factor(lambda a, b: torch.zeros_like(a).masked_fill(a + b > 1.2, low)),
        "a Bernoulli that is one": constraint(
            lambda a, b: pyro.sample("c", dist.Bernoulli((a < b).to(a)), obs=torch.ones(()).to(a))
        ),
        "order of three": Edge(three, x, _tensor(three_groups)),
        "truncated from below": _by_factor(truncated, x, np.abs(1 + g.normal(size=ROWS))),
        "interval of a latent": _by_factor(
            lambda a, b, x, y, w: torch.where((y - a).abs() < 2 + b.exp(), -torch.log(2 + b.exp()) + 0 * x, low),
            x,
            g.uniform(-2, 2, ROWS),
        ),
        "rows' slopes are positive": _by_factor(
            lambda a, b, x, y, w: torch.where(b > 0, -0.5 * ((y - a - b * x) / 0.3) ** 2, low),
            x,
            0.5 + 0.05 * x.numpy() + 0.3 * g.normal(size=ROWS),
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], KINDS))
