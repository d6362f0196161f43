"""The allocator's settings during a run, and after it."""

import gc

import pytest
from algorithms import unequal_lines

import pyro_fed as pf
from pyro_fed.conventions import resources as memory
from pyro_fed.runtime import rounds


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


@pytest.mark.parametrize("looks", [True, False])
def test_cycles_are_looked_for_afterwards_where_they_were_before(looks):
    before = gc.isenabled()
    try:
        (gc.enable if looks else gc.disable)()
        with memory.collected_later():
            assert not gc.isenabled()
        assert gc.isenabled() == looks
        with pytest.raises(ZeroDivisionError), memory.collected_later():
            raise ZeroDivisionError
        assert gc.isenabled() == looks
    finally:
        (gc.enable if before else gc.disable)()


def test_rounds_at_once_are_not_looked_through(monkeypatch):
    """Thousands of tensors that live for a moment would have the whole process looked through, in vain."""
    seen = []
    inner = rounds.run_fused_rounds
    monkeypatch.setattr(rounds, "run_fused_rounds", lambda *args: seen.append(gc.isenabled()) or inner(*args))
    fsgld = pf.FSGLD(surrogates="laplace", num_chains=3, burn_in=5, target_ess=None)
    options = {"progress": False, "compile": "off", "audit": False, "log_likelihood": False, "num_rounds": 8}
    with pytest.warns(UserWarning, match="run more rounds"):
        pf.run(fsgld, unequal_lines(), **options)
    assert seen and not any(seen) and gc.isenabled()
