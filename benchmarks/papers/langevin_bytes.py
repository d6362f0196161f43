"""Error against bytes of the Langevin family: FSGLD beside QLSD, QLSD++, FALD and VR-FALD*.

    python -m benchmarks.papers.langevin_bytes [--seeds 2] [--out out/langevin_bytes.png]

A linear regression of ten standard normal covariates whose effects differ from client to client, ten clients of forty
rows, so that no client's score is zero at the posterior's mode; the posterior in closed form. FSGLD by default, with
the surrogates that it starts from; FALD without conducive gradients, and VR-FALD*, of five steps a round, at a tenth of
the narrowest posterior variance; QLSD and QLSD++ at a fifth of it; four chains. Bytes are those that all clients have
sent. The error is the largest of ten: of a mean in SDs, or of a log SD.
"""

import argparse
import warnings
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pyro
import pyro.distributions as dist
import torch

import pyro_fed as pf
from benchmarks.helpers.curves import save

CLIENTS, ROWS, DIM, CHAINS, EVALUATIONS = 10, 40, 10, 4, 40
#: Fixed chains run all their rounds.
SHARED: dict[str, Any] = {"num_chains": CHAINS, "target_ess": None}
PARALLEL: dict[str, Any] = {**SHARED, "local_steps": 5, "thin": 5, "burn_in": 500, "batch_size": None}


def model(x, y):
    """Unit noise, and a standard normal prior."""
    w = pyro.sample("w", dist.Normal(x.new_zeros(DIM), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def problem(seed):
    """The federation, and the posterior's mean and SDs."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(CLIENTS * ROWS, DIM, generator=generator, dtype=torch.float64)
    own = torch.randn(CLIENTS, DIM, generator=generator, dtype=torch.float64).repeat_interleave(ROWS, 0)
    y = (x * own).sum(1) + torch.randn(len(x), generator=generator, dtype=torch.float64)
    covariance = torch.linalg.inv(torch.eye(DIM, dtype=x.dtype) + x.T @ x)
    parts = pf.partition.Explicit(np.arange(CLIENTS * ROWS).reshape(CLIENTS, ROWS).tolist())
    fed = pf.Federation(model, (x, y), plate="data", partition=parts)
    return fed, (covariance @ x.T @ y).numpy(), covariance.diagonal().sqrt().numpy()


def methods(variance):
    """Algorithms and their rounds, by name; `variance` is the narrowest of the posterior."""
    step = pf.infer.step.Fixed(size=0.1 * variance, precondition=False, midpoint=False)
    plain: dict[str, Any] = {"surrogates": None, "conducive": None, "control_variate": False}
    qlsd: dict[str, Any] = {**SHARED, "step_size": 0.2 * variance, "burn_in": 250}
    return {
        "FSGLD": (pf.FSGLD(num_chains=CHAINS, target_ess=None, burn_in=100), 400),
        "FALD, plain": (pf.infer.FALD(**PARALLEL, **plain, step=step), 800),
        "VR-FALD*": (pf.infer.VRFALD(**PARALLEL, step=step), 800),
        "VR-FALD*, own noise": (pf.infer.VRFALD(**PARALLEL, step=step, shared_noise=0.0), 800),
        "QLSD": (pf.infer.QLSD(**qlsd, memory=False, levels=15), 2000),
        "QLSD++": (pf.infer.QLSD(**qlsd, memory=True, levels=15), 2000),
    }


def curve(algorithm, rounds, fed, mean, sd, seed):
    """Bytes sent by all clients, and the error, in evaluated rounds."""

    def error(idata):
        draws = idata["posterior"]["w"].values.reshape(-1, DIM)
        if len(draws) < 2:
            return {"error": np.nan}
        return {"error": max(np.abs((draws.mean(0) - mean) / sd).max(), np.abs(np.log(draws.std(0) / sd)).max())}

    options: dict[str, Any] = {"num_rounds": rounds, "evaluate": error, "evaluate_every": rounds // EVALUATIONS}
    options |= {"seed": seed, "progress": False, "audit": False, "log_likelihood": False, "compile": "trace"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # short chains are part of the comparison
        record = pf.run(algorithm, fed, **options)["federation"]
    sent, found = record["bytes_up"].sum("client").values.cumsum(), record["error"].values
    kept = np.isfinite(found)
    return sent[kept], found[kept]


def main():
    """Print the table and save the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("out/langevin_bytes.png"))
    options = parser.parse_args()
    figure, axis = plt.subplots(figsize=(6.5, 4.2), layout="constrained")
    print(f"{'':<22}{'MB':>8}{'error':>10}   by seed", flush=True)
    for number, name in enumerate(methods(1.0)):
        ends = []
        for seed in range(options.seeds):
            fed, mean, sd = problem(seed)
            algorithm, rounds = methods(float(sd.min()) ** 2)[name]
            sent, error = curve(algorithm, rounds, fed, mean, sd, seed)
            axis.plot(sent / 1e6, error, color=f"C{number}", lw=1.2, label=name if seed == 0 else None)
            ends.append((sent[-1] / 1e6, error[-1]))
        at, last = zip(*ends, strict=True)
        print(
            f"{name:<22}{np.mean(at):8.2f}{np.mean(last):10.3f}   {' '.join(f'{one:.3f}' for one in last)}", flush=True
        )
    axis.axhline(0.1, color="0.75", lw=0.8)
    axis.set(xscale="log", yscale="log", xlabel="MB sent by ten clients", ylabel="error of a mean (SDs) or a log SD")
    axis.legend(fontsize=8)
    save(figure, options.out)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
