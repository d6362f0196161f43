"""What only some algorithms do is called only where they have taken it up; methods without that are refused."""

from dataclasses import dataclass

import pytest
from algorithms import ALGORITHMS, unequal_lines

import pyro_fed as pf
from pyro_fed.algorithm.capabilities import ServerWork, check_taken_up, resolved


@dataclass(frozen=True, kw_only=True)
class Forgetful(pf.FedAvg):
    """An algorithm with the server's own work, which has not said so."""

    def prepare(self, problem, shared):
        return shared


@dataclass(frozen=True, kw_only=True)
class Mindful(Forgetful, ServerWork):
    """The same, which has."""


def test_methods_that_nobody_would_call_are_refused():
    with pytest.raises(pf.SettingError, match=r"Forgetful has prepare, .*`class Forgetful\(Algorithm, ServerWork\)`"):
        pf.run(Forgetful(), unequal_lines(), progress=False)
    check_taken_up(Mindful())


@pytest.mark.parametrize("make", [row[1] for row in ALGORITHMS], ids=[row[0] for row in ALGORITHMS])
def test_the_package_forgets_none(make):
    check_taken_up(resolved(make()))
