"""A limit of time: what is returned is what the whole rounds before it gave, wherever in a round it was reached."""

import os
import signal
import subprocess
import sys
import warnings
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from algorithms import unequal_lines
from short_runs import quiet, values

import pyro_fed as pf
from pyro_fed.cli.process import terminated_as_interrupted
from pyro_fed.conventions import resources as time_limit
from pyro_fed.conventions.resources import TimeIsUp, ending_at, tick
from pyro_fed.density.size import cost_of, numbers_of_row
from pyro_fed.runtime import budget, stages
from pyro_fed.runtime import one_round as fused
from pyro_fed.runtime.executors import ray
from pyro_fed.runtime.finish import Finish


@pytest.fixture
def clock(monkeypatch):
    """A clock that is a second later whenever it is looked at."""
    now = SimpleNamespace(seconds=0)

    def later():
        now.seconds += 1
        return now.seconds

    monkeypatch.setattr(time_limit, "time", SimpleNamespace(monotonic=later))
    return now


ROUNDS = 7
#: With a start of its own, sites that clients keep, particles, chains whose rounds are had at once, no server.
ALGORITHMS = {
    "fedep": pf.FedEP(tolerance=1e-30),
    "pvi": pf.infer.PVI(start="prior", tolerance=1e-30),
    "dsvgd": pf.DSVGD(num_particles=5),
    "fsgld": pf.FSGLD(burn_in=0),
    "p2p_vi": pf.P2PVI(tolerance=1e-30),
}
ALL = [*((name, "vectorised") for name in ALGORITHMS), ("fedep", "sequential")]


def ticks(algorithm, fed, clock, **options):
    """Looks at the clock by the end of each round of each phase, {phase: {round: looks}}."""
    found = defaultdict(dict)
    quiet(algorithm, fed, **options, max_seconds=1e9, progress=lambda p: found[p.name].update({p.done: clock.seconds}))
    return found


@pytest.mark.parametrize(("name", "executor"), ALL)
def test_what_is_returned_is_what_the_whole_rounds_gave(name, executor, clock, monkeypatch):
    """The limit falls into the middle of a round, or of rounds that are had at once, on its first and its last tick."""
    monkeypatch.setattr(fused, "MAX_FUSED_ROUNDS", 2)
    monkeypatch.setattr(budget, "SHARE_OF_TIME_LEFT", 1.0)
    monkeypatch.setattr(
        budget, "SECONDS_AT_ONCE", 1e9
    )  # else how many are had at once depends on what the last one took
    algorithm, fed = ALGORITHMS[name], unequal_lines()
    short = {"executor": executor, "num_rounds": ROUNDS, "compile": "trace"}
    quiet(algorithm, fed, **short)  # what a process finds out about a model it looks for once
    clock.seconds = 0
    ends = ticks(algorithm, fed, clock, **short)[type(algorithm).__name__]
    looks = sorted({look for number, look in ends.items() if number})
    many = 2 if name == "fsgld" else 1  # after its first sweep, which finds its step round by round
    at = next(number for number, look in enumerate(looks) if list(ends.values()).count(look) == many)
    first, second = looks[at : at + 2]
    rounds = max(number for number in ends if ends[number] == first)
    alone = quiet(algorithm, fed, **(short | {"num_rounds": rounds}))
    for look in sorted({first + 1, (first + second + 1) // 2, second}):
        clock.seconds = 0
        found = quiet(algorithm, fed, **short, max_seconds=look - 1.0)  # the first look is the beginning
        assert np.array_equal(values(found), values(alone))
        assert f"not converged: {found.attrs['stopped']}" in found.attrs["doubts"].split("\n")
        assert found.attrs["stopped"].endswith(f"s, after {rounds} of {ROUNDS} rounds")
        assert found.attrs["interrupted"] == 0 and found.attrs.get("converged", 0) == 0


def test_before_there_is_a_posterior_there_is_none(clock, tmp_path, monkeypatch):
    monkeypatch.setattr(budget, "SHARE_OF_TIME_LEFT", 1.0)
    with pytest.raises(pf.errors.TimeLimitError, match="max_seconds=3 was over before the settings of FedEP") as stop:
        quiet(pf.FedEP(), unequal_lines(), max_seconds=3)
    assert stop.value.state is None and stop.value.result is None
    quiet(pf.FedEP(), unequal_lines())  # what a process finds out about a model it looks for once
    clock.seconds = 0
    rounds = ticks(pf.FedEP(), unequal_lines(), clock)["FedLaplace, for FedEP"]
    clock.seconds = 0
    with pytest.raises(pf.errors.TimeLimitError, match="was over in FedLaplace, with which the run") as stop:
        quiet(pf.FedEP(), unequal_lines(), max_seconds=rounds[1], checkpoint=tmp_path)
    assert stop.value.state["precision"].shape and isinstance(stop.value.algorithm, pf.FedLaplace)
    rest = quiet(pf.FedEP(), unequal_lines(), checkpoint=tmp_path, resume=True)
    assert np.array_equal(values(rest), values(quiet(pf.FedEP(), unequal_lines())))
    burning_in, fed = pf.FSGLD(burn_in=10**6, surrogates=pf.FedEP(start="prior")), unequal_lines()
    quiet(burning_in, fed, num_rounds=5)
    clock.seconds = 0
    rounds = ticks(burning_in, fed, clock, num_rounds=5)["FSGLD"]
    clock.seconds = 0
    with pytest.raises(pf.errors.TimeLimitError, match="FSGLD"):  # no draws yet
        quiet(burning_in, fed, num_rounds=5, max_seconds=rounds[1])
    clock.seconds = 0
    with pytest.raises(pf.errors.TimeLimitError, match="SVI"):  # whose one round is all of Pyro's steps
        quiet(pf.infer.SVI(num_steps=1000), unequal_lines(), max_seconds=60)
    assert clock.seconds < 100


def test_a_start_that_had_converged_is_a_posterior(clock, monkeypatch):
    """FedEP before its first round is Laplace's approximation."""
    monkeypatch.setattr(budget, "SHARE_OF_TIME_LEFT", 1.0)
    algorithm, fed = ALGORITHMS["fedep"], unequal_lines()
    quiet(algorithm, fed, num_rounds=4)
    clock.seconds = 0
    start = ticks(algorithm, fed, clock, num_rounds=4)["FedLaplace, for FedEP"]
    clock.seconds = 0
    found = quiet(algorithm, fed, num_rounds=4, max_seconds=max(start.values()))
    laplace = quiet(pf.FedLaplace(), fed, num_rounds=100)
    assert "after 0 of 4 rounds" in found.attrs["doubts"]
    for name in found.posterior:
        assert abs(found.posterior[name].mean() - laplace.posterior[name].mean()) < 0.02


def test_draws_of_a_chain_are_kept(clock):
    nuts = pf.NUTS(num_samples=20, warmup_steps=10, num_chains=2)
    whole = quiet(nuts, unequal_lines(), num_rounds=1, max_seconds=1e9)
    found = quiet(nuts, unequal_lines(), num_rounds=1, max_seconds=0.4 * clock.seconds)
    draws = found.posterior.sizes["draw"]
    assert found.posterior.sizes["chain"] == 1 and 0 < draws <= 20
    assert "with the draws that there were" in found.attrs["stopped"]
    for name in found.posterior:
        assert np.array_equal(found.posterior[name], whole.posterior[name].isel(chain=slice(1), draw=slice(draws)))


def judged(algorithm, **options):
    """A result with its checks, without warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return pf.run(algorithm, unequal_lines(), progress=False, compile="off", **options)


def test_all_that_is_done_ends_within_the_limit(clock):
    """The rounds take two thirds of it at most, the checks two thirds of what is then left, and results the rest."""
    quiet(pf.FedEP(), unequal_lines(), compile="off")
    clock.seconds = 0
    rounds = quiet(pf.FedEP(), unequal_lines(), compile="off", max_seconds=1e9) and clock.seconds
    clock.seconds, limit = 0, 1.5 * rounds
    found = judged(pf.FedEP(), max_seconds=limit)
    assert found.attrs["audited"] == 0 and "stopped" not in found.attrs
    assert found.attrs["doubts"].startswith("not all checks were made: they did not end within max_seconds=")
    assert clock.seconds <= 1 + limit


def test_what_is_looked_at_before_the_first_stage_ends_within_the_limit(clock, monkeypatch):
    """A density with a matrix of 60 x 60 was searched for jumps for seconds after the limit."""

    def search(*_):
        for _ in range(1000):
            tick()
        pytest.fail("the clock was not looked at")

    monkeypatch.setattr(stages, "outlook", search)
    with pytest.raises(pf.errors.TimeLimitError, match="max_seconds=20 was over before"):
        pf.fit(unequal_lines(), max_seconds=20, progress=False)
    assert clock.seconds <= 30


def test_rows_that_share_a_matrix_are_searched_for_jumps_in_pieces():
    """Each place has its own matrix: all places in one run took 3 GB, and no time limit ends a run."""

    def model(y):
        length = pyro.sample("length", dist.LogNormal(0.0, 0.5))
        kernel = torch.exp(-(((torch.arange(60.0)[:, None] - torch.arange(60.0)) / (5 * length)) ** 2))
        with pyro.plate("data", len(y)):
            scale = kernel + torch.eye(60)
            pyro.sample("y", dist.MultivariateNormal(torch.zeros(60), scale), obs=y)

    fed = pf.Federation(model, (torch.randn(20, 60),), plate="data", num_clients=2, seed=0)
    shared = 60 * 60
    assert numbers_of_row(fed.problem) > 5 * shared and cost_of(fed.problem).numbers < 2 * shared


def test_a_result_is_without_what_there_was_no_time_for(clock):
    def schools(y, sd):
        mu, tau = pyro.sample("mu", dist.Normal(0.0, 5.0)), pyro.sample("tau", dist.HalfNormal(5.0))
        with pyro.plate("school", len(y)):
            theta = pyro.sample("theta", dist.Normal(mu, tau))
            pyro.sample("y", dist.Normal(theta, sd), obs=y)

    y, sd = torch.tensor([28.0, 8, -3, 7, -1, 1, 18, 12]), torch.tensor([15.0, 10, 16, 11, 9, 11, 10, 18])
    fed = pf.Federation(schools, (y, sd), plate="school", num_clients=4)
    options = {"num_rounds": 1, "audit": False, "progress": False, "compile": "off", "num_draws": 200}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        pf.run(pf.FedEP(), fed, **options)
        clock.seconds = 0
        pf.run(pf.FedEP(), fed, max_seconds=1e9, **options)
        limit, clock.seconds = 0.4 * clock.seconds, 0
        with pytest.raises(pf.errors.TimeLimitError) as stop:
            pf.run(pf.FedEP(), fed, max_seconds=limit, **options)
    kept = stop.value.result
    assert set(kept.posterior.data_vars) == {"mu", "tau"} and "log_likelihood" not in kept.groups()
    assert "the result is without draws of the clients' own latents" in kept.attrs["warnings"]


def test_the_user_may_end_the_checks(monkeypatch):
    def interrupted(self, result):
        raise KeyboardInterrupt

    monkeypatch.setattr(Finish, "judge", interrupted)
    found = judged(pf.FedEP())
    assert found.attrs["interrupted"] == 1 and found.attrs["converged"] == 1
    assert found.attrs["doubts"].startswith("not all checks were made: they were interrupted")


def test_a_plan_ends_with_the_answer_that_it_has(clock):
    """FedEP's answer, of which 100 draws are too few for a doubt; the search for another has no time."""
    judged(pf.Auto(max_rounds=1), max_seconds=1e9)  # what is found once of a model is found in this run
    clock.seconds = 0
    first = judged(pf.Auto(max_rounds=1), max_seconds=1e9)
    assert "stopped" not in first.attrs
    limit, clock.seconds = 0.85 * clock.seconds, 0
    found = judged(pf.Auto(max_seconds=limit), max_seconds=1e9)
    assert found.attrs["chosen"] == "FedEP"
    assert f"max_seconds={limit:g}" in found.attrs["doubts"]


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), float("inf")])
def test_seconds_are_positive(seconds):
    with pytest.raises(pf.errors.SettingError, match="max_seconds must be"):
        pf.run(pf.FedEP(), unequal_lines(), max_seconds=seconds)
    with pytest.raises(pf.errors.SettingError, match="max_seconds must be"):
        pf.fit(unequal_lines(), max_seconds=seconds)


def test_workers_are_not_waited_for(monkeypatch):
    never = SimpleNamespace(wait=lambda calls, num_returns, timeout: ([], calls))
    monkeypatch.setattr(ray, "_ray", lambda: never)
    with ending_at(time_limit.now()), pytest.raises(TimeIsUp):
        ray._wait_for_calls(["a call"], None)
    assert ray._wait_for_calls(["a call"], 1e-9) == []


def test_a_limit_ends_where_it_began():
    with ending_at(0.0):
        with ending_at(None):
            tick()
        with pytest.raises(TimeIsUp):
            tick()
    tick()


@pytest.fixture
def sigterm_by_default():
    """As a fresh process has it: Flower and Ray, of tests before in this process, leave handlers of their own."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def test_sigterm_is_taken_for_ctrl_c_once(sigterm_by_default):
    with terminated_as_interrupted():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)  # in this thread: before the next line
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    signal.signal(signal.SIGTERM, own := lambda *_: None)
    with terminated_as_interrupted():
        assert signal.getsignal(signal.SIGTERM) is own


WAITS_FOR_THE_END = """
import sys, time
from pyro_fed.cli.process import terminated_as_interrupted
with terminated_as_interrupted():
    try:
        print("waiting", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        print("nobody reads this", flush=True)
    signal.raise_signal(signal.SIGHUP)  # the shell's, after the system's
signal.raise_signal(signal.SIGHUP)
open(sys.argv[1], "w").write("interrupted")
"""


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no terminals that hang up")
def test_a_terminal_that_closes_is_taken_for_ctrl_c_and_writing_there_is_no_error(tmp_path):
    import pty

    master, slave = pty.openpty()
    # Its parent may ignore SIGHUP, as `nohup make test` does, which processes inherit.
    own_session = "import fcntl, os, signal, termios\nsignal.signal(signal.SIGHUP, signal.SIG_DFL)\nos.setsid()\n"
    own_session += f"fcntl.ioctl({slave}, termios.TIOCSCTTY, 0)\n"
    command = [sys.executable, "-c", own_session + WAITS_FOR_THE_END, str(tmp_path / "said")]
    streams = {"stdin": slave, "stdout": slave, "stderr": slave, "pass_fds": (slave,)}
    with subprocess.Popen(command, **streams) as process:
        os.close(slave)
        assert b"waiting" in os.read(master, 100)
        os.close(master)
        assert process.wait(60) == 0
    assert (tmp_path / "said").read_text() == "interrupted"


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no SIGHUP")
def test_a_sighup_that_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with terminated_as_interrupted():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before or signal.SIG_DFL)
