"""Every recipe on five posteriors with known answers, ten clients: right, or where it ends.

    python -m benchmarks.papers.recipes [RECIPE ...] [--cases CASE ...] [--splits dirichlet:0.3/10 ...] [--print]

Five of `pyro-fed bench`'s cases of 3 to 32 parameters. Recipes run with their own settings and rounds; `--splits` are
those of `pyro-fed bench` (`iid/10`, `dirichlet:1/10`). The error of a mean is in the reference's SDs, the largest of
all parameters (and agents); SDs are over the reference's. "right" is an error of at most 0.45 and SDs of 0.8 to 1.2, as
in `tests/recipes`; "a point" has no SDs, and its error is that of the mean, too. Behind them stand the codes of the
findings that speak against the result, and "NOT SAID" where a wrong one has none. Runs are kept as they end and not run
again; `--minutes` begins none after so many, `--seconds` is a limit for one, by the clock: what is cut off by it says
so, and is run again by `--again`.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pyro_fed as pf
from benchmarks.helpers.records import Record, Records, run_missing
from benchmarks.helpers.tables import heading, row
from pyro_fed.analysis.bench.cases.case import Split
from pyro_fed.analysis.bench.cases.library import all_cases
from pyro_fed.recipes import recipe
from pyro_fed.recipes.library import list_recipes

CASES = ("linear_regression", "logistic_regression", "negative_binomial", "ordinal_regression", "weibull_survival")
SPLIT, DRAWS, SECONDS = "dirichlet:0.3/10", 4000, 600.0
#: Largest error of a mean and the ratios of SDs within which an answer is right.
RIGHT = (0.45, 0.8, 1.2)


def name_of(case: str, split: str, recipe_name: str) -> str:
    """The name of a run's record."""
    return f"{case} {split} {recipe_name}"


def measured(name: str, seconds: float = SECONDS) -> Record:
    """The record of a run."""
    case_name, split, recipe_name = name.split()
    case, loaded = all_cases()[case_name], recipe.load(recipe_name)
    fed = Split.parse(split).federation(case, 0)
    options = {"num_draws": DRAWS, **loaded.run_options(fed.num_clients), "compile": "trace"}
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    algorithm = loaded.build()
    try:
        idata = pf.run(
            algorithm,
            fed,
            seed=0,
            progress=False,
            log_likelihood=False,
            max_seconds=seconds,
            **options,
        )
    except pf.errors.TimeLimitError:
        raise  # a record of its own
    except pf.errors.StoppedError as error:
        return {"ended": f"{type(error).__name__} in round {error.round} of {type(error.algorithm).__name__}"}
    except pf.PyroFedError as error:
        return {"ended": f"refused: {str(error)[:120]}"}
    agents = algorithm.draws_are == "agents"
    return figures(idata, case.reference(case.data()).values, agents) | {
        "rounds": int(idata["federation"].sizes["round"]),
        "doubts": [one["code"] for one in json.loads(idata.attrs["findings"]) if one["severity"] == "doubt"],
        "interrupted": bool(idata.attrs.get("interrupted", 0)),
    }


def figures(idata: Any, reference: Mapping[str, np.ndarray], agents: bool) -> Record:
    """The largest error of a mean, in SDs, and the smallest and largest ratio of SDs."""
    axes = 1 if agents else (0, 1)
    errors, ratios = [], []
    for name, value in reference.items():
        mean, sd = value.mean((0, 1)), value.std((0, 1))
        draws = idata["posterior"][name].values
        errors.append(np.abs(draws.mean(axes) - mean) / sd)
        ratios.append(draws.std(axes) / sd)
    ratio = np.concatenate([one.ravel() for one in ratios])
    error = max(float(one.max()) for one in errors)
    return {"error": error, "sd_low": float(ratio.min()), "sd_high": float(ratio.max())}


def cell(record: Record | None) -> str:
    """What a table says of a run."""
    if record is None:
        return ""
    if "cut" in record:
        return f"cut off in {record['cut']}"
    if "ended" in record:
        return str(record["ended"])
    error, low, high = record["error"], record["sd_low"], record["sd_high"]
    most, least, largest = RIGHT
    cut = " (cut off)" if record["interrupted"] else ""
    doubts = ", ".join(dict.fromkeys(record["doubts"]))
    is_point = high == 0
    is_right = error <= most and (is_point or (least <= low and high <= largest))
    spread = "a point" if is_point else f"{low:.2g} to {high:.2g}"
    found = "right" if is_right and not is_point else f"{error:.2g}; {spread}"
    said = doubts or ("" if is_right else "NOT SAID")
    return f"{found}{cut}" + f" ({said})" * bool(said)


def table(records: Records, recipes: Iterable[str], cases: Iterable[str], splits: Iterable[str]) -> str:
    """A line a recipe, a column a posterior."""
    columns = list(product(cases, splits))
    lines = [heading("recipe", *(f"{case}, {split}" for case, split in columns))]
    for one in recipes:
        cells = [cell(records.get(name_of(case, split, one))) for case, split in columns]
        if any(cells):
            lines.append(row(f"`{one}`", *cells))
    return "\n".join(lines)


def main() -> None:
    """Run what has no record, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipes", nargs="*", default=list_recipes())
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--splits", nargs="*", default=[SPLIT])
    parser.add_argument("--seconds", type=float, default=SECONDS, help="the most that a run may take")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing after so many")
    parser.add_argument("--out", type=Path, default=Path("out/recipes.jsonl"))
    parser.add_argument("--again", action="store_true", help="run what was cut off, too")
    parser.add_argument("--print", action="store_true", help="run nothing, print the table of what is there")
    given = parser.parse_args()
    records = Records(given.out)
    if given.again:
        records.drop(lambda record: "cut" in record or record.get("interrupted", False))
    names = [name_of(*one) for one in product(given.cases, given.splits, given.recipes)]
    for record in run_missing(
        records, [] if given.print else names, partial(measured, seconds=given.seconds), minutes=given.minutes
    ):
        print(f"{record['case']}: {cell(record)} ({record['seconds']:.0f} s)", flush=True)
    print(table(records, given.recipes, given.cases, given.splits))


if __name__ == "__main__":
    main()
