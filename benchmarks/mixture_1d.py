"""KL divergence by round on the one-dimensional mixture: Figures 3 and 9 of the DSVGD paper.

    python benchmarks/mixture_1d.py [--out out/mixture_1d.png]

Two agents, one factor each, N = 200 particles, L = L' = 200, bandwidth 0.55, one agent a round in turn; beside
SVGD on both factors (800 steps), PVI, and the Gaussian nearest to the posterior. KL(exact || q) by quadrature,
with q the particles' kernel density of width 0.55, as in the paper: exact draws smoothed so have the KL in the line
"exact, smoothed", which no particles can go below by more than chance.

The uniform prior of Fig. 3 is taken flat in θ, as in tutorials/07: sampled through the transform of its support, a
density estimate of width 0.55 would be another estimate. The prior of Fig. 9 is N(0, 1).
"""

import argparse
import warnings
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch.distributions import constraints

import pyro_fed as pf
from models import gaussian_mixture_1d as toy

ROUNDS = (1, 2, 3, 4, 6, 8, 10)
WIDTH = 0.55
GRID = torch.linspace(-9, 9, 3601, dtype=torch.float64)
SIZES = {"num_particles": 200}
METHODS = {
    "DSVGD, published": pf.PaperDSVGD(local_steps=200, distill_steps=200, **SIZES),
    "U-DSVGD": pf.UDSVGD(local_steps=200, **SIZES),
    "DSVGD, default": pf.DSVGD(**SIZES),
    "PVI": pf.PVI(),
}


def flat_model(component):
    """The toy target under a prior that is flat in θ."""
    theta = pyro.sample("theta", dist.ImproperUniform(constraints.real, (), ()))
    factor = torch.where(component == 0, toy.log_factor_0(theta), toy.log_factor_1(theta))
    with pyro.plate("data", len(component)):
        pyro.factor("likelihood", factor)


def gaussian_model(component):
    """The toy target under N(0, 1)."""
    toy.model(component, prior="gaussian")


def exact(prior):
    """The posterior's density on the grid."""
    log_prior = -0.5 * GRID**2 if prior == "gaussian" else torch.zeros_like(GRID)
    density = (log_prior + toy.log_factor_0(GRID) + toy.log_factor_1(GRID)).exp().numpy()
    return density / np.trapezoid(density, GRID)


def kl(truth, density):
    """KL(truth || density) on the grid."""
    return float(np.trapezoid(truth * (np.log(np.maximum(truth, 1e-300)) - np.log(np.maximum(density, 1e-300))), GRID))


def normal(mean, sd):
    """A normal density on the grid."""
    return np.exp(-0.5 * ((GRID.numpy() - mean) / sd) ** 2) / (sd * np.sqrt(2 * np.pi))


def density(idata, gaussian):
    """What a result says of θ, on the grid: its kernel density estimate, or its Gaussian."""
    theta = idata.posterior["theta"].values.reshape(-1, 1)
    return normal(theta.mean(), theta.std()) if gaussian else normal(theta, WIDTH).mean(0)


def run(algorithm, fed, rounds):
    """A result, quietly: that few rounds are not enough is what the table shows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pf.run(
            algorithm, fed, num_rounds=rounds, schedule=pf.schedule.RoundRobin(), num_draws=20_000, progress=False
        )


def table(prior):
    """KL by method and round, and the KL of what does not change with rounds."""
    model = gaussian_model if prior == "gaussian" else flat_model
    rows = (torch.tensor([0.0, 1.0], dtype=torch.float64),)
    fed = pf.Federation(model, rows, plate="data", partition=pf.partition.Explicit([[0], [1]]))
    truth = exact(prior)
    found = {
        name: [kl(truth, density(run(one, fed, rounds), name == "PVI")) for rounds in ROUNDS]
        for name, one in METHODS.items()
    }
    mean = np.trapezoid(truth * GRID.numpy(), GRID)
    sd = np.trapezoid(truth * (GRID.numpy() - mean) ** 2, GRID) ** 0.5
    smoothed = np.convolve(truth, normal(0.0, WIDTH), "same") * float(GRID[1] - GRID[0])
    pooled = density(run(pf.PaperSVGD(local_steps=800, **SIZES), fed, 1), False)
    lines = {
        "SVGD, pooled": kl(truth, pooled),
        "nearest Gaussian": kl(truth, normal(mean, sd)),
        "exact, smoothed": kl(truth, smoothed),
    }
    return found, lines


def main():
    """Print both tables and save the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out/mixture_1d.png"))
    options = parser.parse_args()
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained", sharey=True)
    for axis, prior in zip(axes, ("flat", "gaussian"), strict=True):
        found, lines = table(prior)
        print(f"\n{prior} prior: KL(exact || q)\n{'after round':>20}" + "".join(f"{r:>9}" for r in ROUNDS))
        for name, values in found.items():
            print(f"{name:>20}" + "".join(f"{value:>9.4f}" for value in values))
            axis.plot(ROUNDS, values, "o-", label=name)
        for i, (name, value) in enumerate(lines.items()):
            print(f"{name:>20}{value:>9.4f}")
            axis.axhline(value, color=f"{0.3 * i}", linestyle="--", label=name)
        axis.set(xlabel="round", ylabel="KL(exact ‖ q)", yscale="log", title=f"{prior} prior")
    axes[0].legend(fontsize=8)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.out, dpi=120)
    print(f"\nfigure in {options.out}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
