"""Radon in 85 counties over 10 clients: every algorithm against a long NUTS run on the pooled data.

The reference runs on the non-centred form of the model, the others on the model as it is written.

Each county's intercept (and slope, with --slopes) stays at its client. Prints, over all parameters, the counties'
included, the largest error of a mean in the reference's SDs and the range of SD ratios; 0.15 and 0.85 to 1.15 are the
targets. About 0.05 of an error is noise: of 4,000 draws here, and of the reference's.

    PYRO_FED_DATA=... python -m benchmarks.accuracy.radon_counties [--slopes] [NAME ...]
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import numpy as np
from pyro import poutine
from pyro.infer.reparam import LocScaleReparam

import pyro_fed as pf
from pyro_fed.algorithm.capabilities import OnGraph
from pyro_fed.recipes import library

ALGORITHMS = {
    "FedLaplace": pf.FedLaplace(),
    "FedEP": pf.FedEP(),
    "PVI": pf.infer.PVI(),
    "DSVGD": pf.DSVGD(),
    "FSGLD": pf.FSGLD(),
    "P2PEP": pf.infer.P2PEP(),
}


def moments(idata: Any, names: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Means and SDs of all parameters, one after the other."""
    parts = [idata["posterior"][name].values for name in names]
    flat = np.concatenate([part.reshape(-1, int(np.prod(part.shape[2:]))) for part in parts], 1)
    return flat.mean(0), flat.std(0)


def report(name: str, idata: Any, seconds: float, names: list[str], reference: tuple[np.ndarray, np.ndarray]) -> None:
    """A line of the table."""
    (means, sds), (true_means, true_sds) = moments(idata, names), reference
    errors, ratios = np.abs(means - true_means) / true_sds, sds / true_sds
    notes = "; ".join(line[:60] for line in idata.attrs["warnings"].splitlines())
    print(
        f"{name:10s} {errors.max():8.3f}  {ratios.min():.3f} to {ratios.max():.3f}  {seconds:7.1f} s  {notes}",
        flush=True,
    )


def main() -> None:
    """Run the algorithms named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(ALGORITHMS))
    parser.add_argument("--slopes", action="store_true")
    options = parser.parse_args()
    radon = library.load_model("radon")
    args, _ = radon.load_data(simulate=False)
    kwargs = {"slopes": options.slopes}

    def federation(model: Any) -> pf.Federation:
        return pf.Federation(model, args, kwargs, plate=radon.PLATE, rows=radon.ROWS, num_clients=10)

    local = ["a", "b"] if options.slopes else ["a"]
    non_centred = poutine.reparam(radon.model, config={name: LocScaleReparam(0.0) for name in local})
    fed = federation(radon.model)
    names = [*fed.problem.layout.latents, *local]
    warnings.simplefilter("ignore")
    began = time.perf_counter()
    nuts = pf.run(
        pf.NUTS(num_chains=4, num_samples=1500), federation(non_centred), progress=False, log_likelihood=False
    )
    print(f"NUTS {time.perf_counter() - began:.1f} s; {nuts.attrs['warnings']}")
    print("           mean error (SD)  SD ratios", flush=True)
    for name in options.names:
        graph = pf.graph.ring(10) if isinstance(ALGORITHMS[name], OnGraph) else None
        began = time.perf_counter()
        idata = pf.run(ALGORITHMS[name], fed, graph=graph, num_draws=4000, progress=False, log_likelihood=False)
        report(name, idata, time.perf_counter() - began, names, moments(nuts, names))


if __name__ == "__main__":
    main()
