"""The round loop: wrong settings, schedules, threads. Its executors and seeds are in `algorithm/test_contract.py`."""

import itertools
import warnings
from dataclasses import dataclass

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from algorithms import PAPER, line, small, unequal_lines
from short_runs import QUIET, quiet, values

import pyro_fed as pf
from pyro_fed.algorithm.schedule import All, Explicit, RoundRobin, Schedule, UniformRandom
from pyro_fed.policy import resolving


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_rounds": 0}, "num_rounds must be at least 1, received 0"),
        ({"num_rounds": -3}, "num_rounds must be at least 1, received -3"),
        ({"num_draws": 0}, "num_draws must be at least 1, received 0"),
        ({"seed": -1}, "seed must not be negative, received -1"),
        (
            {"compile": "fast"},
            r"compile must be one of \('auto', 'off', 'trace', 'inductor'\), received 'fast'",
        ),
        ({"executor": "ray"}, "executor must be one of .*'sequential', 'vectorised'.*received 'ray'"),
        ({"schedule": RoundRobin(4)}, "clients_per_round must be between 1 and the 3 clients, received 4"),
        ({"schedule": UniformRandom(5)}, "clients_per_round must be between 1 and the 3 clients, received 5"),
        ({"schedule": Explicit([[0], [7]])}, r"round 1 of the schedule lists \[7\], but clients are 0..2"),
        ({"schedule": All()}, "DSVGD adopts one client's particles a round, but 3 clients worked"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(pf.errors.SettingError, match=message):
        quiet(pf.papers.PaperDSVGD(**PAPER), unequal_lines(), **options)


@pytest.mark.parametrize("factory", [pf.papers.PaperSVGD, pf.papers.PaperDSVGD, pf.papers.UDSVGD])
@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("num_particles", 0),
        ("num_particles", 2.5),
        ("local_steps", 0),
        ("step_size", 0.0),
        ("step_size", -1.0),
        ("batch_size", 0),
        ("temperature", 0.0),
        ("temperature", float("nan")),
        ("momentum", 1.0),
        ("momentum", -0.1),
        ("fudge", 0.0),
    ],
)
def test_settings_out_of_range(factory, setting, value):
    with pytest.raises(pf.errors.SettingError, match=f"{factory.__name__}: {setting} must .*, received {value}"):
        factory(**{setting: value})


@pytest.mark.parametrize(
    ("factory", "setting"),
    [
        (pf.papers.PaperDSVGD, "kde_bandwidth"),
        (pf.papers.UDSVGD, "kde_bandwidth"),
        (pf.papers.PaperDSVGD, "distill_steps"),
    ],
)
def test_more_settings_out_of_range(factory, setting):
    with pytest.raises(pf.errors.SettingError, match=f"{factory.__name__}: {setting} must .*, received 0"):
        factory(**{setting: 0})


def test_schedules_choose_as_they_say():
    rng = np.random.default_rng
    assert [RoundRobin(2).select(i, 3, rng(0)) for i in range(3)] == [[0, 1], [2, 0], [1, 2]]
    assert All().select(5, 3, rng(0)) == [0, 1, 2]
    assert Explicit([[2], [0, 1]]).select(3, 3, rng(0)) == [0, 1]
    chosen = [tuple(sorted(UniformRandom(2).select(i, 4, rng(i)))) for i in range(600)]
    counts = [chosen.count(pair) for pair in itertools.combinations(range(4), 2)]
    # Six pairs, 100 each expected; six standard deviations of a binomial (9.1): a false alarm in 1e8.
    assert sum(counts) == 600
    assert max(abs(count - 100) for count in counts) < 55


@pytest.mark.parametrize("factory", [pf.papers.PaperDSVGD, pf.papers.UDSVGD])
def test_a_round_with_nobody_changes_nothing(factory):
    @dataclass(frozen=True)
    class Sometimes(Schedule):
        def select(self, round, num_clients, rng):
            return [0] if round == 0 else []

    one = quiet(small(factory), unequal_lines(), num_rounds=1)
    three = quiet(small(factory), unequal_lines(), num_rounds=3, schedule=Sometimes())
    assert np.array_equal(values(one), values(three))
    assert three.federation["participated"].values.sum() == 1


def test_a_dead_kde_warns():
    generator = torch.Generator().manual_seed(0)
    x = 50 * torch.randn(40, 2, generator=generator, dtype=torch.float64)
    fed = pf.Federation(line, (x, x[:, 0]), plate="data", num_clients=2)
    with pytest.warns(UserWarning, match=r"the KDE of bandwidth 0.001 carries no information: .* effective neighbours"):
        pf.run(pf.papers.PaperDSVGD(**PAPER, kde_bandwidth=0.001), fed, num_rounds=2, **QUIET)


@pytest.mark.parametrize("swap", [False, True])
def test_what_is_no_algorithm_or_no_federation_is_told_apart(swap):
    fed = unequal_lines()
    wrong = (fed, pf.FedEP()) if swap else (pf.FedEP, fed)
    no_class = r"algorithm is the class FedEP.*: call it, FedEP\(\.\.\.\)"
    said = "algorithm must be an Algorithm, such as .*, received" if swap else no_class
    with pytest.raises(pf.errors.SettingError, match=said):
        pf.run(*wrong)


def test_threads_are_chosen_by_the_work(monkeypatch):
    """One for a small problem, and those that torch has for a large one."""

    def seen():
        found = []
        pf.run(
            pf.FedLaplace(),
            unequal_lines(),
            num_threads="auto",
            progress=False,
            audit=False,
            evaluate=lambda idata: found.append(torch.get_num_threads()) or {},
        )
        return set(found)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert seen() == {1}
        monkeypatch.setattr(resolving, "THREADED_NUMBERS", 1)
        assert seen() == {2}
    finally:
        torch.set_num_threads(before)


def test_a_default_dtype_that_changes_after_the_federation_changes_nothing():
    """Persons' latents are integrated out in float32; the session has gone on to float64 since."""

    def model(y):
        a = pyro.sample("a", dist.LogNormal(torch.zeros(2), 0.5).to_event(1))
        b = pyro.sample("b", dist.Normal(torch.zeros(2), 1.5).to_event(1))
        with pyro.plate("person", len(y)):
            ability = pyro.sample("ability", dist.Normal(0.0, 1.0))
            logits = a * (ability.unsqueeze(-1) - b)
            pyro.sample("y", dist.Bernoulli(logits=logits).to_event(1), obs=y)

    y = torch.rand(8, 2, generator=torch.Generator().manual_seed(1)) < 0.5
    options = {"progress": False, "num_draws": 200}
    before = torch.get_default_dtype()
    fed = pf.Federation(model, (y,), plate="person", num_clients=2, seed=0)
    try:
        torch.set_default_dtype(torch.float64)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = pf.run(pf.FedEP(), fed, **options)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(before)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = pf.run(pf.FedEP(), fed, **options)
    assert "not all checks were made" not in found.attrs["doubts"]
    np.testing.assert_array_equal(found.posterior["a"].values, expected.posterior["a"].values)
