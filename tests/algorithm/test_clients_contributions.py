"""What each client has put into the answer: beside the algorithm, and "not known" where nobody says otherwise."""

import inspect
import math
from dataclasses import dataclass

import pytest
import torch
from algorithms import ALGORITHMS, line, line_data

import pyro_fed as pf
from pyro_fed.algorithm import Algorithm
from pyro_fed.algorithm.capabilities import check_taken_up
from pyro_fed.algorithm.contributions import BoundedMessages, Contributions, NoisyRound, SentMessages

BOUNDED, PRIVATE = pf.combination.Bounded(), pf.Private(norm=1.0, noise_multiplier=1.0)
QUIET = {"progress": False, "compile": "off", "log_likelihood": False, "audit": False}


def ten_clients():
    return pf.Federation(line, line_data(rows=100), plate="data", num_clients=10)


@dataclass(frozen=True)
class HalfContributions(Contributions):
    """Half of each message is taken of a bounded round, of which only the first says so; each moves by its number."""

    def client_shift_sds(self, shared, ledger, sent):
        return sent.clients.double()

    def bounding_obstacle(self):
        return "" if self.algorithm.damping else "half of nothing"

    def bounded_messages(self, limits, shared, ledger, sent):
        messages = {**sent.messages, "delta": sent.messages["delta"] / 2}
        return BoundedMessages(shared, messages, {}, (sent.clients == 0).double())

    def form_for(self, combination):
        return self.algorithm


@dataclass(frozen=True, kw_only=True)
class Halved(pf.FedAvg):
    """A stranger's algorithm with contributions of its own."""

    def contributions(self):
        return HalfContributions(self)


@dataclass(frozen=True, kw_only=True)
class Plain(pf.FedAvg):
    """One that says nothing of its clients."""

    contributions = Algorithm.contributions


@dataclass(frozen=True, kw_only=True)
class Misplaced(Plain):
    """One with a method of its contributions on itself."""

    def client_shift_sds(self, shared, ledger, sent):
        return sent.clients.double()


def test_nothing_is_known_of_the_clients_of_an_algorithm_that_says_nothing():
    found, sent = Plain().contributions(), SentMessages({}, torch.arange(2), 0, 0)
    assert found.client_sites({}, {}) is None and found.ledger_at_start({}, {}, bounded=True) == {}
    assert found.ledger_after({"eta": torch.ones(2, 1)}, torch.arange(2), {}, {}) == {}
    assert found.client_shift_sds({}, {}, sent) is None
    several = SentMessages({}, torch.zeros(3, 2, dtype=torch.int64), 0, 0)
    assert found.client_shift_sds_of_rounds([{}, {}, {}], {}, several) is None
    assert found.bounding_obstacle() is None and found.substitute_messages({}, {}, {}, torch.arange(1)) is None
    assert all(found.form_for(one) is found.algorithm for one in (None, BOUNDED, PRIVATE))
    assert found.form_for_clients() is found.algorithm
    assert found.noise_left([NoisyRound(2, {})] * 9, 5) == (found.algorithm, 3.0)
    with pytest.raises(pf.errors.SettingError, match=r"Plain has no rule for Bounded\(.*\); FedEP, PVI, .* have one"):
        pf.run(Plain(), ten_clients(), combination=BOUNDED, **QUIET)
    assert "moved" not in pf.run(Plain(), ten_clients(), num_rounds=2, **QUIET)["federation"]


def test_a_run_asks_the_contributions_that_an_algorithm_names():
    whole = pf.run(Plain(), ten_clients(), num_rounds=1, **QUIET)
    told = pf.run(Halved(), ten_clients(), num_rounds=1, **QUIET)
    assert torch.tensor(told["federation"]["moved"].values[0]).tolist() == list(range(10))
    assert told["posterior"].equals(whole["posterior"])
    with pytest.warns(UserWarning, match="were cut back to the limits that the other clients' messages set"):
        half = pf.run(Halved(), ten_clients(), num_rounds=1, combination=BOUNDED, **QUIET)
    shorter = pf.run(Plain(damping=0.5), ten_clients(), num_rounds=1, **QUIET)
    w, expected = (one["posterior"]["w"].values.squeeze() for one in (half, shorter))
    assert w == pytest.approx(expected, rel=1e-9)
    assert half["federation"]["beyond"].values[0].tolist() == [1.0] + [0.0] * 9


def test_methods_of_contributions_on_the_algorithm_are_refused():
    cure = r"`class MisplacedContributions\(Contributions\)`.* return `MisplacedContributions\(self\)`"
    with pytest.raises(pf.errors.SettingError, match=rf"Misplaced has client_shift_sds, .*contributions.*{cure}"):
        pf.run(Misplaced(), ten_clients(), **QUIET)
    check_taken_up(Plain())


def test_no_algorithm_carries_what_belongs_to_its_contributions():
    own = {name for name, value in vars(Contributions).items() if inspect.isfunction(value) and name[0] != "_"}
    assert {"bounded_messages", "client_sites", "noise_left"} <= own
    for name, factory, _ in ALGORITHMS:
        algorithm = factory().delegate()
        assert own & set(dir(type(algorithm))) == set(), name
        assert algorithm.contributions().algorithm is algorithm


@pytest.mark.parametrize("algorithm", [pf.FedEP(), pf.infer.PVI(), pf.infer.FedSEP()], ids=repr)
def test_a_private_run_has_steps_that_do_not_depend_on_those_before(algorithm):
    form = algorithm.contributions().form_for(PRIVATE)
    assert type(form) is type(algorithm) and form.contributions().form_for(PRIVATE) == form
    assert algorithm.contributions().form_for(None) is algorithm
    assert algorithm.contributions().form_for(BOUNDED) is algorithm
    assert form.step_control == algorithm.step_control.without_acceleration() or form == algorithm


def test_forms_that_a_combination_asks_for():
    summed = pf.infer.SummedLangevin(temperature=4.0)
    noisy = summed.contributions().form_for(PRIVATE)
    assert noisy.released_noise == 1.0 and noisy.contributions().form_for_clients() == summed
    with pytest.raises(pf.errors.SettingError, match="released_noise is set by the run"):
        noisy.contributions().form_for(None)
    peers = pf.P2PVI()
    assert peers.contributions().form_for(BOUNDED).update.memory == 1
    assert peers.contributions().form_for(None) is peers
    with pytest.raises(pf.errors.SettingError, match="BayesADMM: the privacy noise left in its average is unknown"):
        pf.infer.BayesADMM(client=pf.infer.tilted.Newton(steps=3)).contributions().form_for(PRIVATE)


def test_noise_that_is_left_is_what_rounds_took_and_did_not_undo():
    """v ← (1 - u)² v + δ², u = δ C / K of an average site and 0 of sites that clients keep."""
    rounds = [NoisyRound(2, {"fraction": 0.5})] * 3
    for algorithm, undone in ((pf.FedEP(damping=0.5), 0.0), (pf.infer.FedSEP(damping=0.5), 0.1)):
        variance = 0.0
        for _ in rounds:
            variance = (1 - undone) ** 2 * variance + 0.25
        assert algorithm.contributions().noise_left(rounds, 10)[1] == pytest.approx(math.sqrt(variance) / 0.5)
