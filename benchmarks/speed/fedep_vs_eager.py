"""Seconds a client update: a synchronous round of FedEP(client="svi") against an eager loop of Pyro's SVI.

    python -m benchmarks.speed.fedep_vs_eager

Both make the same number of Adam steps with as many draws a step, on the clients of one federation, in one process.
"""

from __future__ import annotations

import time
import warnings

import pyro
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDiagonalNormal
from pyro.optim import Adam  # type: ignore[attr-defined]  # it is made when it is asked for

import pyro_fed as pf
from models import linear_regression

CLIENTS, STEPS, SAMPLES, EAGER_CLIENTS = 40, 200, 4, 2


def main() -> None:
    train, _ = linear_regression.load_data()
    fed = pf.Federation(linear_regression.model, train, plate="data", num_clients=CLIENTS)
    client = pf.infer.tilted.SVI(steps=STEPS, num_samples=SAMPLES)
    algorithm = pf.FedEP(guide=AutoDiagonalNormal, client=client, start="prior")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # three rounds have not settled
        idata = pf.run(algorithm, fed, num_rounds=3, progress=False, num_draws=2, log_likelihood=False)
    compiled = float(idata["federation"]["seconds"].isel(round=-1).mean())
    began = time.perf_counter()
    for k in range(EAGER_CLIENTS):
        pyro.clear_param_store()
        args, kwargs = fed.client_args(k)
        svi = SVI(
            linear_regression.model,
            AutoDiagonalNormal(linear_regression.model),
            Adam({"lr": 0.03}),
            Trace_ELBO(num_particles=SAMPLES),
        )
        for _ in range(STEPS):
            svi.step(*args, **kwargs)
    eager = (time.perf_counter() - began) / EAGER_CLIENTS
    print(f"{compiled * 1e3:.2f} ms compiled, {eager * 1e3:.1f} ms eager a client update: {eager / compiled:.0f}x")


if __name__ == "__main__":
    main()
