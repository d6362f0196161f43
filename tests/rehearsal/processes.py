"""The processes of a deployment on loopback: started in sessions of their own, killed as machines die, all ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

BIN = Path(sys.executable).parent
#: Neither Flower nor Ray reports of its use, asks for updates or installs anything; one thread a process; a node's
#: processes are started when there is work, and not at the next second.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "",  # many processes import the same modules
    "NO_PROXY": "127.0.0.1",  # the SuperLink asks for signed apps on its own machine
    "no_proxy": "127.0.0.1",
}
#: Seconds from SIGTERM to SIGKILL, and between two looks at what is waited for.
PATIENCE, LOOK_EVERY = 5.0, 0.2


def free_port() -> int:
    """A port of loopback that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    """Whether somebody does."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Process:
    """A command in a session of its own, with all that it starts.

    Args:
        name: for its log, NAME.log.
        command: and its arguments; the program is this environment's.
        folder: it runs in, with the log.
        env: of the process.
    """

    def __init__(self, name: str, command: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
        self.name, self.log = name, folder / f"{name}.log"
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                env=dict(env),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                preexec_fn=_gently,
            )
        self._sessions = {self._process.pid}

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.poll()

    def text(self) -> str:
        """Its log so far."""
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        """End it and all that it started at once, as a machine that loses its power does."""
        self._end(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """End it and all that it started; by force what does not go."""
        self._end(signal.SIGTERM)
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and any(_alive(pid) for pid in self._members()):
            self._process.poll()
            time.sleep(LOOK_EVERY)
        self.kill()

    def _members(self) -> set[int]:
        """Processes that descend from it, those included whose session is their own (as Flower starts some)."""
        parents, sessions = {}, {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                if fields[0] != "Z":
                    parents[int(entry.name)], sessions[int(entry.name)] = int(fields[1]), int(fields[3])
        found = {pid for pid, session in sessions.items() if session in self._sessions}
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        self._sessions |= {sessions[pid] for pid in found}
        return found

    def _end(self, kind: signal.Signals) -> None:
        for pid in self._members():
            try:
                os.kill(pid, kind)
            except ProcessLookupError:
                continue


def _gently() -> None:
    os.nice(5)


def _alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
