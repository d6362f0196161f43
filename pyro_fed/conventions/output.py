"""Whether a file can be written, asked before the work that is to go into it; where it goes if it cannot after all."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyro_fed.errors import SettingError

#: What is written to try; a device that is full, say, takes the opening of a file, and nothing else.
PROBE = b"\n"
#: Endings of the names of pages.
PAGE_ENDINGS = (".html", ".htm")


def check_writable(path: str | Path, what: str = "out") -> Path:
    """A path that a file can be written to, with all folders above it that do not exist yet.

    Args:
        path: of the file.
        what: the argument's name, for messages.

    Returns:
        the path.

    Raises:
        SettingError: a folder, a path below a file, or a place where nothing can be written.
    """
    if not isinstance(path, str | os.PathLike):
        raise SettingError(f"{what} must be the path of a file, received {path!r}")
    path = Path(path)
    try:
        mode = path.stat().st_mode if path.exists() else 0
        if stat.S_ISDIR(mode):
            raise SettingError(f"{what}={str(path)!r} is a folder; expected the path of a file")
        if mode and not stat.S_ISREG(mode):
            _try_device(path, mode)
        elif mode and not os.access(path, os.W_OK):
            raise PermissionError(f"{path} is read-only")
        else:
            _try_folder(path)
    except (OSError, ValueError) as error:
        raise SettingError(f"{what}={str(path)!r} cannot be written: {error}") from error
    return path


def _try_device(path: Path, mode: int) -> None:
    if not stat.S_ISCHR(mode):
        raise OSError("it is no ordinary file")
    with path.open("wb", buffering=0) as device:
        device.write(PROBE)


def _try_folder(path: Path) -> None:
    folder = path.parent
    while not folder.exists():
        folder = folder.parent
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(PROBE)
        file.flush()


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
    try:
        yield written
    except BaseException:  # Ctrl-C too leaves no folder behind
        shutil.rmtree(folder)
        raise
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.exists() and not out.is_file():  # a device
            with out.open("wb") as device:
                device.write(written.read_bytes())
        else:
            _put(written, out)
    except OSError as error:
        raise SettingError(f"{out} could not be written: {error}. The result is kept in {written}") from error
    shutil.rmtree(folder)


def _put(written: Path, out: Path) -> None:
    """Put a file in the place of the user's, which stays as it was until all of it is there.

    In a folder where no other file can be made it is written over.
    """
    out = out.resolve()  # where it is a link, what it leads to
    if not os.access(out.parent, os.W_OK):
        shutil.copyfile(written, out)
        return
    beside = out.with_name(f"{out.name}.writing")
    try:
        shutil.copyfile(written, beside)
        if out.exists():
            shutil.copymode(out, beside)
        os.replace(beside, out)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
