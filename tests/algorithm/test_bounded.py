"""What one client can do where each is held to what the cohort does: exact posteriors, kinds of liars, prices."""

import functools
import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from algorithms import line, line_data, unequal_lines

import pyro_fed as pf
from pyro_fed.algorithm.bounding import (
    ACCEPTED_SHIFT_SDS,
    NORMAL_MEDIAN_DEVIATION,
    bounded_sites,
    distances_from_cohort,
    median_of,
    redescending,
    relative_rows,
    within_cohort,
)
from pyro_fed.algorithm.combination import Bounded
from pyro_fed.algorithm.contributions import SentMessages
from pyro_fed.algorithm.record import Record, Round
from pyro_fed.infer.laplace.fedlaplace import limited_values
from pyro_fed.infer.peers.contributions import two_links
from pyro_fed.ops.gaussian import STRUCTURES
from pyro_fed.runtime.executors import Faulty

QUIET = {"progress": False, "log_likelihood": False, "num_draws": 4000, "audit": False}
LIAR = 4
CLIENTS = 10
#: What the liar makes of its site (precision, eta), by name; D = 3.
LIES = {
    "negated": lambda p, e: (-p, -e),
    "eta negated": lambda p, e: (p, -e),
    "hundredfold": lambda p, e: (100 * p, 100 * e),
    "certain": lambda p, e: (1e6 * p, 1e6 * p @ e.new_tensor([1.0, -2.0, 3.0])),
    "far away": lambda p, e: (p, e + 1e4 * e.norm()),
    "noise": lambda p, e: (p.flip(0) * 10, e.flip(0) * 10),
    "huge": lambda p, e: (torch.full_like(p, 1e30), torch.full_like(e, 1e30)),
    "at random": lambda p, e: at_random(p, e),
    "nothing": lambda p, e: (0 * p, 0 * e),
}


def at_random(precision, eta):
    """Numbers ten times as large, of no meaning: an indefinite matrix that is not even symmetric."""
    generator = torch.Generator().manual_seed(int(1e6 * eta.abs().sum()))
    size = 10 * precision.norm()
    drawn = [torch.randn(part.shape, generator=generator, dtype=torch.float64) for part in (precision, eta)]
    return size * drawn[0], size * drawn[1]


def sites(seed, rows=40, dim=3):
    """Sites of ten linear regressions with the same truth."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(CLIENTS, rows, dim, generator=generator, dtype=torch.float64)
    y = x @ torch.ones(dim, dtype=torch.float64) + torch.randn(CLIENTS, rows, generator=generator, dtype=torch.float64)
    return STRUCTURES["full"](x.mT @ x, (x.mT @ y.unsqueeze(-1)).squeeze(-1))


def prior(dim=3):
    return STRUCTURES["full"](torch.eye(dim, dtype=torch.float64), torch.zeros(dim, dtype=torch.float64))


def others(all_sites):
    keep = [k for k in range(CLIENTS) if k != LIAR]
    return prior().product(type(all_sites)(all_sites.precision[keep], all_sites.eta[keep]).product_over(0))


def with_lie(honest, lie):
    precision, eta = honest.precision.clone(), honest.eta.clone()
    precision[LIAR], eta[LIAR] = LIES[lie](precision[LIAR], eta[LIAR])
    return type(honest)(precision, eta)


@pytest.mark.parametrize("lie", LIES)
def test_one_liar_in_ten_moves_no_mean_by_two_sds(lie):
    """Against the exact posterior of the other nine, from a centre that is right and from one twenty SDs away.

    A liar's precision is at most h times that of q, h = 4 times the median client's largest eigenvalue, so that no
    variance is less than 1 - h of the others'.
    """
    for seed in range(6):
        honest = sites(seed)
        nine = others(honest)
        sd = nine.moments()[1].diagonal().sqrt()
        root = nine.root()
        largest = torch.linalg.eigvalsh(root.mT @ honest.precision @ root)[:, -1]
        narrowest = (1 - 4 * torch.cat([largest[:LIAR], largest[LIAR + 1 :]]).median()).sqrt()
        for centre in (nine.mean(), nine.mean() + 20 * sd):
            found = bounded_sites(prior(), with_lie(honest, lie), centre, pull=2.0, precision=4.0)
            q = prior().product(found.sites.product_over(0))
            assert float(((q.mean() - nine.mean()) / sd).abs().max()) < 2
            ratio = q.moments()[1].diagonal().sqrt() / sd
            assert float(ratio.min()) > float(narrowest)
            assert float(ratio.max()) <= 1.0 + 1e-6
            named = int(found.limit_excess.argmax()) == LIAR and float(found.limit_excess[LIAR]) > 0
            assert named == (lie != "nothing")  # who says nothing is within all bounds


def test_honest_clients_keep_their_sites_to_the_bit_and_all_lose_little():
    for seed in range(5):
        honest = sites(seed)
        exact = prior().product(honest.product_over(0))
        found = bounded_sites(prior(), honest, exact.mean(), pull=2.0, precision=4.0)
        same = found.limit_excess == 0
        assert int(same.sum()) >= 7
        assert torch.equal(found.sites.precision[same], honest.precision[same])
        assert torch.equal(found.sites.eta[same], honest.eta[same])
        q = prior().product(found.sites.product_over(0))
        sd = exact.moments()[1].diagonal().sqrt()
        assert float(((q.mean() - exact.mean()) / sd).abs().max()) < 0.25
        torch.testing.assert_close(q.moments()[1].diagonal().sqrt(), sd, rtol=0.01, atol=0)


def test_the_only_client_that_knows_of_a_parameter_is_heard():
    """With four times what the median client knows in all: two thirds of what it says. Unheard it is 3.6 SDs away."""
    precision = torch.zeros(5, 3, dtype=torch.float64)
    precision[:, 0], precision[1, 1], precision[2, 2] = 10.0, 10.0, 10.0
    eta = precision * torch.tensor([1.0, 1.2, -0.4], dtype=torch.float64)
    given = STRUCTURES["diag"](precision, eta)
    flat = STRUCTURES["diag"](torch.ones(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64))
    found = bounded_sites(flat, given, torch.zeros(3, dtype=torch.float64), pull=2.0, precision=4.0)
    q, exact = (flat.product(each.product_over(0)) for each in (found.sites, given))
    assert float(((q.mean() - exact.mean()) * exact.precision.sqrt()).abs().max()) < 1.1
    assert bool((q.mean()[1:] / exact.mean()[1:] > 2 / 3).all())


def test_a_base_that_is_not_finite_counts_as_flat():
    """As the prior's curvature at a trial point far out; a lie is held to the others' there too."""
    told = with_lie(sites(0), "hundredfold")
    centre = torch.ones(3, dtype=torch.float64)
    flat, lost = (
        STRUCTURES["full"](torch.full((3, 3), v).double(), torch.full((3,), v).double()) for v in (0.0, torch.nan)
    )
    found, expected = (bounded_sites(base, told, centre, pull=2.0, precision=4.0) for base in (lost, flat))
    assert torch.equal(found.sites.precision, expected.sites.precision)
    assert torch.equal(found.sites.eta, expected.sites.eta)
    assert int(found.limit_excess.argmax()) == LIAR


def test_numbers_within_the_cohorts_range():
    values = torch.tensor([[1.0], [2.0], [3.0], [4.0], [1e9]], dtype=torch.float64)
    held, beyond = within_cohort(values, 2.0)
    assert held.flatten().tolist() == pytest.approx([1.0, 2.0, 3.0, 4.0, 3.0 + 2 / NORMAL_MEDIAN_DEVIATION])
    assert (beyond > 0).tolist() == [False] * 4 + [True]
    assert float(distances_from_cohort(values)[-1]) > 1e8
    flat, also = within_cohort(values[:, 0], 2.0)  # one number a client
    assert (flat.tolist(), also.tolist()) == (held.flatten().tolist(), beyond.tolist())
    assert float(distances_from_cohort(values.expand(5, 3) * 0 + 1).max()) == 0.0


def test_who_counts_for_more_rows_has_less_room():
    values = torch.tensor([[1.0], [2.0], [3.0], [4.0], [1e9]], dtype=torch.float64)
    for rows, room in ((1.0, 1.0), (2.0, 0.5**0.5), (10.0, (torch.pi / 10) ** 0.5), (0.25, 2.0)):
        share = torch.tensor([1.0, 1.0, 1.0, 1.0, rows])
        held = within_cohort(values, 2.0, share)[0]
        assert float(held[-1] - 3.0) == pytest.approx(2 / NORMAL_MEDIAN_DEVIATION * room, rel=1e-6)
        assert held[:4].equal(values[:4])


def test_values_of_a_line_are_those_of_quadratics_and_no_liar_counts():
    """Log-likelihoods that are quadratic are returned but for their level, whatever one of them says."""
    honest = sites(0)
    point = torch.full((3,), 0.5, dtype=torch.float64)
    direction = torch.tensor([1.0, -0.3, 0.2], dtype=torch.float64)
    line_ = torch.tensor([0.0, 3.0, -0.5, -0.9999], dtype=torch.float64).unsqueeze(-1) * direction
    values = honest.log_factor((point + line_).unsqueeze(1)).T
    lie = values.clone()
    lie[LIAR] = torch.tensor([0.0, 1e9, -1e9, 5.0], dtype=torch.float64)
    held, total = limited_values(honest, point, torch.cat([line_, line_[-1:]]), lie, 2.0)
    gains = held.sum(0) - total
    torch.testing.assert_close(gains, values.sum(0) - values.sum(0)[-1], rtol=1e-9, atol=1e-6)


def logistic(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def test_a_liar_with_more_rows_than_all_others_leads_no_line_search():
    """Its values would outweigh all others' where what they may depart by grew with its rows: 22 SDs."""
    generator = torch.Generator().manual_seed(1)
    parts = []
    for rows in [400] + [20] * 9:
        x = torch.randn(rows, 2, generator=generator, dtype=torch.float64)
        y = (
            torch.rand(rows, generator=generator, dtype=torch.float64)
            < (x @ torch.tensor([1.5, -0.5]).double()).sigmoid()
        )
        parts.append((x, y.double()))
    fed = pf.Federation.from_clients(logistic, parts, plate="data")
    liar = Faulty(probability=1.0, kinds=("negated",), clients=(0,))
    found = run(pf.FedLaplace(), fed, executor=liar, num_rounds=30)
    nine = run(pf.FedLaplace(), fed.without("0"), combination=None)
    mean, sd = (getattr(nine.posterior["w"], what)(("chain", "draw")).values for what in ("mean", "std"))
    assert found.attrs["converged"]
    assert np.abs((found.posterior["w"].mean(("chain", "draw")).values - mean) / sd).max() < 2


def test_honest_clients_of_unequal_sizes_lead_the_line_search_to_the_mode():
    """It compares the mass of points of different rounds: at the median level of each it stopped 6.8 SDs off."""
    sizes, generator = [400 // k for k in range(1, 11)], torch.Generator().manual_seed(1)
    x = torch.randn(sum(sizes), 3, generator=generator, dtype=torch.float64)
    truth = torch.randn(3, generator=generator, dtype=torch.float64)
    y = (torch.rand(len(x), generator=generator, dtype=torch.float64) < torch.sigmoid(x @ truth)).double()
    fed = pf.Federation.from_clients(logistic, list(zip(x.split(sizes), y.split(sizes), strict=True)), plate="data")
    free, held = (run(pf.FedLaplace(), fed, combination=limits) for limits in (None, Bounded()))
    mean, sd = (getattr(free.posterior["w"], what)(("chain", "draw")).values for what in ("mean", "std"))
    assert held.attrs["converged"]
    assert np.abs((held.posterior["w"].mean(("chain", "draw")).values - mean) / sd).max() < 0.5
    np.testing.assert_allclose(held.posterior["w"].std(("chain", "draw")).values, sd, rtol=0.03)


@functools.cache
def ten_clients():
    return pf.Federation(line, line_data(rows=400, seed=5), plate="data", num_clients=CLIENTS)


def run(algorithm, fed=None, **options):
    fed = fed or ten_clients()
    graph = options.pop("graph", pf.graph.complete(CLIENTS) if isinstance(algorithm, pf.P2PVI) else None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return pf.run(algorithm, fed, graph=graph, **{"combination": Bounded()} | QUIET | options)


def exact(clients):
    x, y = line_data(rows=400, seed=5)
    rows = torch.cat([ten_clients().client_rows[k] for k in clients])
    x, y = x[rows], y[rows]
    covariance = torch.linalg.inv(x.T @ x + torch.eye(2, dtype=x.dtype))
    return (covariance @ x.T @ y).numpy(), covariance.diagonal().sqrt().numpy()


def error(idata, clients):
    """Largest error of a mean in SDs, and the ratio of SDs, against the exact posterior of some clients."""
    mean, sd = exact(clients)
    draws = idata.posterior["w"].values.reshape(-1, 2)
    return float(np.abs((draws.mean(0) - mean) / sd).max()), draws.std(0) / sd


FAMILIES = [
    pf.FedEP(),
    pf.FedEP(start="prior"),
    pf.FedEP(covariance="diag"),
    pf.infer.PVI(),
    pf.infer.FedPA(client=pf.infer.tilted.Laplace()),
    pf.infer.FedSEP(),
    pf.FedLaplace(),
    pf.infer.BCM(),
    pf.P2PVI(start="prior"),
    pf.P2PVI(start="local"),
    pf.FedAIS(num_proposals=2000),
    pf.infer.ParallelDSVGD(num_particles=50),
    pf.DSVGD(num_particles=50),
    pf.infer.FALD(burn_in=50, num_chains=2),
    pf.FedAvg(step_size=0.05),
]
#: Those whose draws are few, or whose price is no closed form.
SAMPLED = 5
NAMES = [f"{type(a).__name__}{i}" for i, a in enumerate(FAMILIES)]


@pytest.mark.parametrize("algorithm", FAMILIES, ids=NAMES)
def test_every_family_is_bounded(algorithm):
    """Sign, size and replay: below two SDs of the posterior of the other nine, and the liar is named."""
    nine = [k for k in range(CLIENTS) if k != LIAR]
    for kind in ("negated", "hundredfold"):
        liar = Faulty(probability=1.0, kinds=(kind,), clients=(LIAR,))
        off, _ = error(run(algorithm, executor=liar, num_rounds=12), nine)
        assert off < 2, kind


@pytest.mark.parametrize("algorithm", FAMILIES[:-SAMPLED], ids=NAMES[:-SAMPLED])
def test_the_price_when_all_are_honest(algorithm):
    """That of the exact sites within the limits: one client pulls by 3.3 of its own SDs, and is held to two.

    4,000 draws: five standard errors are 0.08 SD of a mean and 5.6 % of an SD; a diagonal is another posterior.
    """
    x, y = line_data(rows=400, seed=5)
    rows = ten_clients().client_rows
    honest = STRUCTURES["full"](torch.stack([x[r].T @ x[r] for r in rows]), torch.stack([x[r].T @ y[r] for r in rows]))
    all_ten = prior(2).product(honest.product_over(0))
    found = bounded_sites(prior(2), honest, all_ten.mean(), pull=2.0, precision=4.0)
    q = prior(2).product(found.sites.product_over(0))
    price = float(((q.mean() - all_ten.mean()) * all_ten.moments()[1].diagonal().rsqrt()).abs().max())
    assert 0.32 < price < 0.35
    off, ratio = error(run(algorithm), range(CLIENTS))
    assert abs(off - price) < 0.08
    np.testing.assert_allclose(ratio, 1.0, atol=0.1 if algorithm == pf.FedEP(covariance="diag") else 0.056)


def test_agents_are_held_by_their_neighbours_neighbours():
    """On a ring; the price where all are honest is that of limits of five agents."""
    nine = [k for k in range(CLIENTS) if k != LIAR]
    liar = Faulty(probability=1.0, kinds=("hundredfold",), clients=(LIAR,))
    off, _ = error(run(pf.P2PVI(), executor=liar, num_rounds=6, graph=pf.graph.ring(CLIENTS)), nine)
    assert off < 2
    near = two_links(pf.graph.ring(CLIENTS))
    assert near.sum(0).tolist() == [5] * CLIENTS


def unequal(rows, seed=0, dim=3):
    """Sites of linear regressions of so many rows with the same truth."""
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for count in rows:
        x = torch.randn(count, dim, generator=generator, dtype=torch.float64)
        y = x.sum(1) + torch.randn(count, generator=generator, dtype=torch.float64)
        parts.append((x.T @ x, x.T @ y))
    return STRUCTURES["full"](*(torch.stack(part) for part in zip(*parts, strict=True)))


@pytest.mark.parametrize(
    "rows",
    [[400 // k for k in range(1, 11)], [400] + [20] * 9, [5] * 5 + [200] * 5, [1, 3, 8, 15, 22, 40, 60, 90, 200, 361]],
)
def test_honest_clients_of_unequal_sizes_widen_nothing(rows):
    """Limits are row for row. Without the rows the SDs are 1.3 to 2.7 times as wide."""
    for seed in range(5):
        honest = unequal(rows, seed)
        all_ten = prior().product(honest.product_over(0))
        sd = all_ten.moments()[1].diagonal().sqrt()
        ratios = []
        for told in (torch.tensor(rows), None):
            found = bounded_sites(prior(), honest, all_ten.mean(), pull=2.0, precision=4.0, rows=told)
            q = prior().product(found.sites.product_over(0))
            ratios.append(float((q.moments()[1].diagonal().sqrt() / sd).max()))
        assert ratios[0] < 1.05
        assert ratios[1] >= ratios[0] * (1 - 1e-12)  # both are one, but for rounding, where nothing is cut


def test_a_liar_that_claims_a_million_rows_moves_no_mean_by_two_sds():
    """By what it may know, 20 times the median client, and by where it says that the parameters are."""
    for seed in range(6):
        honest = sites(seed)
        nine = others(honest)
        sd = nine.moments()[1].diagonal().sqrt()
        rows = torch.full((CLIENTS,), 40.0).index_fill(0, torch.tensor(LIAR), 1e6)
        for size in (1.0, 25.0, 1e6):
            for away in (2.0, 4.0, 30.0):
                told = type(honest)(honest.precision.clone(), honest.eta.clone())
                told.precision[LIAR] = size * honest.precision[LIAR]
                told.eta[LIAR] = told.precision[LIAR] @ (nine.mean() + away * sd)
                found = bounded_sites(prior(), told, nine.mean(), pull=2.0, precision=4.0, rows=rows)
                q = prior().product(found.sites.product_over(0))
                assert float(((q.mean() - nine.mean()) / sd).abs().max()) < 2


@pytest.mark.parametrize("lie", ["noise", "at random", "one direction"])
def test_nor_does_one_that_claims_them_for_noise_or_for_one_direction(lie):
    """The passes end where q and the limits fit each other, and a limit holds along every direction, as for one."""
    for seed in range(12):
        honest = sites(seed, rows=20)
        nine = others(honest)
        sd = nine.moments()[1].diagonal().sqrt()
        told = with_lie(honest, lie) if lie in LIES else type(honest)(honest.precision.clone(), honest.eta.clone())
        if lie == "one direction":
            along = torch.randn(3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            told.precision[LIAR] = 100 * torch.outer(along, along)
            told.eta[LIAR] = told.precision[LIAR] @ (nine.mean() + 10 * sd * along.sign())
        rows = torch.full((CLIENTS,), 20.0).index_fill(0, torch.tensor(LIAR), 1e12)
        found = bounded_sites(prior(), told, nine.mean(), pull=2.0, precision=4.0, rows=rows)
        q = prior().product(found.sites.product_over(0))
        assert float(((q.mean() - nine.mean()) / sd).abs().max()) < 2


def test_medians_weigh_clients_by_their_rows_up_to_the_median_clients():
    values = torch.tensor([5.0, 1.0, 3.0, 2.0], dtype=torch.float64)
    assert float(median_of(values, torch.ones(4).double())) == 2.5
    assert float(median_of(values, torch.tensor([1e-3, 1.0, 10.0, 1.0]).double())) == 2.0
    rows = torch.tensor([0.0, 20.0, 40.0, 60.0, 1e6]).double()
    share = relative_rows(rows, rows)
    assert share.tolist() == pytest.approx([0.0, 0.4, 0.8, 1.2, 10.0])


def test_departures_far_beyond_a_limit_count_for_nothing():
    away = torch.tensor([-0.5, 1.0, 1.5, 2.0, 3.0, -4.0, 1e9]).double()
    assert redescending(away, torch.tensor(1.0).double()).tolist() == pytest.approx(
        [-0.5, 1.0, 1.0, 1.0, 0.5, 0.0, 0.0]
    )


def test_how_far_each_message_moves_the_answer_is_recorded():
    """Of the first step of sites of a linear model from the prior: by the closed form."""
    fed = ten_clients()
    found = run(pf.FedEP(start="prior"), num_rounds=2, combination=None).federation["moved"].values
    x, y = line_data(rows=400, seed=5)
    pulls = torch.stack([(x[rows].T @ y[rows]).abs().max() for rows in fed.client_rows])
    np.testing.assert_allclose(found[0], pulls, rtol=1e-6)


def test_weights_move_no_honest_client_and_a_liar_is_named():
    """A client's log-likelihoods move the weights by what its site lacks of them: of a linear model, by nothing."""
    fed = ten_clients()
    held = run(pf.FedAIS(num_proposals=2000), combination=Bounded()).federation["moved"].values
    assert held[-1].max() < ACCEPTED_SHIFT_SDS and np.median(held[-1]) < 1e-10  # what is cut from a site comes back
    assert np.isnan(run(pf.FedAIS(num_proposals=2000), combination=None).federation["moved"].values).all()
    liar = Faulty(probability=1.0, kinds=("hundredfold",), clients=(LIAR,))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pf.run(pf.FedAIS(num_proposals=2000), fed, executor=liar, **QUIET | {"audit": True})
    said = [str(each.message) for each in caught if each.category is UserWarning]
    assert any(f"client {LIAR} moves the mean of 'w[" in sentence for sentence in said), said


def moving(record, moves):
    """A round for each of the (client, SDs)."""
    for client, size in moves:
        record.rounds.append(Round("DSVGD", [client], 0, 0, 0.0, {"moved": np.array([size])}))
    return record


@pytest.mark.parametrize(
    ("moves", "named"),
    [
        (
            [(0, 0.3), (1, 0.2), (2, 0.4), (3, 0.2), (4, 900.0), (5, 880.0)],
            "client 4 moved the result by 9e+02 SDs in",
        ),
        (
            [(4, 50.0), (5, 49.0), (0, 0.3), (1, 0.2), (2, 0.4), (3, 0.1)],
            "client 4 moved the result by 50 SDs in round 0",
        ),
        ([(k, 2.0**k) for k in range(6)], ""),  # all of them, further and further: a step that is too long
        ([(0, 0.3), (1, 0.2), (2, 0.4), (3, 0.2), (4, 0.4)], ""),
        ([(0, 0.1), (1, 90.0)], ""),
    ],
)
def test_who_moved_what_was_lost_is_named(moves, named):
    """The first of those that moved it furthest: the next one in turn puts that right."""
    said = moving(Record([str(k) for k in range(CLIENTS)]), moves).moved_first()
    assert said.startswith(f"before that, {named}") if named else said == ""


def test_an_optimisers_state_that_no_turn_leaves_is_not_taken():
    """A negative mean of squares would be NaN at the next client, which is honest and would be named."""
    liar = Faulty(probability=1.0, kinds=("negated",), clients=(LIAR,))
    found = run(pf.DSVGD(num_particles=10, start="gaussian"), executor=liar, num_rounds=6, combination=None)
    reasons = found.federation["failure_reason"].values.astype(str).tolist()
    assert reasons == ["its running mean of squares is negative"]
    assert found.federation["failure_client"].values.astype(str).tolist() == [str(LIAR)]


@pytest.mark.parametrize("liars", [(LIAR,), (LIAR, 7)], ids=["one", "two"])
@pytest.mark.parametrize("kind", ["tenfold", "hundredfold"])
def test_lies_of_the_phase_before_count_in_the_sites(kind, liars):
    """Newton's method at the start is lied to as well: the sites are those that the server was told."""
    liar = Faulty(probability=1.0, kinds=(kind,), clients=liars)
    found = pf.influence(run(pf.FedEP(), executor=liar, combination=None, num_rounds=8))
    said = found.attrs["stands_apart"]
    assert all(f"client {k} moves" in said for k in liars), said
    assert said.count("client ") == len(liars)


def test_clients_that_are_no_cohort_are_said_to_be_none():
    """Half of them with the opposite truth: most messages are cut."""
    record = Record([str(k) for k in range(4)])
    for _ in range(3):
        record.rounds.append(Round("FedEP", [0, 1, 2, 3], 0, 0, 0.0, {"beyond": np.array([2.0, 1.0, 0.0, 0.0])}))
    assert record.unlike().startswith("50 % of the clients' messages were cut back")
    record.rounds[-1].info["beyond"][:] = 0.0
    record.rounds[-2].info["beyond"][:] = 0.0
    assert record.unlike() == ""


def test_draws_of_a_liar_are_moved_and_stretched_to_the_limits():
    """Of Gaussians; those within the limits stay what they were, to the bit, as do those too wide to say anything."""
    honest = sites(0)
    mean, cover = honest.moments()
    noise = torch.randn(CLIENTS, 1, 4000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    draws = mean[:, None, None] + noise @ torch.linalg.cholesky(cover).mT.unsqueeze(1)
    for lie in (100 * draws[LIAR], draws[LIAR] + 1e3, 1e-3 * draws[LIAR]):
        sent = SentMessages({"draws": draws.clone()}, torch.arange(CLIENTS), 0, 0)
        sent.messages["draws"][LIAR] = lie
        given = sent.messages["draws"].clone()
        algorithm = pf.infer.ConsensusMC()
        held = algorithm.contributions().bounded_messages(Bounded(), {}, {}, sent)
        whole = {"draws": draws[:1, 0], "num_clients": torch.tensor(CLIENTS), "seed": torch.tensor(0)}
        found = algorithm.combine(whole, held.messages, torch.ones(CLIENTS))["draws"].reshape(-1, 3)
        keep = [k for k in range(CLIENTS) if k != LIAR]
        nine = type(honest)(honest.precision[keep], honest.eta[keep]).product_over(0)
        sd = nine.moments()[1].diagonal().sqrt()
        assert float(((found.mean(0) - nine.mean()) / sd).abs().max()) < 2
        same = held.cut == 0
        assert torch.equal(held.messages["draws"][same], given[same])
        assert int(held.cut.argmax()) == LIAR or float(lie.std()) > 50 * float(draws[LIAR].std())


def test_the_liar_is_named():
    liar = Faulty(probability=1.0, kinds=("noise",), clients=(LIAR,))
    with pytest.warns(UserWarning) as caught:
        idata = pf.run(pf.FedEP(), ten_clients(), combination=Bounded(), executor=liar, num_rounds=6, **QUIET)
    said = [str(w.message) for w in caught if "cut back" in str(w.message)]
    assert len(said) == 1
    assert said[0].split("factor): ")[1].startswith(f"client {LIAR} ")
    assert float(idata.federation["beyond"].sel(client=str(LIAR)).max()) > 1


@pytest.mark.parametrize(
    ("algorithm", "words", "graph"),
    [
        (pf.NUTS(), "no rule for Bounded", None),
        (pf.infer.SVGD(), "no rule for Bounded", None),
        (pf.infer.DSGLD(), "no rule for Bounded", None),
        (pf.DSVGD(start="modes"), "start='gaussian'", None),
        (pf.FedAIS(surrogates=pf.DSVGD()), "surrogates='auto'", None),
        (pf.FedAIS(surrogates=pf.FedAIS()), "surrogates='auto'", None),
        (pf.infer.FALD(conducive=None), "conducive=", None),
        (
            pf.FedEP(start="prior", damping=0.1, optimisers=pf.infer.Optimisers(server="adam")),
            "optimiser moves q",
            None,
        ),
        (pf.P2PVI(start="consensus"), "start='local' or 'prior'", pf.graph.complete(3)),
        (pf.P2PVI(start="prior"), "on this graph", pf.graph.GossipPairs(pf.graph.star(3))),
        (pf.infer.P2PFedAvg(), "cannot undo a malicious update", pf.graph.complete(3)),
    ],
)
def test_what_cannot_be_bounded_is_refused(algorithm, words, graph):
    with pytest.raises(pf.errors.SettingError, match=words):
        pf.run(algorithm, unequal_lines(), combination=Bounded(), graph=graph, **QUIET)


def test_two_clients_cannot_outvote_one():
    with pytest.raises(pf.errors.SettingError, match="2 clients cannot outvote"):
        pf.run(pf.FedEP(), pf.Federation(line, line_data(rows=8), plate="data", num_clients=2), combination=Bounded())
    for settings in ({"pull": 0.0}, {"precision": 0.5}):
        with pytest.raises(pf.errors.SettingError):
            Bounded(**settings)


@pytest.mark.parametrize(("clients", "said"), [(3, True), (5, True), (6, False)])
def test_few_clients_are_said_to_be_no_cohort(clients, said):
    fed = pf.Federation(line, line_data(rows=60), plate="data", num_clients=clients)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pf.run(pf.FedEP(), fed, combination=Bounded(), **QUIET)
    words = f"hold {clients} clients to each other: one faulty or malicious client of so few is not bounded"
    assert any(words in str(one.message) for one in caught) == said


@pytest.mark.parametrize(
    ("algorithm", "graph", "rounds"),
    [
        (pf.FedEP(), None, 6),
        (pf.infer.PVI(), None, 30),
        (pf.FedAIS(num_proposals=2000), None, 3),
        (pf.DSVGD(num_particles=20), None, 12),
        (pf.infer.ParallelDSVGD(num_particles=50), None, 10),
        (pf.P2PVI(start="prior"), pf.graph.complete(CLIENTS), 10),
        (pf.P2PVI(), pf.graph.ring(CLIENTS), 10),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, pf.FedEP | pf.P2PVI | pf.DSVGD) else "",
)
def test_a_client_that_sends_what_is_not_finite_stops_no_bounded_run(algorithm, graph, rounds):
    """It is a client without rows: the answer is that of the other nine, within what limits cost honest ones.

    4,000 draws, or 2,000 weighed ones: five standard errors of an SD are 5.6 % and 8 %; on a ring the prior lacks a
    tenth, 0.3 % of what is known.
    """
    liar = Faulty(probability=1.0, kinds=("nan",), clients=(LIAR,))
    found = run(algorithm, executor=liar, num_rounds=rounds, graph=graph)
    off, ratio = error(found, [k for k in range(CLIENTS) if k != LIAR])
    assert off < 0.5
    np.testing.assert_allclose(ratio, 1.0, atol=0.08)
    assert set(found.federation["failure_client"].values.astype(str)) == {str(LIAR)}


@pytest.mark.parametrize(
    ("algorithm", "kind"),
    [(pf.FSGLD(num_chains=4, burn_in=5), "nan"), (pf.FSGLD(num_chains=4, burn_in=5), "hundredfold"),
     (pf.infer.FALD(num_chains=2, burn_in=5), "nan")],
    ids=["FSGLD-nan", "FSGLD-hundredfold", "FALD-nan"],
)  # fmt: skip
def test_nor_any_visit_of_a_chain(algorithm, kind):
    """Chains stay where they were. A few rounds: one that has left is told at once."""
    liar = Faulty(probability=1.0, kinds=(kind,), clients=(LIAR,))
    found = run(algorithm, executor=liar, num_rounds=6)
    assert error(found, [k for k in range(CLIENTS) if k != LIAR])[0] < 2


class AtFirst(Faulty):
    """Faults in the first round alone."""

    def _fault(self, round, client):
        return super()._fault(round, client) if round == 0 else ""


def test_an_agent_that_recovers_has_lost_nothing():
    """What it did not say while its numbers were NaN it says later: the answer is that of a run without faults.

    Limits depend a little on who has spoken.
    """
    liar = AtFirst(probability=1.0, kinds=("nan",), clients=(LIAR,))
    honest, found = (run(pf.P2PVI(start="prior"), num_rounds=30, **given) for given in ({}, {"executor": liar}))
    assert liar.injected == [(0, LIAR, "nan")]
    means, sds = zip(*[(one.posterior["w"].mean(), one.posterior["w"].std()) for one in (found, honest)], strict=True)
    assert abs(float(means[0] - means[1])) < 0.1 * float(sds[1])
    assert float(sds[0] / sds[1]) == pytest.approx(1.0, abs=0.01)  # 1.05 without what it has said


def test_what_a_cut_has_widened_is_said():
    """One of ten with a hundred times the others' precision: the SD with its own site over that with what is left."""
    honest = sites(0)
    told = with_lie(honest, "hundredfold")
    found = bounded_sites(prior(), told, others(honest).mean(), pull=2.0, precision=4.0)
    q = prior().product(found.sites.product_over(0))
    whole = type(q)(
        q.precision + told.precision[LIAR] - found.sites.precision[LIAR], q.eta + told.eta[LIAR] - found.sites.eta[LIAR]
    )
    ratio = (q.moments()[1].diagonal() / whole.moments()[1].diagonal()).sqrt().max()
    torch.testing.assert_close(found.widened[LIAR], ratio)
    assert found.widened[:LIAR].tolist() == [1.0] * LIAR
    record = Record([str(k) for k in range(CLIENTS)])
    info = {"beyond": found.limit_excess.numpy(), "widened": found.widened.numpy()}
    record.rounds.append(Round("FedEP", list(range(CLIENTS)), 0, 0, 0.0, info))
    (said,) = record.messages_cut_back()
    assert said.figures["widened"] == [(str(LIAR), pytest.approx(float(ratio)))]
    assert f"the cuts make SDs too wide, by the factors {float(ratio):.2f} (client {LIAR})" in said.text
