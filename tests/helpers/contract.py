"""The contract of every algorithm of `algorithms.ALGORITHMS`: its case, which shares its runs, and new short runs.

The group of xdist keeps one algorithm's tests in one process, where they share them.
"""

import pytest
from algorithms import ALGORITHMS

from pyro_fed.testing import problems
from pyro_fed.testing.case import Case

CASES = {name: Case(make()) for name, make, _ in ALGORITHMS}


def in_one_process(name):
    """The mark that keeps an algorithm's tests together."""
    return pytest.mark.xdist_group(f"algorithm {name}")


def hierarchy():
    """Nine groups at three clients, each with an effect of its own."""
    return problems.groups()


def short_run(factory, federation, **options):
    """A new run of a new algorithm on a new federation, without the warnings that so short a run deserves."""
    return Case(factory(), federation()).run(**options)
