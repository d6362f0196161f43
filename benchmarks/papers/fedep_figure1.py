"""Figure 1 of Guo et al. as a plot: two Gaussian clients, and where FedAvg, FedPA and FedEP put the global posterior.

    python -m benchmarks.papers.fedep_figure1 [file.png]

The clients' covariances are correlated in opposite ways, so that neither the average of their modes nor the product of
their diagonal approximations has the mean of their product.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.patches import Ellipse
from torch import Tensor

import pyro_fed as pf
from benchmarks.papers.table4 import gaussian_answer, model, true_mean

MEANS = torch.tensor([[-1.5, 0.5], [1.5, 0.0]], dtype=torch.float64)
COVARIANCES = torch.tensor([[[1.0, 0.8], [0.8, 1.0]], [[1.2, -0.7], [-0.7, 0.6]]], dtype=torch.float64)


def ellipse(axes: Axes, mean: Tensor, covariance: Tensor, **style: object) -> None:
    """The contour at two standard deviations."""
    values, vectors = np.linalg.eigh(covariance.numpy())
    angle = float(np.degrees(np.arctan2(vectors[1, 1], vectors[0, 1])))
    width, height = 4 * np.sqrt(values[::-1])
    axes.add_patch(Ellipse((float(mean[0]), float(mean[1])), width, height, angle=angle, fill=False, **style))


def main() -> None:
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "fedep_figure1.png")
    target.parent.mkdir(parents=True, exist_ok=True)
    fed = pf.Federation(
        model,
        (COVARIANCES, MEANS),
        plate="clients",
        shard=("covariances", "means"),
        partition=pf.partition.Explicit([[0], [1]]),
    )
    family: dict[str, Any] = {"covariance": "diag", "start": "prior", "num_points": 2}
    exact = true_mean(MEANS.unsqueeze(1), COVARIANCES.unsqueeze(1))[0]
    points = {
        "FedAvg": MEANS.mean(0),
        "FedPA": gaussian_answer(pf.infer.FedPA(**family, client=pf.infer.tilted.Laplace(steps=1)), fed, num_rounds=1)[
            0
        ],
        "FedEP": gaussian_answer(pf.FedEP(**family, tolerance=1e-8), fed)[0],
    }
    figure, axes = plt.subplots(figsize=(6, 5), layout="constrained")
    for k, colour in enumerate(("tab:blue", "tab:green")):
        ellipse(axes, MEANS[k], COVARIANCES[k], color=colour, label=f"client {k}")
    ellipse(
        axes, exact, torch.linalg.inv(torch.linalg.inv(COVARIANCES).sum(0)), color="black", label="global posterior"
    )
    for (name, point), marker in zip(points.items(), "s^x", strict=True):
        axes.plot(*point, marker, label=f"{name}, {(point - exact).norm():.1e} from the mean", color="tab:red")
        print(f"{name:7} {point.tolist()}, distance to the true mean {(point - exact).norm():.1e}")
    axes.set(xlabel="theta[0]", ylabel="theta[1]", aspect="equal")
    axes.autoscale_view()
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    figure.savefig(target, dpi=150)


if __name__ == "__main__":
    main()
