"""Agents in processes of their own on loopback, with certificates, and the simulation that they are compared with."""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
import time
import warnings
from pathlib import Path

import torch
from conjugate import data, model

import pyro_fed as pf

NAMES = ("north", "east", "south", "west", "centre")
#: Loaded once, in a process without threads, from which agents are forked.
PRELOADED = ["arviz", "pyro_fed.runtime.run", "pyro_fed.infer.peers.p2p_vi", "conjugate"]


def free_ports(count):
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def peers_file(folder, names=NAMES, graph='graph = "ring"'):
    """A peers file over free ports, and the agents' certificates beside it."""
    from pyro_fed.runtime.agents.certificates import write_certificates

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


def simulated(algorithm, graph, names=NAMES, **options):
    """The same in one process."""
    clients = {name: rows_of(i) for i, name in enumerate(names)}
    fed = pf.Federation.from_clients(model, clients, plate="data")
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
    from pyro_fed.runtime.agents.agent import Agent, run_agent
    from pyro_fed.runtime.agents.certificates import Identity
    from pyro_fed.runtime.agents.peers import load_peers
    from pyro_fed.runtime.agents.settings import LinkSettings

    torch.set_num_threads(1)
    warnings.simplefilter("ignore", UserWarning)
    began = time.perf_counter(), time.process_time()
    peers = load_peers(folder / "peers.toml")
    options = {"seed": 3, "num_draws": 50, "compile": "off", "progress": False} | options
    agent = Agent(
        model=model,
        plate="data",
        rows=rows_of(peers.number(name)),
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
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(PRELOADED)
        self.processes = {}

    def start(self, name, **more):
        given = (self.folder, name, self.algorithm, self.out(name), self.options | more, self.waits)
        self.processes[name] = self.context.Process(target=work, args=given, name=name)
        self.processes[name].start()

    def out(self, name):
        return self.folder / f"{name}.nc"

    def log(self, name):
        return self.folder / f"{name}.log"

    def join(self, seconds=400):
        """Wait for all; exit codes by name."""
        end = time.monotonic() + seconds
        for process in self.processes.values():
            process.join(max(0.1, end - time.monotonic()))
        codes = {name: process.exitcode for name, process in self.processes.items()}
        for process in self.processes.values():
            if process.exitcode is None:
                process.kill()
                process.join()
        return codes
