"""The one- and two-dimensional mixtures of the DSVGD paper: Figures 3, 9 and 10.

    python -m benchmarks.papers.mixtures [--out out]

Two agents, one factor each, N = 200 particles, L = L' = 200, bandwidth 0.55, one agent a round in turn; beside SVGD on
both factors (L steps a round), PVI, and the Gaussian nearest to the posterior. KL(exact || q) by quadrature, with q the
particles' kernel density of width 0.55 (0.1^½ in the plane, where the paper says b = 0.1): exact draws smoothed so have
the KL in the line "exact, smoothed", which no particles can go below by more than chance.

The uniform prior of Fig. 3 is taken flat in θ, as in tutorials/07: sampled through the transform of its support, a
density estimate of width 0.55 would be another estimate. The prior of Fig. 9 is N(0, 1).

Fig. 3 is as in the paper: after ten rounds 0.028 for DSVGD as published, 0.025 for U-DSVGD, 0.020 by default, 0.009
for SVGD, against 0.52 for PVI. Not so Figs. 9 and 10: published DSVGD is at 0.05 after three rounds and then falls
apart (0.94 on the line, 3.2 in the plane after ten), because the second agent's distilled site runs away (see
`infer/papers/dsvgd.py`). U-DSVGD (0.052, 0.063) and the default (0.025, 0.022) beat PVI (0.070, 0.120) as they
should. Measured with the classes' floor of 1e-9 under the KDEs, which this script, as the recipes, no longer has.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

import pyro_fed as pf
from benchmarks.helpers.curves import by_round, save
from models import gaussian_mixture_1d as line
from models import gaussian_mixture_2d as plane

AT_ONCE = 500  # kernels, when a density estimate is computed on the grid


@dataclass
class Target:
    """A posterior of two factors on a grid of points (M, D), and the width of density estimates there."""

    title: str
    model: Any
    log_density: Any
    grid: Tensor
    width: float

    @cached_property
    def exact(self) -> Tensor:
        """Probability of each cell, (M,)."""
        return self.log_density(self.grid).reshape(-1).softmax(0)

    def gaussian(self, points: Tensor, weights: Tensor) -> Tensor:
        """The same under the Gaussian with the moments of weighted points."""
        offsets = points - weights @ points
        covariance = offsets.T @ (weights[:, None] * offsets)
        return dist.MultivariateNormal(weights @ points, covariance).log_prob(self.grid).softmax(0)

    def smoothed(self, points: Tensor, weights: Tensor) -> Tensor:
        """The same under the kernel density estimate of weighted points."""
        density = torch.zeros(len(self.grid), dtype=torch.float64)
        for some, share in zip(points.split(AT_ONCE), weights.split(AT_ONCE), strict=True):
            density += torch.exp(-0.5 * torch.cdist(self.grid, some).square() / self.width**2) @ share
        return density / density.sum()

    def kl(self, q: Tensor) -> float:
        """KL(exact || q)."""
        tiny = torch.finfo(q.dtype).tiny
        return float((self.exact * (self.exact.clamp_min(tiny).log() - q.clamp_min(tiny).log())).sum())

    def estimate(self, idata: Any, gaussian: bool) -> Tensor:
        """What a result says: its Gaussian, or its particles' density estimate."""
        theta = torch.from_numpy(idata["posterior"]["theta"].values).double()
        points = theta.reshape(-1, self.grid.shape[1])
        weights = torch.full((len(points),), 1 / len(points), dtype=torch.float64)
        return (self.gaussian if gaussian else self.smoothed)(points, weights)

    def lines(self) -> dict[str, Tensor]:
        """What does not depend on rounds."""
        return {
            "nearest Gaussian": self.gaussian(self.grid, self.exact),
            "exact, smoothed": self.smoothed(self.grid, self.exact),
        }


def flat_model(component):
    """The toy target in one dimension under a prior that is flat in θ."""
    theta = pyro.sample("theta", dist.ImproperUniform(constraints.real, (), ()))
    factor = torch.where(component == 0, line.log_factor_0(theta), line.log_factor_1(theta))
    with pyro.plate("data", len(component)):
        pyro.factor("likelihood", factor)


def normal_model(component):
    """The same under N(0, 1)."""
    line.model(component, prior="gaussian")


AXIS = torch.linspace(-9, 9, 3601, dtype=torch.float64)[:, None]
SQUARE = torch.cartesian_prod(*[torch.linspace(-5, 6, 111, dtype=torch.float64)] * 2)
TARGETS = (
    Target("one dimension, flat prior", flat_model, lambda x: line.log_factor_0(x) + line.log_factor_1(x), AXIS, 0.55),
    Target("one dimension, N(0, 1)", normal_model, lambda x: line.log_density(x, "gaussian"), AXIS, 0.55),
    Target("two dimensions", plane.model, plane.log_density, SQUARE, 0.1**0.5),
)


ROUNDS, SHOWN, STEPS = 10, (1, 2, 3, 4, 5, 10), (10, 30, 100, 200)


def methods(steps, width):
    """The algorithms of the figures."""
    stein: dict[str, Any] = {"num_particles": 200, "local_steps": steps}
    return {
        "DSVGD, published": pf.papers.PaperDSVGD(**stein, distill_steps=steps, kde_bandwidth=width, kde_floor=0.0),
        "U-DSVGD": pf.papers.UDSVGD(**stein, kde_bandwidth=width, kde_floor=0.0),
        "SVGD (pooled)": pf.papers.PaperSVGD(**stein),
        "DSVGD, default": pf.DSVGD(num_particles=200),
        "PVI": pf.infer.PVI(),
    }


def run(target, name, steps, rounds=ROUNDS):
    """KL by round, and the last estimate."""
    rows = torch.tensor([0.0, 1.0], dtype=torch.float64)
    fed = pf.Federation(target.model, (rows,), plate="data", partition=pf.partition.Explicit([[0], [1]]))
    last: list[Any] = []

    def evaluate(idata):
        last[:] = [target.estimate(idata, gaussian=name == "PVI")]
        return {"kl": target.kl(last[0])}

    settings: dict[str, Any] = {"schedule": pf.schedule.RoundRobin(), "num_draws": 20_000, "compile": "trace"}
    record = by_round(methods(steps, target.width)[name], fed, evaluate, rounds, **settings)
    return record["kl"].dropna("round").values, last[0]


def main():
    """Print the tables and save the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out"))
    options = parser.parse_args()
    figure, axes = plt.subplots(1, 4, figsize=(18, 4), layout="constrained")
    estimates = {}
    for axis, target in zip(axes, TARGETS, strict=False):
        print(f"\n{target.title}: KL(exact || q)\n{'after round':<20}" + "".join(f"{r:>9}" for r in SHOWN), flush=True)
        for name in methods(1, 1.0):
            values, estimates[name] = run(target, name, 200)
            shown = (values[min(r, len(values)) - 1] for r in SHOWN)  # who has converged stays there
            print(f"{name:<20}" + "".join(f"{value:9.4f}" for value in shown), flush=True)
            axis.plot(range(1, len(values) + 1), values, "o-", markersize=3, label=name)
        for shade, (name, q) in zip(("0", "0.5"), target.lines().items(), strict=True):
            print(f"{name:<20}{target.kl(q):9.4f}")
            axis.axhline(target.kl(q), color=shade, linestyle="--", label=name)
        axis.set(xlabel="round", ylabel="KL(exact ‖ q)", yscale="log", title=target.title)
    axes[0].legend(fontsize=8)
    steps_figure(axes[3], TARGETS[1])
    save(figure, options.out / "mixtures.png")
    contours({"nearest Gaussian": TARGETS[2].lines()["nearest Gaussian"], **estimates}, options.out)


def steps_figure(axis, target):
    """KL after five rounds against the number of local steps (Figure 9b)."""
    print(f"\n{target.title}, five rounds: KL(exact || q)\n{'L':<20}" + "".join(f"{s:>9}" for s in STEPS))
    for name in ("DSVGD, published", "U-DSVGD", "SVGD (pooled)"):
        values = [run(target, name, steps, rounds=5)[0][-1] for steps in STEPS]
        print(f"{name:<20}" + "".join(f"{value:9.4f}" for value in values), flush=True)
        axis.plot(STEPS, values, "o-", markersize=3, label=name)
    axis.set(xlabel="local steps L", ylabel="KL(exact ‖ q)", xscale="log", yscale="log")
    axis.set_title(f"{target.title}, five rounds")


def contours(estimates, out):
    """Posterior and estimates in the plane (Figure 10)."""
    target = TARGETS[2]
    x = SQUARE[:, 0].reshape(111, 111)
    y = SQUARE[:, 1].reshape(111, 111)
    exact = target.exact.reshape(111, 111)
    levels = [float(share * exact.max()) for share in (0.05, 0.2, 0.4, 0.6, 0.8)]
    figure, axes = plt.subplots(1, len(estimates), figsize=(3 * len(estimates), 3.4), layout="constrained")
    for axis, (name, q) in zip(axes, estimates.items(), strict=True):
        axis.contour(x, y, q.reshape(111, 111), levels, colors="tab:blue", linewidths=1)
        axis.contour(x, y, exact, levels, colors="tab:red", linestyles="dashed", linewidths=1)
        axis.set(title=f"{name}\nKL {target.kl(q):.3f}", xlim=(-4, 4), ylim=(-4.5, 4), aspect="equal")
    figure.suptitle("blue: the estimate; red, dashed: the exact posterior")
    save(figure, out / "mixture_2d.png")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
