"""Are answers right, and if not, does the run say so? Errors, doubts and confusion tables.

    python -m benchmarks.trust [--cases 'logistic*'] [--algorithms FedEP,FedAIS] [--jobs 2] [--out out/trust.jsonl]
    python -m benchmarks.trust --settings wrong
    python -m benchmarks.trust --print                       # the tables of what has been run

Every posterior of `posteriors/` by every algorithm with its defaults, and the wrong settings of `trials.py`. A run is
*wrong* when a mean is off by more than 0.25 SDs of the reference or an SD is outside 0.8 to 1.25 times the reference's,
of any latent site outside the plate, on its unconstrained or its own scale. It is *doubted* when the result has
doubts, or there is an error in its place. Each run has a process of its own; what has a record in the file is not run
again.
"""

from __future__ import annotations

import argparse

from benchmarks.helpers.records import Records, add_options, matches, run_missing
from benchmarks.trust.references import read
from benchmarks.trust.running import by_name, row_of
from benchmarks.trust.tables import print_tables
from benchmarks.trust.trials import ALGORITHMS


def chosen(cases: str, algorithms: str, settings: str) -> list[str]:
    """Names of the trials that were asked for, of posteriors that have a reference."""
    known = read()
    return [
        name
        for name, trial in by_name().items()
        if trial.posterior in known
        and matches(trial.posterior, cases)
        and matches(trial.label, algorithms)
        and (settings == "all" or trial.wrong == (settings == "wrong"))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, "out/trust.jsonl", "posteriors")
    parser.add_argument("--algorithms", default="*", help=f"patterns, separated by commas, of {', '.join(ALGORITHMS)}")
    parser.add_argument("--settings", choices=("default", "wrong", "all"), default="all")
    options = parser.parse_args()
    records = Records(options.out)
    wanted = [] if options.print else chosen(options.cases, options.algorithms, options.settings)
    for row in run_missing(records, wanted, row_of, jobs=options.jobs, again=options.again, minutes=options.minutes):
        print(
            f"{row['posterior']:24s}{row['label']:24s}{row['mean_error']:>9s}{row['sd_low']:>8s}{row['sd_high']:>8s}  "
            f"{row['where']:16s}wrong {row['wrong']:6s}{row['seconds']:6.1f} s  {row['said'][:90]}",
            flush=True,
        )
    print_tables([*records.values()])


if __name__ == "__main__":
    main()
