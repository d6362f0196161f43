"""Groups with many rows each: what FedEP costs as patients grow, hospitals' effects integrated out at the clients.

    python -m benchmarks.speed.hospitals [--patients 100 500 2000] [--algorithms FedEP]

`models/hierarchical_logistic.py` (four parameters, an effect a hospital, 21 nodes of quadrature), twelve hospitals at
ten clients. Each cell is a process of its own: CPU seconds of a run on one thread without audit and log-likelihoods,
compiling among them, the most memory that the process had (0.5 GB of it before the run), and means and SDs of mu and
tau, which have to be near -2 and 0.8 where the hospitals' levels are.
"""

import argparse
import resource
import time
import warnings

import torch

import pyro_fed as pf
from benchmarks.helpers.records import alone
from models import hierarchical_logistic

HOSPITALS, CLIENTS = 12, 10


def one(algorithm: str, patients: int) -> dict[str, float]:
    """A cell, in this process."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    module = hierarchical_logistic
    args, _ = module.load_data(num_hospitals=HOSPITALS, smallest=patients, largest=patients)
    fed = pf.Federation(module.model, args, plate=module.PLATE, rows=module.ROWS, num_clients=CLIENTS, seed=0)
    began = time.process_time()
    found = pf.run(getattr(pf.infer, algorithm)(), fed, seed=0, progress=False, audit=False, log_likelihood=False)
    seconds = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    draws = {name: found["posterior"][name].values for name in ("mu", "tau")}
    figures = {f"{name} {kind}": float(getattr(x, kind)()) for name, x in draws.items() for kind in ("mean", "std")}
    return {"seconds": seconds, "gigabytes": peak, "rounds": float(found["federation"].sizes["round"]), **figures}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--patients", type=int, nargs="+", default=[100, 500, 2000])
    parser.add_argument("--algorithms", nargs="+", default=["FedEP"])
    given = parser.parse_args()
    for algorithm in given.algorithms:
        for patients in given.patients:
            cell = alone(one, algorithm, patients)
            shown = ", ".join(f"{name} {value:.2f}" for name, value in cell.items())
            print(f"{algorithm}, {HOSPITALS} x {patients}: {shown}", flush=True)


if __name__ == "__main__":
    main()
