"""What a round and a run cost against the number of parameters: seconds, and the most memory that the process had.

    python -m benchmarks.networks --cost --hidden 1 3 13 133 1333 13333 --algorithms FedEP P2PVI

Every cell is a process of its own: the network of `benchmarks.networks` on the digits at ten clients, one thread. A
round is the median of the algorithm's own rounds but the first, in which steps are traced, in seconds of the processor.
Where it starts from is cut short: one step of averaging, and three rounds of the `FedEP` at whose Gaussian `FSGLD` and
`DSVGD` begin. The memory is what the run added to what the process had with its data loaded, as a multiple of 8 d
bytes, one vector of parameters in double precision; ten clients' messages of two vectors each are twenty of them. Linux
alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

import pyro_fed as pf
from pyro_fed.algorithm import Algorithm
from pyro_fed.analysis.bench.processes import Died, run_in_processes
from pyro_fed.density.problem import Problem
from pyro_fed.infer.peers.p2p_fedavg import PeerBurnIn
from pyro_fed.infer.stein.survey import Survey

#: Rounds of each run; the first one is left out.
ROUNDS = 3
SHORT = pf.infer.Averaging(rounds=1, chain_steps=1, unit="steps")


def short_fedep(large: bool) -> pf.FedEP:
    """FedEP that starts at once, where a model is large."""
    return pf.FedEP(start=SHORT) if large else pf.FedEP()


def short_fsgld(large: bool) -> pf.FSGLD:
    """FSGLD whose surrogates are had at once, where a model is large."""
    return pf.FSGLD(surrogates=FewRounds(start=SHORT)) if large else pf.FSGLD()


@dataclass(frozen=True, kw_only=True)
class ShortP2PVI(pf.P2PVI):
    """P2PVI that starts at once, where a model is large: averaging of a single step, which is no setting of it."""

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """One step in the place of forty rounds."""
        first = super().warm_start(problem)
        return replace(first, rounds=1, chain_steps=1) if isinstance(first, PeerBurnIn) else first


@dataclass(frozen=True, kw_only=True)
class ShortSurvey(Survey):
    """A survey around the Gaussian of three rounds, where a model is large: how many rounds is no setting of it."""

    def ep(self) -> pf.FedEP:
        """Rounds as few as those that are timed."""
        return FewRounds(start=SHORT)


@dataclass(frozen=True, kw_only=True)
class ShortDSVGD(pf.DSVGD):
    """DSVGD whose Gaussian is had at once, where a model is large."""

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """The short survey, of a large model."""
        if not problem.traits.large():
            return super().warm_start(problem)
        return ShortSurvey(num_particles=self.num_particles, begin="gaussian", temperature=self.temperature)


@dataclass(frozen=True, kw_only=True)
class FewRounds(pf.FedEP):
    """FedEP of as many rounds as are timed, where other algorithms begin at it."""

    def default_rounds(self, num_clients: int) -> int:
        """`ROUNDS`."""
        return ROUNDS


#: Each algorithm for a cost, by whether the model is large.
SHORTENED: dict[str, Callable[[bool], tuple[Any, dict[str, Any]]]] = {
    "FedAvg": lambda large: (pf.FedAvg(), {}),
    "FedEP": lambda large: (short_fedep(large), {}),
    "FedSEP": lambda large: (pf.infer.FedSEP(start=SHORT) if large else pf.infer.FedSEP(), {}),
    "PVI": lambda large: (pf.infer.PVI(start=SHORT) if large else pf.infer.PVI(), {}),
    "P2PVI": lambda large: (ShortP2PVI(), {"graph": pf.graph.complete(10)}),
    "FSGLD": lambda large: (short_fsgld(large), {}),
    "DSVGD": lambda large: (ShortDSVGD(), {}),
}


def one(name: str, hidden: int) -> dict[str, float]:
    """A cell, in this process."""
    from benchmarks.networks.__main__ import federation, parameters, quiet

    torch.set_num_threads(1)
    fed, _ = federation(hidden, 0)
    forget_peak()
    before = resident("VmRSS")
    algorithm, options = SHORTENED[name](fed.problem.traits.large())
    with quiet(), patch("time.perf_counter", time.process_time):  # rounds are timed by the processor's clock
        idata = pf.run(
            algorithm,
            fed,
            num_rounds=ROUNDS,
            num_draws=10,
            log_likelihood=False,
            audit=False,
            progress=False,
            **options,
        )
    seconds = idata["federation"]["seconds"].sum("client").values
    peak = resident("VmHWM")
    return {
        "seconds": float(np.median(seconds[-ROUNDS + 1 :])),
        "start": float(seconds[:-ROUNDS].sum()),
        "megabytes": (peak - before) / 1e6,
        "vectors": (peak - before) / (8 * parameters(hidden)),
    }


def forget_peak() -> None:
    """Have "VmHWM" count from here: the peak of what was before is none of the run's."""
    Path("/proc/self/clear_refs").write_text("5")


def resident(which: str) -> int:
    """Bytes of memory that this process has ("VmRSS") or had at most ("VmHWM"), as Linux counts them."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status[which].split()[0]) * 1024


def cell(name: str, hidden: int, limit: float) -> str:
    """`one` in a process of its own, as text; it says so if that takes longer than `limit` seconds of the processor."""
    ((_, found),) = run_in_processes(_one, [(name, hidden)], limit=limit, warm=False)
    if isinstance(found, Died):
        if found.late:
            return f"not in {limit:.0f} s"
        raise RuntimeError(f"{name}, {hidden} hidden units: {found.reason}")
    return f"{found['seconds']:.3f} s, {found['megabytes']:.0f} MB ({found['vectors']:.0f} d)"


def _one(task: tuple[str, int]) -> dict[str, float]:
    return one(*task)
