"""Clients in Ray actors, on one machine or many; an actor has several clients, one process and one thread.

Pyro is not thread-safe, so that parallel work needs processes. An actor receives the model and the rows of its clients
once, builds its `Problem`, and keeps its clients' states. The model is sent by cloudpickle, and Ray pickles all
messages. Use this executor only on your own machine or a trusted cluster, not with clients of other owners.
"""

from __future__ import annotations

import math
import os
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pyro_fed.conventions.resources import now, tick
from pyro_fed.conventions.setting_checks import check_at_least, check_choice, check_positive
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.errors import SettingError, StoppedError
from pyro_fed.runtime.executors.local import Sequential, Vectorised
from pyro_fed.runtime.executors.remote import Host, Remote, Request, Share, share_of

#: Largest number of restarts of dead workers in a phase, since some work may kill every worker.
MAX_RESTARTS = 3
#: Interval of checks of the run's time limit while waiting for workers, in seconds.
CLOCK_INTERVAL = 0.5
#: How an actor works through the clients of a round.
WITHIN = {"sequential": Sequential, "vectorised": Vectorised}


class Ray(Remote):
    """Clients spread over worker processes.

    The result equals that of the sequential executor bit by bit, with any number of workers. Starting a worker takes
    seconds: `with pf.executors.Ray(4) as executor:` keeps the workers for several runs.

    A worker that dies is restarted for the next run at the latest. Within a run it is restarted if its clients' states
    are known to the server, because they have none or a checkpoint has just collected them. Otherwise its clients are
    left out of the rest of the run.

    Args:
        num_workers: number of actors, each with one CPU.
        address: address of a running cluster, as for `ray.init`. By default it is the cluster to which this process is
            connected, or a new one on this machine, which is shut down at the end.
        timeout: limit on the time of a round, in seconds; None is no limit.
        startup: limit on the time in which the workers start, in seconds.
        within: how an actor does its clients' work: "sequential", or "vectorised", which is faster with many small
            clients and agrees up to rounding.

    Raises:
        SettingError: a setting out of its range, or Ray is not installed.

    Example:
        >>> with pf.executors.Ray(4) as executor:
        ...     idata = pf.run(pf.FedEP(), fed, executor=executor)
    """

    def __init__(
        self,
        num_workers: int,
        *,
        address: str | None = None,
        timeout: float | None = None,
        startup: float = 300.0,
        within: str = "sequential",
    ) -> None:
        self.num_workers, self.address, self.timeout = num_workers, address, timeout
        self.startup, self.within = startup, within
        check_at_least(self, 1, "num_workers")
        check_positive(self, "startup")
        check_positive(self, "timeout", allow_none=True)
        check_choice(self, "within", tuple(WITHIN))
        self._actors: list[Any] = []
        self._loaded: tuple[Problem, ClientData] | None = None
        self._ours = self._kept = False
        self._dead: set[int] = set()
        self._restarts = 0

    def __enter__(self) -> Ray:
        self._kept = True
        return self

    def __exit__(self, *_: object) -> None:
        self._kept = False
        self.close()

    def prepare(self) -> None:
        """Send the actors their clients' rows, unless they have them."""
        super().prepare()
        problem, data = self.problem, self.data
        self._restarts = 0
        if self._dead and self._loaded is not None:
            self._restart(sorted(self._dead))
        if not self._actors:
            self._launch()
        if (
            self._loaded is None
            or not _same_problem(self._loaded[0], problem)
            or not torch.equal(self._loaded[1][1], data[1])
        ):
            self._load(problem, data)

    def worker_of(self, client: int) -> int:
        """The worker of a client; clients are assigned to workers in turn."""
        return client % self.num_workers

    def exchange(self, requests: Mapping[int, Request]) -> dict[int, Any]:
        """Ask all workers at once; the answer of a worker that died, failed or is late is a sentence on why."""
        calls = {worker: self._actors[worker].answer.remote(request) for worker, request in requests.items()}
        done = _wait_for_calls(list(calls.values()), self.timeout)
        return {
            worker: self._outcome(worker, call)
            if call in done
            else f"no answer from worker {worker} within {self.timeout} s"
            for worker, call in calls.items()
        }

    def _outcome(self, worker: int, call: Any) -> Any:
        ray = _ray()
        try:
            return ray.get(call)
        except ray.exceptions.RayTaskError as error:
            return f"its worker raised {error.cause!r}"
        except ray.exceptions.RayActorError:
            self._dead.add(worker)
            return "its worker died"

    def revived(self, workers: list[int]) -> list[int]:
        """Restart dead workers whose clients' states are here, at most `MAX_RESTARTS` times a phase."""
        again = [worker for worker in workers if worker in self._dead and self.restorable(worker)]
        if not again or self._restarts == MAX_RESTARTS:
            return []
        self._restarts += 1
        self._restart(again)
        return again

    def _restart(self, workers: list[int]) -> None:
        """Replace dead actors by new ones, and send these the rows of their clients."""
        kind = _ray().remote(num_cpus=1)(_Actor)
        for worker in workers:
            self._actors[worker] = kind.remote(self.within, sys.path)
        problem, data = self._loaded or (self.problem, self.data)
        self._dead -= set(workers)
        self._load(problem, data, workers)

    def close(self) -> None:
        """End the actors, and Ray itself if this executor started it."""
        if self._kept:
            return
        for actor in self._actors:
            _ray().kill(actor)
        self._actors, self._loaded, self._dead = [], None, set()
        if self._ours:
            _ray().shutdown()
            self._ours = False

    def _launch(self) -> None:
        ray = _ray()
        if not ray.is_initialized():
            self._ours = True
            own = {} if self.address else {"num_cpus": self.num_workers, "include_dashboard": False}
            ray.init(address=self.address, log_to_driver=False, configure_logging=False, **own)
        kind = ray.remote(num_cpus=1)(_Actor)
        self._actors = [kind.remote(self.within, sys.path) for _ in range(self.num_workers)]

    def _load(self, problem: Problem, data: ClientData, only: list[int] | None = None) -> None:
        """Send workers, all by default, the rows of their clients."""
        ray = _ray()
        model = ray.put(pickle_model(problem.model))
        homes = self._positions_by_worker(list(self.place))
        loads = [
            self._actors[worker].load.remote(model, share_of(problem, data, at.tolist(), at))
            for worker, at in homes.items()
            if only is None or worker in only
        ]
        try:
            ray.get(loads, timeout=self.startup)
        except ray.exceptions.GetTimeoutError as error:
            free = ray.available_resources().get("CPU", 0)
            raise SettingError(
                f"Ray: {self.num_workers} workers of one CPU each did not start within {self.startup} s; "
                f"{free:g} CPUs are free now. Ask for fewer, or for a longer startup"
            ) from error
        except ray.exceptions.RayActorError as error:
            raise StoppedError(f"Ray: a worker died while it received its clients' rows: {error}") from error
        self._loaded = problem, data


def _wait_for_calls(calls: list[Any], timeout: float | None) -> list[Any]:
    """The calls that ended within `timeout` seconds; TimeIsUp if the run's time limit is reached."""
    end = math.inf if timeout is None else now() + timeout
    while True:
        done, missing = _ray().wait(calls, num_returns=len(calls), timeout=min(CLOCK_INTERVAL, max(0.0, end - now())))
        if not missing or now() >= end:
            return list(done)
        tick()


def _same_problem(loaded: Problem, wanted: Problem) -> bool:
    """Whether the actors have this problem, apart from the number of rounds, which differs from phase to phase."""
    before, now = loaded.compiler, wanted.compiler
    rest = (field.name for field in fields(loaded) if field.name != "compiler")
    same = all(getattr(loaded, name) is getattr(wanted, name) for name in rest)
    return same and (before.level, before.auto) == (now.level, now.auto)


class _Actor:
    """One worker process."""

    def __init__(self, within: str, path: list[str]) -> None:
        torch.set_num_threads(1)
        sys.path.extend(entry for entry in path if entry not in sys.path)
        self.within = within

    def load(self, model: bytes, share: Share) -> None:
        """Build the problem of this worker's clients."""
        problem, data = share.build(_ray().cloudpickle.loads(model))
        self.host = Host(problem, data, share.clients, WITHIN[self.within]())

    def answer(self, request: Request) -> Any:
        """The answer of this worker's clients to one request, see `Host.answer`."""
        return self.host.answer(request)


def pickle_model(model: Callable[..., Any]) -> bytes:
    """A model as bytes: by reference if it is installed, else with its module's code for workers that lack it."""
    pickler = _ray().cloudpickle
    module = sys.modules[(type(model) if isinstance(model, nn.Module) else model).__module__]
    installed = Path(getattr(module, "__file__", None) or "").is_relative_to(sysconfig.get_path("purelib"))
    if installed or module.__name__ == "__main__":
        return bytes(pickler.dumps(model))
    pickler.register_pickle_by_value(module)
    try:
        return bytes(pickler.dumps(model))
    finally:
        pickler.unregister_pickle_by_value(module)


def _ray() -> Any:
    """Ray, without usage statistics, and without changes to the accelerators that a worker sees."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise SettingError("executors.Ray needs the extra: pip install 'pyro_fed[ray]'") from error
    return ray
