"""Files of a study's folders, at the coordinator and at a site: written whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

from pyro_fed.conventions.output import replaced_file
from pyro_fed.errors import CheckpointError


def write_whole(path: Path, data: bytes) -> None:
    """Write a file whole or not at all.

    Raises:
        CheckpointError: it could not be written.
    """
    try:
        with replaced_file(path) as file:
            file.write(data)
    except OSError as error:
        raise CheckpointError(f"{path} could not be written: {error}; make room, and give the command again") from error


def write_json(path: Path, content: object) -> None:
    """Write a value as JSON, whole or not at all.

    Raises:
        CheckpointError: it could not be written.
    """
    write_whole(path, json.dumps(content, indent=1).encode() + b"\n")
