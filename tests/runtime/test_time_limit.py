"""A limit of time: what is returned is what the whole rounds before it gave, wherever in a round it was reached."""

import os
import signal
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from algorithms import unequal_lines
from short_runs import quiet, values

import pyro_fed as pf
from pyro_fed.cli.termination import terminated_as_interrupted
from pyro_fed.conventions import time_limit
from pyro_fed.conventions.time_limit import TimeIsUp, tick, until
from pyro_fed.runtime.executors import ray


@pytest.fixture
def clock(monkeypatch):
    """A clock that is a second later whenever it is looked at."""
    now = SimpleNamespace(seconds=0)

    def later():
        now.seconds += 1
        return now.seconds

    monkeypatch.setattr(time_limit, "time", SimpleNamespace(monotonic=later))
    return now


ROUNDS = 4
#: With a start of its own or without, chains that have their rounds at once, particles, sites that clients keep, no
#: server.
ALGORITHMS = {
    "fedep": pf.FedEP(),
    "fedep_prior": pf.FedEP(start="prior"),
    "fedlaplace": pf.FedLaplace(),
    "pvi": pf.PVI(start="prior"),
    "dsvgd": pf.DSVGD(num_particles=5, surrogates=pf.FedEP(start="prior"), num_rounds=ROUNDS)
    if "num_rounds" in pf.DSVGD.__dataclass_fields__
    else pf.DSVGD(num_particles=5),
    "fsgld": pf.FSGLD(burn_in=0, surrogates=pf.FedEP(start="prior")),
    "p2p_vi": pf.P2PVI(),
}


@pytest.mark.parametrize("executor", ["vectorised", "sequential"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_is_returned_is_what_the_whole_rounds_gave(name, executor, clock):
    """The limit falls on many ticks of the run, each in the middle of something."""
    algorithm, fed = ALGORITHMS[name], unequal_lines()
    whole = quiet(algorithm, fed, executor=executor, num_rounds=ROUNDS, max_seconds=1e9)
    last = clock.seconds
    started = whole.attrs["num_rounds"] - ROUNDS
    seen = {}
    for limit in np.unique(np.linspace(1, last, 12).astype(int)):
        clock.seconds = 0
        try:
            found = quiet(algorithm, fed, executor=executor, num_rounds=ROUNDS, max_seconds=float(limit))
        except pf.TimeLimitError as error:
            assert error.state
            continue
        seen[found.attrs["num_rounds"] - started] = found
    for rounds, found in seen.items():
        if 0 < rounds < ROUNDS:
            alone = quiet(algorithm, fed, executor=executor, num_rounds=rounds)
            assert np.array_equal(values(found), values(alone)), rounds
            assert f"after {rounds} of {ROUNDS} rounds" in found.attrs["doubts"]
            assert found.attrs["stopped"].startswith("stopped at the limit of")
            assert found.attrs.get("converged", 0) == 0
    assert len(seen) > 2
