"""`FedEP`'s rounds end where steps from the best q lead to the same fall, time and again, or a network's hardly rise.

It has not converged then.
"""

from dataclasses import replace

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.infer.ep import ascent
from pyro_fed.infer.ep.steps import Backtracked, Server, largest_fractions
from pyro_fed.infer.sites.records import as_entries
from pyro_fed.ops.gaussian import DiagGaussian, FullGaussian

QUIET = {"progress": False, "log_likelihood": False, "audit": False, "seed": 0}


def poisson(x, y):
    w = pyro.sample("w", dist.Normal(x.new_zeros(3), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Poisson((x @ w).exp()), obs=y)


@pytest.fixture(scope="module")
def fed():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    y = torch.poisson(x.sum(1).exp(), generator=generator)
    return pf.Federation(poisson, (x, y), plate="data", num_clients=4, seed=0)


def run_with(bounds, fed, monkeypatch):
    """A run whose bound in round i is the i-th of these, and the last one ever after; and q in each."""
    seen = []

    def bound(server, messages):
        seen.append(server.q.eta.clone())
        return server.q.eta.new_tensor(bounds[min(len(seen), len(bounds)) - 1])

    monkeypatch.setattr(Server, "lower_bound", bound)
    return pf.run(pf.FedEP(start="prior", tolerance=1e-12), fed, **QUIET), seen


@pytest.mark.filterwarnings("ignore:not converged", "ignore:the last rounds made no progress")
def test_a_cycle_is_ended_at_the_best(fed, monkeypatch):
    idata, seen = run_with([0.0, *[-2.0, -0.5] * 30], fed, monkeypatch)
    assert len(seen) == 6 and not idata.attrs["converged"]  # after three falls of one radius
    figures = idata["federation"]
    assert figures["in_vain"].values[-1] == 1 and figures["fraction"].values[-1] == 0
    assert "made no progress" in idata.attrs["warnings"] and "not converged after 6 rounds" in idata.attrs["doubts"]
    w = idata.posterior["w"].values[0]  # of the prior, where the bound was highest
    assert abs(w.mean(0)).max() < 0.05 and abs(w.std(0) - 1).max() < 0.05


@pytest.mark.filterwarnings("ignore:not converged", "ignore:the last rounds made no progress")
def test_a_best_that_goes_on_rising_is_none(fed, monkeypatch):
    bounds = [0.0]
    for best in range(1, 20):
        bounds += [best - 3.0, float(best)]
    idata, seen = run_with(bounds, fed, monkeypatch)
    assert len(seen) == 50 and "in_vain" not in idata["federation"]


@pytest.mark.parametrize("rise, ended", [(0.05, True), (0.2, False)])
@pytest.mark.filterwarnings("ignore:not converged", "ignore:the network's weights have not converged")
def test_a_network_ends_at_the_best_where_ten_rounds_hardly_raise_it(fed, monkeypatch, rise, ended):
    nothing = ascent.first_climb
    min_rise = torch.tensor(1.0, dtype=torch.float64)  # of `rise` a round ten rounds make 0.5 or 2
    monkeypatch.setattr(ascent, "first_climb", lambda q: replace(nothing(q), min_rise=min_rise))
    idata, seen = run_with([0.0, 5.0, 5.0 + rise, *(5.0 + rise * (1 + i) for i in range(1, 48))], fed, monkeypatch)
    assert (len(seen) == 12 and not idata.attrs["converged"]) if ended else len(seen) > 12  # the first rises by five
    warned = "the network's weights have not converged" in str(idata.attrs.get("warnings"))
    assert ("slow" in idata["federation"]) == ended == warned


def test_what_a_network_has_to_rise_goes_with_its_rows_and_begins_anew_with_another_start():
    min_rise = torch.tensor(ascent.network_limits(-5.0, 1000)["min_rise"])
    climb, ends = replace(ascent.first_climb(q_at(0.0)), min_rise=min_rise), []
    for value in [0.0] + [torch.nan] * 5 + [0.05] * 10:
        climb = climb.with_bound(torch.tensor(value, dtype=torch.float64))
        climb = replace(climb, best_value=climb.recent_bests[-1])
        ends.append(bool(climb.slow))
    assert ends.index(True) == ascent.RECENT_ROUNDS and bool(climb.best_value == 0.05)  # 0.1 nats of 1,000 rows
    _, anew = climb._narrowed(q_at(0.0))
    assert not bool(anew.with_bound(torch.tensor(0.0, dtype=torch.float64)).slow)


def q_at(distance):
    eta = torch.tensor([distance], dtype=torch.float64)
    return DiagGaussian(torch.ones(1, dtype=torch.float64), eta)


def returned(distances):
    """Which of the falls at so many SDs from the best q are the end."""
    onward = DiagGaussian(torch.zeros(1, dtype=torch.float64), torch.tensor([8.0], dtype=torch.float64))
    climb, ends = ascent.first_climb(q_at(0.0)), []
    climb = replace(climb, best=q_at(0.0), best_change=onward, best_value=torch.tensor(0.0))
    for distance in distances:
        _, climb = climb.replacement(q_at(distance), torch.tensor(-2.0), 1.0)
        ends.append("in_vain" in ascent.reasons_to_end({**as_entries(climb), "reset": torch.ones(())}))
    assert not ascent.reasons_to_end({**as_entries(climb), "reset": torch.zeros(())})  # a run that goes on from there
    return ends


def test_a_radius_that_has_not_been_tried_is():
    assert returned([1.0, 0.9, 1.1]) == [False, False, True]
    assert returned([1.0, 0.4, 0.15, 0.06]) == [False] * 4
    assert returned([1.0, 0.4, 0.5, 0.4]) == [False, False, False, True]


def test_a_step_of_which_no_part_is_within_reach_is_none():
    """No fraction suits a belief that is no distribution: `backtrack` refused a largest fraction of zero."""
    flat, changes = (DiagGaussian(torch.zeros(*shape, 2), torch.ones(*shape, 2)) for shape in ((), (3,)))
    assert largest_fractions(flat, changes, 0.0).tolist() == [0.0, 0.0, 0.0]


def test_a_step_shortened_to_the_edge_of_improper_is_halved_until_its_mean_is_near():
    """N(0, I): fractions s <= 0.95 / 4 are proper; the mean, 3 s / (1 - 4 s), is 14 there, 0.68 and 0.23 at halves."""
    q = FullGaussian(torch.eye(2).double(), torch.zeros(2).double())
    precision, eta = torch.zeros(2, 2, 2).double(), torch.zeros(2, 2).double()
    precision[1, 0, 0], eta[1, 0] = -4.0, 3.0
    step = Backtracked(1.0, reach=0.4).step(Server.begin(q, q, True, 1, {}), FullGaussian(precision, eta), None)
    taken = 0.95 / 16  # 0.68 is beyond 0.4 √2
    torch.testing.assert_close(step.client_fractions, torch.tensor([taken]).double())
    torch.testing.assert_close(step.q.mean(), torch.tensor([3 * taken / (1 - 4 * taken), 0.0]).double())
    assert step.cut


def test_a_whole_step_is_taken_however_long_it_is():
    q = FullGaussian(torch.eye(2).double(), torch.zeros(2).double())
    precision, eta = torch.zeros(2, 2, 2).double(), torch.tensor([[0.0, 0.0], [60.0, 0.0]]).double()
    step = Backtracked(0.5, reach=1.0).step(Server.begin(q, q, True, 1, {}), FullGaussian(precision, eta), None)
    torch.testing.assert_close(step.q.mean(), torch.tensor([30.0, 0.0]).double())
    assert not step.cut and step.client_fractions.tolist() == [0.5]


def test_a_round_without_the_change_of_the_prior_s_site_is_not_whole():
    """Alone neither change leaves a distribution but the client's: the prior's is skipped, and that is no rest."""
    q = FullGaussian(torch.eye(2).double(), torch.zeros(2).double())
    precision, eta = torch.zeros(2, 2, 2).double(), torch.zeros(2, 2).double()
    precision[0, 0, 0] = -1e9
    step = Backtracked(1.0, reach=1.0).step(Server.begin(q, q, True, 1, {}), FullGaussian(precision, eta), None)
    assert step.client_fractions.tolist() == [1.0] and step.cut
