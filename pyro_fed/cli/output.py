"""What the commands write, which must not be lost when its file cannot be written after all."""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyro_fed.errors import SettingError


@contextmanager
def kept_elsewhere(out: Path) -> Iterator[Path]:
    """A file in the folder for temporary files, copied to the user's once it is whole.

    Where it cannot be, as the disk has filled up during the run, it stays there.

    Args:
        out: the user's.

    Raises:
        SettingError: it could not be written; says where the result is.
    """
    folder = Path(tempfile.mkdtemp(prefix="pyro_fed-"))
    written = folder / out.name
    yield written
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.exists() and not out.is_file():  # a device
            with out.open("wb") as device:
                device.write(written.read_bytes())
        else:
            shutil.copyfile(written, out)
    except OSError as error:
        raise SettingError(f"{out} could not be written: {error}. The result is kept in {written}") from error
    shutil.rmtree(folder)


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
