"""The state of a run on disk after every round: a safetensors file, written atomically, in a locked folder.

A file contains tensors and text but no code, so that reading it executes nothing. Its header is checked like a
message's (`safetensors_header`), and a hash detects damage to the rest. Its text contains the run's fingerprint (model,
data, settings, seed, versions); a checkpoint of another run is refused.

A run may start from the states of another run. If every client keeps a site, q ∝ t_0 Π_k t_k, a client is removed by
omitting its site and running until the other sites have converged: `pf.run(pf.FedEP(), fed.without("3"),
start="before")`. Messages that others have already received from the client cannot be revoked.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save

from pyro_fed.algorithm.states import State, contiguous, prefixed, within
from pyro_fed.conventions.output import open_lock, replaced_file
from pyro_fed.density.fingerprint import hash_tensors
from pyro_fed.errors import CheckpointError, ProtocolError, PyroFedError, SettingError, warn_user
from pyro_fed.runtime.fingerprint import require_run
from pyro_fed.runtime.safetensors_header import PREFIX, header_length, read_header

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]  # a module, elsewhere

#: Name of the locked file; its text names the process that holds the lock.
NAME = "lock"
#: Longest text that is read from the file, in bytes.
MAX_TEXT = 300

logger = logging.getLogger(__name__)
#: Number of states that are kept: the latest, and the previous one in case the latest cannot be read.
NUM_KEPT_STATES = 2
#: Longest header of a state, in bytes; it has the record, which grows with the rounds. It is safetensors' own limit.
MAX_HEADER = 100_000_000


class Lock:
    """The lock of an existing folder, held from construction until `release`; CheckpointError if not available."""

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
        """The locked file; None if its previous holder has deleted it in the meantime."""
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
                f"{self.path.parent} is in use by {holder}. Wait for it, or choose another folder"
            ) from error
        try:
            is_there = os.path.samestat(os.fstat(file), os.lstat(self.path))
        except FileNotFoundError:
            is_there = False
        if not is_there:
            os.close(file)
            return None
        since = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        os.truncate(file, 0)
        os.write(file, f"process {os.getpid()} on {socket.gethostname()} since {since}".encode())
        return file

    def release(self) -> None:
        """Release the lock; does nothing if that was done before."""
        if self._file is not None:
            self.path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = None


@dataclass(frozen=True)
class Saved:
    """A run's state after a round."""

    phase: int
    done: int
    shared: State
    local: State
    record: dict[str, Any]
    network: State = field(default_factory=dict)


class Checkpoint:
    """A folder of states, which no other run may use until `close`; `marks` is the run's fingerprint."""

    def __init__(self, folder: Path, marks: dict[str, str], resume: bool, any_rounds: bool = True) -> None:
        self.folder, self.marks, self.resume, self.any_rounds = folder, marks, resume, any_rounds
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise SettingError(f"checkpoint={str(folder)!r} is, or lies in, a file; expected a folder") from error
        except OSError as error:
            raise CheckpointError(f"the folder {folder} cannot be made: {error}; choose another one") from error
        self._lock = Lock(folder)
        if state_files(self.folder) and not resume:
            self.close()
            raise SettingError(f"{folder} holds the state of a run: pass resume=True to go on, or another folder")
        if resume and not state_files(self.folder):
            self.close()
            raise CheckpointError(f"{folder} holds no state to resume from; expected files round-*.safetensors")

    def close(self) -> None:
        """Let other runs use the folder."""
        self._lock.release()

    def save(self, saved: Saved) -> None:
        """Write a state beside the others, and delete all but the latest two; an error leaves the previous one."""
        tensors: State = {}
        for name in ("shared", "local", "network"):
            tensors |= contiguous(prefixed(name, getattr(saved, name)))
        text = {
            "marks": json.dumps(self.marks),
            "phase": str(saved.phase),
            "done": str(saved.done),
            "record": json.dumps(saved.record),
        }
        text["digest"] = _digest_of(tensors, text)
        target = self.folder / f"round-{len(saved.record['rounds']):08d}.safetensors"
        try:
            with replaced_file(target) as file:
                file.write(save({name: value.clone() for name, value in tensors.items()}, metadata=text))
        except OSError as error:
            raise CheckpointError(
                f"the state could not be written to {target} ({error}); the previous state is "
                "kept. Make room and run again with resume=True"
            ) from error
        for old in state_files(self.folder)[:-NUM_KEPT_STATES]:
            try:
                old.unlink(missing_ok=True)
            except OSError as error:  # the new state is written, and an old file only takes space
                logger.warning("an earlier state could not be deleted: %s", error)

    def load(self) -> Saved | None:
        """The latest readable state of this run; None without `resume`."""
        if not self.resume:
            return None
        marks, saved = latest(self.folder)
        require_run(self.folder, marks, self.marks, self.any_rounds)
        return saved

    def blamed(self) -> AbstractContextManager[None]:
        """A context that names the state in other errors, if a run continues from one."""
        return blamed_state(self.folder if self.resume else None)


@contextmanager
def blamed_state(folder: Path | None) -> Iterator[None]:
    """A context that turns other errors into a `CheckpointError` about the state in a folder; None does nothing.

    The hash in a file detects damage. It does not detect a deliberate change with a new hash, after which tensors of
    other names or shapes fail somewhere in the algorithm.
    """
    try:
        yield
    except PyroFedError:
        raise
    except Exception as error:
        if folder is None:
            raise
        raise CheckpointError(
            f"the run went on from the state in {folder}, and failed: {type(error).__name__}: {error!s:.200}. Unless "
            "this is an error of the model's or the machine's, the state was changed after it was written: run again "
            "with another folder"
        ) from error


def latest(folder: Path) -> tuple[dict[str, str], Saved]:
    """The latest readable state in a folder, and the marks of its run."""
    reasons = []
    for path in reversed(state_files(folder)):
        try:
            found = _read_state(path)
        except (ProtocolError, OSError) as error:
            reasons.append(f"{path.name}: {error}")
            continue
        if reasons:
            warn_user(f"the latest state could not be read ({reasons[0]}); the previous one is used")
        return found
    raise CheckpointError(f"no state in {folder} can be read: {'; '.join(reasons) or 'there is none'}")


def state_files(folder: Path) -> list[Path]:
    """The files of a run's states in a folder, the latest last."""
    try:
        return sorted(folder.glob("round-*.safetensors"))
    except (OSError, ValueError) as error:  # a name that is too long, or has a null in it
        raise CheckpointError(f"{str(folder)[:100]!r} cannot be read as a folder: {error}") from error


def _read_state(path: Path) -> tuple[dict[str, str], Saved]:
    """The marks and the state in a file; ProtocolError if `save` did not write it, or it is damaged."""
    text, tensors = _read_file(path)
    try:
        marks, record, phase, done = (json.loads(text[name]) for name in ("marks", "record", "phase", "done"))
    except (ValueError, KeyError, RecursionError) as error:
        raise ProtocolError(f"its text is not that of a state: {error!r:.200}") from error
    if not (isinstance(marks, dict) and all(isinstance(value, str) for value in marks.values())):
        raise ProtocolError(f"its marks must be texts by name, received {marks!r:.80}")
    if not (isinstance(record, dict) and isinstance(record.get("rounds"), list)):
        raise ProtocolError(f"its record must have a list of rounds, received {record!r:.80}")
    for name, number in {"phase": phase, "done": done}.items():
        if type(number) is not int or number < 0:
            raise ProtocolError(f"its {name} must be a whole number from 0 on, received {number!r:.80}")
    if done > len(record["rounds"]):
        raise ProtocolError(
            f"it says that its phase has had {done} rounds, and has a record of {len(record['rounds'])}"
        )
    odd = [name for name in tensors if not name.startswith(("shared.", "local.", "network."))]
    if odd:
        raise ProtocolError(f"it holds a tensor {odd[0][:80]!r}, expected shared.*, local.* and network.*")
    shared, local, network = (within(tensors, part) for part in ("shared", "local", "network"))
    return marks, Saved(phase, done, shared, local, record, network)


def _read_file(path: Path) -> tuple[dict[str, str], State]:
    """The text and the tensors of a file; ProtocolError if `save` did not write it, or it is damaged."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(PREFIX)
        start += file.read(header_length(start, size, MAX_HEADER))
        header = read_header(start, size, MAX_HEADER)
        data = start + file.read()
    try:
        tensors = load(data)
    except (SafetensorError, ValueError, RuntimeError) as error:
        raise ProtocolError(f"safetensors cannot read it: {error}") from error
    text = dict(header.text)
    if text.pop("digest", None) != _digest_of(tensors, text):
        raise ProtocolError("its hash does not match: it is damaged, or was not written as a state")
    return text, tensors


def _digest_of(tensors: State, text: dict[str, str]) -> str:
    """A hash of a state's names, values and text."""
    names = sorted(tensors)
    return hash_tensors([tensors[name] for name in names], json.dumps([names, sorted(text.items())]))
