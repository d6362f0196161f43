"""The command as it was typed, for the pages that commands write."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path


def typed_command() -> str:
    """The command as it was typed, with paths relative to the working directory."""
    return shlex.join(["pyro-fed", *map(_from_here, sys.argv[1:])])


def _from_here(word: str) -> str:
    """A word of the command, whose path (or the path after its `=`) is made relative to the working directory."""
    option, equals, value = word.rpartition("=") if word.startswith("--") else ("", "", word)
    if not Path(value).is_absolute():
        return word
    try:
        return f"{option}{equals}{Path(value).resolve().relative_to(Path.cwd())}"
    except ValueError:  # outside of the working directory: only the file's name is shown
        return f"{option}{equals}{Path(value).name}"
