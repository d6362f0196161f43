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
from collections.abc import Sequence
from typing import Any

from benchmarks.helpers import tables
from benchmarks.helpers.records import Records, add_options, matches, run_missing
from benchmarks.trust.judge import by_name, row_of
from benchmarks.trust.references import read
from benchmarks.trust.trials import ALGORITHMS

#: A record of the file.
Row = dict[str, Any]


def outcome(row: Row) -> str:
    """Refused, or right or wrong and doubted or silent."""
    if row["wrong"] == "None":
        return "crashed" if row["said"].startswith("CRASH") else "refused"
    return ("wrong" if row["wrong"] == "True" else "right") + (" doubted" if row["said"] else " silent")


def share(part: int, whole: int) -> str:
    """A percentage with what it is of."""
    return f"{100 * part / whole:.0f} % ({part}/{whole})" if whole else "-"


def confusion(rows: Sequence[Row]) -> dict[str, int]:
    """How many of each outcome, and how many wrong ones said that they had converged."""
    counts = {
        name: sum(outcome(row) == name for row in rows)
        for name in ("right silent", "right doubted", "wrong doubted", "wrong silent", "refused", "crashed")
    }
    wrong = [row for row in rows if row["wrong"] == "True"]
    counts["wrong, converged"] = sum(row["converged"] == "True" for row in wrong)
    return counts


def print_tables(rows: Sequence[Row]) -> None:
    """Both tables, by algorithm with default settings and for wrong ones, and the cases that were missed."""
    groups = {
        label: [row for row in rows if row["label"] == label and row["setting"] == "default"] for label in order(rows)
    }
    wrong = [row for row in rows if row["setting"] == "wrong"]
    if wrong:
        groups["wrong settings"] = wrong
    print(
        "\n"
        + tables.heading(
            *("", "runs", "right, silent", "right, doubted", "wrong, doubted", "wrong, silent", "refused", "crashed"),
            *("wrong but `converged`", "false silence", "false alarms"),
        )
    )
    for label, part in groups.items():
        found = confusion(part)
        # A refusal of a model that has no federated answer, and an error in place of one, are wrong and said.
        bad = found["wrong doubted"] + found["wrong silent"] + found["refused"] + found["crashed"]
        good = found["right silent"] + found["right doubted"]
        shares = (share(found["wrong silent"], bad), share(found["right doubted"], good))
        print(tables.row(label, len(part), *found.values(), *shares))
    for title in ("wrong silent", "right doubted", "crashed"):
        missed = [row for row in rows if outcome(row) == title]
        print(f"\n{title} ({len(missed)}):")
        for row in missed:
            said = f"  {row['said'][:110]}" if row["said"] else ""
            print(
                f"  {row['label']:34s}{row['posterior']:24s}{row['kind']:16s}mean {row['mean_error']:>8s}  SD "
                f"{row['sd_low']:>7s} to {row['sd_high']:>7s}  {row['where']}{said}"
            )


def order(rows: Sequence[Row]) -> list[str]:
    """Labels of runs with default settings, as they come."""
    return list(dict.fromkeys(row["label"] for row in rows if row["setting"] == "default"))


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
