"""Federated algorithms as a share of the time of Pyro's NUTS, 500 + 500 iterations, on logistic regression.

    python -m benchmarks.speed.shares [ALGORITHM ...] [--compile auto|inductor]

569 rows, 30 covariates, real, ten clients sorted by label; one thread, processor seconds, without audit and
log-likelihood. Twice each: the first run in a process that has imported everything, and again on new data of the same
shapes (each covariate with noise of a tenth of its SD); by `--compile inductor`, which "auto" does not choose where a
single run would not repay it, the second has compiled steps. Beside it the largest error of a mean, in SDs of NUTS's
draws, whose own Monte Carlo error is about 0.05.
"""

import argparse
import time
import warnings

import numpy as np
import torch

import pyro_fed as pf
from benchmarks.helpers.exact_logistic import model
from benchmarks.helpers.tables import heading, row
from benchmarks.speed.nuts import by_pyro, load
from benchmarks.speed.wire import sorted_clients

ALGORITHMS = {
    "FedEP": (pf.FedEP, {}),
    "PVI": (pf.infer.PVI, {}),
    "DSVGD": (pf.DSVGD, {}),
    "P2PVI": (pf.P2PVI, {"graph": pf.graph.ring(10)}),
    "FedAIS": (pf.FedAIS, {}),
    "FSGLD": (pf.FSGLD, {}),
}


def timed(name, fed, how="auto"):
    make, options = ALGORITHMS[name][0], {"compile": how, **ALGORITHMS[name][1]}
    began = time.process_time()
    idata = pf.run(make(), fed, seed=0, progress=False, audit=False, log_likelihood=False, **options)
    w = idata["posterior"]["w"].values
    return w.reshape(-1, w.shape[-1]), time.process_time() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(ALGORITHMS))
    parser.add_argument("--compile", choices=["auto", "inductor"], default="auto")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    draws, whole = by_pyro(load(), 0, 500, 500, jit=False)
    print(f"Pyro's NUTS: {whole:.1f} s\n\n{heading('', 'first', 'again', 'seconds', 'error')}")
    timed("FedEP", pf.Federation.from_clients(*small(), plate="data"))
    for name in given.names:
        found, first = timed(name, sorted_clients(), given.compile)
        _, again = timed(name, sorted_clients(noise=0.1), given.compile)
        error = (np.abs(found.mean(0) - draws.mean(0)) / draws.std(0)).max()
        shares = (f"{first / whole:.3f}", f"{again / whole:.3f}")
        print(row(name, *shares, f"{first:.1f}, {again:.1f}", f"{error:.2f}"), flush=True)


def small():
    """A model and clients of other shapes, on which modules are imported."""
    x = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).float()
    return model, list(zip(x.tensor_split(3), y.tensor_split(3), strict=True))


if __name__ == "__main__":
    main()
