"""NUTS on the compiled density against Pyro's own, on logistic regression (569 rows, 30 covariates, real).

    python -m benchmarks.speed.nuts [--seeds 2] [--samples 1000]

Both get one thread and the same settings and, but for their own random starts, the same task: one chain a
seed. Reported are seconds of processor time (compilation included) and how far the averages over the seeds
differ, in units of the Monte Carlo error.
"""

import argparse
import time
from typing import Any

import arviz as az
import numpy as np
import pyro
import torch
from pyro.infer import MCMC
from pyro.infer import NUTS as PyroNUTS
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler

import pyro_fed as pf
from benchmarks.helpers.exact_logistic import model


def load():
    x, y = load_breast_cancer(return_X_y=True)
    return torch.tensor(StandardScaler().fit_transform(x)).float(), torch.tensor(y).float()


def by_pyro(data, seed, samples, warmup, jit):
    pyro.set_rng_seed(seed)
    kernel = PyroNUTS(model, jit_compile=jit, ignore_jit_warnings=True)
    sampler = MCMC(kernel, num_samples=samples, warmup_steps=warmup, disable_progbar=True)
    began = time.process_time()
    sampler.run(*data)
    return sampler.get_samples()["w"].numpy(), time.process_time() - began


def by_pyro_fed(data, seed, samples, warmup):
    began = time.process_time()
    fed = pf.Federation(model, data, plate="data", num_clients=1)
    algorithm = pf.NUTS(num_samples=samples, warmup_steps=warmup, num_chains=1)
    idata = pf.run(algorithm, fed, seed=seed, progress=False)
    return idata["posterior"]["w"].values[0], time.process_time() - began


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--samples", type=int, default=1000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = load()
    runs: dict[str, list[Any]] = {"Pyro": [], "Pyro, JIT": [], "pyro_fed": []}
    for seed in range(options.seeds):
        size = (options.samples, options.samples)
        runs["pyro_fed"].append(by_pyro_fed(data, seed, *size))
        runs["Pyro"].append(by_pyro(data, seed, *size, jit=False))
        runs["Pyro, JIT"].append(by_pyro(data, seed, *size, jit=True))
    draws = {name: np.stack([draws for draws, _ in each]) for name, each in runs.items()}
    reference = draws["Pyro"]
    slowest = np.mean([seconds for _, seconds in runs["Pyro"]])
    for name, each in runs.items():
        seconds = [seconds for _, seconds in each]
        error = {key: az.mcse({"w": value})["w"].values for key, value in draws.items()}
        unit = np.hypot(error[name], error["Pyro"])
        z = np.abs(draws[name].mean((0, 1)) - reference.mean((0, 1))) / unit
        speed = f"{np.mean(seconds):7.2f} s a chain ({slowest / np.mean(seconds):4.1f}x)"
        each_run = [round(one, 2) for one in seconds]
        away = f"mean differs by {z.mean():.2f} MCSE on average, {z.max():.2f} at most"
        print(f"{name:10} {speed}   seconds {each_run}   {away}")


if __name__ == "__main__":
    main()
