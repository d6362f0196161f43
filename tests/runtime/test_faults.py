"""Clients that fail, lie or vanish: the round goes on without them, and says so; below the quorum it does not count."""

import warnings

import numpy as np
import posteriordb
import pytest
import torch
from algorithms import line, line_data, unequal_lines

import pyro_fed as pf
from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.schedule import Explicit
from pyro_fed.infer.langevin.chains import ChainStore, ServerState
from pyro_fed.infer.sites.records import as_entries
from pyro_fed.policy import resolve
from pyro_fed.runtime.executors import Executor, Faulty, Sequential
from pyro_fed.runtime.executors.remote import Remote

QUIET = {"progress": False, "compile": "off", "audit": False}
SILENT = ("raises", "hangs", "dies")


def run(algorithm, fed, **options):
    """A run without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return pf.run(algorithm, fed, **{**QUIET, **options})


def draws(idata):
    return idata.posterior["w"].values


def failures(idata):
    """Listed failures, (round, client)."""
    group = idata.federation
    if "failure_round" not in group:
        return []
    return list(zip(group["failure_round"].values.tolist(), map(int, group["failure_client"].values), strict=True))


def without_the_second():
    """`unequal_lines` less its client 1."""
    x, y = line_data()
    keep = [*range(3), *range(10, 23)]
    parts = pf.partition.Explicit([list(range(3)), list(range(3, 16))])
    return pf.Federation(line, (x[keep], y[keep]), plate="data", partition=parts)


PRIOR = pf.FedEP(start="prior", tolerance=1e-9)


@pytest.mark.filterwarnings("ignore:clients 1 took part in no round")
@pytest.mark.parametrize(
    ("kind", "executor"),
    [
        *((kind, "vectorised") for kind in (*SILENT, "nan", "huge", "flipped")),
        ("raises", "sequential"),
        ("nan", "sequential"),
    ],
)
def test_the_answer_is_that_of_the_clients_that_work(kind, executor):
    """Row 29, 30, 33, 34: a client that never gives a usable reply is as if it were not there."""
    faulty = Faulty(executor, probability=1.0, kinds=(kind,), clients=(1,))
    with pytest.warns(UserWarning, match=r"times a client failed, .*: client 1 \d+ times, the last in round") as caught:
        found = pf.run(PRIOR, unequal_lines(), executor=faulty, **QUIET)
    assert sum("times a client failed" in str(w.message) for w in caught) == 1
    want = run(PRIOR, without_the_second())
    np.testing.assert_allclose(draws(found), draws(want), rtol=1e-7, atol=1e-9)
    assert failures(found) == [(i, 1) for i in range(found.federation.sizes["round"])]
    assert failures(found) == [(i, client) for i, client, _ in faulty.injected]
    reason = {"raises": "exception", "hangs": "in time", "dies": "gone", "nan": "finite", "huge": "change of"}
    assert reason.get(kind, "its") in str(found.federation["failure_reason"].values[0])
    assert not found.federation["participated"].values[:, 1].any()


@pytest.mark.parametrize(("probability", "clients", "doubted"), [(1.0, (1,), True), (0.3, None, False)])
def test_a_result_with_failures_is_judged_as_any_other(probability, clients, doubted):
    """One client that never works is missed by the posterior of all rows; failures now and then leave it as it is."""
    faulty = Faulty(probability=probability, clients=clients, seed=1)
    found = run(PRIOR, unequal_lines(), executor=faulty, audit=True)
    assert failures(found)
    assert ("not the posterior's" in found.attrs["doubts"]) == doubted, found.attrs["doubts"]
    assert ("Clients failed, and rounds went on without them" in found.attrs["doubts"]) == doubted


@pytest.mark.parametrize(("kind", "words"), [("nan", "left the finite numbers"), ("huge", "change of")])
def test_who_replied_what_cannot_be_used_is_not_asked_to_take_part(kind, words):
    faulty = Faulty(probability=1.0, kinds=(kind,), clients=(1,))
    found = run(PRIOR, unequal_lines(), executor=faulty, audit=True)
    said = found.attrs["doubts"]
    assert "All clients replied, and rounds went on without replies that could not be used" in said
    assert words in said and "taking part" not in said


def test_a_failed_visit_leaves_the_particles_where_they_were():
    algorithm = (
        pf.papers.PaperSVGD(num_particles=5, local_steps=4),
        pf.papers.PaperDSVGD(num_particles=5, local_steps=4),
    )
    faulty = Faulty(probability=1.0, clients=(1,))
    lost = run(algorithm[1], unequal_lines(), schedule=Explicit([[0], [1]]), num_rounds=2, executor=faulty)
    want = run(algorithm[1], unequal_lines(), schedule=Explicit([[0]]), num_rounds=1)
    assert np.array_equal(draws(lost), draws(want))
    assert failures(lost) == [(1, 1)]
    assert np.isnan(lost.federation["change"].values[1])
    pooled = run(algorithm[0], unequal_lines(), num_rounds=2, executor=Faulty(probability=1.0))
    assert failures(pooled) == []  # pooled data have no clients that could fail


def test_a_failed_visit_leaves_the_chain_where_it_was():
    algorithm = pf.FSGLD(num_chains=2, local_steps=4, thin=4, burn_in=0, batch_size=None)
    problem = unequal_lines().problem
    chains = ChainStore.begin(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    shared = as_entries(ServerState(chains, torch.tensor(0), torch.tensor(0.1), torch.full((3,), 1 / 3)))
    one = {
        "position": torch.tensor([[5.0, 6.0]]),
        "client": torch.tensor([2]),
        "draws": torch.tensor([[[5.0, 6.0]]]),
        "gradient_norm": torch.ones(1, 1),
        "step_size": torch.ones(1, 1),
    }
    filled = algorithm.stand_in(shared, one, torch.tensor([1]), torch.tensor([0, 2]))
    assert torch.equal(filled["position"], torch.tensor([[1.0, 2.0], [5.0, 6.0]]))
    assert torch.equal(filled["draws"], torch.tensor([[[1.0, 2.0]], [[5.0, 6.0]]]))
    assert filled["client"].tolist() == [0, 2]
    assert problem.dim == 2


def test_where_all_are_needed_the_failed_are_asked_again():
    """The same randomness, so the same bits as a run without faults."""
    faulty = Faulty(probability=0.5, kinds=(*SILENT, "nan"))
    found, want = (run(pf.FedLaplace(), unequal_lines(), executor=e, min_clients=0) for e in (faulty, "vectorised"))
    np.testing.assert_allclose(draws(found), draws(want), rtol=1e-12)
    assert sorted(failures(found)) == sorted((i, client) for i, client, _ in faulty.injected)
    assert len(faulty.injected) > 3
    assert found.federation["participated"].values.all()


def test_where_all_are_needed_one_that_is_gone_ends_the_run():
    with pytest.raises(
        pf.errors.QuorumError, match=r"2 of 3 replied, need 3; no round was completed.*client 1 is gone"
    ) as caught:
        run(pf.FedEP(), unequal_lines(), executor=Faulty(probability=1.0, kinds=("dies",), clients=(1,)))
    assert "FedLaplace needs every client: leave out those that are gone" in str(caught.value)


def test_below_the_quorum_a_round_is_not_applied(tmp_path):
    """Row 31: stopped with the state before, from which a later run goes on."""

    class Fading(Faulty):
        """Two of three are gone from round 1 on, until mended."""

        mended = False

        def _fault(self, round, client):
            return "dies" if round >= 1 and client > 0 and not self.mended else ""

    faulty = Fading()
    options = {"min_clients": 2, "executor": faulty, "checkpoint": tmp_path}
    with pytest.raises(
        pf.errors.QuorumError, match=f"1 of 3 replied, need 2; state of round 0 is in {tmp_path}"
    ) as caught:
        run(PRIOR, unequal_lines(), **options)
    one = run(PRIOR, unequal_lines(), num_rounds=1)
    assert np.array_equal(draws(caught.value.result), draws(one))
    assert caught.value.round == 1
    faulty.mended = True
    rest = run(PRIOR, unequal_lines(), **options, resume=True)
    assert np.array_equal(draws(rest), draws(run(PRIOR, unequal_lines())))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_answer_without_any_clients_rows_is_doubted():
    """Three rounds in which everybody fails are too few for the run to stop: what is left is the prior."""
    idata = pf.run(PRIOR, unequal_lines(), executor=Faulty(probability=1.0), num_rounds=3, seed=0, progress=False)
    found = pf.findings(idata)
    (missing,) = found[found.code == "clients_took_no_part"]["where"]
    assert missing["clients"] == ["0", "1", "2"] and "took part in no round" in idata.attrs["doubts"]


@pytest.mark.parametrize("min_clients", [None, 0, 1])
def test_when_all_fail_the_run_stops(min_clients):
    """Row 32."""
    with pytest.raises(pf.errors.QuorumError, match="0 of 3 replied, need 1") as caught:
        run(PRIOR, unequal_lines(), executor=Faulty(probability=1.0), min_clients=min_clients)
    assert caught.value.round == (0 if min_clients else 6)  # 20 requests in vain are 7 rounds of 3
    assert np.isfinite(draws(caught.value.result)).all()


def test_no_finite_reply_at_all_is_a_divergence_unless_it_is_expected():
    """Row 33 and 23."""
    spoilt = Faulty(probability=1.0, kinds=("nan",))
    with pytest.raises(pf.errors.DivergenceError, match=r"client 0, round 0: '\w+' left the finite numbers") as caught:
        run(PRIOR, unequal_lines(), executor=spoilt)
    assert (caught.value.client, caught.value.round) == (0, 0)
    with pytest.raises(pf.errors.QuorumError, match="left the finite numbers"):
        run(PRIOR, unequal_lines(), executor=spoilt, min_clients=0)


def test_a_resumed_run_remembers_its_failures(tmp_path):
    def faulty():
        return Faulty(probability=0.4, seed=3)

    options = {"num_rounds": 6, "schedule": None}
    algorithm = pf.papers.UDSVGD(num_particles=5, local_steps=3)
    whole = run(algorithm, unequal_lines(), executor=faulty(), **options)
    run(algorithm, unequal_lines(), executor=faulty(), checkpoint=tmp_path, **options)
    sorted(tmp_path.glob("round-*"))[-1].unlink()
    rest = run(algorithm, unequal_lines(), executor=faulty(), checkpoint=tmp_path, resume=True, **options)
    assert np.array_equal(draws(whole), draws(rest))
    assert failures(whole) == failures(rest) != []


def test_an_agent_that_fails_is_asleep_in_that_round():
    """P2P: the others mix without it, and the answer is what it was."""
    algorithm = pf.P2PVI(num_points=16, start="prior", gossip_steps=1, tolerance=1e-10)
    options = {"graph": pf.graph.ring(3), "num_rounds": 60}
    faulty = Faulty(probability=0.3)
    found, want = (run(algorithm, unequal_lines(), executor=e, **options) for e in (faulty, "vectorised"))
    np.testing.assert_allclose(draws(found), draws(want), rtol=1e-5, atol=1e-6)
    assert failures(found) == [(i, client) for i, client, _ in faulty.injected] != []


def test_a_graph_on_which_nobody_may_be_missing_says_so():
    matrix = [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.3, 0.3, 0.4]]
    with pytest.raises(pf.errors.GraphError, match="not reversible"):
        run(
            pf.P2PVI(num_points=16, start="prior"),
            unequal_lines(),
            graph=pf.graph.from_matrix(matrix),
            executor=Faulty(probability=1.0, clients=(1,)),
        )


FAST = {
    "FedEP": pf.FedEP(),
    "FSGLD": pf.FSGLD(
        batch_size=None,
        local_steps=20,
        thin=5,
        burn_in=100,
        step=pf.infer.step.Measured(largest=1.0, visit_time=20.0),
        target_ess=None,
        num_chains=10,
    ),
    "DSVGD": pf.DSVGD(start="gaussian", num_particles=30, local_steps=30, end=pf.infer.EndOfRun(max_passes=6)),
}


@posteriordb.needs_data
@pytest.mark.parametrize("name", FAST)
def test_with_30_percent_failing_the_answer_is_right(name):
    """Each client fails in each round with probability 0.3; means within 0.1 reference SD."""
    case = posteriordb.CASES["kidiq"]
    faulty = Faulty(probability=0.3, seed=7)
    rounds = {"num_rounds": 140} if name == "FSGLD" else {}  # 400 effective draws: a standard error of 0.05 SD
    idata = run(FAST[name], case.federation(5, sort=True), executor=faulty, compile="trace", **rounds)
    error, low, high = case.error(idata)
    assert error < 0.1
    assert 0.85 < low <= high < 1.15
    assert sorted(failures(idata)) == sorted((i, client) for i, client, _ in faulty.injected)
    phases = idata.federation["participated"].values
    assert 0.15 < len(faulty.injected) / (len(faulty.injected) + phases.sum()) < 0.45


@pytest.mark.parametrize("options", [{"probability": 1.5}, {"kinds": ()}, {"kinds": ("explodes",)}])
def test_faults_out_of_range(options):
    with pytest.raises(pf.errors.SettingError, match="Faulty"):
        Faulty(**options)


def test_an_executor_with_faults_is_otherwise_the_one_inside():
    """Whatever the round loop asks an executor of itself: of sums nobody's part is taken, and states stay away."""

    class Away(Sequential):
        sums_alone, states_are_here = True, False

        def travelled(self, clients):
            return np.full(len(clients), 3), np.full(len(clients), 5)

    down, up = Faulty(Away()).travelled([0, 2])
    assert (down.tolist(), up.tolist()) == ([3, 3], [5, 5])
    said = {name for name, value in vars(Executor).items() if isinstance(value, property)}
    assert said == {"sums_alone", "states_are_here"}
    for inner in (Away(), Sequential()):
        assert {name: getattr(Faulty(inner), name) for name in said} == {name: getattr(inner, name) for name in said}
    assert Faulty(Faulty(Away())).sums_alone and not Remote.states_are_here.fget(None)


@pytest.mark.parametrize("here", [True, False])
def test_states_that_are_elsewhere_are_not_asked_for_at_the_end(here):
    """Behind faults as without them."""
    asked = []

    class Kept(Sequential):
        states_are_here = here

        def collect(self):
            asked.append(type(self.algorithm))
            return super().collect()

    for executor in (Kept(), Faulty(Kept(), probability=0.0)):
        asked.clear()
        run(pf.FedAvg(), unequal_lines(), num_rounds=2, executor=executor)
        assert asked.count(pf.FedAvg) == here


@pytest.mark.parametrize("min_clients", [-1, 4])
def test_a_quorum_out_of_range(min_clients):
    with pytest.raises(pf.errors.SettingError, match=f"min_clients must lie in 0..3, received {min_clients}"):
        run(PRIOR, unequal_lines(), min_clients=min_clients)


@pytest.mark.parametrize("lie", [0.0, 1.0, 1e30])
def test_row_counts_that_lie_are_bounded_and_mean_nothing_to_ep(lie):
    """Row 36: shares of the rows lie in [0, 1]; EP does not look at them."""
    problem = unequal_lines().problem
    generator = torch.Generator().manual_seed(0)
    prior = resolve(PRIOR, problem.traits).algorithm
    shared, _ = prior.init(problem, 3, generator, None)
    site = {"precision": torch.eye(2).double().expand(3, 2, 2), "eta": torch.ones(3, 2).double()}
    messages = site | {"value": torch.zeros(3).double(), "usable": torch.ones(3, dtype=torch.bool)}
    honest, lied = (prior.combine(shared, messages, w) for w in (torch.full((3,), 1 / 3), torch.tensor([lie, 1, 1])))
    assert all(torch.equal(honest[name], lied[name]) for name in ("precision", "eta"))
    rows = torch.tensor([lie, 10.0, 10.0], dtype=torch.float64)
    average = pf.FedAvg()
    start, _ = average.init(problem, 3, generator, None)
    step = torch.tensor([[3.0, 0.0], [1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    after = average.combine(start, {"delta": step}, rows / rows.sum())
    assert float((after["point"] - start["point"]).norm()) <= 3.0


def test_particles_that_have_drawn_together_are_told():
    """Row 24."""
    problem, right = unequal_lines().problem, {"apart": 0.0, "mean_off": 0.01, "sd_off": 1.01}
    together, wide = (Record(["0"], figures=[{"spread": width, **right}, {}]) for width in (0.3, 0.8))
    (said,) = pf.DSVGD().warnings(together, problem)
    assert said.code == "particles_collapsed_on_their_way" and said.figures["spread"] == 0.3
    assert "drawn together: their spread is 0.3" in said.text
    assert pf.DSVGD().warnings(wide, problem) == []
