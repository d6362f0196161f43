"""Calibration of a right and of a too narrow approximation, as docs/sbc.png: `python -m benchmarks.sbc.figure`."""

from __future__ import annotations

from pathlib import Path

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pyro
import pyro.distributions as dist
import torch
from scipy import stats

import pyro_fed as pf

#: Runs of each algorithm, and where the distribution functions are looked at.
REPLICATES, POINTS = 200, np.linspace(0, 1, 101)
#: A normal distribution with all correlations, and the one of independent parameters that is nearest in KL(q | p).
ALGORITHMS = {"FedEP()": pf.FedEP(), 'FedEP(covariance="diag")': pf.FedEP(covariance="diag")}


def line(x, y):
    """Intercept and slope of covariates that are not centred, whose posterior is correlated."""
    beta = pyro.sample("beta", dist.Normal(torch.zeros(2, dtype=x.dtype), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(beta[0] + beta[1] * x, 1.0), obs=y)


def main() -> None:
    x = torch.linspace(0.0, 3.0, 40, dtype=torch.float64)
    fed = pf.Federation(line, (x, 0 * x), plate="data", num_clients=4)
    figure, axes = plt.subplots(1, 2, figsize=(8, 3), sharey=True, layout="constrained")
    for ax, (name, algorithm) in zip(axes, ALGORITHMS.items(), strict=True):
        found = pf.sbc(fed, REPLICATES, algorithm=algorithm, audit=False)
        pit = (found["prior_sbc"]["beta"].values[0, :, 1] + 0.5) / 100
        bands = {"confidence_bands": "simulated", "rvs": stats.uniform().rvs, "random_state": 0}
        az.plot_ecdf(pit, cdf=stats.uniform().cdf, eval_points=POINTS, difference=True, ax=ax, **bands)
        ax.set(title=name, xlabel="rank of the true slope / 100", ylabel="distribution function − uniform")
    figure.savefig(Path(__file__).parents[2] / "docs" / "sbc.png", dpi=110)


if __name__ == "__main__":
    main()
