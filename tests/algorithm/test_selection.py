"""Client selection: indicators against definitions, choices against probabilities, bytes, refusals."""

from collections import Counter
from itertools import product

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from algorithms import PAPER, SMALL, line, line_data, unequal_lines
from torch.func import grad, vmap

import pyro_fed as pf
from pyro_fed.algorithm.schedule import HIP, KSD, Availability
from pyro_fed.ops.kernels import IMQ
from pyro_fed.ops.stein import ksd, stein_inner_product
from pyro_fed.runtime.executors.base import Work
from pyro_fed.runtime.executors.local import Vectorised
from pyro_fed.runtime.messages import encoded_size
from pyro_fed.runtime.safetensors_header import Entry

QUIET = {"progress": False, "compile": "off", "log_likelihood": False, "audit": False}
#: Six rounds of one client and five particles: too short, too few, and not every client's turn.
SHORT = pytest.mark.filterwarnings(
    "ignore:the KDE of bandwidth",
    "ignore:not converged",
    "ignore:5 particles are too few",
    "ignore:.* clients never had a turn",
)
KERNEL = IMQ()


def asked(algorithm, fed, kind):
    """All clients' reports, the server's state, and the data by client."""
    problem, data = fed.problem, fed.client_data()
    shared, local = algorithm.init(problem, fed.num_clients, torch.Generator().manual_seed(0), None)
    executor = Vectorised()
    executor.start(algorithm, problem, data, local)
    clients = list(range(fed.num_clients))
    with torch.no_grad():
        work = Work(0, 0, clients, algorithm.download(shared, torch.tensor(clients)))
        return executor.ask(kind, work), shared


def own_scores(fed, particles):
    """Each client's likelihood scores at the particles, (K, N, D), from its own rows."""
    rows = [fed.client_args(k)[0] for k in range(fed.num_clients)]
    return torch.stack([vmap(grad(lambda w, x=x, y=y: -0.5 * (y - x @ w).square().sum()))(particles) for x, y in rows])


def test_ksd_is_that_of_the_tilted_distribution():
    """In the first round the tilted distribution is prior times own likelihood, both known here."""
    fed, algorithm = unequal_lines(), pf.papers.PaperDSVGD(**PAPER, kernel=KERNEL, temperature=2.0)
    reports, shared = asked(algorithm, fed, "ksd")
    x = shared["particles"]
    expected = torch.stack([ksd(x, -x + s / 2, KERNEL) for s in own_scores(fed, x)])
    torch.testing.assert_close(reports["ksd"], expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(algorithm.importance("ksd", shared, reports), expected, rtol=1e-9, atol=1e-9)


def test_hip_is_the_product_with_the_mean_of_all():
    fed, algorithm = unequal_lines(), pf.papers.PaperDSVGD(**PAPER, kernel=KERNEL, temperature=2.0)
    reports, shared = asked(algorithm, fed, "hip")
    x = shared["particles"]
    scores = own_scores(fed, x) / 2
    torch.testing.assert_close(reports["scores"], scores, rtol=1e-9, atol=1e-9)
    # Lemma 3, Eq. (21): the sum of the products with every client is K times the product with their mean. A negative
    # product, here of the first client with a mean that the last one turns round, counts as zero.
    for each in (scores, torch.cat([scores[:-1], -9 * scores[:1]])):
        products = [sum(stein_inner_product(x, own, other, KERNEL) for other in each) / len(each) for own in each]
        expected = torch.stack(products).clamp_min(0)
        found = algorithm.importance("hip", shared, {"scores": each})
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)
    assert expected[0] == 0 and expected[-1] > 0


@pytest.mark.parametrize("schedule", [KSD(), HIP()], ids=["KSD", "HIP"])
def test_choice_follows_the_importance(schedule):
    """20,000 draws: each frequency is within five standard errors (failure probability below 1e-5)."""
    weights = np.array([1.0, 0.0, 3.0, 6.0])
    counts = (
        np.bincount([schedule.choose(weights, np.random.default_rng(i))[0] for i in range(20_000)], minlength=4)
        / 20_000
    )
    odds = weights / weights.sum()
    assert np.all(np.abs(counts - odds) <= 5 * np.sqrt(odds * (1 - odds) / 20_000))


def location(y):
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


@SHORT
@pytest.mark.parametrize("kind", [KSD, HIP])
def test_who_is_unlike_the_last_client_is_chosen(kind):
    """Rows about +1 at even clients, about -1 at odd ones: the particles follow one kind, and the other is due.

    This is what selection has over chance on non-IID data (Figures 2 to 5), whose share is one half.
    """
    shares = []

    class Watched(kind):
        def choose(self, importance, rng):
            shares.append(importance[::2].sum() / importance.sum())
            return super().choose(importance, rng)

    rows = torch.randn(10, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows += torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(5)[:, None]
    fed = pf.Federation.from_clients(location, [(y,) for y in rows], plate="data")
    algorithm = pf.papers.PaperDSVGD(num_particles=5, local_steps=40, distill_steps=10)
    idata = pf.run(algorithm, fed, num_rounds=6, schedule=Watched(), **QUIET)
    last_was_even = idata.federation["participated"].values[:, ::2].any(1)
    for even, share in zip(last_was_even, shares[1:], strict=False):
        assert (share < 0.4) if even else (share > 0.6)


def test_several_clients_are_different_and_none_is_impossible():
    rng = np.random.default_rng(0)
    assert sorted(KSD(clients_per_round=3).choose(np.array([0.0, 1.0, 0.0]), rng)) == [0, 1, 2]
    assert KSD(clients_per_round=1).choose(np.zeros(5), rng)[0] in range(5)
    with pytest.raises(
        pf.errors.SettingError, match="clients_per_round must be between 1 and the 3 clients, received 4"
    ):
        KSD(clients_per_round=4).choose(np.ones(3), rng)


@SHORT
@pytest.mark.parametrize(
    ("algorithm", "schedule"),
    [
        (pf.DSVGD(**SMALL, start="gaussian"), KSD()),
        (pf.DSVGD(**SMALL, start="gaussian"), HIP()),
        (pf.infer.ParallelDSVGD(**SMALL, start="gaussian"), HIP()),
        (pf.papers.UDSVGD(**SMALL), KSD()),
        (pf.papers.PaperDSVGD(**SMALL, distill_steps=2), HIP()),
        (pf.papers.PaperParallelDSVGD(**SMALL, distill_steps=2, server_steps=2), KSD()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_bytes_of_the_question_are_counted(algorithm, schedule):
    fed = unequal_lines()
    group = pf.run(algorithm, fed, num_rounds=2, schedule=schedule, **QUIET).federation
    last = group.isel(round=-1)
    ksd, scores = Entry((), torch.float64), Entry((SMALL["num_particles"], 2), torch.float64)
    answer = encoded_size({"ksd": ksd} if isinstance(schedule, KSD) else {"scores": scores})
    passed_over = last["bytes_up"].values[~last["participated"].values]
    np.testing.assert_array_equal(passed_over, [answer, answer])
    assert last["bytes_up"].values[last["participated"].values][0] > answer
    assert len(set(last["bytes_down"].values)) == 1  # all clients got what the chosen one works with


@SHORT
def test_executors_choose_the_same_clients():
    options = {"num_rounds": 4, "schedule": KSD(), **QUIET}
    apart, together = (
        pf.run(pf.papers.PaperDSVGD(**SMALL, distill_steps=2), unequal_lines(), executor=name, **options)
        for name in ("sequential", "vectorised")
    )
    np.testing.assert_array_equal(apart.federation["participated"], together.federation["participated"])


@pytest.mark.parametrize("schedule", [KSD(), HIP()], ids=["KSD", "HIP"])
@pytest.mark.parametrize("algorithm", [pf.FedLaplace(), pf.FSGLD()], ids=["FedLaplace", "FSGLD"])
def test_refused_where_there_is_no_indicator(algorithm, schedule):
    with pytest.raises(
        pf.errors.SettingError, match=f"{schedule.asks!r}, which {type(algorithm).__name__} cannot give"
    ):
        pf.run(algorithm, unequal_lines(), schedule=schedule, **QUIET)
    with pytest.raises(pf.errors.SettingError, match="chooses by the clients' indicators"):
        schedule.select(0, 3, np.random.default_rng(0))


def test_the_kind_of_schedules_that_ask_is_none_itself():
    with pytest.raises(pf.errors.SettingError, match="does not say what it asks the clients for: use KSD or HIP"):
        pf.run(pf.DSVGD(), unequal_lines(), schedule=pf.schedule.Informed(), **QUIET)


def test_availability_draws_from_who_is_there():
    """Client 0 always, client 1 in half of the rounds: 3/4 and 1/4 (five standard errors)."""
    schedule = Availability([1.0, 0.5])
    chosen = [schedule.select(i, 2, np.random.default_rng(i))[0] for i in range(10_000)]
    assert np.mean(chosen) == pytest.approx(0.25, abs=5 * (0.25 * 0.75 / 10_000) ** 0.5)
    assert Availability([1.0] * 4, clients_per_round=4).select(0, 4, np.random.default_rng(0)) == [0, 1, 2, 3]


def test_availability_is_that_of_rounds_in_which_somebody_is_there():
    """Against the product of the probabilities, over the sets that are not empty (five standard errors)."""
    chances, draws = (0.2, 0.05, 0.1), 20_000
    schedule = Availability(chances, clients_per_round=3)
    found = Counter(tuple(schedule.select(i, 3, np.random.default_rng(i))) for i in range(draws))
    sets = [here for here in product((False, True), repeat=3) if any(here)]
    odds = {here: np.prod([p if there else 1 - p for p, there in zip(chances, here, strict=True)]) for here in sets}
    for here, weight in odds.items():
        share = weight / sum(odds.values())
        seen = found[tuple(int(k) for k in np.flatnonzero(here))] / draws
        assert seen == pytest.approx(share, abs=5 * (share * (1 - share) / draws) ** 0.5)


@pytest.mark.parametrize("chances", [(1e-12,), (1e-300, 1e-300), (5e-324, 5e-324, 5e-324)])
def test_who_is_hardly_ever_there_holds_nobody_up(chances):
    chosen = Availability(chances).select(0, len(chances), np.random.default_rng(0))
    assert len(chosen) == 1 and 0 <= chosen[0] < len(chances)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Availability([0.0, 1.0]), r"Availability: probabilities must be numbers in \(0, 1\]"),
        (lambda: Availability([0.5, 1.5]), r"Availability: probabilities must be numbers in \(0, 1\]"),
        (lambda: Availability([]), r"Availability: probabilities must be numbers in \(0, 1\]"),
        (lambda: Availability([0.5], clients_per_round=0), "Availability: clients_per_round must be a whole number of"),
        (lambda: pf.schedule.Categorical((0.5, 0.6)), "Categorical: .* sum to one, received .*, whose sum is 1.1"),
        (lambda: pf.schedule.Categorical((-0.5, 1.5)), "Categorical: probabilities must be at least 0 and sum to one"),
        (lambda: pf.schedule.Categorical(()), "Categorical: probabilities must be at least 0 and sum to one"),
        (lambda: pf.schedule.RoundRobin(0), "RoundRobin: clients_per_round must be a whole number of at least 1"),
        (lambda: pf.schedule.UniformRandom(0), "UniformRandom: clients_per_round must be a whole number of at least 1"),
        (lambda: KSD(clients_per_round=0), "KSD: clients_per_round must be a whole number of at least 1"),
        (lambda: pf.schedule.Explicit([]), "Explicit: expected at least one round"),
        (lambda: pf.schedule.Explicit([[0], []]), "Explicit: .* in round 1, at least one, received"),
        (lambda: pf.schedule.Explicit([[0], [-1]]), "Explicit: expected clients' numbers from 0 in round 1"),
        (lambda: pf.schedule.Explicit([[0, 0]]), "Explicit: round 0 has a client twice"),
    ],
)
def test_settings_of_schedules_are_checked_when_they_are_made(make, message):
    with pytest.raises(pf.errors.SettingError, match=message):
        make()


@pytest.mark.parametrize("schedule", [Availability([1.0]), pf.schedule.Categorical((1.0,))])
def test_probabilities_are_those_of_as_many_clients(schedule):
    with pytest.raises(pf.errors.SettingError, match="1 probabilities were given for 2 clients"):
        schedule.select(0, 2, np.random.default_rng(0))


def test_probabilities_may_be_zero_and_rounded():
    schedule = pf.schedule.Categorical((0.0, 1 / 3, 1 / 3, 1 / 3))
    assert {schedule.select(i, 4, np.random.default_rng(i))[0] for i in range(100)} == {1, 2, 3}


def test_federated_ksd_is_the_pooled_one():
    """Sums of the clients' scores are the pooled scores; shifted draws are found out."""
    x, y = line_data()
    exact = pf.Federation(line, (x, y), plate="data", num_clients=1)
    draws = pf.run(pf.FedLaplace(), unequal_lines(), num_draws=400, progress=False)
    value = pf.metrics.ksd(draws, unequal_lines())
    assert value == pytest.approx(pf.metrics.ksd(draws, exact), rel=1e-9)
    # Its mean is E u(θ, θ) / M, for a Gaussian and the IMQ kernel (E|score|² + tr) / M = (2 + 2) / 400 in whitened
    # coordinates, and its SD no more than √2 times that.
    assert 0 < value < 0.01 * (1 + 5 * 2**0.5)
    assert pf.metrics.ksd(draws, exact, statistic="U") == pytest.approx(value - 0.01, abs=0.002)
    moved = draws.copy()
    moved.posterior["w"] = moved.posterior["w"] + 1.0
    assert pf.metrics.ksd(moved, exact) > 100 * value


def test_federated_ksd_errors():
    fed = unequal_lines()
    draws = pf.run(pf.FedLaplace(), fed, num_draws=5, progress=False, audit=False)
    with pytest.raises(pf.errors.SettingError, match="num_draws must be at least 2, received 1"):
        pf.metrics.ksd(draws, fed, num_draws=1)
    with pytest.raises(pf.errors.SettingError, match="'U' or 'V', received 'W'"):
        pf.metrics.ksd(draws, fed, statistic="W")
    other = draws.copy()
    other.posterior = other.posterior.rename({"w": "v"})
    with pytest.raises(pf.errors.DataError, match=r"no sites \['w'\]"):
        pf.metrics.ksd(other, fed)


class Reversed(pf.schedule.Shuffled):
    """Sweeps from the last client of an order to its first."""

    def select(self, round, num_clients, rng):
        return [int(rng.permutation(num_clients)[::-1][round % num_clients])]


@pytest.mark.parametrize("schedule", [pf.schedule.Shuffled(), Reversed(), pf.schedule.Categorical()])
def test_what_a_schedule_answers_in_a_period_is_what_it_answers_round_by_round(schedule):
    for first in range(0, 21, schedule.period(7)):
        answer = schedule.of_period(7, np.random.default_rng(first))
        rounds = range(first, first + schedule.period(7))
        expected = [schedule.chosen(round, 7, np.random.default_rng(first)) for round in rounds]
        assert [answer(round) for round in reversed(rounds)] == expected[::-1]


@pytest.mark.parametrize("slots", [1, 5, 7, 10])
def test_slots_of_a_sweep_share_its_clients_out(slots):
    """To each slot it is a sweep in random order; no client has two of up to K slots while another has none."""
    first = []
    for sweep in range(700):
        answer = pf.schedule.Shuffled().of_slots(7, slots, lambda slot: np.random.default_rng([sweep, slot]))  # noqa: B023
        rounds = np.array([answer(round) for round in range(7)])
        assert (np.sort(rounds, 0) == np.arange(7)[:, None]).all()
        assert all(len(set(row[:7])) == min(slots, 7) and len(set(row[7:])) == len(row[7:]) for row in rounds.tolist())
        first.append(rounds[0])
    # Standard scores of 70 counts of 100 at most: beyond 5 once in 25,000 times.
    counts = np.array([np.bincount(one, minlength=7) for one in np.array(first).T])
    assert (abs(counts - 100) / np.sqrt(100 * 6 / 7) < 5).all()


@pytest.mark.parametrize("schedule", [Reversed(), pf.schedule.Categorical()])
def test_slots_of_another_schedule_ask_for_themselves(schedule):
    answer = schedule.of_slots(7, 3, np.random.default_rng)
    each = [schedule.chosen(0, 7, np.random.default_rng(slot)) for slot in range(3)]
    assert answer(0) == [client for chosen in each for client in chosen]


def test_a_sweep_draws_its_order_once():
    """Of many clients a permutation a round is what a run would take its time for."""
    drawn = []

    class Counting(np.random.Generator):
        def permutation(self, *args, **options):
            drawn.append(args)
            return super().permutation(*args, **options)

    answer = pf.schedule.Shuffled().of_period(50, Counting(np.random.PCG64(0)))
    assert sorted(client for round in range(50) for client in answer(round)) == list(range(50)) and len(drawn) == 1
