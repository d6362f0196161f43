"""Figures 1 to 4 of the FSGLD paper: the noise of gradients; non-IID data and delayed communication (Section 5.1).

Figure 1: 30 tosses of a fair coin, a uniform prior on the chance of heads, minibatches of 5; three shards of ten with
means 0.1, 0.5 and 0.9. On the log odds z: SGLD draws 5 of 30, DSGLD a shard and 5 of its ten, FSGLD the same with the
conducive gradient of Gaussian surrogates at the shards' modes. Standard deviations are exact, over all minibatches and
shards. The paper: "DSGLD shows higher variance than SGLD even for this simple case" (a figure, no numbers). Measured:
DSGLD's standard deviation is 1.69 times SGLD's, FSGLD's 1.00 to 1.04 times, within two posterior SDs of the centre.

Figures 2 to 4:

Ten shards of 200 rows from N(mu_s, I), mu_s uniform on [-6, 6]²; h = 1e-4, m = 10, f_s = 1/10; 1, 10, 100 and 1000
local updates. Instead of one chain of many steps, `--chains` of `--steps` each (a quarter
of them burn-in), at the same h and m. Three
samplers: DSGLD, FSGLD as published, and FSGLD with a control variate. The published one has minibatch noise of
variance h s²/4 = 10 posterior variances (s² = (N/m)² m (1 - m/N_s)), so
that its spread is about 3 posterior SDs whatever the visits; for a Gaussian likelihood a control variate removes it.

    python -m benchmarks.papers.fsgld_figures --out out/fsgld
    python -m benchmarks.papers.fsgld_figures --only-1
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch

import pyro_fed as pf
from pyro_fed.infer.langevin.gradients import ConduciveGradient, conducive_gradients
from pyro_fed.ops.gaussian import STRUCTURES
from tests.helpers.gaussian_case import analytic_surrogates, exact, federation, moments, shards

PAPER: dict[str, Any] = {
    "sweeps": False,
    "step": pf.infer.step.Fixed(size=1e-4, precondition=False, midpoint=False),
    "target_ess": None,
    "batch_size": 10,
    "minibatches": "anew",
}
UPDATES = (1, 10, 100, 1000)
SAMPLERS = ("DSGLD", "FSGLD as published", "FSGLD, control variate")
THIN = 7  # prime to an epoch's 20 steps


def sampler(name, given, updates, chains, steps):
    settings = PAPER | {"num_chains": chains, "local_steps": updates, "burn_in": steps // 4, "thin": THIN}
    if name == "DSGLD":
        return pf.infer.DSGLD(surrogates=None, control_variate=False, **settings)
    conducive = pf.infer.Conducive(trust=None)
    return pf.FSGLD(surrogates=given, conducive=conducive, control_variate=name.endswith("variate"), **settings)


def sample(x, chains, steps):
    """Draws (chain, draw, 2) of every sampler and number of local updates."""
    given, out = analytic_surrogates(x), {}
    for name in SAMPLERS:
        for updates in UPDATES:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # R-hat of DSGLD is what the figures show
                idata = pf.run(
                    sampler(name, given, updates, chains, steps),
                    federation(x),
                    num_rounds=max(1, steps // updates),
                    num_draws=100_000,
                    seed=1,
                    progress=False,
                    log_likelihood=False,
                )
            out[name, updates] = idata
            print(report(name, updates, idata, x), flush=True)
    return out


def report(name, updates, idata, x):
    mean, variance = exact(x)
    found, covariance = moments(idata)
    error = float((found - mean).norm())
    sds = (covariance.diagonal() / variance).sqrt()
    return (
        f"{name:24s} local updates {updates:5d}: |error of the mean| {error:.4f} = "
        f"{error / variance**0.5:7.2f} SD, SD ratios {float(sds.min()):.3f} {float(sds.max()):.3f}"
    )


def scatter(axis, x, draws, title):
    for rows in x:
        axis.scatter(*rows.T, s=1, alpha=0.3)
    axis.scatter(*draws.reshape(-1, 2)[:2_000].T, s=4, c="black")
    axis.set(title=title, xlim=(-9, 9), ylim=(-9, 9), aspect="equal")


def figure_2(x, runs, folder):
    figure, axes = plt.subplots(2, 4, figsize=(14, 7.5), layout="constrained")
    for row, name in zip(axes, ("DSGLD", "FSGLD as published"), strict=True):
        for axis, updates in zip(row, UPDATES, strict=True):
            scatter(axis, x, runs[name, updates]["posterior"]["mu"].values, f"{name.split(' ')[0]} ({updates})")
    figure.savefig(folder / "figure_2.png", dpi=110)


def running_error(idata, x):
    """Squared error of the mean over the first n draws of a chain, averaged over chains: (draw,)."""
    draws = idata["posterior"]["mu"].values
    running = draws.cumsum(1) / np.arange(1, draws.shape[1] + 1)[:, None]
    return ((running - exact(x)[0].numpy()) ** 2).sum(-1).mean(0)


def figure_3(x, runs, folder):
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    mean, variance = exact(x)
    normal = torch.randn(2_000, 2, generator=torch.Generator().manual_seed(0), dtype=x.dtype)
    draws = mean + variance**0.5 * normal
    scatter(left, x, draws.numpy(), "analytic posterior")
    for name, line in zip(SAMPLERS, ("-", "--", ":"), strict=True):
        for i, updates in enumerate(UPDATES):
            error = running_error(runs[name, updates], x)
            right.plot(np.arange(1, len(error) + 1), error, line, c=f"C{i}", label=f"{name} ({updates})")
    right.set(xscale="log", yscale="log", xlabel="posterior samples a chain", ylabel="squared error of the mean")
    right.legend(fontsize=6, ncols=3)
    figure.savefig(folder / "figure_3.png", dpi=110)


def constants(x, points=41):
    """γ_s² and ε_s² of Assumption 1 and Lemma 2 on a grid over [-6, 6]², in closed form for this model."""
    grid = torch.cartesian_prod(*[torch.linspace(-6, 6, points, dtype=x.dtype)] * 2)
    each = (x[:, :, None] - grid).square().sum(-1)  # |∇ log p(x_i | θ)|²
    apart = (x - x.mean(1, keepdim=True)).square().sum(-1)  # |∇ log p(x_i | θ) - ∇ log q_s(θ) / N_s|², free of θ
    return each.amax((1, 2)), apart.mean(1)


def figure_4(x, folder):
    gamma, epsilon = constants(x)
    figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
    at = np.arange(len(x))
    axis.bar(at - 0.2, gamma, 0.4, label=r"$\gamma_s^2$ (DSGLD)")
    axis.bar(at + 0.2, epsilon, 0.4, label=r"$\epsilon_s^2$ (FSGLD)")
    axis.set(yscale="log", ylim=(1, 2_000), xlabel="shard", title="constants of Theorems 1 and 2")
    axis.legend()
    figure.savefig(folder / "figure_4.png", dpi=110)
    print(
        f"gamma² {float(gamma.min()):.1f} to {float(gamma.max()):.1f}, epsilon² {float(epsilon.min()):.2f} to "
        f"{float(epsilon.max()):.2f}"
    )


HEADS, ROWS, BATCH = np.array([1, 5, 9]), 10, 5


def batch_variance(heads: float, rows: int) -> float:
    """Variance of Σ y over minibatches without replacement, times rows / m."""
    spread = heads * (rows - heads) / (rows * (rows - 1))  # of the rows' y
    return (rows / BATCH) ** 2 * BATCH * spread * (1 - BATCH / rows)


def deviations(z: np.ndarray) -> dict[str, np.ndarray]:
    """SD of each estimate of the log-likelihood's gradient at log odds z."""
    chance, shards = 1 / (1 + np.exp(-z)), len(HEADS)
    own = shards * (HEADS[:, None] - ROWS * chance)  # a shard's gradient over f_s = 1/3
    noise = np.mean([shards**2 * batch_variance(heads, ROWS) for heads in HEADS])
    share = HEADS / ROWS
    precision = torch.from_numpy(ROWS * share * (1 - share))[:, None]
    sites = STRUCTURES["diag"](precision, precision * torch.from_numpy(np.log(share / (1 - share)))[:, None])
    pull = conducive_gradients(sites, torch.full((shards,), 1 / shards), torch.zeros(1, dtype=torch.float64), 1.0)
    each = [ConduciveGradient(pull.anchor[s], pull.value[s], pull.slope[s]) for s in range(shards)]
    pulled = np.array([[float(shard.at(torch.tensor([at]))[0]) for at in z] for shard in each])
    return {
        "SGLD": np.full_like(z, batch_variance(float(HEADS.sum()), shards * ROWS) ** 0.5),
        "DSGLD": np.sqrt(noise + own.var(0)),
        "FSGLD": np.sqrt(noise + (own + pulled).var(0)),
    }


def figure_1() -> None:
    """Print the deviations."""
    z = np.linspace(-0.75, 0.75, 7)  # two posterior SDs around a fair coin
    found = deviations(z)
    print("log odds" + "".join(f"{at:8.2f}" for at in z))
    for name, values in found.items():
        print(f"{name:8}" + "".join(f"{value:8.2f}" for value in values))
    for name in ("DSGLD", "FSGLD"):
        ratio = found[name] / found["SGLD"]
        print(f"{name} over SGLD: {ratio.min():.2f} to {ratio.max():.2f}; the paper: DSGLD's is larger (a figure)")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out/fsgld"))
    parser.add_argument("--chains", type=int, default=64)
    parser.add_argument("--steps", type=int, default=4_000)
    parser.add_argument("--only-1", action="store_true", help="Figure 1 alone, which takes seconds")
    options = parser.parse_args()
    figure_1()
    if options.only_1:
        return
    options.out.mkdir(parents=True, exist_ok=True)
    x = shards()
    figure_4(x, options.out)
    runs = sample(x, options.chains, options.steps)
    figure_2(x, runs, options.out)
    figure_3(x, runs, options.out)


if __name__ == "__main__":
    main()
