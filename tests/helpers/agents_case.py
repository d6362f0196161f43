"""Agents in processes of their own on loopback, with certificates, and the simulation that they are compared with."""

from __future__ import annotations

import contextlib
import socket
import time
import warnings
from pathlib import Path

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from conjugate import data, model
from forks import process

import pyro_fed as pf

NAMES = ("north", "east", "south", "west", "centre")


def free_ports(count):
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def peers_file(folder, names=NAMES, graph='graph = "ring"'):
    """A peers file over free ports, and the agents' certificates beside it."""
    from pyro_fed.deployment.agents.certificates import write_certificates

    tables = [
        f'[agents.{name}]\naddress = "127.0.0.1:{port}"\n'
        for name, port in zip(names, free_ports(len(names)), strict=True)
    ]
    path = folder / "peers.toml"
    path.write_text("\n".join([graph, *tables]))
    write_certificates(folder / "certificates", names)
    return path


def rows_of(number, sizes=(9, 14, 12, 7, 11)):
    """Rows of one agent, sorted by the first covariate."""
    x, y = data(sum(sizes))
    order = x[:, 0].argsort()
    begin = sum(sizes[:number])
    at = order[begin : begin + sizes[number]]
    return x[at], y[at]


def one_a_row(noise, y):
    with _hospitals(len(noise)) as a:
        pyro.sample("y", dist.Normal(a, noise), obs=y)


def counts(whose, y, count, size):
    with _hospitals(count) as a:
        pass
    with pyro.plate("patient", len(y)):
        pyro.sample("y", dist.Poisson((a[whose] + size[whose]).exp()), obs=y)


@contextlib.contextmanager
def _hospitals(number):
    mu = pyro.sample("mu", dist.Normal(0.0, 2.0))
    tau = pyro.sample("tau", dist.LogNormal(0.0, 0.5))
    with pyro.plate("hospital", number):
        yield pyro.sample("a", dist.Normal(mu, tau))


def groups_of(number, kind):
    """Rows of one agent of hospitals, as many as it has: of each a patient, or several in any order."""
    groups, rng = 2 + number % 2, np.random.default_rng(number)
    whose = rng.permutation(np.repeat(np.arange(groups), 1 if kind is one_a_row else groups + 2))
    noise, y = rng.uniform(0.5, 1.5, len(whose)), 2 * rng.normal(size=len(whose))
    if kind is one_a_row:
        return noise, y
    return whose, rng.poisson(2.0, len(whose)).astype(float), groups, 0.3 * rng.normal(size=groups)


#: Models: the plate, those nested in it, and an agent's rows.
CASES = {
    model: ("data", None, rows_of),
    one_a_row: ("hospital", None, lambda number: groups_of(number, one_a_row)),
    counts: ("hospital", {"patient": "whose"}, lambda number: groups_of(number, counts)),
}


def simulated(algorithm, graph, names=NAMES, kind=model, **options):
    """The same in one process."""
    plate, rows, own = CASES[kind]
    clients = {name: own(i) for i, name in enumerate(names)}
    fed = pf.Federation.from_clients(kind, clients, plate=plate, rows=rows)
    options = {"seed": 3, "num_draws": 50, "compile": "off", "audit": False, "progress": False} | options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return pf.run(algorithm, fed, graph=graph, executor="sequential", **options)


def work(folder, name, algorithm, out, options, waits):
    """An agent's process; what it raises goes to NAME.log as well."""
    try:
        _work(folder, name, algorithm, out, options, waits)
    except Exception as error:
        (folder / f"{name}.log").write_text(f"{type(error).__name__}: {error}")
        raise


def _work(folder, name, algorithm, out, options, waits):
    from pyro_fed.deployment.agents.agent import Agent, run_agent
    from pyro_fed.deployment.agents.certificates import Identity
    from pyro_fed.deployment.agents.peers import LinkSettings, load_peers

    torch.set_num_threads(1)
    warnings.simplefilter("ignore", UserWarning)
    began = time.perf_counter(), time.process_time()
    peers = load_peers(folder / "peers.toml")
    options = {"seed": 3, "num_draws": 50, "compile": "off", "progress": False} | options
    kind = options.pop("kind", model)
    if "site" in options:
        from pyro_fed.deployment.policy import Gate

        options["gate"] = Gate.open(options.pop("site"), name)
    if "file" in options:
        from pyro_fed.recipes.library import load_model

        options["module"] = load_model(options.pop("file"), with_data=False)
    plate, nested, own = CASES[kind]
    agent = Agent(
        model=kind,
        plate=plate,
        nested=nested,
        rows=own(peers.number(name)),
        identity=Identity.load(folder / "certificates", name),
        peers=peers,
        algorithm=algorithm,
        settings=LinkSettings(**waits),
        **options,
    )
    idata = run_agent(agent)
    idata.to_netcdf(str(out))
    print(name, "wall", time.perf_counter() - began[0], "cpu", time.process_time() - began[1], flush=True)


class Rehearsal:
    """Agents' processes, started one by one."""

    def __init__(self, folder: Path, algorithm, waits=None, **options):
        self.folder, self.algorithm, self.options = folder, algorithm, options
        self.waits = {"patience": 120.0, "patience_all": 300.0, "retry_every": 0.05} | (waits or {})
        self.processes = {}

    def start(self, name, **more):
        given = (self.folder, name, self.algorithm, self.out(name), self.options | more, self.waits)
        self.processes[name] = process(work, *given, name=name)
        self.processes[name].start()

    def listening(self, name, seconds=120):
        """Wait until an agent's server is there."""
        from pyro_fed.deployment.agents.peers import load_peers

        peers = load_peers(self.folder / "peers.toml")
        host, port = peers.addresses[peers.number(name)].rsplit(":", 1)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1.0):
                return
            time.sleep(0.05)
        raise AssertionError(f"agent {name} does not listen after {seconds} s")

    def out(self, name):
        return self.folder / f"{name}.nc"

    def log(self, name):
        return self.folder / f"{name}.log"

    def join(self, seconds=400):
        """Wait for all; exit codes by name."""
        end = time.monotonic() + seconds
        for one in self.processes.values():
            one.join(max(0.1, end - time.monotonic()))
        codes = {name: one.exitcode for name, one in self.processes.items()}
        for one in self.processes.values():
            if one.exitcode is None:
                one.kill()
                one.join()
        return codes
