"""Five agents without a server on this machine, as `docs/agents.md` tells it: `make rehearsal-peers`.

    python tests/rehearsal/peers.py [FOLDER]

1. certificates, a peers file, and the rows of five sites: the breast cancer data, each site with other patients
2. five `pyro-fed agent` processes over mutual TLS; one is killed, and started again while the others wait
3. their draws against the simulation's: the same to the last bit; and each one's review
4. a stranger, whose certificate another authority has signed, and an agent that runs another seed: refused
5. the five again; one is killed and comes back when the others have gone on without it: the same posterior

Exit code 1 where something is not as it should be.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np

NAMES = ("north", "east", "south", "west", "centre")
MODEL, SEED, DRAWS = "logistic_regression", 3, 1000
#: Largest difference of a mean and ratio of SDs, in SDs, of an answer that an outage has had part in.
CLOSE = 0.02
#: Rounds that are not over before an agent has started again, on a busy machine either; all stop once they agree.
ROUNDS = 5000
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def main(folder: Path) -> int:
    """The rehearsal; 0 where all is as it should be."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rows = deal(folder)
    command("certificates", str(folder / "certificates"), *NAMES)
    command("certificates", str(folder / "elsewhere"), *NAMES)
    write_peers(folder)
    agents = {name: start(folder, name) for name in NAMES}
    restart(folder, agents, "south", after=(0, 4), pause=1.0)
    say(f"exit codes {finish(agents)}")
    expected = simulate(folder, rows)
    worst = max(
        float(np.abs(draws(folder, name, site) - expected[site].values[i]).max())
        for i, name in enumerate(NAMES)
        for site in expected
    )
    good = say(f"agents against the simulation: the largest difference of a draw is {worst}", worst == 0.0)
    good &= all(reviewed(folder, name) for name in NAMES)
    good &= refused(folder)
    good &= late(folder, expected)
    return 0 if good else 1


def say(text: str, good: bool = True) -> bool:
    """One line of the log."""
    print(f"{'ok  ' if good else 'BAD '} {text}", flush=True)
    return good


def command(*words: str) -> None:
    """`pyro-fed ...`, to its end."""
    subprocess.run([*PYRO_FED, *words], check=True, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
    say(f"pyro-fed {' '.join(words)}")


PYRO_FED = [sys.executable, "-c", "from pyro_fed.cli.main import main; main()"]


def deal(folder: Path) -> dict[str, tuple[np.ndarray, ...]]:
    """The model's training rows, sorted by a covariate and cut into parts of different sizes: NAME.npz each."""
    from pyro_fed.recipes.library import load_model

    module = load_model(MODEL)
    x, y = (np.asarray(leaf) for leaf in module.load_data()[0])
    order = np.argsort(x[:, 0])
    parts = dict(zip(NAMES, np.split(order, np.cumsum([120, 60, 90, 100])), strict=True))
    for name, at in parts.items():
        np.savez(folder / f"{name}.npz", x=x[at], y=y[at])
    say(f"rows dealt out: {', '.join(f'{name} {len(at)}' for name, at in parts.items())}")
    return {name: (x[at], y[at]) for name, at in parts.items()}


def write_peers(folder: Path) -> None:
    """A ring on free ports of this machine."""
    probes = [socket.socket() for _ in NAMES]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    tables = [
        f'[agents.{name}]\naddress = "127.0.0.1:{probe.getsockname()[1]}"'
        for name, probe in zip(NAMES, probes, strict=True)
    ]
    for probe in probes:
        probe.close()
    (folder / "peers.toml").write_text("\n\n".join(['graph = "ring"', *tables]) + "\n")


def start(
    folder: Path, name: str, *more: str, run: str = "first", certificates: str = "certificates"
) -> subprocess.Popen[bytes]:
    """One agent's process; its output goes to RUN-NAME.log."""
    words = ["agent", MODEL, "--name", name, "--data", f"{folder / name}.npz", "--peers", str(folder / "peers.toml")]
    words += ["--certificates", str(folder / certificates), "--checkpoint", str(folder / f"{run}-{name}"), "--quiet"]
    words += ["--out", str(folder / f"{name}.nc"), *(more if "--seed" in more else (*more, "--seed", str(SEED)))]
    log = (folder / f"{run}-{name}.log").open("ab")
    return subprocess.Popen([*PYRO_FED, *words], env=ENVIRONMENT, stdout=log, stderr=log)


def restart(
    folder: Path,
    agents: dict[str, subprocess.Popen[bytes]],
    name: str,
    after: tuple[int, int],
    pause: float,
    run: str = "first",
    more: tuple[str, ...] = (),
) -> None:
    """Kill an agent once its state of a round of a phase is on disk, and start it again from there."""
    until = time.monotonic() + 300
    while not reached(folder / f"{run}-{name}", *after):
        if time.monotonic() > until or agents[name].poll() is not None:
            raise SystemExit(f"BAD  {name} has not come to {after}: see {folder}/{run}-{name}.log")
        time.sleep(0.02)
    agents[name].send_signal(signal.SIGKILL)
    agents[name].wait()
    say(f"{name} killed in phase {after[0]} after round {after[1]}")
    time.sleep(pause)
    agents[name] = start(folder, name, "--resume", *more, run=run)
    say(f"{name} started again after {pause} s")


def reached(state: Path, phase: int, done: int) -> bool:
    """Whether a checkpoint has come so far."""
    from pyro_fed.errors import CheckpointError
    from pyro_fed.runtime.checkpoint import latest

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a file may go while it is read
            saved = latest(state)[1]
    except CheckpointError:
        return False
    return saved.phase > phase or (saved.phase == phase and saved.done >= done)


def finish(agents: dict[str, subprocess.Popen[bytes]]) -> dict[str, int]:
    """Exit codes, all 0."""
    codes = {name: process.wait(timeout=500) for name, process in agents.items()}
    if any(codes.values()):
        raise SystemExit(f"BAD  exit codes {codes}: see the logs")
    return codes


def reviewed(folder: Path, name: str) -> bool:
    """Whether an agent's review is of its result, with all agents."""
    found = json.loads((folder / f"{name}.review.json").read_text())
    digest = hashlib.sha256((folder / f"{name}.nc").read_bytes()).hexdigest()
    left = found["sites"][name]["bytes_left"]
    good = found["result"] == digest and list(found["sites"]) == list(NAMES) and left > 0
    return say(f"{name}.review.json: {len(found['versions'])} packages, {left:,} bytes left {name}", good)


def draws(folder: Path, name: str, site: str) -> np.ndarray:
    """An agent's draws of a site."""
    import arviz as az

    found: np.ndarray = az.from_netcdf(str(folder / f"{name}.nc"))["posterior"][site].values[0]
    return found


def simulate(folder: Path, rows: dict[str, tuple[np.ndarray, ...]]):  # type: ignore[no-untyped-def]
    """The posterior of the same run in one process."""
    import pyro_fed as pf
    from pyro_fed.deployment.agents.peers import load_peers
    from pyro_fed.recipes import recipe
    from pyro_fed.recipes.library import load_model

    module, chosen = load_model(MODEL), recipe.load("p2p_vi")
    fed = pf.Federation.from_clients(module.model, rows, plate=module.PLATE)
    graph = load_peers(folder / "peers.toml").graph
    options = {"executor": "sequential", "progress": False, "audit": False, "log_likelihood": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        idata = pf.run(chosen.build(), fed, graph=graph, seed=SEED, num_draws=DRAWS, **options)
    say(f"simulation: {idata.attrs['num_rounds']} rounds, converged {idata.attrs['converged']}")
    return idata["posterior"]


def refused(folder: Path) -> bool:
    """A stranger, and an agent of another seed, against one that waits."""
    good = True
    for what, expected, more, certificates in (
        ("a stranger's certificate", "has not answered", ("--patience-all", "3"), "elsewhere"),
        ("another seed", "differ in seed", ("--seed", str(SEED + 1), "--patience-all", "400"), "certificates"),
    ):
        run = what.replace(" ", "-").replace("'", "")
        pair = {
            "north": start(folder, "north", "--patience-all", "400", run=run),
            "east": start(folder, "east", *more, run=run, certificates=certificates),
        }
        code = pair["east"].wait(timeout=200)
        if certificates == "certificates":  # a neighbour's word ends the other one; a stranger's does not
            good &= say(f"{what}: north's exit code {(ends := pair['north'].wait(timeout=60))}", ends == 2)
        else:
            good &= say(f"{what}: north goes on waiting", pair["north"].poll() is None)
        pair["north"].kill()
        pair["north"].wait()
        text = "".join((folder / f"{run}-{name}.log").read_text() for name in pair)  # who sees it first says it
        good &= say(f"{what}: exit code {code}, {text.strip()[-160:]!r}", code == 2 and expected in text)
    return good


def late(folder: Path, expected) -> bool:  # type: ignore[no-untyped-def]
    """One is away for longer than the others wait."""
    waits = ("--patience", "4", "--rounds", str(ROUNDS))
    agents = {name: start(folder, name, *waits, run="late") for name in NAMES}
    restart(folder, agents, "west", after=(1, 3), pause=10.0, run="late", more=waits)
    say(f"exit codes {finish(agents)}")
    good = True
    for i, name in enumerate(NAMES):
        off, ratio = 0.0, 1.0
        for site in expected:
            found, exact = draws(folder, name, site), expected[site].values[i]
            off = max(off, float((np.abs(found.mean(0) - exact.mean(0)) / exact.std(0)).max()))
            ratio = max(ratio, float(np.exp(np.abs(np.log(found.std(0) / exact.std(0)))).max()))
        text = f"{name}, after west was away: means {off:.1e} SDs off, SDs by {ratio - 1:.1e}"
        good &= say(text, off < CLOSE and ratio < 1 + CLOSE)
    return good


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "out/rehearsal-peers").resolve()))
