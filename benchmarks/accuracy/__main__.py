"""Defaults on seven real posteriors with reference draws: errors of means, SD ratios, rounds and bytes.

    PYRO_FED_DATA=... python -m benchmarks.accuracy [--algorithms 'FedEP,P2P*'] [--cases kidiq] [--jobs 2]
    python -m benchmarks.accuracy --print                    # the table of what has been run

Five clients with rows at random and sorted by a covariate, or agents on a ring of five and a random graph of ten, each
of which is judged. The bar is a mean error of 0.1 SDs of the reference and SD ratios of 0.9 to 1.1. `FedEP` has 100,000
draws of its Gaussian, agents 20,000, so that about 0.03 of each of their errors is noise; references have an error of
0.02 SDs themselves. `PaperDSVGD`, as published, takes 15 minutes of all.
"""

from __future__ import annotations

import argparse
from itertools import chain
from typing import Any

from benchmarks.accuracy.cases import ALGORITHMS, FIGURES, by_name, record_of
from benchmarks.helpers.records import Records, add_options, matches, run_missing
from benchmarks.helpers.tables import heading, row

TITLES = ("algorithm", "posterior", "rows", "mean error (SD)", "SD ratios", "rounds", "MB a client", "seconds")


def line(record: dict[str, Any]) -> str:
    """A row of the table."""
    ratios = f"{record['sd_low']:.3f} to {record['sd_high']:.3f}"
    figures = "; ".join(f"{title} {record[name]:.4g}" for name, title in FIGURES.items() if name in record)
    return row(
        *(record["algorithm"], record["posterior"], record["split"], f"{record['mean_error']:.3f}", ratios),
        *(record["rounds"], f"{record['megabytes']:.2f}", f"{record['seconds']:.1f}", figures, record["doubts"][:60]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, "out/accuracy.jsonl", "posteriors")
    parser.add_argument("--algorithms", default="*", help=f"patterns, separated by commas, of {', '.join(ALGORITHMS)}")
    options = parser.parse_args()
    chosen = [
        name
        for name, (label, posterior, _) in by_name().items()
        if matches(posterior, options.cases) and matches(label, options.algorithms)
    ]
    records = Records(options.out)
    print(heading(*TITLES, "at the end", "doubts"), flush=True)
    wanted = [] if options.print else chosen
    kept = [records[name] for name in chosen if options.print and name in records]
    new = run_missing(records, wanted, record_of, jobs=options.jobs, again=options.again, minutes=options.minutes)
    for record in chain(kept, new):
        print(line(record), flush=True)


if __name__ == "__main__":
    main()
