"""Coverage of credible intervals where one of four hospitals never measured a covariate.

True parameters are drawn from the prior, data from the model, and the 90 % interval of each parameter is looked at. The
doses of hospital 0 are all missing, and a fifth of the others'; the model imputes them inside the plate. Rows come to
hospitals in the order of their severity, so that the one without doses has other patients than the others.

Missing doses are integrated out by one rule in all replicates, so that these share compiled steps: exactly for a linear
outcome, by as many nodes as the default rule has at most for a logistic one. Replicates are run in blocks, each in a
process that compiles its steps once; a run that ends in an error covers nothing. Records are kept in a file, one for
each block; what is there is not run again.

    python -m benchmarks.accuracy.unmeasured_covariate [--outcome logistic] [--blocks 18] [--minutes 10]
    python -m benchmarks.accuracy.unmeasured_covariate --print
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Collection
from functools import partial
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from torch import Tensor

import pyro_fed as pf
from benchmarks.helpers.records import Record, Records, add_options, matches, run_missing
from benchmarks.helpers.tables import heading, row

HOSPITALS, PATIENTS = 4, 20
#: Replicates of a block.
BLOCK = 50
#: Share of doses that the hospitals miss which measure them.
MISSING_SHARE = 0.2
#: Of the credible intervals.
WIDTH = 0.9
PARAMETERS = ("level", "severe", "effect", "mean", "slope", "sd")


#: Outcomes: their distribution about the predictor, a draw from it by NumPy, and the rule for missing doses.
OUTCOMES: dict[str, tuple[Any, Any, pf.Quadrature]] = {
    "linear": (
        lambda eta: dist.Normal(eta, 1.0),
        lambda rng, eta: eta + rng.normal(size=len(eta)),
        pf.Quadrature(order=3, tails=False, starts=(), mode_steps=1),
    ),
    "logistic": (
        lambda eta: dist.Bernoulli(logits=eta),
        lambda rng, eta: (rng.random(len(eta)) < 1 / (1 + np.exp(-eta))).astype(float),
        pf.Quadrature(order=21, tails=True, starts=(), mode_steps=10),
    ),
}


def model(outcome: str, severity: Tensor, dose: Tensor, y: Tensor) -> None:
    """A regression on severity and dose, which is imputed where it is missing."""
    level, severe = pyro.sample("level", dist.Normal(0.0, 1.0)), pyro.sample("severe", dist.Normal(0.0, 1.0))
    effect, mean = pyro.sample("effect", dist.Normal(0.0, 1.0)), pyro.sample("mean", dist.Normal(0.0, 1.0))
    slope, sd = pyro.sample("slope", dist.Normal(0.0, 1.0)), pyro.sample("sd", dist.LogNormal(0.0, 0.3))
    known: Any = ~torch.isnan(dose)
    with pyro.plate("patient", len(y)):
        drawn = pyro.sample("drawn", dist.Normal(mean + slope * severity, sd))
        with poutine.mask(mask=known):
            pyro.sample("dose", dist.Normal(mean + slope * severity, sd), obs=dose.nan_to_num(0.0))
        eta = level + severe * severity + effect * torch.where(known, dose.nan_to_num(0.0), drawn)
        pyro.sample("y", OUTCOMES[outcome][0](eta), obs=y)


def simulated(outcome: str, seed: int) -> tuple[dict[str, float], dict[str, tuple[np.ndarray, ...]]]:
    """True parameters from the prior, and the hospitals' rows."""
    rng, n = np.random.default_rng(seed), HOSPITALS * PATIENTS
    truth = {name: float(rng.normal()) for name in PARAMETERS} | {"sd": float(np.exp(0.3 * rng.normal()))}
    severity = np.sort(rng.normal(size=n))
    dose = truth["mean"] + truth["slope"] * severity + truth["sd"] * rng.normal(size=n)
    y = OUTCOMES[outcome][1](rng, truth["level"] + truth["severe"] * severity + truth["effect"] * dose)
    missing = (rng.random(n) < MISSING_SHARE) | (np.arange(n) < PATIENTS)
    rows = (severity, np.where(missing, np.nan, dose), y)
    parts = np.split(np.arange(n), HOSPITALS)
    return truth, {f"hospital-{k}": tuple(leaf[at] for leaf in rows) for k, at in enumerate(parts)}


def block(algorithm: str, outcome: str, case: str) -> dict[str, Any]:
    """Whether each parameter's interval has the truth, a row for each replicate of a block, by its number."""
    quiet: dict[str, Any] = {"compile": "trace", "progress": False}
    quiet |= dict.fromkeys(("audit", "log_likelihood", "collect_local"), False)
    first, covered, failed = None, [], 0
    for number in range(BLOCK * int(case), BLOCK * (int(case) + 1)):
        truth, rows = simulated(outcome, number)
        if first is None:
            rule, written = OUTCOMES[outcome][2], partial(model, outcome)
            fed = first = pf.Federation.from_clients(written, rows, plate="patient", quadrature=rule)
        else:
            fed = first.with_args(tuple(map(np.concatenate, zip(*rows.values(), strict=True))))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of single replicates; the coverage judges them
                draws = pf.run(getattr(pf.infer, algorithm)(), fed, seed=number, **quiet)["posterior"]
        except pf.errors.StoppedError:
            covered.append([0] * len(PARAMETERS))
            failed += 1
            continue
        ends = {name: np.quantile(draws[name], [(1 - WIDTH) / 2, (1 + WIDTH) / 2]) for name in PARAMETERS}
        covered.append([int(low <= truth[name] <= high) for name, (low, high) in ends.items()])
    return {"covered": covered, "failed": failed}


def table(records: Collection[Record]) -> str:
    """Coverage in percent of each parameter and of all, with the binomial standard error at the nominal value.

    The intervals of one replicate are no independent trials, so that the error of all is by replicates.
    """
    covered = np.array([one for record in records for one in record.get("covered", [])])
    if not len(covered):
        return "no records yet"
    error = 100 * (WIDTH * (1 - WIDTH) / len(covered)) ** 0.5
    lines = [heading("parameter", f"coverage of {100 * WIDTH:g} %", "error")]
    lines += [
        row(name, f"{100 * share:.1f} %", f"{error:.1f} %")
        for name, share in zip(PARAMETERS, covered.mean(0), strict=True)
    ]
    together = 100 * covered.mean(1).std() / len(covered) ** 0.5
    lines.append(row(f"all, of {len(covered)} replicates", f"{100 * covered.mean():.1f} %", f"{together:.1f} %"))
    lines.append(f"\n{sum(record.get('failed', 0) for record in records)} replicates ended in an error.")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description="Coverage where one hospital never measured a covariate.")
    add_options(parser, "out/unmeasured_covariate.jsonl", "blocks' numbers")
    parser.add_argument("--blocks", type=int, default=18)
    parser.add_argument("--algorithm", default="FedEP")
    parser.add_argument("--outcome", choices=sorted(OUTCOMES), default="linear")
    chosen = parser.parse_args()
    records = Records(chosen.out.with_stem(f"{chosen.out.stem}_{chosen.outcome}_{chosen.algorithm}"))
    if not chosen.print:
        cases = [f"{number:02d}" for number in range(chosen.blocks) if matches(f"{number:02d}", chosen.cases)]
        runs = run_missing(
            records,
            cases,
            partial(block, chosen.algorithm, chosen.outcome),
            jobs=chosen.jobs,
            again=chosen.again,
            minutes=chosen.minutes,
        )
        for record in runs:
            print(f"block {record['case']}: {record['seconds']} s", flush=True)
    print(table(records.values()))


if __name__ == "__main__":
    main()
