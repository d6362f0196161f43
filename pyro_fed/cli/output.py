"""What the commands say of themselves."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path


def typed_command() -> str:
    """The command as it was typed, for the page that it makes; paths as they are from where it was typed."""
    return shlex.join(["pyro-fed", *map(_from_here, sys.argv[1:])])


def _from_here(word: str) -> str:
    """A word of the command; of a path below the working directory, or with one after its `=`, what is below."""
    option, equals, value = word.rpartition("=") if word.startswith("--") else ("", "", word)
    if not Path(value).is_absolute():
        return word
    try:
        return f"{option}{equals}{Path(value).resolve().relative_to(Path.cwd())}"
    except ValueError:  # elsewhere: its folders are this machine's
        return f"{option}{equals}{Path(value).name}"
