"""`FedEP` and `fit`, a first run of a model and the next, beside NumPyro's NUTS on the pooled rows: processor seconds.

    python -m benchmarks.speed.beside_numpyro --numpyro PYTHON [CASE ...]

PYTHON is the interpreter of an environment with NumPyro (`python -m venv numpyro; numpyro/bin/pip install numpyro`).
Each case runs in fresh processes on one thread: ours with the checks that are on by default, after `torch` and its
compiler have been imported; NUTS with two chains of 500 + 500 draws, compilation included. `apart` is the largest
difference of a parameter's means, in SDs of NUTS's draws, and of its SDs, as a share; groups' effects are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

import pyro_fed as pf
from benchmarks.helpers import exact_logistic
from benchmarks.helpers.records import alone
from benchmarks.speed.hierarchies import data as hospital_rows
from models import hierarchical_logistic, item_response, radon, varying_slopes

COLUMNS = ["`Federation`", "`FedEP` first", "again", "`fit` after it", "NUTS"]
COLUMNS += ["first / NUTS", "again / NUTS", "fit / NUTS", "apart: mean, SD", "doubted: `FedEP`, `fit`", "R-hat of NUTS"]
SCRIPT = Path(__file__).parents[1] / "helpers" / "numpyro_models.py"


class Case(NamedTuple):
    """A federation, the name of NumPyro's model and what that is given."""

    federation: Callable[[], pf.Federation]
    model: str
    rows: dict[str, Any]


def hospitals(groups: int, patients: int) -> Case:
    """Hospitals with effects of their own, five covariates."""
    x, group, y = hospital_rows(groups, patients)
    module = hierarchical_logistic

    def federation() -> pf.Federation:
        args = (x, group, groups, y)
        return pf.Federation(module.model, args, plate=module.PLATE, rows=module.ROWS, num_clients=min(groups, 12))

    return Case(federation, "hospitals", {"x": x, "group": group, "y": y, "num_groups": groups})


def items(persons: int, count: int) -> Case:
    """Two-parameter item response."""
    (y,), _ = item_response.load_data(persons=persons, items=count)
    return Case(
        lambda: pf.Federation(item_response.model, (y,), plate="person", num_clients=10, seed=0), "items", {"y": y}
    )


def slopes(subjects: int, days: int) -> Case:
    """Correlated intercepts and slopes."""
    module = varying_slopes
    (x, group, number, y), _ = module.load_data(num_subjects=subjects, days=days)

    def federation() -> pf.Federation:
        return pf.Federation(
            module.model, (x, group, number, y), plate=module.PLATE, rows=module.ROWS, num_clients=6, seed=0
        )

    return Case(federation, "slopes", {"x": x, "group": group, "y": y, "num_groups": number})


def counties() -> Case:
    """Radon in 919 houses of 85 counties, or simulated ones without the data."""
    (floor, group, uranium, y), _ = radon.load_data()

    def federation() -> pf.Federation:
        args = (floor, group, uranium, y)
        return pf.Federation(radon.model, args, plate=radon.PLATE, rows=radon.ROWS, num_clients=10, seed=0)

    return Case(federation, "counties", {"floor": floor, "group": group, "uranium": uranium, "y": y})


def frailty_model(x: Tensor, group: Tensor, num_groups: int, died: Tensor, years: Tensor) -> None:
    """Weibull survival with hospitals' frailties."""
    zero, one = x.new_tensor([0.0, 1.0])
    mu = pyro.sample("mu", dist.Normal(zero, 2 * one))
    tau = pyro.sample("tau", dist.HalfNormal(one))
    beta = pyro.sample("beta", dist.Normal(x.new_zeros(x.shape[1]), one).to_event(1))
    shape = pyro.sample("shape", dist.LogNormal(zero, 0.5 * one))
    with pyro.plate("hospital", num_groups):
        level = pyro.sample("a", dist.Normal(mu, tau))
    with pyro.plate("patient", len(x)):
        log_ratio = shape * (years.log() - level[..., group] - x @ beta)
        hazard = shape.log() - years.log() + log_ratio
        pyro.factor("time", torch.where(died, hazard, torch.zeros_like(hazard)) - log_ratio.exp())


def frailty(groups: int, patients: int) -> Case:
    """Simulated hospitals of unequal sizes, a third of the patients censored."""
    generator = torch.Generator().manual_seed(0)
    share = torch.linspace(0.4, 1.6, groups)
    group = torch.arange(groups).repeat_interleave((patients * share / share.sum()).round().long())
    x = torch.randn(len(group), 2, generator=generator)
    level = 1 + 0.5 * torch.randn(groups, generator=generator)
    scale = (level[group] + x @ torch.tensor([0.6, -0.4])).exp()
    death = scale * (-torch.rand(len(group), generator=generator).log()) ** (1 / 1.5)
    end = scale.median() * 3 * torch.rand(len(group), generator=generator)
    died, years = death <= end, torch.minimum(death, end)

    def federation() -> pf.Federation:
        args = (x, group, groups, died, years)
        return pf.Federation(
            frailty_model, args, plate="hospital", rows={"patient": "group"}, num_clients=groups, seed=0
        )

    rows = {"x": x, "group": group, "died": died, "years": years, "num_groups": groups}
    return Case(federation, "frailty", rows)


def logistic(rows: int, dim: int) -> Case:
    """Logistic regression without effects."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, dim, generator=generator)
    y = (torch.rand(rows, generator=generator) < (x @ torch.linspace(-1, 1, dim)).sigmoid()).float()
    return Case(
        lambda: pf.Federation(exact_logistic.model, (x, y), plate="data", num_clients=10, seed=0),
        "logistic",
        {"x": x, "y": y},
    )


CASES: dict[str, Callable[[], Case]] = {
    "hospitals 12x85": lambda: hospitals(12, 85),
    "hospitals 12x1000": lambda: hospitals(12, 1000),
    "hospitals 100x100": lambda: hospitals(100, 100),
    "hospitals 12x10000": lambda: hospitals(12, 10_000),
    "hospitals 1000x100": lambda: hospitals(1000, 100),
    "item response 200x8": lambda: items(200, 8),
    "item response 2000x20": lambda: items(2000, 20),
    "random slopes 18x10": lambda: slopes(18, 10),
    "radon": counties,
    "Weibull frailty 5x45": lambda: frailty(5, 223),
    "logistic 569x30": lambda: logistic(569, 30),
    "logistic 100000x50": lambda: logistic(100_000, 50),
}


def ours(name: str) -> dict[str, Any]:
    """Seconds and moments, in this process."""
    import torch._dynamo

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    case, seconds = CASES[name](), dict[str, float]()
    algorithms = pf.FedEP, pf.fit  # imports what runs need
    fed = timed(seconds, "Federation", case.federation)
    for run in ("first", "again"):
        idata = timed(seconds, run, lambda: pf.run(algorithms[0](), fed, seed=0, progress=False))
    fitted = timed(seconds, "fit", lambda: pf.fit(fed, seed=0, progress=False))
    moments = {site: (value.values.mean((0, 1)), value.values.std((0, 1))) for site, value in idata.posterior.items()}
    doubts = [bool(result.attrs["doubts"]) for result in (idata, fitted)]
    return {"seconds": seconds, "moments": moments, "doubts": doubts}


def timed(seconds: dict[str, float], name: str, work: Callable[[], Any]) -> Any:
    """What it returns; its processor seconds are kept."""
    began = time.process_time()
    found = work()
    seconds[name] = time.process_time() - began
    return found


def theirs(python: str, name: str) -> dict[str, Any]:
    """NumPyro's seconds, largest R-hat and moments."""
    case = CASES[name]()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npz"
        rows: dict[str, Any] = {key: np.asarray(value) for key, value in case.rows.items()}
        np.savez(path, **rows)
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        done = subprocess.run(
            [python, str(SCRIPT), case.model, str(path)], env=environment, check=True, capture_output=True, text=True
        )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def apart(own: dict[str, Any], other: dict[str, Any]) -> tuple[float, float]:
    """Largest differences of means, in SDs, and of SDs, as a share, of what is no group's effect."""
    means, spreads = [0.0], [0.0]
    for site, (mean, sd) in other["moments"].items():
        if site in own["moments"] and site not in ("a", "own", "ability", "omega"):
            at, spread = own["moments"][site]
            means.append(float(np.max(np.abs(at - np.asarray(mean)) / np.asarray(sd))))
            spreads.append(float(np.max(np.abs(spread / np.asarray(sd) - 1))))
    return max(means), max(spreads)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--numpyro", required=True, help="Python of an environment with NumPyro")
    given = parser.parse_args()
    print("| case | " + " | ".join(COLUMNS) + " |\n|" + " --- |" * (1 + len(COLUMNS)), flush=True)
    for name in given.cases:
        own, other = alone(ours, name), theirs(given.numpyro, name)
        seconds, nuts = own["seconds"], other["seconds"]
        mean, sd = apart(own, other)
        ratios = (f"{seconds[run] / nuts:.2f}" for run in ("first", "again", "fit"))
        doubts = ", ".join("yes" if doubted else "no" for doubted in own["doubts"])
        cells = [name, *(f"{value:.1f}" for value in seconds.values()), f"{nuts:.1f}", *ratios]
        cells += [f"{mean:.2f}, {sd:.2f}", doubts, f"{other['r_hat']:.3f}"]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
