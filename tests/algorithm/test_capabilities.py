"""What only some algorithms do is called only where they have taken it up; methods without that are refused."""

from dataclasses import dataclass

import pytest
from algorithms import unequal_lines

import pyro_fed as pf
from pyro_fed.algorithm import capabilities
from pyro_fed.algorithm.capabilities import ServerWork, check_taken_up
from pyro_fed.algorithm.capabilities.taken_up import WITH_METHODS


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


def test_every_capability_with_methods_is_looked_for():
    named = [value for value in vars(capabilities).values() if isinstance(value, type) and not issubclass(value, tuple)]
    own = [
        one for one in named if any(callable(value) and not name.startswith("_") for name, value in vars(one).items())
    ]
    assert set(own) == set(WITH_METHODS)
    attributes_alone = {one.__name__ for one in named} - {one.__name__ for one in own}
    assert attributes_alone == {"OnCPU", "Pooled", "Provisional", "Tempered"}
