"""What is shown of a run: where, how often, and to whom."""

import io
import sys
import types

import pytest

import pyro_fed as pf
from pyro_fed.conventions import progress


class Clock:
    """Seconds that pass when told to."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


@pytest.fixture(autouse=True)
def _as_before():
    yield
    pf.progress.set_progress(True)


def test_a_log_gets_a_line_now_and_then_and_one_at_the_end(capsys, clock):
    with progress.begin("FedEP", 1000, "round") as bar:
        for _ in range(100):
            clock.now += 0.25
            bar.advance("10 clients, change 0.02")
    assert capsys.readouterr().err.splitlines() == [
        "FedEP: 40 of 1000 rounds, 10.0 s, 10 clients, change 0.02",
        "FedEP: 100 of 1000 rounds, 25.0 s, 10 clients, change 0.02",
    ]


def test_a_part_of_a_round_leaves_no_line_of_its_own(capsys, clock):
    with progress.begin("NUTS", 2000, "draw", inner=True) as bar:
        bar.advance("chain 1 of 4")
        clock.now += 11.0
        bar.advance("chain 1 of 4")
    assert capsys.readouterr().err == "NUTS: 2 of 2000 draws, 11.0 s, chain 1 of 4\n"


def test_ten_thousand_rounds_in_a_log(capsys, clock):
    """An hour of rounds is a line a minute."""
    with progress.begin("FSGLD", 10_000, "round") as bar:
        for _ in range(10_000):
            clock.now += 0.36
            bar.advance("client 3")
    assert 60 <= len(capsys.readouterr().err.splitlines()) <= 65


def test_a_terminal_has_a_bar(monkeypatch, clock):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress.begin("FedEP", 3, "round") as bar:
        for _ in range(3):
            bar.advance("change 0.02")
    assert "100%" in terminal.getvalue() and "change 0.02" in terminal.getvalue()


def test_a_notebook_has_one_output_that_is_replaced(monkeypatch, clock):
    sent = []

    class Handle:
        def update(self, picture, raw):
            sent.append(("update", picture, raw))

    def display(picture, raw, display_id):
        sent.append(("display", picture, raw))
        return Handle()

    ipython, shown = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    shown.display = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    with progress.begin("<FedEP>", 100, "round") as bar:
        for _ in range(100):
            clock.now += 0.1
            bar.advance()
    assert [kind for kind, _, _ in sent].count("display") == 1
    assert len(sent) <= 22  # every half second of ten, and the end
    last = sent[-1][1]
    assert last["text/plain"] == "<FedEP>: 100 of 100 rounds, 10.0 s"
    assert "&lt;FedEP&gt;" in last["text/html"] and "<progress" not in last["text/html"]
    assert 'value="0" max="100"' in sent[0][1]["text/html"]


def small_run(**options):
    from algorithms import unequal_lines

    return pf.run(pf.FedEP(), unequal_lines(), num_draws=10, compile="off", audit=False, **options)


def test_a_function_is_told_of_every_round_of_every_phase(capsys):
    told = []
    idata = small_run(progress=told.append)
    rounds = idata["federation"].sizes["round"]
    assert capsys.readouterr().err == ""
    assert all(isinstance(one, pf.progress.Progress) for one in told)
    assert sum(not one.finished for one in told) == rounds
    assert [one.name for one in told if one.finished] == ["FedLaplace, for FedEP", "FedEP"]
    assert told[-1].unit == "round" and "change" in told[-1].figures


def test_progress_is_switched_off_for_all_runs_and_for_one(capsys):
    told = []
    pf.progress.set_progress(False)
    small_run()
    assert capsys.readouterr().err == ""
    small_run(progress=told.append)  # what is asked of one run is done there
    assert told
    pf.progress.set_progress(told.append)
    before = len(told)
    small_run(progress=False)
    assert len(told) == before
    small_run()
    assert len(told) > before


def test_an_error_of_the_function_is_the_users(capsys):
    def stop(now):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        small_run(progress=stop)
    small_run()  # the next run is shown as before
    assert "FedEP: " in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["yes", None, 1])
def test_anything_else_is_refused(wrong):
    with pytest.raises(
        pf.errors.SettingError, match=r"set_progress: show must be True or False or a function, received"
    ):
        pf.progress.set_progress(wrong)
    with pytest.raises(pf.errors.SettingError, match="progress must be True or False or a function"):
        small_run(progress=wrong)
