"""Frozen results of runs: write them, or run all again and compare, field by field.

    python -m benchmarks.goldens --compare                              # names, quick, contract: three minutes
    python -m benchmarks.goldens --compare --set trust --jobs 2 --out out/goldens
    python -m benchmarks.goldens --compare --set quick --cases 'walk*' --ignore doubts,notes
    python -m benchmarks.goldens --write --set trust                    # the cases that the file does not have yet
    python -m benchmarks.goldens --write --set gallery --seconds 20     # but those that take longer
    python -m benchmarks.goldens --write --set quick --cases 'walk*' --again

A record has, for seed 0 and one thread, what a run did (settings, phases with theirs, rounds, bytes, the steps of
`fit`), what it said (doubts, notes, codes of findings, the refusal), and its draws: a digest of their bytes, mean and
SD of each number. Each case has a fresh process of one thread (OMP_NUM_THREADS=1), forked from one that has loaded the
libraries. Records are kept as they end: both commands can be cut off and continue where they were. `--compare` ends
with 1 if anything differs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmarks.goldens.cases import SETS
from benchmarks.goldens.differences import differences, largest
from benchmarks.goldens.records import code, header, path_of, run_all
from benchmarks.helpers.records import Record, Records, matches


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help="add the cases that the files lack")
    what.add_argument("--compare", action="store_true", help="run the cases of the files again and compare")
    parser.add_argument("--set", default="names,quick,contract", help=f"separated by commas, of {', '.join(SETS)}")
    parser.add_argument("--cases", default="*", help="patterns, separated by commas")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="take no more records after so many")
    parser.add_argument(
        "--seconds", type=float, help="give up a case after so many of the processor; no limit if unset"
    )
    parser.add_argument("--out", type=Path, default=Path("out/goldens"), help="folder of the records to compare")
    parser.add_argument("--again", action="store_true", help="run what has been run already, too")
    parser.add_argument(
        "--ignore", default="", help="fields that may differ, separated by commas: doubts, settings.NAME"
    )
    parser.add_argument("--list", action="store_true", help="print the cases, run none")
    options = parser.parse_args(arguments)
    chosen = options.set.split(",")
    if unknown := sorted(set(chosen) - set(SETS)):
        parser.error(f"there is no set {', '.join(unknown)}; there are {', '.join(SETS)}")
    stop = time.monotonic() + 60 * options.minutes
    return max([(_written if options.write else _compared)(name, options, stop) for name in chosen])


def _chosen(cases: Iterable[str], options: argparse.Namespace) -> list[str]:
    return [case for case in cases if matches(case, options.cases)]


def _run(name: str, wanted: list[str], options: argparse.Namespace, stop: float, kept: Records) -> None:
    """Run cases and keep each record in a file as it ends."""
    if not wanted or options.list:
        print(*wanted, sep="\n", end="\n" if wanted else "")
        return
    kept.header = header(name)
    for record, seconds in run_all(name, wanted, options.jobs, options.seconds):
        kept.keep(record)
        if name != "names":
            print(f"{name:10s}{record['case']:50s}{seconds:6.1f} s", file=sys.stderr, flush=True)
        if time.monotonic() > stop:
            return


def _written(name: str, options: argparse.Namespace, stop: float) -> int:
    kept = Records(path_of(name))
    if kept and kept.header != header(name):
        print(
            f"{name}: {kept.path.name} is of {kept.header}, this is {header(name)}: its records are of two kinds from "
            "now on"
        )
    wanted = _chosen([case.name for case in SETS[name]()], options)
    wanted = [case for case in wanted if options.again or case not in kept]
    _run(name, wanted, options, stop, kept)
    print(f"{name}: {kept.path.name} has {len(kept)} of {len(SETS[name]())} cases")
    return 0


def _compared(name: str, options: argparse.Namespace, stop: float) -> int:
    golden = Records(path_of(name))
    if golden.header != header(name):
        print(f"{name}: the golden is of {golden.header or 'no run'}, this is {header(name)}: last digits may differ")
    now = Records(options.out / f"{name}.jsonl")
    now.drop(lambda record: options.again or record["code"] != code())
    present = {case.name for case in SETS[name]()}
    wanted = _chosen(golden, options)
    _run(name, [case for case in wanted if case in present and case not in now], options, stop, now)
    if options.list:
        return 0
    return report(name, {case: golden[case] for case in wanted}, now, present, options.ignore)


def report(
    name: str, golden: Mapping[str, Record], now: Mapping[str, Record], present: set[str], ignore: str = ""
) -> int:
    """Print what differs, and how often; 1 if there are differences, or a case is missing on one side."""
    ignored = frozenset(filter(None, ignore.split(",")))
    counts: Counter[str] = Counter()
    identical, worst = 0, 0.0
    for case in sorted(set(golden) & set(now)):
        found = differences(golden[case], now[case], ignored)
        identical += not found
        counts.update(found.keys())
        if "draws" in found:
            worst = max(worst, largest(golden[case].get("draws") or {}, now[case].get("draws") or {}))
        for field, said in found.items():
            print(f"{name}: {case}: {field}: {said}")
    gone, left = sorted(set(golden) - present), sorted((set(golden) & present) - set(now))
    for case in gone:
        print(f"{name}: {case}: there is no such case any more")
    fields = ", ".join(f"{field} {count}" for field, count in sorted(counts.items()))
    size = f" (draws by at most {worst:.2g} SD)" if "draws" in counts else ""
    print(
        f"{name}: {identical} of {len(golden)} cases identical to the bit"
        + (f"; differences by field: {fields}{size}" if counts else "")
        + (f"; {len(gone)} cases are gone" if gone else "")
        + (f"; {len(left)} cases not run" if left else "")
        + (f"; {len(present - set(golden))} cases have no golden" if present - set(golden) else "")
    )
    return int(identical < len(golden))


if __name__ == "__main__":
    sys.exit(main())
