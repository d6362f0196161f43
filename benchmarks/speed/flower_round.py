"""Where a Flower round's seconds go, under two source trees: messages and rounds.

    python -m benchmarks.speed.flower_round BEFORE AFTER [--rounds 6] [--nodes 1]

BEFORE and AFTER are checkouts (`git worktree add`). Flower starts a process for each message, so that its imports and
the reading of the client's rows are paid each time: the first table, least of three, with rows that are there already.
torch.func.grad alone imports torch's compiler, a second in the last row. The second one has the seconds of whole rounds
on loopback, over TLS, the trees in turn, with Flower's polling for tasks at its second and at a fifth.
Flower's node looks for messages every three seconds when it has none, which nothing of ours changes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

REHEARSAL = Path(__file__).parents[2] / "tests" / "rehearsal"
RECIPE = """\
description = "FedEP from the prior"
algorithm = "pyro_fed.infer:FedEP"
[settings]
start = "prior"
client = "laplace"
tolerance = 1e-12
[run]
num_rounds = {rounds}
"""
MODEL = "linear_regression"
MESSAGE = """
import json, sys, time
from collections import OrderedDict
laps, last = OrderedDict(), 0.0
def lap(name):
    global last
    now = time.process_time()
    laps[name], last = now - last, now
import flwr.supernode.runtime.run_clientapp
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.supercore.task_identity import TaskIdentity
lap("Python and Flower")
import torch, pyro
lap("torch and Pyro")
from pyro_fed.flower import client_app
import pyro_fed.deployment.flower.site
lap("the rest of pyro_fed")
app = client_app({model!r}, "fedep", lambda module, node_config: (torch.randn(150, 10), torch.randn(150)))
TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
context = Context(1, 1, {{"partition-id": 0, "num-partitions": 3}}, RecordDict(), {{}})
message = Message(RecordDict({{"settings": ConfigRecord({{}})}}), 1, MessageType.QUERY)
message.metadata.__dict__["_message_id"] = "1"
app(message, context)
lap("rows, model and its checks")
print(json.dumps(laps))
"""


def stages(tree: Path) -> dict[str, float]:
    """Processor seconds of the parts of one message, in a process of its own."""
    code = MESSAGE.format(model=MODEL)
    env = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0"}
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, env=env, cwd=tree, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def rounds(tree: Path, count: int, nodes: int, poll: float) -> list[float]:
    """Seconds of rounds on loopback."""
    sys.path.insert(0, str(REHEARSAL))
    from deployment import Deployment, wait_until

    more = {"PYTHONPATH": str(tree), "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(poll)}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "recipe.toml").write_text(RECIPE.format(rounds=count))
        with Deployment(folder, more) as deployment:
            names = [f"ward-{k}" for k in range(nodes)]
            deployment.make_credentials(names)
            deployment.start_link()
            for k, name in enumerate(names):
                deployment.register(name)
                deployment.start_node(name, k, nodes)
            words = ["flower", "new", "trial", "--model", MODEL, "--recipe", "recipe.toml", "--clients", str(nodes)]
            new = ["-c", f"from pyro_fed.cli.main import main; main({words!r})"]
            subprocess.run([sys.executable, *new], cwd=folder, env=deployment.env, check=True, capture_output=True)
            process = deployment.run(folder / "trial", "run", out=str(folder / "out.nc"), timeout=300.0)
            wait_until((folder / "out.nc").exists, 300.0 + 60 * count, "the run", [process])
            wait_until(lambda: process.code is not None, 60, "its end")
            import xarray as xr

            with xr.open_dataset(folder / "out.nc", group="federation", engine="h5netcdf") as record:
                found = record["seconds"].sum("client").values.tolist()
    return list(found)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--rounds", type=int, default=6, help="of the second table; 0: none")
    parser.add_argument("--nodes", type=int, default=1)
    given = parser.parse_args()
    trees = {"before": given.before.absolute(), "after": given.after.absolute()}
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
    for _ in range(3):
        for name, tree in trees.items():
            taken[name].append(stages(tree))
    print(f"{'processor seconds of a message':<36}" + "".join(f"{name:>10}" for name in trees))
    for part in taken["before"][0]:
        least = [min(one[part] for one in taken[name]) for name in trees]
        print(f"{part:<36}" + "".join(f"{value:>10.2f}" for value in least))
    if not given.rounds:
        return
    print(f"\n{'seconds of a round':<36}{'least':>10}{'median':>10}", flush=True)
    for poll in (1.0, 0.2):
        for name, tree in trees.items():
            found = rounds(tree, given.rounds, given.nodes, poll)
            row = f"{name}, tasks looked for every {poll:g} s"
            print(f"{row:<36}{min(found):>10.1f}{statistics.median(found):>10.1f}", flush=True)


if __name__ == "__main__":
    main()
