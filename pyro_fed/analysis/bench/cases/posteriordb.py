"""Real posteriors with reference draws, of posteriordb (Magnusson et al. 2024).

Two layouts are read. A clone of https://github.com/stan-dev/posteriordb::

    posterior_database/posteriors/NAME.json
    posterior_database/data/data/DATA.json.zip
    posterior_database/reference_posteriors/draws/draws/NAME.json.zip     ten chains of 1,000 draws

and a folder of extracts, `NAME/{data.json, reference.npz}`, whose draws are `(chain, draw)` arrays named as there
(`beta[1]`). `stan_models` has the models.
"""

from __future__ import annotations

import functools
import json
import os
import re
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from pyro_fed.analysis.bench.cases.case import Case, Reference
from pyro_fed.errors import DataError, shown

#: The environment variable that names a folder with `posteriordb` in it.
VARIABLE = "PYRO_FED_DATA"
PLATE = "data"
#: The raw data of a posterior, by name.
Data = Mapping[str, Any]


@dataclass(frozen=True)
class Posterior:
    """One posterior of the database.

    Args:
        full_name: name in the database.
        about: a description in a few words.
        model: Stan's model, written in Pyro: takes the constants, then the arguments.
        arguments: takes the raw data, and returns the model's arguments, all split by rows.
        sort_by: takes the arguments, and returns the covariate by which clients are sorted.
        groups: takes the arguments, and returns the groups; None if there are none.
        sites: takes the raw data and the database's draws by name, and returns draws of the model's sites.
        constants: takes the raw data, and returns what all clients know; None if there is nothing of the kind.
    """

    full_name: str
    about: str
    model: Callable[..., None]
    arguments: Callable[[Data], tuple[Tensor, ...]]
    sort_by: Callable[[tuple[Any, ...]], Any]
    groups: Callable[[tuple[Any, ...]], Any] | None = None
    sites: Callable[[Data, dict[str, np.ndarray]], dict[str, np.ndarray]] = lambda _, draws: draws
    constants: Callable[[Data], tuple[Any, ...]] | None = None

    def args(self, folder: Path) -> tuple[Tensor, ...]:
        """The model's arguments in double precision."""
        return self.arguments(read_data(folder, self.full_name))

    def model_of(self, folder: Path) -> Callable[..., None]:
        """The model of the rows, with the constants filled in: by a closure, since a partial's data would be split."""
        if self.constants is None:
            return self.model
        of_data, known = self.constants, functools.cache(lambda: read_data(folder, self.full_name))
        return lambda *rows: self.model(*of_data(known()), *rows)

    def reference(self, folder: Path) -> dict[str, np.ndarray]:
        """Reference draws by the database's names, each (chain, draw, *shape)."""
        return read_draws(folder, self.full_name)

    def case(self, name: str, folder: Path) -> Case:
        """The posterior as a case of the benchmark."""

        def drawn(args: tuple[Any, ...]) -> Reference:
            sites = self.sites(read_data(folder, self.full_name), self.reference(folder))
            return Reference(sites, False, f"posteriordb, {self.full_name}")

        return Case(
            name,
            "posteriordb",
            self.about,
            self.model_of(folder),
            lambda: self.args(folder),
            drawn,
            sort_by=self.sort_by,
            labels=lambda args: args[-1].reshape(len(args[-1]), -1).sum(1),
            groups=self.groups,
        )


# -- files ----------------------------------------------------------------------------------------------------
def find(folder: Path | None = None) -> Path | None:
    """The folder of the posteriors in a clone or in extracts; None if it does not exist."""
    if folder is None:
        named = os.environ.get(VARIABLE)
        folder = Path(named) / "posteriordb" if named else None
    if folder is None or not folder.is_dir():
        return None
    inner = folder / "posterior_database"
    return inner if inner.is_dir() else folder


def has(folder: Path, full_name: str) -> bool:
    """Whether a posterior is there, with its reference draws."""
    extract = folder / full_name
    whole = _draws_of_clone(folder, full_name)
    return ((extract / "data.json").is_file() and (extract / "reference.npz").is_file()) or whole.is_file()


def read_data(folder: Path, full_name: str) -> Mapping[str, Any]:
    """The raw data of a posterior; DataError if files are missing or malformed."""
    extract = folder / full_name / "data.json"
    if extract.is_file():
        return _object(extract.read_text(encoding="utf-8"), extract)
    entry = folder / "posteriors" / f"{full_name}.json"
    try:
        name = _object(entry.read_text(encoding="utf-8"), entry)["data_name"]
    except (OSError, KeyError) as error:
        raise DataError(f"{folder} has no data of '{full_name}': expected {extract} or {entry}") from error
    packed = folder / "data" / "data" / f"{name}.json.zip"
    return _object(_read_zip(packed), packed)


def read_draws(folder: Path, full_name: str) -> dict[str, np.ndarray]:
    """Reference draws by site, each (chain, draw, *shape); DataError if files are missing or malformed."""
    return dict(_kept_draws(folder, full_name))


@functools.cache
def _kept_draws(folder: Path, full_name: str) -> dict[str, np.ndarray]:
    extract, whole = folder / full_name / "reference.npz", _draws_of_clone(folder, full_name)
    path, read = (extract, _draws_by_name) if extract.is_file() else (whole, _draws_by_chain)
    try:
        draws = read(path)
    except DataError:
        raise
    except (OSError, ValueError, TypeError, KeyError, IndexError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path} is damaged, or no file of posteriordb's reference draws: {type(error).__name__}: {error}; fetch "
            "the file again"
        ) from error
    if odd := [key for key, value in draws.items() if value.ndim != 2]:
        raise DataError(f"{path}: expected draws (chain, draw), '{odd[0]}' has the shape {draws[odd[0]].shape}")
    return sites_of(draws)


def _draws_by_name(path: Path) -> dict[str, np.ndarray]:
    """The draws of an extract, an array (chain, draw) by name."""
    with np.load(path) as stored:
        return {key: stored[key] for key in stored.files}


def _draws_by_chain(path: Path) -> dict[str, np.ndarray]:
    """The draws of a clone, which has a list of draws by name for each chain."""
    chains: Any = json.loads(_read_zip(path))
    return {key: np.array([chain[key] for chain in chains], dtype=float) for key in chains[0]}


def sites_of(draws: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Entries named as Stan names them joined into sites: `beta[1]` and `beta[2]` become `beta` (chain, draw, 2)."""
    elements: dict[str, dict[int, np.ndarray]] = {}
    for key, value in draws.items():
        found = re.fullmatch(r"(\w+?)(?:\[(\d+)\])?", key)
        if found is None:
            raise DataError(f"reference draws: expected Stan's names, such as 'sigma' or 'beta[1]', received '{key}'")
        elements.setdefault(found[1], {})[int(found[2] or 0)] = value
    return {
        name: parts[0] if 0 in parts else np.stack([parts[i] for i in sorted(parts)], -1)
        for name, parts in elements.items()
    }


def _draws_of_clone(folder: Path, full_name: str) -> Path:
    return folder / "reference_posteriors" / "draws" / "draws" / f"{full_name}.json.zip"


def _read_zip(path: Path) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            (name,) = archive.namelist()
            return archive.read(name).decode("utf-8")
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: expected a zip of one JSON file, as posteriordb has it: {error}") from error


def _object(text: str, path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise DataError(f"{path}: expected JSON: {error}; fetch the file again") from error
    if not isinstance(found, dict):
        raise DataError(f"{path}: expected a JSON object with the data by name, received {shown(found)}")
    return found
