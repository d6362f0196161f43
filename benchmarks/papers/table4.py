"""Table 4 and Figure 1 of Guo et al.: where FedAvg, FedPA and FedEP put the mean of two Gaussian clients' product.

    python -m benchmarks.papers.table4 [num_draws] [--figure FILE.png]

Clients p_k = N(mu_k, Sigma_k) from the normal-inverse-Wishart of Section 3.1 (mu_0 = 0, nu = 7, lambda = 0.2, Psi a
random positive definite matrix), a flat prior, diagonal families. FedAvg's answer is the average of the clients'
modes ("one-shot"), the others come from `pf.run`; "flat" is a normal prior of SD 1e4, since q has to begin as a
distribution. "FedEP, KL(tilted ‖ q)" is Eq. 3 as published, with `pf.infer.tilted.Laplace`: exact for Gaussian clients,
and projected by mean and variances. "FedEP" takes expected Newton steps, KL(q ‖ tilted), where two points integrate a
Gaussian client exactly. A diagonal q has the true mean by either, since both give its site the tilted mean; its
variances are those of the posterior's margins by neither: the last column is the median of their ratios to these.

`--figure` draws Figure 1 in place of the table, for clients whose covariances are correlated in opposite ways, so that
neither the average of their modes nor the product of their diagonal approximations has the mean of their product.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from scipy import stats
from torch import Tensor

import pyro_fed as pf
from pyro_fed.algorithm import Algorithm
from pyro_fed.infer.sites.gaussian_sites import gaussian

FLAT_SD = 1e4
FAMILY: dict[str, Any] = {"covariance": "diag", "start": "prior", "num_points": 2}
#: Eq. 3 as published.
MOMENTS = "FedEP, KL(tilted ‖ q)"
#: Algorithms, and their rounds; None takes as many as they need, up to their default.
METHODS = {
    "FedPA": (pf.infer.FedPA(**FAMILY, client=pf.infer.tilted.Laplace(steps=1)), 1),
    "FedEP": (pf.FedEP(**FAMILY, tolerance=1e-8), None),
    MOMENTS: (pf.FedEP(**FAMILY, tolerance=1e-8, damping=1.0, client=pf.infer.tilted.Laplace(steps=1)), 2000),
}


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


def federation(means: Tensor, covariances: Tensor) -> pf.Federation:
    """One draw's two clients: means (2, 2), covariances (2, 2, 2)."""
    parts = pf.partition.Explicit([[0], [1]])
    return pf.Federation(model, (covariances, means), plate="clients", shard=("covariances", "means"), partition=parts)


def answers(num_draws: int, names: Sequence[str] = tuple(METHODS), seed: int = 0) -> dict[str, tuple[Tensor, Tensor]]:
    """By method, distances to the true mean (num_draws,) and variances over the true ones (num_draws, 2)."""
    means, covariances = draw_clients(num_draws, seed)
    found: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in names}
    for i in range(num_draws):
        fed = federation(means[:, i], covariances[:, i])
        for name in names:
            algorithm, rounds = METHODS[name]
            found[name].append(gaussian_answer(algorithm, fed, num_rounds=rounds))
    truth = true_mean(means, covariances)
    variances = torch.linalg.inv(torch.linalg.inv(covariances).sum(0)).diagonal(dim1=-2, dim2=-1)
    out = {"FedAvg": ((means.mean(0) - truth).norm(dim=-1), torch.full_like(truth, torch.nan))}
    for name, each in found.items():
        mean, variance = (torch.stack(part) for part in zip(*each, strict=True))
        out[name] = (mean - truth).norm(dim=-1), variance / variances
    return out


def gaussian_answer(algorithm: Algorithm, fed: pf.Federation, **options) -> tuple[Tensor, Tensor]:
    """The exact mean and variances of the final q: draws alone would only show them to within noise."""
    seen: list[Tensor] = []

    base: Any = type(algorithm)

    class Recorded(base):  # type: ignore[misc]  # a class that is known when it runs
        def sample(self, shared, num_draws, generator):
            seen[:] = gaussian(shared).moments()
            return super().sample(shared, num_draws, generator)

    settings = {field.name: getattr(algorithm, field.name) for field in dataclasses.fields(algorithm)}
    pf.run(Recorded(**settings), fed, progress=False, num_draws=2, compile="off", audit=False, **options)
    return seen[0], seen[1]


def draw_figure(target: Path) -> None:
    """Figure 1: the clients, their product, and the answers, whose distances are printed."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import Ellipse

    means = torch.tensor([[-1.5, 0.5], [1.5, 0.0]], dtype=torch.float64)
    covariances = torch.tensor([[[1.0, 0.8], [0.8, 1.0]], [[1.2, -0.7], [-0.7, 0.6]]], dtype=torch.float64)
    exact, fed = true_mean(means.unsqueeze(1), covariances.unsqueeze(1))[0], federation(means, covariances)
    points = {"FedAvg": means.mean(0)}
    points |= {
        name: gaussian_answer(METHODS[name][0], fed, num_rounds=METHODS[name][1])[0] for name in ("FedPA", "FedEP")
    }
    figure, axes = plt.subplots(figsize=(6, 5), layout="constrained")
    product = torch.linalg.inv(torch.linalg.inv(covariances).sum(0))
    for mean, covariance, colour, label in (
        (means[0], covariances[0], "tab:blue", "client 0"),
        (means[1], covariances[1], "tab:green", "client 1"),
        (exact, product, "black", "global posterior"),
    ):
        values, vectors = np.linalg.eigh(covariance.numpy())
        angle = float(np.degrees(np.arctan2(vectors[1, 1], vectors[0, 1])))
        width, height = 4 * np.sqrt(values[::-1])  # two standard deviations either way
        axes.add_patch(
            Ellipse((float(mean[0]), float(mean[1])), width, height, angle=angle, fill=False, color=colour, label=label)
        )
    for (name, point), marker in zip(points.items(), "s^x", strict=True):
        axes.plot(*point, marker, label=f"{name}, {(point - exact).norm():.1e} from the mean", color="tab:red")
        print(f"{name:7} {point.tolist()}, distance to the true mean {(point - exact).norm():.1e}")
    axes.set(xlabel="theta[0]", ylabel="theta[1]", aspect="equal")
    axes.autoscale_view()
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("num_draws", type=int, nargs="?", default=200)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    if options.figure is not None:
        return draw_figure(options.figure)
    paper = {"FedAvg": "5.4e-1 ± 4.7e-1", "FedPA": "2.6e-1 ± 2.6e-1", "FedEP": "1.1e-7 ± 9.8e-8"}
    paper[MOMENTS] = paper["FedEP"]
    print(f"{'method':22}{'distance':>20}   {'paper':16}   variance ratio")
    for name, (distance, ratio) in answers(options.num_draws).items():
        spread = f"{distance.mean():.1e} ± {distance.std():.1e}"
        print(f"{name:22}{spread:>20}   {paper[name]:16}   {ratio.median():.2f}")


if __name__ == "__main__":
    main()
