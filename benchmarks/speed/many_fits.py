"""FedEP on fresh data of equal shapes, one fit after the other: at least ten a second.

    python -m benchmarks.speed.many_fits [--fits 1000] [--profile]

Logistic regression, 100 rows, 5 covariates, five clients; new rows for each fit, in one process and one thread.
Reported are fits a second of processor time after the first ten, in which steps are traced: without and with the
log-likelihood and the audit, and with both where one federation takes the new rows (`Federation.with_args`), whose
model has been checked before.
"""

import argparse
import cProfile
import pstats
import time
import warnings

import torch

import pyro_fed as pf
from benchmarks.helpers.exact_logistic import model

COVARIATES = 5
#: Fits in which steps are traced.
FIRST = 10


def rows(seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(100, COVARIATES, generator=generator)
    y = (torch.rand(100, generator=generator) < torch.sigmoid(x.sum(1))).float()
    return x, y


def fit(seed, first=None, **options):
    fed = (
        first.with_args(rows(seed)) if first else pf.Federation(model, rows(seed), plate="data", num_clients=5, seed=0)
    )
    return pf.run(pf.FedEP(), fed, seed=0, progress=False, **options)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fits", type=int, default=1000)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    federation = pf.Federation(model, rows(0), plate="data", num_clients=5, seed=0)
    for name, settings in (
        ("bare", {"audit": False, "log_likelihood": False}),
        ("as by default", {}),
        ("as by default, one federation", {"first": federation}),
    ):
        began = time.process_time()
        for seed in range(FIRST):
            fit(seed, **settings)
        first, began = time.process_time() - began, time.process_time()
        with cProfile.Profile() as profile:
            if not options.profile:
                profile.disable()
            for seed in range(FIRST, options.fits):
                fit(seed, **settings)
        rate = (options.fits - FIRST) / (time.process_time() - began)
        print(f"{name}: {rate:.1f} fits a second, the first ten in {first:.2f} s", flush=True)
        if options.profile:
            pstats.Stats(profile).sort_stats("cumtime").print_stats("pyro_fed|arviz|pyro/", 45)


if __name__ == "__main__":
    main()
