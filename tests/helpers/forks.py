"""Processes of their own, forked from one that has loaded what they need: to start Python and load it takes seconds.

That one is started once in a process of tests: tests that need it are marked as one group, `together`.
"""

from __future__ import annotations

import multiprocessing

import pytest

#: Loaded once, in a process without threads: what the benchmark's cells are forked from as well.
PRELOADED = [
    "pyro_fed.analysis.bench.preload",
    "pyro_fed.analysis.bench.cell",
    "pyro_fed.runtime.run",
    "conjugate",
]

together = pytest.mark.xdist_group("forks")


def process(target, *arguments, name=None):
    """A process that is not yet started; its function is one of a module."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context.Process(target=target, args=arguments, name=name)


def ended(target, *arguments):
    """The exit code of a process that calls a function."""
    one = process(target, *arguments)
    one.start()
    one.join()
    return one.exitcode
