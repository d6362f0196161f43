"""Long references of the gallery's cases of `pyro-fed bench`: four chains of NUTS in double precision.

    python -m benchmarks.accuracy.bench_references [NAME ...]

Writes `pyro_fed/analysis/bench/cases/references/NAME.npz`: every fourth of 4 x 2,000 draws, and the fingerprint of the
data. Prints R-hat and the standard error of the means, in SDs.

Where chains hardly move, the same posterior is sampled in a form in which rows' latents are integrated out by hand.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

import pyro_fed as pf
from models.measurement_error import ERROR
from pyro_fed.analysis.bench.cases.library import REFERENCES, fingerprint, gallery_cases
from pyro_fed.ops.arviz_versions import ess, rhat

DRAWS, WARMUP, KEPT = 2000, 500, 4


def measurement_error(x: Tensor, y: Tensor) -> None:
    """`models.measurement_error` without the rows' true covariates: measurement and outcome are a bivariate Gaussian.

    With the 200 true values as latents the chains' R-hat is 1.06 after 4 x 2,000 draws.
    """
    two = x.new_tensor(2.0)
    level = pyro.sample("level", dist.Normal(0 * two, two))
    slope = pyro.sample("slope", dist.Normal(0 * two, two))
    sigma = pyro.sample("sigma", dist.HalfNormal(two))
    mu = pyro.sample("mu", dist.Normal(0 * two, two))
    spread = pyro.sample("spread", dist.HalfNormal(two))
    both = slope * spread**2
    rows = [torch.stack([spread**2 + ERROR**2, both]), torch.stack([both, slope * both + sigma**2])]
    mean = torch.stack([mu, level + slope * mu])
    with pyro.plate("data", len(x)):
        pyro.sample("xy", dist.MultivariateNormal(mean, torch.stack(rows)), obs=torch.stack([x, y], -1))


#: The same posteriors without the latents of rows, by the model's name.
INTEGRATED = {"measurement_error": measurement_error}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="all of them by default")
    names = parser.parse_args().names
    for case in gallery_cases():
        if names and case.name not in names:
            continue
        began, args = time.perf_counter(), case.data()
        model = INTEGRATED.get(case.name, case.model)
        fed = pf.Federation(model, args, plate=case.plate, rows=case.rows, num_clients=1)
        algorithm = pf.NUTS(num_samples=DRAWS, warmup_steps=WARMUP, num_chains=4, target_accept_prob=0.9)
        idata = pf.run(algorithm, fed, seed=1, progress=False, log_likelihood=False, audit=False)
        values = {name: np.asarray(idata["posterior"][name].values) for name in fed.problem.sites}
        flat = np.concatenate([value.reshape(*value.shape[:2], -1) for value in values.values()], 2)
        flat = flat[..., np.ptp(flat, axis=(0, 1)) > 0]  # a Cholesky factor has constants
        error = (1 / np.sqrt(ess(flat, method="mean"))).max()
        print(f"{case.name:24s} R-hat {rhat(flat).max():.4f}  error of a mean {error:.3f} SD  ", end="")
        print(f"{time.perf_counter() - began:.0f} s", flush=True)
        REFERENCES.mkdir(exist_ok=True)
        kept: dict[str, Any] = {name: value[:, ::KEPT].astype(np.float32) for name, value in values.items()}
        np.savez_compressed(REFERENCES / f"{case.name}.npz", **{"data": fingerprint(args), **kept})


if __name__ == "__main__":
    main()
