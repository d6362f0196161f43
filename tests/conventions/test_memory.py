"""The allocator's settings during a run, and after it."""

import pytest
from algorithms import unequal_lines

import pyro_fed as pf
from pyro_fed.conventions import memory


class Allocator:
    """Writes down what it is asked for."""

    def __init__(self):
        self.asked = []

    def mallopt(self, parameter, value):
        self.asked.append((parameter, value))
        return 1

    def malloc_trim(self, kept):
        self.asked.append("trim")
        return 1


def test_freed_memory_stays_during_a_run_and_is_given_back_after_it(monkeypatch):
    fake = Allocator()
    monkeypatch.setattr(memory, "allocator", lambda: fake)
    during, after = [*memory.COMPUTING.items()], [*memory.AFTERWARDS.items(), "trim"]
    with memory.kept_while_computing():
        assert fake.asked == during
    assert fake.asked == during + after
    fake.asked.clear()
    with pytest.raises(ZeroDivisionError), memory.kept_while_computing():
        raise ZeroDivisionError
    assert fake.asked == during + after


def test_a_run_computes_so(monkeypatch):
    fake = Allocator()
    monkeypatch.setattr(memory, "allocator", lambda: fake)
    pf.run(pf.FedEP(), unequal_lines(), progress=False, compile="off", audit=False, log_likelihood=False)
    assert fake.asked == [*memory.COMPUTING.items(), *memory.AFTERWARDS.items(), "trim"]


def test_the_users_own_settings_count(monkeypatch):
    for name in memory.OWN:
        monkeypatch.setenv(name, "1")
        memory.allocator.cache_clear()
        assert memory.allocator() is None
        monkeypatch.delenv(name)
    memory.allocator.cache_clear()
