"""Files that the package writes: checked before the work, whole, and for their owner alone.

States and results have what single clients have sent, so that others on the machine may not read them. In a folder in
which others can write, a name may be a link that they have placed: a new file is made under a name that nothing has,
so that no link is followed, and then takes the place of whatever has the final name.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from pyro_fed.errors import SettingError

#: Bytes of a trial: a file can be opened on a full device, but not written.
PROBE = b"\n"
#: Endings of the names of pages.
PAGE_ENDINGS = (".html", ".htm")
#: Who may use a file with what clients have sent: its owner.
OWNER_ONLY = 0o600


def check_writable(path: str | Path, what: str = "out") -> Path:
    """A path that a file can be written to, with all missing folders above it made; errors name the argument `what`."""
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
        raise OSError("it is not a regular file")
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
    """A temporary file, copied to the user's file once it is complete; an error names where it is kept."""
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


def write_result(result: Any, out: Path) -> None:
    """Write a result as NetCDF, whole or not at all; an error names where it is kept."""
    with kept_elsewhere(out) as place:
        result.to_netcdf(str(place))


def _put(written: Path, out: Path) -> None:
    """Replace the user's file, with its mode, by a written one; it is written over where no file can be made."""
    out = out.resolve()  # where it is a link, what it leads to
    if not os.access(out.parent, os.W_OK):
        shutil.copyfile(written, out)
        return
    with replaced_file(out) as file, written.open("rb") as source:
        if out.exists():
            os.chmod(file.name, stat.S_IMODE(out.stat().st_mode))
        shutil.copyfileobj(source, file)


def create_file(path: Path) -> BinaryIO:
    """A new file, open for writing, that only its owner can read; OSError if anything has that name, even a link."""
    return open(path, "xb", opener=lambda name, flags: os.open(name, flags, OWNER_ONLY))


@contextmanager
def replaced_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which replaces the former one, or a link, once it is whole and on the disk."""
    beside = path.with_name(f"{path.name}.writing")
    beside.unlink(missing_ok=True)  # of a process that was killed
    file = create_file(beside)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def write_file(path: str | Path, data: bytes, what: str = "path") -> Path:
    """The path of a file that the user names, written in place of a former one; errors name the argument `what`."""
    path = check_writable(path, what)
    with replaced_file(path) as file:
        file.write(data)
    return path


def open_lock(path: Path) -> int:
    """A file descriptor of a file that processes lock; OSError for a link, a device, or a file with two names."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, OWNER_ONLY)
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(file)
        raise OSError(
            f"{path} is not a regular file with one name: it is a device, a pipe, or has a second name; remove it"
        )
    return file


def _sync_folder(folder: Path) -> None:
    """Write the folder's list of files to disk: without it a renamed file may not survive a crash."""
    try:
        place = os.open(folder, os.O_RDONLY)
    except OSError:  # a system on which folders cannot be opened
        return
    try:
        os.fsync(place)
    finally:
        os.close(place)
