"""How a run ends: by its own criterion, by Ctrl-C, or by an update that leaves the finite numbers."""

import warnings
from dataclasses import dataclass, field

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from algorithms import PAPER, SMALL, line, line_data, small, unequal_lines
from arviz_results import groups_of
from short_runs import QUIET, Interrupting, quiet, values

import pyro_fed as pf
from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.record import Record
from pyro_fed.results import to_arviz

#: Five particles leave no KDE worth the name.
SHORT = pytest.mark.filterwarnings("ignore:the KDE of bandwidth")


@SHORT
@pytest.mark.filterwarnings("ignore:.* as published ends")
@pytest.mark.parametrize("name", ["PaperDSVGD", "UDSVGD"])
def test_ctrl_c_returns_what_is_done(name):
    algorithm = small(getattr(pf.infer, name))
    with pytest.warns(UserWarning, match=f"{name} was interrupted after 3 of 10 rounds"):
        partial = pf.run(algorithm, unequal_lines(), num_rounds=10, schedule=Interrupting(3), **QUIET)
    whole = quiet(algorithm, unequal_lines(), num_rounds=3)
    assert np.array_equal(values(partial), values(whole))
    assert partial.federation.sizes["round"] == 3
    assert partial.attrs["interrupted"] == 1


@dataclass(frozen=True, kw_only=True)
class InterruptedMonitor(pf.papers.PaperDSVGD):
    """Ctrl-C after the work of round 2 is done, before the round is."""

    def monitor(self, before, after):
        if int(after["round"]) == 2:
            raise KeyboardInterrupt
        return {"change": float(after["round"])}

    def start_shared(self, problem, generator):
        return super().start_shared(problem, generator) | {"round": torch.tensor(-1)}

    def combine(self, shared, messages, weights):
        return super().combine(shared, messages, weights) | {"round": shared["round"] + 1}


@SHORT
def test_a_round_cut_short_does_not_count():
    with pytest.warns(UserWarning, match="interrupted after 2 of 5"):
        result = pf.run(InterruptedMonitor(**PAPER), unequal_lines(), num_rounds=5, **QUIET)
    assert result.federation.sizes["round"] == 2
    assert result.federation["change"].values.tolist() == [0.0, 1.0]


FIRST = pf.papers.PaperDSVGD(**PAPER)


@dataclass(frozen=True, kw_only=True)
class Started(pf.papers.PaperDSVGD):
    """DSVGD from the particles of another run of it."""

    first: Algorithm = field(default=FIRST)

    def warm_start(self, problem):
        return self.first


@dataclass(frozen=True, kw_only=True)
class Interrupted(pf.papers.PaperDSVGD):
    """Ctrl-C in the first round's combine."""

    def combine(self, shared, messages, weights):
        raise KeyboardInterrupt


def test_ctrl_c_in_a_warm_start_ends_the_run():
    with pytest.raises(
        pf.errors.InterruptedRun, match="Interrupted, with which the run starts, after 0 of 20 rounds"
    ) as stop:
        pf.run(Started(**PAPER, first=Interrupted(**PAPER)), unequal_lines(), num_rounds=2, **QUIET)
    assert isinstance(stop.value.algorithm, Interrupted)
    assert "particles" in stop.value.state


@pytest.mark.parametrize("factory", [pf.papers.PaperDSVGD, pf.papers.UDSVGD, pf.papers.PaperSVGD])
def test_too_large_a_step_says_which_client_and_round_and_keeps_the_last_state(factory):
    algorithm = small(factory, step_size=1e200)
    with pytest.raises(
        pf.errors.DivergenceError, match=r"client 0, round 0: 'particles' left the finite numbers"
    ) as caught:
        quiet(algorithm, unequal_lines())
    error = caught.value
    assert (error.client, error.round) == (0, 0)
    assert "reduce the step size" in str(error)
    assert np.isfinite(values(error.result)).all()
    assert error.result.posterior.sizes["draw"] == 5


def test_a_warm_start_that_diverges_keeps_its_own_result():
    algorithm = Started(**PAPER, first=pf.papers.PaperSVGD(**SMALL, step_size=1e200))
    with pytest.raises(pf.errors.DivergenceError) as caught:
        quiet(algorithm, unequal_lines())
    assert caught.value.result.attrs["algorithm"] == "PaperSVGD"


def test_a_last_state_that_is_no_distribution_is_a_divergence_and_is_kept():
    """Agents whose star has not been awake yet know nothing: their beliefs are flat."""
    fed = pf.Federation(line, line_data(40), plate="data", num_clients=7)
    said = r"P2PVI: the state after 1 round.* is no distribution .*4 of 7"
    with pytest.raises(pf.errors.DivergenceError, match=said) as caught:
        quiet(pf.P2PVI(start="local"), fed, graph=pf.graph.rotating_stars(6, 2), num_rounds=1)
    assert caught.value.round == 0
    assert torch.isfinite(caught.value.state["eta"]).all()


@dataclass(frozen=True, kw_only=True)
class Criterion(pf.papers.PaperDSVGD):
    """Stops after `enough` rounds."""

    enough: int = 2

    def converged(self, figures):
        return len(figures) >= self.enough


@pytest.mark.parametrize("audit", [False, True])
def test_sds_that_are_no_finite_number_are_a_doubt(monkeypatch, audit):
    """Draws are finite, and their squares are not."""
    signs = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    far = 1e200 * signs.repeat(1, 4).unsqueeze(-1).expand(1, 8, 2)
    monkeypatch.setattr(pf.FedEP, "sample", lambda self, shared, num_draws, generator: far)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        idata = pf.run(pf.FedEP(), unequal_lines(), compile="off", progress=False, audit=audit)
    said = "the SD of 'w' is not finite"
    assert said in idata.attrs["doubts"] and any(str(one.message).startswith(said) for one in seen)


@SHORT
@pytest.mark.filterwarnings("ignore:Criterion as published")
def test_converged_is_told_and_its_absence_warned_of():
    done = quiet(Criterion(**PAPER), unequal_lines())
    assert (done.attrs["converged"], done.federation.sizes["round"]) == (1, 2)
    with pytest.warns(UserWarning, match=r"not converged after 3 rounds: the last change was \d.*; run more rounds"):
        late = pf.run(Criterion(**PAPER, enough=9), unequal_lines(), num_rounds=3, **QUIET)
    assert late.attrs["converged"] == 0
    assert "converged" not in quiet(pf.papers.PaperDSVGD(**PAPER), unequal_lines()).attrs


def test_a_run_that_stops_before_there_are_draws_keeps_its_own_error(monkeypatch):
    """In the phase that looks at scores where particles are to start."""
    from pyro_fed.infer.stein.survey import Survey

    combine = Survey.combine

    def astray(self, shared, messages, weights):
        after = combine(self, shared, messages, weights)
        return {n: value * float("nan") if value.is_floating_point() else value for n, value in after.items()}

    monkeypatch.setattr(Survey, "combine", astray)
    monkeypatch.setattr(Survey, "sample", lambda *args: torch.empty(1, 0, 3))
    with pytest.raises(pf.errors.DivergenceError, match="left the finite numbers") as caught:
        pf.run(pf.DSVGD(), unequal_lines(), **QUIET)
    assert caught.value.result is None


def test_a_check_that_fails_costs_no_rounds(monkeypatch):
    """The result is there, as the rounds left it, and says that it is unjudged, with the reason and its place."""
    from pyro_fed.runtime import checks

    expected = quiet(pf.FedEP(), unequal_lines(), audit=False)

    def broken(evidence):
        raise ArithmeticError("of a check")

    monkeypatch.setattr(checks, "density_findings", broken)
    with pytest.warns(UserWarning, match=r"one ended in ArithmeticError \(of a check; test_run_ends.py, line \d+\)"):
        found = pf.run(pf.FedEP(), unequal_lines(), seed=0, progress=False)
    assert np.array_equal(values(found), values(expected))
    assert "unjudged" in found.attrs["doubts"]


@pytest.mark.filterwarnings("ignore:the budget ended")
def test_a_check_that_fails_in_every_stage_costs_no_answer_of_fit(monkeypatch):
    from pyro_fed.runtime import checks

    def broken(evidence):
        raise ArithmeticError("of a check")

    monkeypatch.setattr(checks, "density_findings", broken)
    with pytest.warns(UserWarning, match="one ended in ArithmeticError"):
        found = pf.fit(unequal_lines(), max_rounds=20, seed=0, progress=False, compile="trace")
    assert "unjudged" in found.attrs["doubts"] and not found.attrs["audited"]
    assert found.posterior.sizes["draw"] > 0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("algorithm", [pf.FedEP(), pf.Auto(max_rounds=20)], ids=repr)
def test_warnings_that_are_errors_leave_the_result(algorithm, monkeypatch):
    """Python's `-W error`: what is said of a result ends the program, and must not take the work with it."""
    monkeypatch.setattr(Record, "warning_texts", lambda record: ["something", "more"])
    with pytest.raises(UserWarning, match="something") as caught:
        pf.run(algorithm, unequal_lines(), **QUIET)
    monkeypatch.undo()
    whole = pf.run(algorithm, unequal_lines(), **QUIET)
    assert np.array_equal(values(caught.value.result), values(whole))
    assert caught.value.result.attrs["algorithm"] == whole.attrs["algorithm"]


def test_what_is_left_out_of_a_result_costs_it_nothing(monkeypatch):
    """Where a result is too large for its pointwise log-likelihood, the sentence comes with the others, at the end."""
    monkeypatch.setattr(to_arviz, "MAX_POINTWISE", 10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="is left out") as caught:
            pf.run(pf.FedEP(), unequal_lines(), progress=False, audit=False)
    assert "posterior" in groups_of(caught.value.result)


@pytest.mark.parametrize("algorithm", [pf.infer.DSGLD(), pf.DSVGD()], ids=repr)
def test_a_density_that_is_no_number_is_named(algorithm):
    """sqrt(1 - a) is none where a > 1, to where the data lead."""

    def model(y):
        a = pyro.sample("a", dist.Normal(y.new_tensor(0.0), 1.0))
        pyro.factor("root", torch.sqrt(1 - a))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(a, 0.3), obs=y)

    with pytest.warns(UserWarning, match="site 'root': the log density of pyro.factor is NaN at a draw of the prior"):
        fed = pf.Federation(model, (torch.linspace(2.5, 3.5, 12).double(),), plate="data", num_clients=3)
    with pytest.raises(pf.errors.DivergenceError, match=r"The density of 'root' is not finite at \d+ of 33 points"):
        pf.run(algorithm, fed, **QUIET)
