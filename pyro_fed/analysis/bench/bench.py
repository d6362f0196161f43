"""The benchmark: runs all cells (case × split × algorithm) that have no result yet, and sums their outcomes up."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pyro_fed.analysis.bench import algorithms
from pyro_fed.analysis.bench.algorithms import Algorithm
from pyro_fed.analysis.bench.cases.case import NotApplicable, Split
from pyro_fed.analysis.bench.cases.library import QUICK, SPLITS, all_cases, missing_cases
from pyro_fed.analysis.bench.cases.stan_models import NO_ROWS
from pyro_fed.analysis.bench.cell import OUTCOMES, Cell, Outcome, Store, Task, code_version, run_task
from pyro_fed.analysis.bench.processes import Died, run_in_processes
from pyro_fed.analysis.numbers import digits, number_text, readable_bytes, readable_seconds
from pyro_fed.conventions.calls import checked
from pyro_fed.conventions.names import closest
from pyro_fed.errors import SettingError

#: Seconds of CPU time that a cell may take.
CPU_LIMIT_SECONDS = 300.0
#: For a quick benchmark: seconds of CPU time that a cell may take, and seconds after which no more cells are started.
QUICK_CPU_LIMIT_SECONDS, QUICK_SECONDS = 30.0, 280.0


@dataclass(frozen=True)
class Results:
    """The results of the benchmark.

    Attributes:
        outcomes: outcomes of all cells that have been run, in the order of cases, splits and algorithms.
        algorithms: descriptions of the algorithms, by name.
        adapters: names of the algorithms that are adapters.
        cases: descriptions of the cases, by name.
        left_out: sentences on splits that a case does not have, and on cases whose data are missing.
        waiting: number of cells that have not been run.
    """

    outcomes: list[Outcome]
    algorithms: dict[str, str]
    adapters: list[str]
    cases: dict[str, str]
    left_out: list[str]
    waiting: int


@checked
def run_benchmark(
    folder: Path,
    *,
    cases: Sequence[str] = (),
    partitions: Sequence[str] = (),
    recipes: Sequence[str] = (),
    adapters: Sequence[Path] = (),
    posteriordb: Path | None = None,
    quick: bool = False,
    jobs: int = 1,
    seed: int = 0,
    limit: float | None = None,
    minutes: float | None = None,
    any_version: bool = False,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> Results:
    """Run algorithms on federated posteriors whose answer is known.

    Each cell is a file in `folder`, named by case, split, algorithm, seed and version of the code. A cell whose file
    exists is read and not run again, so that a benchmark that was stopped can go on. An adapter with `POOLED = True`
    works on all rows: it is run on one split of a case, and its answer is used for the other splits too.

    Args:
        folder: folder of the cells' files.
        cases: patterns of names of cases, such as "linear*"; all cases by default.
        partitions: splits such as "sorted/10"; `SPLITS` by default.
        recipes: names of recipes and shipped adapters, or paths of their files; by default `RECIPES` and `ADAPTERS`
            (`QUICK_ADAPTERS` if `quick`).
        adapters: files of further adapters, which define `run(model, clients)`.
        posteriordb: folder of posteriordb, a clone or extracts; `$PYRO_FED_DATA/posteriordb` by default.
        quick: run five small cases with one split each, one algorithm after the other. Each cell may take 30 s, and no
            cells are started after 280 s.
        jobs: number of processes at a time, each with one thread.
        seed: seed of the splits and of the runs.
        limit: seconds of CPU time that a cell may take; by default 300, or 30 if `quick`.
        minutes: start no more cells after this time.
        any_version: also read cells of other versions of the code.
        on_outcome: called with the outcome of each cell that has been run.

    Returns:
        The outcomes of all cells that have been run, now or before.

    Raises:
        SettingError: a case, partition or algorithm is unknown.
        DataError: two algorithms have the same name.
        AdapterError: an adapter cannot be imported.

    Example:
        >>> run_benchmark(Path("out/benchmark"), quick=True, jobs=2).outcomes[0].scores["mean_error"]
    """
    known = all_cases(posteriordb)
    chosen = _matching_cases(cases or (tuple(QUICK) if quick else ()), list(known), missing_cases(posteriordb))
    usual = [*algorithms.RECIPES, *algorithms.QUICK_ADAPTERS] if quick else []
    entries = algorithms.find(list(recipes) or usual, list(adapters))
    splits = {name: [Split.parse(text) for text in partitions or _splits(name, quick)] for name in chosen}
    limit = limit or (QUICK_CPU_LIMIT_SECONDS if quick else CPU_LIMIT_SECONDS)
    store, code = Store(folder, any_version), code_version()
    left_out = [f"{name}: its data are not available" for name in missing_cases(posteriordb)] if not quick else []
    left_out += [f"{name}: does not split by rows, {why}" for name, why in NO_ROWS.items()] if not quick else []
    cells: list[tuple[Cell, Algorithm]] = []
    for name in chosen:
        args = known[name].data()
        for split in splits[name]:
            try:
                split.partition(known[name], args)
            except NotApplicable as error:
                left_out.append(f"{split}: {error}")
                continue
            cells += [(Cell(name, str(split), one.name, seed, one.version(code)), one) for one in entries]
    _copy_pooled_outcomes(cells, store, limit)
    new = _cells_to_run(cells, store, limit)
    if quick:  # if the time runs out, some algorithms have all their cells, and others have none
        new.sort(key=lambda pair: entries.index(pair[1]))
    tasks = [Task(cell, one.path, one.adapter, posteriordb, folder, limit) for cell, one in new]
    seconds = 60 * minutes if minutes is not None else QUICK_SECONDS if quick else None
    deadline = time.monotonic() + seconds if seconds is not None else None
    for task, died in run_in_processes(run_task, tasks, jobs, limit=limit, deadline=deadline):
        if isinstance(died, Died):
            kind = "late" if died.late else "failed"
            store.write(Outcome(**asdict(task.cell), outcome=kind, error=died.reason, limit=limit))
        found = store.read(task.cell, None if died is None else limit)
        if on_outcome is not None and found is not None:
            on_outcome(found)
    _copy_pooled_outcomes(cells, store, limit)
    outcomes = [found for cell, _ in cells if (found := store.read(cell, limit)) is not None]
    return Results(
        outcomes,
        {one.name: one.about for one in entries},
        [one.name for one in entries if one.adapter],
        {name: known[name].about for name in chosen},
        left_out,
        len(cells) - len(outcomes),
    )


def _copy_pooled_outcomes(cells: list[tuple[Cell, Algorithm]], store: Store, limit: float) -> None:
    """Copy the outcome of an algorithm on pooled rows from one split of a case to the case's other splits."""
    for cell, one in cells:
        if one.pooled and store.read(cell, limit) is None and (found := store.of_any_split(cell, limit)) is not None:
            store.write(found)


def _cells_to_run(cells: list[tuple[Cell, Algorithm]], store: Store, limit: float) -> list[tuple[Cell, Algorithm]]:
    """The cells that have to be run: for an algorithm on pooled rows one cell for each case."""
    new = [(cell, one) for cell, one in cells if store.read(cell, limit) is None]
    once = {(cell.case, one.name if one.pooled else cell): (cell, one) for cell, one in reversed(new)}
    return list(reversed(once.values()))


def _splits(name: str, quick: bool) -> Sequence[str]:
    return (QUICK[name],) if quick and name in QUICK else SPLITS


def _matching_cases(patterns: Sequence[str], known: list[str], missing: list[str]) -> list[str]:
    """Names of the cases that match a pattern; all if there are no patterns."""
    for pattern in patterns:
        if not fnmatch.filter(known, pattern):
            if fnmatch.filter(missing, pattern):
                raise SettingError(
                    f"case '{pattern}' needs posteriordb: --posteriordb DIR, or $PYRO_FED_DATA/posteriordb"
                )
            if pattern in NO_ROWS:
                raise SettingError(f"case '{pattern}' does not split by rows: {NO_ROWS[pattern]}")
            raise SettingError(f"no case '{pattern}'; {closest(pattern, known)}")
    return [name for name in known if not patterns or any(fnmatch.fnmatch(name, one) for one in patterns)]


#: Scores whose median over an algorithm's cells is shown: the heading of each, and how it is written.
MEDIANS = {
    "mean_error": ("mean error", digits(2)),
    "sd_low": ("SD ratio, least", digits(2)),
    "sd_high": ("SD ratio, largest", digits(2)),
    "coverage": ("coverage", digits(2)),
    "sliced_wasserstein": ("sliced Wasserstein", digits(2)),
    "rounds": ("rounds", digits(0)),
    "bytes": ("bytes", readable_bytes),
    "cpu_seconds": ("CPU", readable_seconds),
}


def confusion(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """The number of cells of each outcome."""
    kinds = [one.outcome for one in outcomes]
    return {name: kinds.count(name) for name in OUTCOMES}


def medians(outcomes: Sequence[Outcome]) -> dict[str, float | None]:
    """Medians of the scores, each over the cells with an answer that have this score."""
    found: dict[str, float | None] = {}
    for name in MEDIANS:
        values = [value for one in outcomes if (value := one.scores.get(name)) is not None and one.answered]
        found[name] = float(np.median(values)) if values else None
    return found


def by_algorithm(results: Results) -> dict[str, list[Outcome]]:
    """The cells of each algorithm, in their order."""
    return {name: [one for one in results.outcomes if one.algorithm == name] for name in results.algorithms}


def column_headings() -> list[str]:
    """The headings of the summary's columns."""
    return ["algorithm", "cells", *OUTCOMES, *(title for title, _ in MEDIANS.values())]


def summary(results: Results) -> list[list[str]]:
    """A row of texts for each algorithm: its name, number of cells, numbers of outcomes, and medians."""
    rows = []
    for name, part in by_algorithm(results).items():
        if part:
            values = medians(part)
            cells = [number_text(values[key], write) for key, (_, write) in MEDIANS.items()]
            rows.append([name, str(len(part)), *map(str, confusion(part).values()), *cells])
    return rows


def outcome_line(outcome: Outcome) -> str:
    """A line of text on a cell."""
    values = outcome.scores
    where = f"{outcome.case} {outcome.split} {outcome.algorithm}"
    spent = number_text(values.get("cpu_seconds"), readable_seconds)
    if not outcome.answered:
        return f"{where:60s} {outcome.outcome:14s} {spent}  {outcome.error.splitlines()[0][:90]}"
    figures = (
        f"mean error {digits(2)(values['mean_error'] or 0.0)}, SD {values['sd_low']:.2f} to {values['sd_high']:.2f}"
    )
    return f"{where:60s} {outcome.outcome:14s} {spent}  {figures} ({outcome.where})"


def as_values(results: Results) -> dict[str, Any]:
    """The results as plain values for JSON, which `from_values` reads."""
    return {
        "algorithms": results.algorithms,
        "adapters": results.adapters,
        "cases": results.cases,
        "left_out": results.left_out,
        "waiting": results.waiting,
        "cells": [asdict(one) for one in results.outcomes],
    }


def from_values(values: dict[str, Any]) -> Results:
    """The results, read from the plain values of `as_values`."""
    cells = [Outcome(**one) for one in values["cells"]]
    return Results(**{**{name: value for name, value in values.items() if name != "cells"}, "outcomes": cells})
