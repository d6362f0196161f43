"""Runs of a few rounds, for tests of the round loop."""

import warnings

import numpy as np
from algorithms import graph_of

import pyro_fed as pf

QUIET = {"progress": False, "compile": "off"}


def quiet(algorithm, federation, **options):
    """A run of a few rounds, without the warnings that so short a run deserves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return pf.run(algorithm, federation, **{"num_rounds": 4, **QUIET, **graph_of(algorithm, federation), **options})


def values(idata):
    """All draws of a result, one after the other."""
    return np.concatenate([idata.posterior[name].values.ravel() for name in sorted(idata.posterior.data_vars)])
