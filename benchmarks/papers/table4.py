"""Table 4 of Guo et al.: distance of FedAvg, FedPA and FedEP to the true global mean, two Gaussian clients.

    python -m benchmarks.papers.table4 [num_draws]

Clients p_k = N(mu_k, Sigma_k) from the normal-inverse-Wishart of Section 3.1 (mu_0 = 0, nu = 7, lambda = 0.2, Psi a
random positive definite matrix), a flat prior, diagonal families. FedAvg's answer is the average of the clients'
modes ("one-shot"), FedPA's and FedEP's come from `pf.run` (two points integrate a Gaussian client exactly); "flat" is a
normal prior of SD 1e4, since q has to begin as a distribution.
"""

from __future__ import annotations

import dataclasses
import sys

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from scipy import stats
from torch import Tensor

import pyro_fed as pf
from pyro_fed.infer.sites.gaussian_sites import gaussian

FLAT_SD = 1e4


def draw_clients(num_draws: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Means (2, num_draws, 2) and covariances (2, num_draws, 2, 2) of two clients a draw."""
    rng = np.random.default_rng(seed)
    means, covariances = np.empty((2, num_draws, 2)), np.empty((2, num_draws, 2, 2))
    for i in range(num_draws):
        root = rng.standard_normal((2, 2))
        scale = root @ root.T
        for k in range(2):
            covariances[k, i] = stats.invwishart.rvs(df=7, scale=scale, random_state=rng)
            means[k, i] = rng.multivariate_normal(np.zeros(2), covariances[k, i] / 0.2)
    return torch.from_numpy(means), torch.from_numpy(covariances)


def true_mean(means: Tensor, covariances: Tensor) -> Tensor:
    """Mean of the product of the two Gaussians, (num_draws, 2)."""
    precisions = torch.linalg.inv(covariances)
    eta = (precisions @ means.unsqueeze(-1)).sum(0)
    return torch.linalg.solve(precisions.sum(0), eta).squeeze(-1)


def model(covariances: Tensor, means: Tensor) -> None:
    """One row a client: its mean is an observation of theta with its covariance."""
    theta = pyro.sample("theta", dist.Normal(means.new_zeros(means.shape[1:]), FLAT_SD).to_event(1))
    with pyro.plate("clients", len(means)):
        likelihood = dist.MultivariateNormal(theta, covariance_matrix=covariances)
        pyro.sample("mean", likelihood, obs=means)


def distances(num_draws: int, seed: int = 0) -> dict[str, Tensor]:
    """Euclidean distances to the true mean by method, each (num_draws,)."""
    means, covariances = draw_clients(num_draws, seed)
    family = {"covariance": "diag", "start": "prior", "num_points": 2}
    found = {"FedAvg": means.mean(0), "FedPA": [], "FedEP": []}
    for i in range(num_draws):
        fed = pf.Federation(
            model,
            (covariances[:, i], means[:, i]),
            plate="clients",
            shard=("covariances", "means"),
            partition=pf.partition.Explicit([[0], [1]]),
        )
        averaged = pf.FedPA(**family, client=pf.tilted.Laplace(steps=1))
        found["FedPA"].append(gaussian_mean(averaged, fed, num_rounds=1))
        found["FedEP"].append(gaussian_mean(pf.FedEP(**family, tolerance=1e-8), fed))
    truth = true_mean(means, covariances)
    return {name: (torch.as_tensor(torch.stack(list(mean))) - truth).norm(dim=-1) for name, mean in found.items()}


def gaussian_mean(algorithm: pf.Algorithm, fed: pf.Federation, **options) -> Tensor:
    """The exact mean of the final q: draws alone would only show it to within noise."""
    seen: dict[str, Tensor] = {}

    class Recorded(type(algorithm)):
        def sample(self, shared, num_draws, generator):
            seen["mean"] = gaussian(shared).mean()
            return super().sample(shared, num_draws, generator)

    settings = {field.name: getattr(algorithm, field.name) for field in dataclasses.fields(algorithm)}
    pf.run(Recorded(**settings), fed, progress=False, num_draws=2, compile="off", audit=False, **options)
    return seen["mean"]


def main() -> None:
    num_draws = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    paper = {"FedAvg": "5.4e-1 ± 4.7e-1", "FedPA": "2.6e-1 ± 2.6e-1", "FedEP": "1.1e-7 ± 9.8e-8"}
    print(f"{'method':8}{'distance':>22}   paper")
    for name, values in distances(num_draws).items():
        print(f"{name:8}{f'{values.mean():.1e} ± {values.std():.1e}':>22}   {paper[name]}")


if __name__ == "__main__":
    main()
