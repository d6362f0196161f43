"""The contract tests' runs: every algorithm on two small federations, few rounds, few draws.

`EVERY_ALGORITHM` parametrises a test by the rows of `algorithms.ALGORITHMS`. The run that several tests compare theirs
with is made once, by `baseline`; the group of xdist keeps one algorithm's tests in one process, where they share it.
"""

import functools
import warnings

import hierarchies
import pytest
from algorithms import ALGORITHMS, graph_of

import pyro_fed as pf

OPTIONS = {
    "num_rounds": 4,
    "num_draws": 8,
    "progress": False,
    "compile": "off",
    "log_likelihood": False,
    "audit": False,
}


def in_one_process(name):
    """The mark that keeps an algorithm's tests together."""
    return pytest.mark.xdist_group(f"algorithm {name}")


EVERY_ALGORITHM = pytest.mark.parametrize(
    ("factory", "federation"),
    [pytest.param(*row[1:], id=row[0], marks=in_one_process(row[0])) for row in ALGORITHMS],
)


def hierarchy():
    """Nine groups at three clients, each with an effect of its own."""
    return pf.Federation(hierarchies.means, hierarchies.CASES["means"].args, plate="group", num_clients=3)


def short_run(factory, federation, **options):
    """A new run of a new algorithm on a new federation, without the warnings that so short a run deserves.

    What is done in one round is not done again in three more.
    """
    algorithm, fed = factory(), federation()
    fixed = OPTIONS | ({"num_rounds": 1} if one_round(algorithm) else {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pf.run(algorithm, fed, **{**fixed, **graph_of(algorithm, fed), **options})


def one_round(algorithm):
    """Whether an algorithm is done in a single round, whose work another would repeat."""
    return algorithm.default_rounds(3) == 1


@functools.cache
def lasting(federation):
    """One federation for all tests, which keeps the steps traced on it: what many start from is traced once."""
    return federation()


@functools.cache
def baseline(factory, federation, **options):
    """`short_run`, made once: clients vectorised, one thread, seed 0; nothing compiled, but of the hierarchy.

    Its integrals take long where nothing is: there steps are traced that are called often, as is the default.
    """
    compiled = {"compile": "auto"} if federation is hierarchy else {}
    return short_run(factory, functools.partial(lasting, federation), **{**compiled, **options})


def again(factory, federation, **options):
    """`short_run` on the federation that lasts: after the first one it costs its steps alone, which are traced."""
    return short_run(factory, functools.partial(lasting, federation), compile="trace", **options)


@functools.cache
def traced(factory, federation, **options):
    """`again`, made once: what its like are compared with, bit by bit."""
    return again(factory, federation, **options)
