"""TOML files of users."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from pyro_fed.errors import SettingError


def read_toml(path: Path, what: str = "a recipe") -> dict[str, Any]:
    """The content of a TOML file; SettingError has the line and column."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"{path} is not a TOML file: {error}") from error
    except ValueError as error:  # a number of more digits than Python reads
        raise SettingError(f"{path} is not {what}: {str(error).partition(';')[0]}") from error
    except RecursionError as error:
        raise SettingError(f"{path} is not {what}: its tables or lists are nested too deeply") from error
    except OSError as error:
        raise SettingError(f"{path} cannot be read: {error.strerror or error}") from error
