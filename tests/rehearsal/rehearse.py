"""The rehearsal of a deployment: three hospitals and a server on loopback, over TLS, with what goes wrong in earnest.

    python tests/rehearsal/rehearse.py [--keep FOLDER]       (`make rehearsal`)

It stands among the tests since it passes or fails, and is not one of the suite, which it would make minutes longer: it
waits for the deadlines of real processes. `docs/deployment.md` follows it line by line. Needs Linux, and the extra
`test` (Flower brings `cryptography`). Everything is in a temporary folder, all ports are free ones of loopback, and
every process is ended, however it ends.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

from deployment import Deployment, wait_until
from processes import Process

HOSPITALS = ["ward-1", "ward-2", "ward-3"]
#: From the prior, so that no phase needs all hospitals; damped, as Laplace's sites are: some fourteen rounds, enough
#: to kill somebody in.
MODEL = "linear_regression"
RECIPE = """\
description = "FedEP from the prior"
algorithm = "pyro_fed.infer:FedEP"

[settings]
start = "prior"
client = "laplace"
"""
#: What `flwr run` calls the app that the hospitals have signed.
SIGNED = "@pyro-fed/trial==1.0.0"
#: What is in a patient's row, in a file that only the hospitals have; and an app of somebody else that sends it home.
MARK = "hiv-positive-4711"
FOREIGN = {
    "pyproject.toml": """\
[project]
name = "foreign"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[tool.flwr.app]
publisher = "somebody"
[tool.flwr.app.components]
serverapp = "foreign.apps:server"
clientapp = "foreign.apps:client"
[tool.flwr.app.config]
""",
    "foreign/__init__.py": "",
    "foreign/apps.py": """\
from pathlib import Path
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()

@client.query()
def read(message, context):
    rows = Path({patients!r}).read_text()
    return Message(RecordDict({{"rows": ConfigRecord({{"text": rows}})}}), reply_to=message)

@server.main()
def main(grid, context):
    empty = RecordDict({{"ask": ConfigRecord({{}})}})
    asked = [Message(empty, node, MessageType.QUERY) for node in grid.get_node_ids()]
    for reply in grid.send_and_receive(asked, timeout=120):
        got = reply.error.reason if reply.has_error() else reply.content["rows"]["text"]
        print("GOT", reply.metadata.src_node_id, got)
    print("ALL ASKED", len(asked))
""",
}
#: Seconds that a step may take: a round is seconds of work, and a machine that does other work too makes minutes of it.
LIMIT = 600.0
#: Deadline of a client's reply in a round, in seconds.
TIMEOUT = 240.0
#: How far means (in SDs) and SDs may be from the simulation's: ten times what FedEP's tolerance leaves. Both end before
#: the fixed point, after other rounds.
PRECISION = 0.02


class Log:
    """The steps, with what they have shown, and whether all have passed."""

    def __init__(self) -> None:
        self.began, self.failed = time.monotonic(), 0

    def say(self, text: str) -> None:
        """A line with the time."""
        print(f"{time.monotonic() - self.began:6.1f} s  {text}", flush=True)

    def check(self, holds: object, what: str) -> None:
        """A line with PASS or FAIL."""
        self.failed += not holds
        self.say(f"{'PASS' if holds else 'FAIL'}  {what}")


def rehearse(folder: Path, log: Log) -> None:
    """All steps, in the order of the guide.

    Raises:
        TimeoutError: a step has not happened in time.
    """
    with Deployment(folder) as all_of_it:
        start(all_of_it, log)
        first = begin(all_of_it, log)
        lose_a_hospital(all_of_it, first, log)
        lose_the_server(all_of_it, first, log)
        resume(all_of_it, log)
        check_stranger(all_of_it, log)
        refuse_a_foreign_app(all_of_it, log)
        refuse_a_changed_app(all_of_it, log)
        everyone = [*all_of_it.nodes.values(), all_of_it.link]
    log.check(all(one is not None and one.code is not None for one in everyone), "every process has ended")
    compare(folder, log)


def start(deployment: Deployment, log: Log) -> None:
    """Steps 1 to 4: credentials, the SuperLink, keys, SuperNodes and a stranger's."""
    folder = deployment.folder
    deployment.make_credentials([*HOSPITALS, "stranger", "careless"])
    keys = [*folder.glob("*.key"), *folder.glob("*.reviewer")]
    secret = [path for path in keys if path.stat().st_mode & 0o077]
    log.check(
        not secret,
        "1  an authority, the server's certificate, nodes' and reviewers' keys that only their owner can read",
    )
    deployment.start_link()
    deployment.start_hub()
    log.check(speaks_tls_alone(deployment.port), f"2  the SuperLink speaks TLS alone, at port {deployment.port}")
    codes = {name: deployment.register(name).returncode for name in HOSPITALS}
    log.check(not any(codes.values()), f"3  the keys of {', '.join(HOSPITALS)} are registered, the stranger's is not")
    for part, name in enumerate(HOSPITALS):
        deployment.start_node(name, part, len(HOSPITALS))
    deployment.start_node("stranger", 0, len(HOSPITALS))
    here = [deployment.nodes[name] for name in HOSPITALS]
    wait_until(lambda: all("SuperNode ID" in node.text() for node in here), LIMIT, "the nodes join", here)
    log.check(True, "4  three SuperNodes have joined, each by its key; each trusts its own hospital's reviewer")


def begin(deployment: Deployment, log: Log) -> Process:
    """Step 5: an app, signed by the hospitals, and a run of it with a quorum and a checkpoint."""
    folder = deployment.folder
    (folder / "rehearsal.toml").write_text(RECIPE)
    command = ["pyro-fed", "flower", "new", "trial", "--model", MODEL, "--recipe", "rehearsal.toml", "--clients", "3"]
    made = deployment.command(*command)
    log.check(made.returncode == 0, f"5  the app is written: {' '.join(command)}")
    fab = deployment.build("trial")
    codes = {name: deployment.sign(fab, name).returncode for name in HOSPITALS}
    log.check(not any(codes.values()), f"   {fab.name} is signed by {', '.join(HOSPITALS)}")
    process = run(deployment, "first", resume=False)
    wait_until(lambda: rounds(process) >= 3, LIMIT, "three rounds", [process])
    log.check(True, f"   a run with a quorum of 2 and a checkpoint has had {rounds(process)} rounds")
    return process


def lose_a_hospital(deployment: Deployment, process: Process, log: Log) -> None:
    """Step 6: a SuperNode is killed; the rounds go on; it is started again and takes part by its name."""
    deployment.nodes["ward-2"].kill()
    at = rounds(process)
    log.say(f"6  ward-2 is killed after round {at}")
    wait_until(lambda: "2 clients" in after(process, at), LIMIT, "a round of two", [process])
    log.check(True, f"   the rounds go on with the other two: {line_with(process, '2 clients')}")
    at = rounds(process)
    deployment.start_node("ward-2", 1, len(HOSPITALS))
    log.say(f"   ward-2 is started again after round {at}")
    wait_until(lambda: "3 clients" in after(process, at), LIMIT, "a round of three", [process])
    log.check(True, "   it takes part again, by its name, with the server's copy of its state")


def lose_the_server(deployment: Deployment, process: Process, log: Log) -> None:
    """Step 7: the SuperLink and the ServerApp are killed."""
    at = rounds(process)
    wait_until(lambda: rounds(process) > at, LIMIT, "another round", [process])
    assert deployment.link is not None
    deployment.link.kill()
    process.kill()
    kept = sorted(path.name for path in (deployment.folder / "checkpoint").glob("round-*"))
    log.check(kept, f"7  the server is killed after round {rounds(process)}; its checkpoint holds {', '.join(kept)}")


def resume(deployment: Deployment, log: Log) -> None:
    """Step 8: the SuperLink is started again, and the run resumed."""
    log_so_far = len(deployment.nodes["ward-1"].text())
    deployment.start_link()
    process = run(deployment, "second", resume=True)
    wait_until(lambda: "rounds" in process.text(), LIMIT, "the run goes on", [process])
    first = min(numbers(process))
    log.check(first > 3, f"8  the run goes on with round {first}; the nodes were not touched")
    wait_until(lambda: "Written to" in process.text(), LIMIT, "the run ends", [process])
    log.check((deployment.folder / "posterior.nc").exists(), f"   {line_with(process, 'Written to')}")
    log.check("SuperNode ID" not in deployment.nodes["ward-1"].text()[log_so_far:], "   ward-1 has run on all along")


def check_stranger(deployment: Deployment, log: Log) -> None:
    """Step 9: the node without a registered key never got in."""
    stranger = deployment.nodes["stranger"]
    wait_until(lambda: stranger.code is not None, LIMIT, "the stranger gives up", None)
    text = stranger.text()
    log.check("SuperNode ID" not in text and stranger.code, f"9  the stranger is refused: {reason(text)}")
    listed = deployment.flwr("supernode", "list", "hospitals").stdout
    log.check(listed.count("online") >= 3, "   `flwr supernode list` has the three hospitals online")


def refuse_a_foreign_app(deployment: Deployment, log: Log) -> None:
    """Step 10: an app that reads the patients' file runs at a node that trusts everybody, and at no other."""
    folder = deployment.folder
    patients = folder / "patients.csv"
    patients.write_text(f"patient,status\n1,{MARK}\n")
    for name, text in FOREIGN.items():
        path = folder / "foreign" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(patients=str(patients)) if name.endswith("apps.py") else text)
    deployment.register("careless")
    careless = deployment.start_node("careless", 0, len(HOSPITALS), trusts=False)
    wait_until(lambda: "SuperNode ID" in careless.text(), LIMIT, "careless joins", [careless])
    process = deployment.run("foreign", "foreign")
    wait_until(lambda: process.code is not None, LIMIT, "the foreign app ends", [careless])
    log.check("ALL ASKED" in process.text(), "10 a foreign app has asked all nodes for their patients")
    got = [line.partition("GOT ")[2] for line in process.text().splitlines() if "GOT " in line]
    refused = [line for line in got if "could not be verified" in line]
    text = process.text()
    log.check(len(refused) == len(HOSPITALS), f"   it is unsigned: {len(refused)} hospitals say: {refused[:1]}")
    logs = [deployment.nodes[name].text() for name in HOSPITALS]
    log.check(all("FAB could not be verified" in one for one in logs), "   and so do their nodes' logs")
    log.check(text.count(MARK) == 1, "   a node without --trusted-entities, for comparison, has sent its patients.csv")
    careless.kill()


def refuse_a_changed_app(deployment: Deployment, log: Log) -> None:
    """Step 10: an app that was changed after it was signed is refused, with its old signatures."""
    folder = deployment.folder
    client = folder / "trial" / "trial" / "client_app.py"
    client.write_text(client.read_text() + f"\nprint(open({str(folder / 'patients.csv')!r}).read())\n")
    project = folder / "trial" / "pyproject.toml"
    project.write_text(project.read_text().replace('version = "1.0.0"', 'version = "1.0.1"'))
    (signed,) = (folder / "apps").glob("*.fab")
    changed = deployment.build("trial")
    for name in HOSPITALS:
        old = signed.with_name(f"{signed.name}.{name}.signature")
        changed.with_name(f"{changed.name}.{name}.signature").write_bytes(old.read_bytes())
    process = run(deployment, "changed", resume=False, app=SIGNED.replace("1.0.0", "1.0.1"), into="-changed")
    wait_until(lambda: process.code is not None, LIMIT, "the changed app ends", None)
    said = [line.strip() for line in process.text().splitlines() if "could not be verified" in line]
    log.check(said, f"   a changed app with the old signatures: {said[-1] if said else 'it ran'}")
    logs = [deployment.nodes[name].text() for name in HOSPITALS]
    log.check(all("FAB verification failed" in one for one in logs), "   and so do the logs of all three nodes")
    log.check(not any(MARK in one for one in logs), "   no line of the foreign or the changed app has run at them")


def compare(folder: Path, log: Log) -> None:
    """Step 11: the answer is that of a simulation with the same recipe."""
    import arviz as az

    import pyro_fed as pf
    from pyro_fed.recipes import library, recipe
    from pyro_fed.recipes.experiment import build_federation

    federation, _ = build_federation(library.load_model(MODEL), len(HOSPITALS), "iid", 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        here = pf.run(recipe.load(folder / "rehearsal.toml").build(), federation, compile="trace", progress=False)
        there = az.from_netcdf(str(folder / "posterior.nc"))
    mean, sd = 0.0, 0.0
    for name, draws in here.posterior.items():
        mine, theirs = (x.values.reshape(-1, *x.shape[2:]) for x in (draws, there.posterior[name]))
        mean = max(mean, float((abs(theirs.mean(0) - mine.mean(0)) / mine.std(0)).max()))
        sd = max(sd, float(abs(theirs.std(0) / mine.std(0) - 1).max()))
    same = max(mean, sd) < PRECISION
    log.check(same, f"11 the simulation's answer: means within {mean:.2g} SD, SDs within {100 * sd:.2g} %")
    took_part = there.federation["participated"].values
    away = {name: int((~took_part[:, k]).sum()) for k, name in enumerate(HOSPITALS)}
    log.say(f"   {len(took_part)} rounds; away: " + ", ".join(f"{name} {count}" for name, count in away.items()))
    judged = there.attrs["audited"] and not there.attrs["doubts"]
    k = there.attrs.get("pareto_k", float("nan"))
    log.check(judged, f"   the hospitals' likelihoods weigh its draws, by sums alone: Pareto k {k:.2g}, no doubts")
    log.say(f"   {there.attrs.get('unchecked', 'not judged')}")


def run(deployment: Deployment, name: str, resume: bool, app: str = SIGNED, into: str = "") -> Process:
    """A run of the signed app, or of another one, whose files then have names of their own."""
    return deployment.run(
        app,
        name,
        min_clients=2,
        timeout=TIMEOUT,
        checkpoint=str(deployment.folder / f"checkpoint{into}"),
        resume=resume,
        out=str(deployment.folder / f"posterior{into}.nc"),
    )


def numbers(process: Process) -> list[int]:
    """Rounds of which a run's log tells."""
    return [int(found) for found in re.findall(r"FedEP: (\d+) of \d+ rounds", process.text())]


def rounds(process: Process) -> int:
    """How many rounds a run has had."""
    return max(numbers(process), default=0)


def after(process: Process, number: int) -> str:
    """What a run's log says of the rounds after one."""
    lines = process.text().splitlines()
    return "\n".join(
        line for line in lines if (found := re.search(r"FedEP: (\d+) of", line)) and int(found[1]) > number
    )


def line_with(process: Process, what: str) -> str:
    """The last line of a log with a text, without Flower's head."""
    lines = [line for line in process.text().splitlines() if what in line]
    return re.sub(r"^.*?INFO.*?:\s+", "", lines[-1]) if lines else f"(no line with {what!r})"


def reason(text: str) -> str:
    """The last sentence of a log that says why a node was refused."""
    said = [line.strip() for line in text.splitlines() if "code:" in line or "refused" in line.lower()]
    return said[-1] if said else "(its log does not say why)"


def speaks_tls_alone(port: int) -> bool:
    """Whether a request without TLS gets no answer."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return not connection.recv(100).startswith(b"HTTP/")
    return True


def main() -> None:
    """Rehearse, and exit with 1 where anything has failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="an empty folder for the logs, which is not deleted")
    keep = parser.parse_args().keep
    log = Log()
    with tempfile.TemporaryDirectory(prefix="pyro_fed-rehearsal-") as temporary:
        folder = Path(temporary) if keep is None else keep.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            rehearse(folder, log)
        except (TimeoutError, subprocess.TimeoutExpired) as error:
            log.check(False, str(error))
    log.say("all steps have passed" if not log.failed else f"{log.failed} step(s) FAILED")
    sys.exit(bool(log.failed))


if __name__ == "__main__":
    main()
