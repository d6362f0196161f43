"""Ctrl-C early in a run: what is returned is a posterior, or nothing is but the state."""

import contextlib
import os
import signal
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from algorithms import unequal_lines
from short_runs import Interrupting, quiet

import pyro_fed as pf
from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.schedule import Schedule
from pyro_fed.codes import sentences
from pyro_fed.infer.pooled.nuts_kernel import CompiledNUTS
from pyro_fed.runtime import rounds
from pyro_fed.runtime.checks import convergence


def interrupting(monkeypatch, begun):
    """Ctrl-C when so many rounds have begun, of whichever phase."""
    one_round, seen = rounds.one_round, []

    def raising(*args):
        seen.append(1)
        if len(seen) == begun:
            raise KeyboardInterrupt
        return one_round(*args)

    monkeypatch.setattr(rounds, "one_round", raising)


@pytest.mark.parametrize("begun", [1, 2])
def test_no_posterior_is_made_of_an_unfinished_start(monkeypatch, begun, tmp_path):
    """FedLaplace's first states are Newton steps from anywhere; q from them was off by orders of magnitude."""
    interrupting(monkeypatch, begun)
    with pytest.raises(
        pf.errors.InterruptedRun, match=f"FedLaplace, with which the run starts, after {begun - 1} of"
    ) as stop:
        quiet(pf.FedEP(), unequal_lines(), checkpoint=tmp_path)
    assert isinstance(stop.value, KeyboardInterrupt)
    assert not isinstance(stop.value, pf.PyroFedError)  # who goes on after errors must not go on after Ctrl-C
    assert str(tmp_path) in str(stop.value)
    assert stop.value.state["precision"].shape
    monkeypatch.undo()
    rest = quiet(pf.FedEP(), unequal_lines(), checkpoint=tmp_path, resume=True)
    whole = quiet(pf.FedEP(), unequal_lines())
    assert rest.posterior.equals(whole.posterior)


def test_before_the_first_round_of_its_own_there_is_none(monkeypatch):
    with pytest.raises(pf.errors.InterruptedRun, match="FedEP, after 0 of 4 rounds"):
        quiet(pf.FedEP(start="prior"), unequal_lines(), schedule=Interrupting(0))


def test_a_posterior_that_there_is_is_marked():
    idata = quiet(pf.FedEP(start="prior"), unequal_lines(), schedule=Interrupting(2))
    assert idata.attrs["interrupted"] == 1
    for where in ("warnings", "doubts"):
        assert "FedEP was interrupted after 2 of 4 rounds: the result is incomplete" in idata.attrs[where]


def test_an_interrupted_run_has_not_converged_either_unless_its_algorithm_says_why():
    record = Record(["a"], figures=[{"change": 0.5}], converged=False)
    record.findings.append(sentences.interrupted(algorithm="FedEP", after="", kept="what it had found by then"))
    (said,) = convergence(SimpleNamespace(record=record, doubts=record.findings))
    assert said.code == "not_converged" and said.figures == {"rounds": 1, "change": 0.5}
    record.findings.append(sentences.steps_shortened(rounds=1, fraction=0.1))
    assert convergence(SimpleNamespace(record=record, doubts=record.findings)) == []


def nuts(monkeypatch, draws, **settings):
    """NUTS with Ctrl-C after so many draws of all chains, 10 of warm-up each."""
    transition, drawn = CompiledNUTS._draw, []

    def raising(self, params):
        drawn.append(1)
        if len(drawn) > draws:
            raise KeyboardInterrupt
        return transition(self, params)

    monkeypatch.setattr(CompiledNUTS, "_draw", raising)
    algorithm = pf.NUTS(num_samples=20, warmup_steps=10, num_chains=2, **settings)
    return quiet(algorithm, unequal_lines(), num_rounds=1)


def test_chains_that_have_not_begun_are_no_chains(monkeypatch):
    with pytest.raises(pf.errors.InterruptedRun, match="NUTS, after 0 of 1 rounds"):
        nuts(monkeypatch, draws=9)


@pytest.mark.parametrize(("draws", "shape"), [(10 + 7, (1, 7)), (30 + 15, (1, 20))], ids=["first", "second"])
def test_draws_are_not_lost(monkeypatch, draws, shape):
    with monkeypatch.context() as patch:
        idata = nuts(patch, draws)
    whole = quiet(pf.NUTS(num_samples=20, warmup_steps=10, num_chains=2), unequal_lines(), num_rounds=1)
    assert (idata.posterior.sizes["chain"], idata.posterior.sizes["draw"]) == shape
    assert idata.attrs["interrupted"] == 1
    assert "NUTS was interrupted: the result is incomplete" in idata.attrs["warnings"]
    assert idata.sample_stats["energy"].shape == shape
    same = {"chain": slice(1), "draw": slice(shape[1])}
    for name in idata.posterior:
        assert np.array_equal(idata.posterior[name], whole.posterior[name].isel(same))


def test_chains_of_one_point_are_none():
    with pytest.raises(pf.errors.InterruptedRun, match=r"FSGLD, after \d+ rounds"):
        quiet(pf.FSGLD(burn_in=10**6, surrogates=pf.FedEP(start="prior")), unequal_lines(), schedule=Interrupting(2))


@dataclass(frozen=True)
class Swallowing(Schedule):
    """A signal in round 1 whose exception is lost, as in a destructor or a callback."""

    def select(self, round, num_clients, rng):
        if round == 1:
            with contextlib.suppress(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
        return list(range(num_clients))


@pytest.fixture
def python_s_handler():
    """A test run in the background may have begun with the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("python_s_handler")
def test_no_signal_is_swallowed():
    idata = quiet(pf.FedEP(start="prior", tolerance=1e-30), unequal_lines(), schedule=Swallowing())
    assert idata.attrs["interrupted"] == 1
    assert idata.federation.sizes["round"] == 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_the_user_s_own_is_left_alone():
    seen = []
    before = signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    try:
        idata = quiet(pf.FedEP(start="prior"), unequal_lines(), schedule=Swallowing())
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [1]
    assert idata.attrs["interrupted"] == 0
