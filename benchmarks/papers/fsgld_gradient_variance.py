"""Figure 1 of el Mekkaoui et al.: the noise of gradients on pooled data and on three shards that differ, Bernoulli.

30 tosses of a fair coin, a uniform prior on the chance of heads, minibatches of 5; three shards of ten with means 0.1,
0.5 and 0.9. On the log odds z: SGLD draws 5 of 30, DSGLD a shard and 5 of its ten, FSGLD the same with the conducive
gradient of Gaussian surrogates at the shards' modes. Standard deviations are exact, over all minibatches and shards.

    python -m benchmarks.papers.fsgld_gradient_variance

The paper: "DSGLD shows higher variance than SGLD even for this simple case" (a figure, no numbers). Measured: DSGLD's
standard deviation is 1.69 times SGLD's, FSGLD's 1.00 to 1.04 times, within two posterior SDs of the centre.
"""

from __future__ import annotations

import numpy as np
import torch

from pyro_fed.infer.langevin.gradients import ConduciveGradient, conducive_gradients
from pyro_fed.ops.gaussian import STRUCTURES

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


def main() -> None:
    z = np.linspace(-0.75, 0.75, 7)  # two posterior SDs around a fair coin
    found = deviations(z)
    print("log odds" + "".join(f"{at:8.2f}" for at in z))
    for name, values in found.items():
        print(f"{name:8}" + "".join(f"{value:8.2f}" for value in values))
    for name in ("DSGLD", "FSGLD"):
        ratio = found[name] / found["SGLD"]
        print(f"{name} over SGLD: {ratio.min():.2f} to {ratio.max():.2f}; the paper: DSGLD's is larger (a figure)")


if __name__ == "__main__":
    main()
