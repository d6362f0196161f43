"""A SuperLink and two SuperNodes on loopback, and an app of `pyro-fed flower new` that runs on them."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

from click.testing import CliRunner

from pyro_fed.cli.main import main

#: Two exchanges suffice: the model is conjugate, and nothing is run first.
RECIPE = """
description = "FedEP from the prior"
algorithm = "pyro_fed.infer:FedEP"
[settings]
start = "prior"
[run]
num_rounds = 2
"""
OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",  # a client's process is started when there is work
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "",  # a dozen processes import the same modules
}
BIN = Path(sys.executable).parent
#: Seconds from SIGTERM to SIGKILL.
PATIENCE = 2.0


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(command, env, log):
    """A command in a session of its own."""
    with log.open("wb") as out:
        return subprocess.Popen(command, env=env, stdout=out, stderr=out, start_new_session=True)


def end(processes):
    """All of them with all that they have started, at once."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        left = [process for process in processes if sent(process, kind)]
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and any(sent(process, 0) for process in left):
            time.sleep(0.05)
    for process in processes:
        process.wait()


def sent(process, kind):
    """Whether there is anybody left in its session whom the signal can reach."""
    process.poll()  # else it stays in the group
    try:
        os.killpg(process.pid, kind)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def deployment(folder, env, clients):
    """A SuperLink with nodes, which `flwr` reaches in this environment."""
    port, home = free_port(), folder / "home"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    link = ["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port)]
    node = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}", "--host", "127.0.0.1"]
    commands = {"link": [*link, "--disable-runtime-dependency-installation"]} | {
        f"node{i}": [*node, "--port", str(free_port()), "--node-config", f"partition-id={i} num-partitions={clients}"]
        for i in range(clients)
    }
    processes = []
    try:
        for name, command in commands.items():  # nodes try again until the link is there
            processes.append(start(command, env, folder / f"{name}.log"))
        wait_for(port)
        yield
    finally:
        end(processes)


def wait_for(port, seconds=60):
    end = time.monotonic() + seconds
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert time.monotonic() < end, f"nothing listens at port {port}"
        time.sleep(0.2)


def prepared(folder):
    """What runs the app, in any thread; it returns the recipe, the result's path, and what was said."""
    chosen, out, app = folder / "from_prior.toml", folder / "posterior.nc", folder / "regression-app"
    chosen.write_text(RECIPE)
    made = CliRunner().invoke(
        main, ["flower", "new", str(app), "--model", "linear_regression", "--recipe", str(chosen)]
    )
    assert made.exit_code == 0, made.output
    env = {**os.environ, **OFFLINE, "FLWR_HOME": str(folder / "home"), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    settings = f'out="{out}" timeout=120.0 audit=false'

    def ran():
        with deployment(folder, env, 2):
            done = subprocess.run(
                ["flwr", "run", str(app), "here", "--stream", "--run-config", settings],
                env=env,
                capture_output=True,
                text=True,
                timeout=240,
            )
        logs = "".join(path.read_text()[-3000:] for path in folder.glob("*.log"))
        return chosen, out, done.stdout[-3000:] + done.stderr[-3000:] + logs

    return ran
