"""A run that returns the server's last state, without draws: for what is computed from the state itself."""

from __future__ import annotations

from typing import NamedTuple

import torch

from pyro_fed import policy
from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.states import State
from pyro_fed.density.compiling.compiler import threads
from pyro_fed.federation.federation import Federation
from pyro_fed.runtime.context import Context
from pyro_fed.runtime.executors import resolve
from pyro_fed.runtime.rounds import run_phases


class Final(NamedTuple):
    """The server's last state, and whether the algorithm stopped by its own criterion; None if it has none."""

    shared: State
    converged: bool | None


def final_state(algorithm: Algorithm, federation: Federation, *, seed: int = 0) -> Final:
    """Run an algorithm to its end, without progress bar, warnings, compilation or draws.

    An algorithm without a server needs `pyro_fed.run`, which takes a graph.

    Raises:
        SettingError: an algorithm without a server.
        DivergenceError: an update is not finite.

    Example:
        >>> final_state(pf.FedLaplace(), fed).converged
        True
    """
    record = Record(federation.client_names)
    context = Context(federation, federation.problem, None, resolve("vectorised"), seed, progress=False, record=record)
    algorithm = policy.resolve(algorithm, federation.problem.traits).algorithm
    with threads(1), torch.no_grad():
        try:
            shared = run_phases(algorithm, context, algorithm.default_rounds(federation.num_clients), None)
        finally:
            context.executor.close()
    return Final(shared, record.converged)
