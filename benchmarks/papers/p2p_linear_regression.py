"""Linear regression by four agents that see one coordinate each (Wang et al., Section V-A, Fig. 1).

    theta* = (-0.3, 0.5, 0.5, 0.1),  noise SD 0.8,  prior N(0, 0.5 I)
    x_i ~ Unif[-b_i, b_i],  b = (1, 1.5, 1.25, 0.75)

Prints each agent's test MSE relative to the central learner's: alone, together as published, and exact;
and, for the exact weighting, the distance of every belief from the pooled posterior. The paper gives no
batch size or number of rounds: here 5 rows a round, 100 rounds.

    python -m benchmarks.papers.p2p_linear_regression [--out figure.png]
"""

from __future__ import annotations

import argparse
import warnings

import matplotlib.pyplot as plt
import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

import pyro_fed as pf

TRUTH = torch.tensor([-0.3, 0.5, 0.5, 0.1], dtype=torch.float64)
BOUNDS = torch.tensor([1.0, 1.5, 1.25, 0.75], dtype=torch.float64)
NOISE_SD, PRIOR_VARIANCE = 0.8, 0.5
W = [[0.5, 0.5, 0, 0], [0.3, 0.1, 0.3, 0.3], [0, 0.5, 0.5, 0], [0, 0.5, 0, 0.5]]


def model(x: Tensor, y: Tensor) -> None:
    theta = pyro.sample("theta", dist.Normal(x.new_zeros(4), PRIOR_VARIANCE**0.5).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ theta, NOISE_SD), obs=y)


def draw(rows: int, agent: int | None, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows of one agent (one coordinate), or of the test set (all coordinates)."""
    x = (2 * torch.rand(rows, 4, generator=generator, dtype=torch.float64) - 1) * BOUNDS
    if agent is not None:
        x = x * torch.nn.functional.one_hot(torch.tensor(agent), 4)
    return x, x @ TRUTH + NOISE_SD * torch.randn(rows, generator=generator, dtype=torch.float64)


def exact(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    precision = x.T @ x / NOISE_SD**2 + torch.eye(4, dtype=x.dtype) / PRIOR_VARIANCE
    covariance = torch.linalg.inv(precision)
    return covariance @ x.T @ y / NOISE_SD**2, covariance


def main(batch: int = 5, rounds: int = 100, seed: int = 0) -> dict[str, np.ndarray]:
    """Test MSE by (round, agent) of each way to learn; `central` by round."""
    generator = torch.Generator().manual_seed(seed)
    clients = [draw(batch * rounds, agent, generator) for agent in range(4)]
    test_x, test_y = draw(20_000, None, generator)
    fed = pf.Federation.from_clients(model, clients, plate="data")
    graph = pf.graph.from_matrix(W)
    alone = pf.graph.Partitioned(graph, [[0], [1], [2], [3]])
    ways = {
        "alone": (pf.P2PVI(weighting="paper", batch_size=batch, gossip_steps=1, trace=True), alone),
        "paper": (pf.P2PVI(weighting="paper", batch_size=batch, gossip_steps=1, trace=True), graph),
        "exact": (
            pf.P2PVI(weighting="exact", batch_size=batch, gossip_steps=1, trace=True, start="prior"),
            graph,
        ),
    }
    mse, last = {}, {}
    for name, (algorithm, links) in ways.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "not converged", "fell apart": both are meant
            idata = pf.run(algorithm, fed, graph=links, num_rounds=rounds + 40, num_draws=2, progress=False)
        means = torch.from_numpy(idata["federation"]["belief_mean"].values)
        mse[name] = (test_y - means @ test_x.T).square().mean(-1).numpy()
        last[name] = means[-1], torch.from_numpy(idata["federation"]["belief_sd"].values)[-1]
    central = [
        exact(torch.cat([x[: t * batch] for x, _ in clients]), torch.cat([y[: t * batch] for _, y in clients]))
        for t in range(rounds + 1)
    ]
    mse["central"] = np.array([float((test_y - test_x @ mean).square().mean()) for mean, _ in central])
    mean, covariance = central[-1]
    mse["exact error"] = np.array(
        [
            float((last["exact"][0] - mean).abs().max()),
            float((last["exact"][1] - covariance.diagonal().sqrt()).abs().max()),
        ]
    )
    return mse


def report(mse: dict[str, np.ndarray], out: str | None) -> None:
    central = mse["central"][-1]
    print(f"central learner's test MSE {central:.4f} (noise alone {NOISE_SD**2:.4f})")
    for name in ("alone", "paper", "exact"):
        print(f"{name:6s} MSE / central's, agents 1-4: ", " ".join(f"{v:.4f}" for v in mse[name][-1] / central))
    print("exact: largest |mean - pooled mean| {:.1e}, |SD - pooled SD| {:.1e}".format(*mse["exact error"]))
    if out:
        fig, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
        for ax, name in zip(axes, ("alone", "paper"), strict=True):
            for agent in range(4):
                ax.plot(mse[name][: len(mse["central"]), agent], label=f"agent {agent + 1}")
            ax.plot(mse["central"], color="black", label="central")
            ax.set(title=name, xlabel="round", ylabel="test MSE")
        axes[0].legend()
        fig.savefig(out, dpi=120)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out")
    report(main(), parser.parse_args().out)
