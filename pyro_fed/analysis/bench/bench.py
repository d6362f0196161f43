"""The benchmark: cases × splits × algorithms, and what is there is not run again."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyro_fed.analysis.bench import algorithms
from pyro_fed.analysis.bench.algorithms import Algorithm
from pyro_fed.analysis.bench.cases.case import NotApplicable, Split
from pyro_fed.analysis.bench.cases.library import QUICK, SPLITS, all_cases, missing_cases
from pyro_fed.analysis.bench.cell import Cell, Outcome, code_version
from pyro_fed.analysis.bench.one import entry
from pyro_fed.analysis.bench.store import Store
from pyro_fed.analysis.bench.work import Task, work
from pyro_fed.conventions.calls import checked
from pyro_fed.conventions.spelling import closest
from pyro_fed.errors import SettingError

#: Seconds of CPU that a cell has.
LIMIT = 300.0
#: The same where a quick look was asked for, and seconds until it takes no more cells.
QUICK_LIMIT, QUICK_SECONDS = 30.0, 280.0


@dataclass(frozen=True)
class Results:
    """What the benchmark found.

    Attributes:
        outcomes: of all cells that have been run, in the order of cases, splits and algorithms.
        algorithms: what they are, by name.
        adapters: which of them are other people's.
        cases: what they are, by name.
        left_out: splits that a case does not have, and cases whose data are not here, a sentence each.
        waiting: cells that have not been run.
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
    said: Callable[[Outcome], None] | None = None,
) -> Results:
    """Run federated posteriors with known answers by any algorithm.

    Each cell is a file in `folder`, named by case, split, algorithm, seed and the version of the code; one that is
    there is read and not run, so that a run that was stopped goes on. A method that has all rows, an adapter with
    `POOLED = True`, is run on one split of a case, and its answer is that of the others.

    Args:
        folder: of the cells.
        cases: patterns of their names, such as "linear*"; all by default.
        partitions: such as "sorted/10"; `SPLITS` by default.
        recipes: names of recipes and shipped adapters, or paths; `RECIPES` and `ADAPTERS` by default, three of these
            where it is quick.
        adapters: files with `run(model, clients)`, besides.
        posteriordb: folder of posteriordb, a clone or extracts; `$PYRO_FED_DATA/posteriordb` by default.
        quick: five small cases, one split each, with little time a cell, algorithm by algorithm; takes no more cells
            after 280 s.
        jobs: processes at a time, one thread each.
        seed: of the splits and of the runs.
        limit: seconds of CPU that a cell has; 300 by default, 30 where it is quick.
        minutes: take no more cells after so many.
        any_version: read cells of other versions of the code, too.
        said: called with each cell that has been run.

    Returns:
        All cells that have been run, now or before.

    Raises:
        SettingError: an unknown case, partition or algorithm.
        AdapterError: an adapter that cannot be imported.

    Example:
        >>> run_benchmark(Path("out/benchmark"), quick=True, jobs=2).outcomes[0].scores["mean_error"]
    """
    known = all_cases(posteriordb)
    chosen = _matching(cases or (tuple(QUICK) if quick else ()), list(known), missing_cases(posteriordb))
    usual = [*algorithms.RECIPES, *algorithms.QUICK_ADAPTERS] if quick else []
    entries = algorithms.find(list(recipes) or usual, list(adapters))
    splits = {name: [Split.parse(text) for text in partitions or _splits(name, quick)] for name in chosen}
    limit = limit or (QUICK_LIMIT if quick else LIMIT)
    store, code = Store(folder, any_version), code_version()
    left_out = [f"{name}: its data are not here" for name in missing_cases(posteriordb)] if not quick else []
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
    _lend(cells, store, limit)
    new = _waiting(cells, store, limit)
    if quick:  # one that is cut off has whole columns, and not one case by all
        new.sort(key=lambda pair: entries.index(pair[1]))
    tasks = [Task(cell, one.path, one.adapter, posteriordb, folder, limit) for cell, one in new]
    seconds = 60 * minutes if minutes is not None else QUICK_SECONDS if quick else None
    deadline = time.monotonic() + seconds if seconds is not None else None
    for task, died in work(tasks, entry, jobs, deadline):
        if died is not None:
            store.write(died)
        found = store.read(task.cell, None if died is None else task.limit)
        if said is not None and found is not None:
            said(found)
    _lend(cells, store, limit)
    outcomes = [found for cell, _ in cells if (found := store.read(cell, limit)) is not None]
    return Results(
        outcomes,
        {one.name: one.about for one in entries},
        [one.name for one in entries if one.adapter],
        {name: known[name].about for name in chosen},
        left_out,
        len(cells) - len(outcomes),
    )


def _lend(cells: list[tuple[Cell, Algorithm]], store: Store, limit: float) -> None:
    """A method that has all rows has one answer, whatever the split: its cell of one is written for the others."""
    for cell, one in cells:
        if one.pooled and store.read(cell, limit) is None and (found := store.of_any_split(cell, limit)) is not None:
            store.write(found)


def _waiting(cells: list[tuple[Cell, Algorithm]], store: Store, limit: float) -> list[tuple[Cell, Algorithm]]:
    """Cells that have to be run; of a method that has all rows one a case."""
    new = [(cell, one) for cell, one in cells if store.read(cell, limit) is None]
    once = {(cell.case, one.name if one.pooled else cell): (cell, one) for cell, one in reversed(new)}
    return list(reversed(once.values()))


def _splits(name: str, quick: bool) -> Sequence[str]:
    return (QUICK[name],) if quick and name in QUICK else SPLITS


def _matching(patterns: Sequence[str], known: list[str], missing: list[str]) -> list[str]:
    """Cases that match a pattern."""
    for pattern in patterns:
        if not fnmatch.filter(known, pattern):
            if fnmatch.filter(missing, pattern):
                raise SettingError(
                    f"case '{pattern}' needs posteriordb: --posteriordb DIR, or $PYRO_FED_DATA/posteriordb"
                )
            raise SettingError(f"no case '{pattern}'; {closest(pattern, known)}")
    return [name for name in known if not patterns or any(fnmatch.fnmatch(name, one) for one in patterns)]
