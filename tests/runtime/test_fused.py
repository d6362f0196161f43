"""Rounds that are done at once are those that the round loop has one by one."""

import numpy as np
import pytest
import torch
from arviz_results import groups_of
from gaussian_case import federation, shards

import pyro_fed as pf
from pyro_fed.conventions import seeding
from pyro_fed.density.compiling.compiler import Compiler
from pyro_fed.runtime import one_round as module

QUIET = {"progress": False, "log_likelihood": False, "compile": "trace", "audit": False, "num_rounds": 60}
X = shards(num_clients=4, rows=25)
EXACT = pf.infer.Given(torch.full((4, 2), 25.0, dtype=torch.float64), X.sum(1))


def run(algorithm, **options):
    return pf.run(algorithm, federation(X), **QUIET, **options)


def short(**settings):
    return pf.FSGLD(surrogates=EXACT, **{"num_chains": 3, "burn_in": 6, "thin": 2, "target_ess": None, **settings})


@pytest.fixture
def blocks(monkeypatch):
    """How many rounds each block had."""
    seen = []
    inner = module.run_fused_rounds

    def counting(phase, context, data, clients):
        found = inner(phase, context, data, clients)
        seen.append(len(clients) if found else -len(clients))
        return found

    monkeypatch.setattr("pyro_fed.runtime.rounds.run_fused_rounds", counting)
    return seen


def same(one, other, but=("seconds",)):
    assert groups_of(one) == groups_of(other)
    np.testing.assert_array_equal(one["posterior"]["mu"].values, other["posterior"]["mu"].values)
    for name in one["federation"].data_vars:
        if name not in but:
            np.testing.assert_array_equal(one["federation"][name].values, other["federation"][name].values, name)


@pytest.mark.filterwarnings("ignore:only", "ignore:the . chains disagree")
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"batch_size": 10},
        {"control_variate": "visit", "batch_size": 10},
        {"num_chains": 4},  # as many as clients: each has one in every round
        {"num_chains": 4, "batch_size": 10},
        {"num_chains": 6},
    ],
)
def test_rounds_at_once_are_the_same_rounds(blocks, settings):
    """Draws, figures of every round, clients and bytes, to the bit; a schedule that is named has them one by one."""
    at_once = run(short(**settings))
    assert sum(blocks) > 40 and max(blocks) > 10
    done = len(blocks)
    one_by_one = run(short(**settings), schedule=pf.schedule.Shuffled())
    assert len(blocks) == done
    same(at_once, one_by_one)


@pytest.mark.filterwarnings("ignore:only", "ignore:the 3 chains disagree")
@pytest.mark.parametrize("settings", [{}, {"batch_size": 10}])
def test_visits_at_once_are_one_scan(blocks, monkeypatch, settings):
    """Once every client has been visited; none of them has a scan of its own, nor does anything between two steps."""
    scanned = []
    inner = Compiler.scans

    def counting(self, function, problem, carry, const, xs, at, *options):
        scanned.append(len(at))
        return inner(self, function, problem, carry, const, xs, at, *options)

    monkeypatch.setattr(Compiler, "scans", counting)
    run(short(**settings))
    assert sum(scanned) > 40 and max(scanned) > 10 and set(scanned) <= set(blocks)


@pytest.mark.parametrize("batch_size", [None, 25, 10])
def test_noise_of_many_visits_is_that_of_each(batch_size):
    """To the bit, where clients take all of their rows; else each draws its own minibatches."""
    algorithm, problem = short(batch_size=batch_size), federation(X).problem
    rows, keys = torch.full((40,), 25), [(seeding.CLIENT, number, 0, 0) for number in range(40)]
    found = algorithm.draw_noises(problem, rows, seeding.torch_generators(3, keys))
    if batch_size == 10:
        assert found is None
        return
    each = [algorithm.draw_noise(problem, 25, seeding.torch_generator(3, *key)) for key in keys]
    assert found.keys() == each[0].keys()
    for name, value in found.items():
        assert torch.equal(value, torch.stack([one[name] for one in each], 1))


@pytest.mark.filterwarnings("ignore:only", "ignore:the 3 chains disagree")
def test_who_overrides_a_part_of_a_round_has_them_one_by_one(blocks):
    seen = []

    class Own(pf.FSGLD):
        def combine(self, shared, messages, weights):
            seen.append(int(shared["steps"]))
            return super().combine(shared, messages, weights)

    settings = {"surrogates": EXACT, "num_chains": 3, "burn_in": 6, "thin": 2, "target_ess": None}
    run(Own(**settings))
    assert not blocks and len(seen) > 40


@pytest.mark.filterwarnings("ignore:only", "ignore:the 3 chains disagree", "ignore:.*times a client failed")
def test_a_reply_that_must_be_looked_at_is_had_in_a_round_of_its_own(blocks):
    """A visit in the middle that leaves the finite numbers: the block is given up, and its rounds are had singly."""

    class Failing(pf.FSGLD):
        def local_step(self, problem, shared, local, data, noise):
            message, new, info = super().local_step(problem, shared, local, data, noise)
            if int(shared["steps"].max()) == 5 * 30:
                message = {**message, "position": message["position"].clone()}
                message["position"][1] = torch.nan
            return message, new, info

    settings = {"surrogates": EXACT, "num_chains": 3, "burn_in": 6, "thin": 2, "target_ess": None}
    at_once = run(Failing(**settings))
    assert min(blocks) < -1
    one_by_one = run(Failing(**settings), schedule=pf.schedule.Shuffled())
    same(at_once, one_by_one)
    assert (at_once["federation"]["failure_round"].values == 30 + 1).sum() == 1
