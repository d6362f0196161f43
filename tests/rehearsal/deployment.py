"""A deployment over TLS with authenticated nodes, on loopback: what an operator does, as functions.

ca.pem server.pem server.key       `credentials`
NAME.key NAME.pub                  a key for each node, whose public half is registered
NAME.reviewer NAME.trusted.yaml    a hospital's key to sign apps, and what its node trusts
apps/                              apps and their signatures, which `pyro-fed flower hub` hands to the SuperLink
link.db                            the SuperLink's database: nodes and runs outlive it
home/config.toml                   how `flwr` finds the SuperLink
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import credentials
from processes import BIN, LOOK_EVERY, QUIET, Process, free_port, listens

#: The connection's name in Flower's configuration.
LINK = "hospitals"


class Deployment:
    """A SuperLink and its SuperNodes, all of whose files are in one folder; a context that ends every process.

    Args:
        folder: an empty one.
        more: variables of the processes' environment.
    """

    def __init__(self, folder: Path, more: dict[str, str] | None = None) -> None:
        self.folder, self.port, self.hub_port = folder, free_port(), free_port()
        (folder / "apps").mkdir()
        self.home = folder / "home"
        self.home.mkdir()
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "{LINK}"\n\n[superlink.{LINK}]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{folder / "ca.pem"}"\n'
        )
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        self.env = {**os.environ, **QUIET, "FLWR_HOME": str(self.home), "PATH": path, **(more or {})}
        self.link: Process | None = None
        self.nodes: dict[str, Process] = {}
        self._others: list[Process] = []

    def __enter__(self) -> Deployment:
        return self

    def __exit__(self, *exception: object) -> None:
        everyone = [*self._others, *self.nodes.values(), *([self.link] if self.link else [])]
        for process in everyone:
            process.kill()

    def make_credentials(self, nodes: list[str]) -> None:
        """The authority, the server's certificate, the nodes' keys, and those with which hospitals sign apps."""
        credentials.make_server_certificate(self.folder, *credentials.make_authority(self.folder))
        for name in nodes:
            credentials.make_node_key(self.folder, name)
            credentials.make_reviewer_key(self.folder, name)

    def start_link(self) -> None:
        """The SuperLink, with TLS, authentication of nodes, and a database."""
        command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--ssl-ca-certfile", "ca.pem", "--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key"]
        command += ["--enable-supernode-auth", "--database", "link.db", "--disable-runtime-dependency-installation"]
        env = self.env | {"FLWR_SUPERGRID_API_URL": f"http://127.0.0.1:{self.hub_port}"}
        self.link = Process("superlink", command, self.folder, env)
        wait_until(lambda: listens(self.port), 90, "the SuperLink listens", [self.link])

    def start_hub(self) -> None:
        """What hands signed apps to the SuperLink."""
        command = ["pyro-fed", "flower", "hub", "apps", "--port", str(self.hub_port)]
        self._others.append(Process("hub", command, self.folder, self.env))
        wait_until(lambda: listens(self.hub_port), 90, "the hub listens", self._others[-1:])

    def build(self, app: str) -> Path:
        """An app as a .fab file, in the folder of apps."""
        before = set(self.folder.glob("*.fab"))
        built = self.flwr("build", "--app", app)
        (made,) = set(self.folder.glob("*.fab")) - before or {Path(built.stdout + built.stderr)}
        return made.rename(self.folder / "apps" / made.name)

    def sign(self, fab: Path, name: str) -> subprocess.CompletedProcess[str]:
        """A hospital's signature of an app, beside it."""
        command = ["pyro-fed", "flower", "sign", str(fab), "--key", f"{name}.reviewer", "--name", name]
        return self.command(*command)

    def register(self, name: str) -> subprocess.CompletedProcess[str]:
        """Make a node's public key known to the SuperLink."""
        return self.flwr("supernode", "register", f"{name}.pub", LINK, "--name", name)

    def start_node(self, name: str, part: int, parts: int, trusts: bool = True) -> Process:
        """A SuperNode with its key and its part of the data; it runs what its hospital has signed, or anything."""
        command = ["flower-supernode", "--superlink", f"127.0.0.1:{self.port}", "--root-certificates", "ca.pem"]
        command += ["--auth-supernode-private-key", f"{name}.key", "--host", "127.0.0.1", "--port", str(free_port())]
        command += ["--node-config", f'name="{name}" partition-id={part} num-partitions={parts}']
        command += ["--trusted-entities", f"{name}.trusted.yaml"] if trusts else []
        self.nodes[name] = Process(name, command, self.folder, self.env)
        return self.nodes[name]

    def flwr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command of Flower's shell, to its end."""
        return self.command("flwr", *arguments)

    def command(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command of this environment, to its end."""
        command = [str(BIN / program), *arguments]
        return subprocess.run(command, env=self.env, cwd=self.folder, capture_output=True, text=True, timeout=120)

    def run(self, app: str, name: str, **config: object) -> Process:
        """A run of an app, of a folder or of its name where it is signed, whose log is streamed to NAME.log.

        Keys of its configuration have "_" for "-".
        """
        text = " ".join(f"{key.replace('_', '-')}={_toml(value)}" for key, value in config.items())
        command = ["flwr", "run", app, LINK, "--stream", *(["--run-config", text] if text else [])]
        process = Process(name, command, self.folder, self.env)
        self._others.append(process)
        return process


def wait_until(holds: Callable[[], object], seconds: float, what: str, alive: list[Process] | None = None) -> None:
    """Look again and again whether something holds.

    Raises:
        TimeoutError: it does not within the time, or a process on which it depends has ended.
    """
    end = time.monotonic() + seconds
    while not holds():
        dead = [process for process in alive or [] if process.code is not None]
        if dead or time.monotonic() > end:
            why = f"{dead[0].name} ended with code {dead[0].code}" if dead else f"not within {seconds:g} s"
            said = "\n".join(f"--- {one.name}\n{one.text()[-3000:]}" for one in dead or alive or [])
            raise TimeoutError(f"{what}: {why}\n{said}")
        time.sleep(LOOK_EVERY)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str | Path) else str(value)
