"""What every executor must agree on: one run of each family of algorithms."""

import warnings

import numpy as np
from algorithms import unequal_lines

import pyro_fed as pf

FAMILIES = {
    "DSVGD": (pf.DSVGD(num_particles=6, local_steps=3), {"num_rounds": 4}),
    "FedEP": (pf.FedEP(), {"num_rounds": 4}),
    "FSGLD": (pf.FSGLD(num_chains=2, local_steps=5, burn_in=0, batch_size=2), {"num_rounds": 4}),
    "P2PVI": (pf.P2PVI(), {"num_rounds": 4, "graph": pf.graph.ring(3)}),
}
_SEQUENTIAL = {}


def run(family, executor, **options):
    """The family's run on three unequal clients, without the warnings that so short a run deserves."""
    algorithm, settings = FAMILIES[family]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        fixed = {"progress": False, "compile": "off", "log_likelihood": False, "audit": False}
        return pf.run(algorithm, unequal_lines(), executor=executor, **{**fixed, **settings, **options})


def sequential(family):
    """The run that the others are compared with, made once."""
    if family not in _SEQUENTIAL:
        _SEQUENTIAL[family] = run(family, "sequential")
    return _SEQUENTIAL[family]


def assert_same(found, expected):
    """Bit by bit: posterior and what each client sent."""
    assert np.array_equal(found.posterior["w"].values, expected.posterior["w"].values)
    for name in ("participated", "bytes_up", "bytes_down"):
        assert np.array_equal(found.federation[name].values, expected.federation[name].values, equal_nan=True)
