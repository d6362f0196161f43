"""Codebooks and summaries as dataclasses, read from TOML and JSON by pydantic, which checks every entry's type.

Both files come from others: a codebook by mail, a summary from another hospital. An entry that is unknown or of another
type is refused with its place, and its value is not repeated.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from pyro_fed.errors import DataError, SettingError, listed

T = TypeVar("T")

#: The packages of the extra, by the modules that are imported.
NEEDED = ("pandera", "pydantic", "tabulate")


def check_installed() -> None:
    """Raise SettingError where a package of the extra `study` is missing."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise SettingError(f"codebooks need {listed(missing)}: pip install 'pyro_fed[study]'")


def from_table(kind: type[T], table: Any, where: str) -> T:
    """A dataclass from the tables of a TOML file.

    Raises:
        SettingError: entries that are unknown, missing or of another type; the message names the file and each entry.
    """
    check_installed()
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(table)
    except ValidationError as error:
        raise SettingError(f"{where}: {_faults(error)}") from None


def from_json(kind: type[T], path: Path) -> T:
    """A dataclass from a JSON file.

    Raises:
        DataError: the file cannot be read, or is another kind of file; the message names each entry at fault.
    """
    check_installed()
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_json(path.read_bytes(), strict=False)
    except ValidationError as error:
        raise DataError(f"{path} is not such a file as pyro-fed check writes: {_faults(error)}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {reason(error)}") from error


def to_json(value: Any, brief: Sequence[str] = ()) -> bytes:
    """A dataclass as JSON; every number is read back as the same number. `brief` entries are without their defaults."""
    check_installed()
    from pydantic import TypeAdapter

    adapter = TypeAdapter(type(value))
    plain, short = (adapter.dump_python(value, mode="json", exclude_defaults=only) for only in (False, True))
    return (json.dumps(plain | {name: short[name] for name in brief}, indent=1, allow_nan=False) + "\n").encode()


def reason(error: OSError | ValueError) -> str:
    """Why a file cannot be read: the system's words, or Python's on its path."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _faults(error: Any) -> str:
    """Place and fault of each entry, without its value."""
    places = [(".".join(map(str, one["loc"])) or "the file", one["msg"]) for one in error.errors(include_input=False)]
    return "; ".join(f"{place}: {message}" for place, message in dict(places[:5]).items())
