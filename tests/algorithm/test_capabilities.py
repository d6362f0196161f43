"""What only some algorithms do is called only where they have taken it up; methods without that are refused."""

from dataclasses import dataclass

import pytest
from algorithms import unequal_lines

import pyro_fed as pf
from pyro_fed.algorithm import capabilities
from pyro_fed.algorithm.capabilities import CAPABILITIES, SiteKeeping, check_taken_up
from pyro_fed.algorithm.contract import overrides


@dataclass(frozen=True, kw_only=True)
class Forgetful(pf.FedAvg):
    """An algorithm whose clients keep what the server made of their messages, which has not said so."""

    def feedback(self, after, clients):
        return {}, {}

    def settle(self, told, local):
        return local


@dataclass(frozen=True, kw_only=True)
class Mindful(Forgetful, SiteKeeping):
    """The same, which has."""


@dataclass(frozen=True, kw_only=True)
class Preparing(pf.FedAvg):
    """An algorithm with the server's own work, for which a method of the contract is enough."""

    def prepare(self, problem, shared):
        return {name: value + 0.0 for name, value in shared.items()}


def test_methods_that_nobody_would_call_are_refused():
    with pytest.raises(
        pf.errors.SettingError, match=r"Forgetful has feedback, settle, .*`class Forgetful\(Algorithm, SiteKeeping\)`"
    ):
        pf.run(Forgetful(), unequal_lines(), progress=False)
    check_taken_up(Mindful())


def test_every_capability_is_looked_for():
    own = [value for value in vars(capabilities).values() if getattr(value, "__module__", "") == capabilities.__name__]
    named = {value for value in own if isinstance(value, type) and not issubclass(value, tuple)}
    assert named == set(CAPABILITIES)


def test_methods_with_a_default_are_known_where_they_are_overridden():
    assert overrides(Preparing(), "prepare") and overrides(Preparing(), "prepare", "refine")
    assert not overrides(Preparing(), "refine", "advice", "log_density")
    assert (
        overrides(pf.FedEP(), "delegate")
        and overrides(pf.infer.SVI(), "for_draws")
        and overrides(pf.FedAIS(), "own_errors")
    )
