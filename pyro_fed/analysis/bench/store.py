"""Cells on disk: a small file each, named by what was run and the version of the code, written whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

from pyro_fed.analysis.bench.cell import Cell, Outcome
from pyro_fed.analysis.report.plain import as_json
from pyro_fed.errors import DataError


class Store:
    """A folder of cells.

    Args:
        folder: made where it is not there.
        any_version: take cells of other versions of the code too, where there is none of this one.
    """

    def __init__(self, folder: Path, any_version: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.any_version = folder, any_version

    def read(self, cell: Cell, limit: float | None) -> Outcome | None:
        """What came of a cell; None where it has not been run, or was cut off by a lower limit than this.

        Args:
            cell: which.
            limit: seconds of CPU that it would have now; None for no limit.

        Raises:
            DataError: the file is no cell.
        """
        path = self.folder / cell.file
        if not path.is_file() and self.any_version:
            others = sorted(self.folder.glob(f"{cell.stem}--*.json"), key=lambda file: file.stat().st_mtime)
            path = others[-1] if others else path
        if not path.is_file():
            return None
        found = read_outcome(path)
        return None if _cut(found, limit) else found

    def of_any_split(self, cell: Cell, limit: float | None) -> Outcome | None:
        """What came of a cell with its rows split in any way, as that cell's own.

        Args:
            cell: of a method that has all rows, whatever the split.
            limit: as in `read`.

        Raises:
            DataError: a file is no cell.
        """
        version = "*" if self.any_version else cell.version
        files = self.folder.glob(f"{cell.case}--*--{cell.algorithm}--{cell.seed}--{version}.json")
        found = [read_outcome(file) for file in sorted(files, key=lambda file: file.stat().st_mtime)]
        usable = [replace(one, split=cell.split) for one in found if not _cut(one, limit)]
        return self.read(cell, limit) or (usable[-1] if usable else None)

    def take(self, table: Path) -> None:
        """Take the cells of a table that was written before, those aside that are here.

        Args:
            table: JSON with a list of `cells`; nothing is taken where it is not there.

        Raises:
            DataError: the file is no such table.
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
        """Keep a cell; a reader sees the old file or the new one.

        Args:
            outcome: what came of it.
        """
        handle, name = tempfile.mkstemp(dir=self.folder, suffix=".part")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(as_json(asdict(outcome)))
        Path(name).replace(self.folder / cell_of(outcome).file)


def _cut(found: Outcome, limit: float | None) -> bool:
    """Whether it was cut off by a lower limit than this."""
    return found.outcome == "late" and found.limit is not None and (limit is None or limit > found.limit)


def cell_of(one: Outcome) -> Cell:
    """The cell that an outcome is of."""
    return Cell(one.case, one.split, one.algorithm, one.seed, one.version)


def read_outcome(path: Path) -> Outcome:
    """A cell's file.

    Raises:
        DataError: it is no cell.
    """
    try:
        return Outcome(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise DataError(f"{path} is no cell of the benchmark: {error}; delete it, and it is run again") from error
