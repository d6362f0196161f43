"""The cells' files: a JSON file for each outcome, named by cell and version, and written completely or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

from pyro_fed.analysis.bench.cell import Cell, Outcome
from pyro_fed.analysis.report.json_figures import as_json
from pyro_fed.errors import DataError


class Store:
    """A folder of cells, made if it does not exist.

    Args:
        folder: the folder.
        any_version: if there is no cell of this version of the code, read the newest cell of another version.
    """

    def __init__(self, folder: Path, any_version: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.any_version = folder, any_version

    def read(self, cell: Cell, limit: float | None) -> Outcome | None:
        """The outcome of a cell; None if it has not been run, or was stopped by a lower limit than the present one.

        Raises:
            DataError: the cell's file is damaged.
        """
        path = self.folder / cell.file
        if not path.is_file() and self.any_version:
            others = sorted(self.folder.glob(f"{cell.stem}--*.json"), key=lambda file: file.stat().st_mtime)
            path = others[-1] if others else path
        if not path.is_file():
            return None
        found = read_outcome(path)
        return None if _cut_by_lower_limit(found, limit) else found

    def of_any_split(self, cell: Cell, limit: float | None) -> Outcome | None:
        """The outcome of a cell on pooled rows, under this cell's names, from any split; None if it was run on none.

        Raises:
            DataError: a cell's file is damaged.
        """
        version = "*" if self.any_version else cell.version
        files = self.folder.glob(f"{cell.case}--*--{cell.algorithm}--{cell.seed}--{version}.json")
        found = [read_outcome(file) for file in sorted(files, key=lambda file: file.stat().st_mtime)]
        usable = [replace(one, split=cell.split) for one in found if not _cut_by_lower_limit(one, limit)]
        return self.read(cell, limit) or (usable[-1] if usable else None)

    def take(self, table: Path) -> None:
        """Add the cells that a JSON file lists, if it exists. Cells that have a file here are left as they are.

        Raises:
            DataError: the file is not such a table.
        """
        if not table.is_file():
            return
        try:
            cells = [Outcome(**one) for one in json.loads(table.read_text(encoding="utf-8"))["cells"]]
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(
                f"{table} is no table of the benchmark: {error}; delete it, or choose another folder"
            ) from error
        for one in cells:
            if not (self.folder / cell_of(one).file).is_file():
                self.write(one)

    def write(self, outcome: Outcome) -> None:
        """Write a cell's file atomically: a reader sees the old file or the new one, and no part of it."""
        handle, name = tempfile.mkstemp(dir=self.folder, suffix=".part")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(as_json(asdict(outcome)))
        Path(name).replace(self.folder / cell_of(outcome).file)


def _cut_by_lower_limit(found: Outcome, limit: float | None) -> bool:
    """Whether the cell was stopped by a lower limit than the present one."""
    return found.outcome == "late" and found.limit is not None and (limit is None or limit > found.limit)


def cell_of(one: Outcome) -> Cell:
    """The names of the cell of an outcome."""
    return Cell(one.case, one.split, one.algorithm, one.seed, one.version)


def read_outcome(path: Path) -> Outcome:
    """Read a cell's file; DataError if it is damaged."""
    try:
        return Outcome(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise DataError(
            f"{path} is no file of a cell of the benchmark: {error}; delete it, and the cell is run again"
        ) from error
