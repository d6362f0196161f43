"""Runs of a few rounds, for tests of the round loop."""

import warnings
from dataclasses import dataclass

import numpy as np
from algorithms import graph_of

import pyro_fed as pf
from pyro_fed.algorithm.schedule import Schedule

QUIET = {"progress": False, "compile": "off", "audit": False}
#: What `quiet` adds.
START = {"num_rounds": 4}


@dataclass(frozen=True)
class Interrupting(Schedule):
    """Clients in turn, and the user's Ctrl-C at the start of round `at`."""

    at: int

    def select(self, round, num_clients, rng):
        if round == self.at:
            raise KeyboardInterrupt
        return [round % num_clients]


def quiet(algorithm, federation, **options):
    """A run of a few rounds, without the warnings that so short a run deserves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return pf.run(algorithm, federation, **(START | QUIET | graph_of(algorithm, federation) | options))


def values(idata):
    """All draws of a result, one after the other."""
    return np.concatenate([idata.posterior[name].values.ravel() for name in sorted(idata.posterior.data_vars)])
