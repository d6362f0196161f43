"""The round loop: one answer whatever the executor and thread count, early ends, and wrong settings."""

import itertools
import warnings
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from algorithms import ALGORITHMS, SMALL, graph_of, line, line_data, unequal_lines

import pyro_fed as pf
from pyro_fed.algorithm import Algorithm
from pyro_fed.data import ClientData, draw_minibatches
from pyro_fed.schedule import All, Explicit, RoundRobin, Schedule, UniformRandom

ALL = pytest.mark.parametrize(
    ("factory", "federation"), [row[1:] for row in ALGORITHMS], ids=[row[0] for row in ALGORITHMS]
)
QUIET = {"progress": False, "compile": "off"}
#: Five particles leave no KDE worth the name.
SHORT = pytest.mark.filterwarnings("ignore:the KDE of bandwidth")


def quiet(algorithm, federation, **options):
    """A run of a few rounds, without the warnings that so short a run deserves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return pf.run(algorithm, federation, **{"num_rounds": 4, **QUIET, **graph_of(algorithm, federation), **options})


def values(idata):
    return np.concatenate([idata.posterior[name].values.ravel() for name in sorted(idata.posterior.data_vars)])


@ALL
def test_executors_agree(factory, federation):
    fed = federation()
    together = quiet(factory(), fed, executor="vectorised")
    apart = quiet(factory(), fed, executor="sequential")
    np.testing.assert_allclose(values(together), values(apart), rtol=1e-9, atol=1e-9)
    for name, series in together.federation.data_vars.items():
        if name != "seconds" and np.issubdtype(series.dtype, np.number):
            np.testing.assert_allclose(series.values, apart.federation[name].values, rtol=1e-7, atol=1e-9)


@ALL
def test_compile_levels_agree(factory, federation):
    fed = federation()
    np.testing.assert_allclose(
        values(quiet(factory(), fed, compile="off")),
        values(quiet(factory(), fed, compile="trace")),
        rtol=1e-9,
        atol=1e-9,
    )


@ALL
def test_the_seed_is_the_only_randomness_and_global_states_are_left_alone(factory, federation):
    torch.manual_seed(123)
    np.random.seed(5)
    before, threads, state = torch.random.get_rng_state(), torch.get_num_threads(), np.random.get_state()[1].copy()
    first = quiet(factory(), federation(), num_threads=2 if threads == 1 else 1)
    assert torch.equal(before, torch.random.get_rng_state())
    assert np.array_equal(state, np.random.get_state()[1])
    assert torch.get_num_threads() == threads
    torch.rand(3), np.random.rand(3)
    assert np.array_equal(values(first), values(quiet(factory(), federation(), num_threads=threads)))
    assert not np.allclose(values(first), values(quiet(factory(), federation(), seed=1)))


@dataclass(frozen=True)
class Interrupting(Schedule):
    """The user presses Ctrl-C in round `at`."""

    at: int

    def select(self, round, num_clients, rng):
        if round == self.at:
            raise KeyboardInterrupt
        return [round % num_clients]


@SHORT
@pytest.mark.parametrize("name", ["PaperDSVGD", "UDSVGD"])
def test_ctrl_c_returns_what_is_done(name):
    algorithm = getattr(pf, name)(**SMALL)
    with pytest.warns(UserWarning, match=f"{name} was interrupted after 3 of 10 rounds"):
        partial = pf.run(algorithm, unequal_lines(), num_rounds=10, schedule=Interrupting(3), **QUIET)
    whole = quiet(algorithm, unequal_lines(), num_rounds=3)
    assert np.array_equal(values(partial), values(whole))
    assert partial.federation.sizes["round"] == 3
    assert partial.attrs["interrupted"] == "True"


@dataclass(frozen=True, kw_only=True)
class InterruptedMonitor(pf.PaperDSVGD):
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
        result = pf.run(InterruptedMonitor(**SMALL), unequal_lines(), num_rounds=5, **QUIET)
    assert result.federation.sizes["round"] == 2
    assert result.federation["change"].values.tolist() == [0.0, 1.0]


FIRST = pf.PaperDSVGD(**SMALL)


@dataclass(frozen=True, kw_only=True)
class Started(pf.PaperDSVGD):
    """DSVGD from the particles of another run of it."""

    first: Algorithm = field(default=FIRST)

    def warm_start(self, problem):
        return self.first


@dataclass(frozen=True, kw_only=True)
class Interrupted(pf.PaperDSVGD):
    """Ctrl-C in the first round's combine."""

    def combine(self, shared, messages, weights):
        raise KeyboardInterrupt


@SHORT
def test_ctrl_c_in_a_warm_start_ends_the_run():
    with pytest.warns(UserWarning, match="Interrupted was interrupted after 0 of 20 rounds"):
        result = pf.run(Started(**SMALL, first=Interrupted(**SMALL)), unequal_lines(), num_rounds=2, **QUIET)
    assert result.federation.sizes.get("round", 0) == 0


@pytest.mark.parametrize("factory", [pf.PaperDSVGD, pf.UDSVGD, pf.PaperSVGD])
def test_too_large_a_step_says_which_client_and_round_and_keeps_the_last_state(factory):
    algorithm = factory(**SMALL, step_size=1e200)
    with pytest.raises(pf.DivergenceError, match=r"client 0, round 0: 'particles' left the finite numbers") as caught:
        quiet(algorithm, unequal_lines())
    error = caught.value
    assert (error.client, error.round) == (0, 0)
    assert "reduce the step size" in str(error)
    assert np.isfinite(values(error.result)).all()
    assert error.result.posterior.sizes["draw"] == 5


def test_a_warm_start_that_diverges_keeps_its_own_result():
    algorithm = Started(**SMALL, first=pf.PaperSVGD(**SMALL, step_size=1e200))
    with pytest.raises(pf.DivergenceError) as caught:
        quiet(algorithm, unequal_lines())
    assert caught.value.result.attrs["algorithm"] == "PaperSVGD"


@dataclass(frozen=True, kw_only=True)
class Criterion(pf.PaperDSVGD):
    """Stops after `enough` rounds."""

    enough: int = 2

    def converged(self, figures):
        return len(figures) >= self.enough


@SHORT
def test_converged_is_told_and_its_absence_warned_of():
    done = quiet(Criterion(**SMALL), unequal_lines())
    assert (done.attrs["converged"], done.federation.sizes["round"]) == ("True", 2)
    with pytest.warns(UserWarning, match=r"not converged after 3 rounds: the last change was \d"):
        late = pf.run(Criterion(**SMALL, enough=9), unequal_lines(), num_rounds=3, **QUIET)
    assert late.attrs["converged"] == "False"
    assert quiet(pf.PaperDSVGD(**SMALL), unequal_lines()).attrs["converged"] == "unknown"


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
        ({"schedule": UniformRandom(0)}, "clients_per_round must be between 1 and the 3 clients, received 0"),
        ({"schedule": Explicit([[0], [7]])}, r"round 1 of the schedule lists \[7\], but clients are 0..2"),
        ({"schedule": Explicit([])}, "at least one round"),
        ({"schedule": All()}, "DSVGD adopts one client's particles a round, but 3 clients worked"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(pf.SettingError, match=message):
        quiet(pf.PaperDSVGD(**SMALL), unequal_lines(), **options)


@pytest.mark.parametrize("factory", [pf.PaperSVGD, pf.PaperDSVGD, pf.UDSVGD])
@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("num_particles", 1),
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
    with pytest.raises(pf.SettingError, match=f"{factory.__name__}: {setting} must .*, received {value}"):
        factory(**{setting: value})


@pytest.mark.parametrize(
    ("factory", "setting"),
    [
        (pf.PaperDSVGD, "kde_bandwidth"),
        (pf.UDSVGD, "kde_bandwidth"),
        (pf.PaperDSVGD, "distill_steps"),
    ],
)
def test_more_settings_out_of_range(factory, setting):
    with pytest.raises(pf.SettingError, match=f"{factory.__name__}: {setting} must .*, received 0"):
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


@pytest.mark.parametrize("factory", [pf.PaperDSVGD, pf.UDSVGD])
def test_a_round_with_nobody_changes_nothing(factory):
    @dataclass(frozen=True)
    class Sometimes(Schedule):
        def select(self, round, num_clients, rng):
            return [0] if round == 0 else []

    one = quiet(factory(**SMALL), unequal_lines(), num_rounds=1)
    three = quiet(factory(**SMALL), unequal_lines(), num_rounds=3, schedule=Sometimes())
    assert np.array_equal(values(one), values(three))
    assert three.federation["participated"].values.sum() == 1


@pytest.mark.parametrize("num_rows", [1, 2, 3, 5])
@pytest.mark.parametrize("batch_size", [1, 2, 3, 7])
def test_minibatches_are_unbiased_exactly(num_rows, batch_size, monkeypatch):
    """The weighted sum of a batch, averaged over every order of a pass, is the sum of all rows."""
    rows = torch.arange(1.0, num_rows + 1, dtype=torch.float64) ** 2
    data = ClientData((rows,), torch.arange(num_rows), torch.tensor(num_rows))
    sums = []
    for order in itertools.permutations(range(num_rows)):
        keys = torch.empty(num_rows)
        keys[list(order)] = torch.arange(num_rows, dtype=torch.float32)
        monkeypatch.setattr(torch, "rand", lambda passes, n, generator, keys=keys: keys.expand(passes, n))
        picks = draw_minibatches(num_rows, batch_size, 3, torch.Generator(), torch.float64)
        assert picks.position.shape == picks.weight.shape == (3, batch_size)
        for position, weight in zip(*picks, strict=True):
            batch = data.take(type(picks)(position, weight))
            sums.append(float((batch.rows[0] * batch.weight).sum()))
    assert np.mean(sums) == pytest.approx(float(rows.sum()), rel=1e-12)


def test_an_empty_client_adds_nothing():
    """It takes part with a flat site: SVGD's answer with it is the answer without it."""
    with pytest.warns(UserWarning, match="clients 2 have no rows"):
        parts = pf.partition.Explicit([list(range(10)), list(range(10, 23)), []])
        fed = pf.Federation(line, line_data(), plate="data", partition=parts)
    batch = ClientData(*fed.client_data([2])[:1], fed.client_data([2]).row_index[0], torch.tensor(0)).full_batch()
    assert float(fed.problem.log_lik(torch.ones(2, dtype=torch.float64), batch)) == 0
    result = quiet(pf.PaperDSVGD(**SMALL, batch_size=4), fed, num_rounds=3)
    assert np.isfinite(values(result)).all()


def test_padding_carries_no_weight():
    fed = unequal_lines()
    data = fed.client_data()
    for k, index in enumerate(fed.client_rows):
        batch = ClientData(data.rows, data.row_index[k], data.num_rows[k]).full_batch()
        assert float(batch.weight.sum()) == len(index)
        z = torch.tensor([0.3, -0.1], dtype=torch.float64)
        torch.testing.assert_close(fed.problem.log_lik(z, batch), fed.problem.pointwise_log_lik(z)[index].sum())


def test_a_dead_kde_warns():
    generator = torch.Generator().manual_seed(0)
    x = 50 * torch.randn(40, 2, generator=generator, dtype=torch.float64)
    fed = pf.Federation(line, (x, x[:, 0]), plate="data", num_clients=2)
    with pytest.warns(UserWarning, match=r"the KDE of bandwidth 0.001 is dead: .* effective neighbours"):
        pf.run(pf.PaperDSVGD(**SMALL, kde_bandwidth=0.001), fed, num_rounds=2, **QUIET)


@pytest.mark.parametrize("swap", [False, True])
def test_what_is_no_algorithm_or_no_federation_is_told_apart(swap):
    fed = unequal_lines()
    wrong = (fed, pf.FedEP()) if swap else (pf.FedEP, fed)
    with pytest.raises(pf.SettingError, match=r"such as pf.run\(pf.FedEP\(\), fed\), received"):
        pf.run(*wrong)
