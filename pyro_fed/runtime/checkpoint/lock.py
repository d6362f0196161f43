"""A lock on a checkpoint folder, so that only one run writes there; the system releases it when the process ends."""

from __future__ import annotations

import datetime
import os
import socket
from pathlib import Path

from pyro_fed.conventions.output import open_lock
from pyro_fed.errors import CheckpointError

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]  # a module, elsewhere

#: Name of the locked file; its text says who holds the lock.
NAME = "lock"
#: Longest text that is read from the file, in bytes.
MAX_TEXT = 300


class Lock:
    """The lock of an existing folder, held from construction until `release`.

    Raises:
        CheckpointError: another run holds it, or nothing can be written there, or the system has no such locks.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._file: int | None = None
        if fcntl is None:
            raise CheckpointError(
                "a run's folder is locked by flock, which this system does not have: run without checkpoint=, or on "
                "Linux or macOS"
            )
        while self._file is None:
            self._file = self._locked_file()

    def _locked_file(self) -> int | None:
        """The locked file; None if its former holder has deleted it in the meantime."""
        try:
            file = open_lock(self.path)
        except OSError as error:
            raise CheckpointError(
                f"nothing can be written to {self.path.parent}: {error}; choose another folder"
            ) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(file, MAX_TEXT).decode("utf-8", "replace").strip() or "another run"
            os.close(file)
            raise CheckpointError(
                f"{self.path.parent} belongs to a run that goes on: {holder}. Wait for it, or choose another folder"
            ) from error
        if not self._is_there(file):
            os.close(file)
            return None
        since = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        os.truncate(file, 0)
        os.write(file, f"process {os.getpid()} on {socket.gethostname()} since {since}".encode())
        return file

    def _is_there(self, file: int) -> bool:
        """Whether the path still leads to this open file."""
        try:
            return os.path.samestat(os.fstat(file), os.lstat(self.path))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Release the lock; does nothing if that was done before."""
        if self._file is not None:
            self.path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = None
