"""Are answers right, and if not, does the run say so? Errors, doubts and confusion tables.

    python -m benchmarks.trust [--cases 'logistic*'] [--algorithms FedEP,FedAIS] [--jobs 2] [--out out/trust.csv]
    python -m benchmarks.trust --settings wrong
    python -m benchmarks.trust --print                       # the tables of what has been run

Every posterior of `posteriors/` by every algorithm with its defaults, and the wrong settings of `trials.py`. A run is
*wrong* when a mean is off by more than 0.25 SDs of the reference or an SD is outside 0.8 to 1.25 times the reference's,
of any latent site outside the plate, on its unconstrained or its own scale. It is *doubted* when the result has
doubts, or there is an error in its place. Rows are appended to a CSV file, and what is there is not run again.
"""

from __future__ import annotations

import argparse
import csv
import fnmatch
import time
from pathlib import Path

from benchmarks.trust.references import read
from benchmarks.trust.running import COLUMNS, run_all
from benchmarks.trust.tables import print_tables
from benchmarks.trust.trials import ALGORITHMS, Trial, trials


def chosen(cases: str, algorithms: str | None, settings: str) -> list[Trial]:
    """The trials that were asked for, of posteriors that have a reference."""
    labels = algorithms.split(",") if algorithms else None
    known = read()
    return [
        trial
        for trial in trials()
        if trial.posterior in known
        and any(fnmatch.fnmatch(trial.posterior, pattern) for pattern in cases.split(","))
        and (settings == "all" or trial.wrong == (settings == "wrong"))
        and (labels is None or any(fnmatch.fnmatch(trial.label, label) for label in labels))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default="*", help="patterns of posteriors, separated by commas")
    parser.add_argument(
        "--algorithms", help=f"patterns, separated by commas; all of {', '.join(ALGORITHMS)} by default"
    )
    parser.add_argument("--settings", choices=("default", "wrong", "all"), default="all")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="take no more runs after so many")
    parser.add_argument("--out", type=Path, default=Path("out/trust.csv"), help="rows are appended here")
    parser.add_argument("--print", action="store_true", help="run nothing, print the tables of what is there")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    if not options.print:
        done = set()
        if options.out.exists():
            with options.out.open() as file:
                done = {(row["posterior"], row["label"]) for row in csv.DictReader(file)}
        wanted = [
            trial
            for trial in chosen(options.cases, options.algorithms, options.settings)
            if (trial.posterior, trial.label) not in done
        ]
        stop = time.monotonic() + 60 * options.minutes
        with options.out.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            if not done and file.tell() == 0:
                writer.writeheader()
            for row in run_all(wanted, options.jobs):
                writer.writerow(row)
                file.flush()
                print(
                    f"{row['posterior']:24s}{row['label']:24s}{row['mean_error']:>9s}{row['sd_low']:>8s}"
                    f"{row['sd_high']:>8s}  {row['where']:16s}wrong {row['wrong']:6s}{row['seconds']:>6s} s  "
                    f"{row['said'][:90]}",
                    flush=True,
                )
                if time.monotonic() > stop:
                    break
    with options.out.open() as file:
        print_tables(list(csv.DictReader(file)))


if __name__ == "__main__":
    main()
