"""Rounds of large models: as many clients together as their numbers have room for, and nothing there twice."""

import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
from algorithms import graph_of, unequal_lines

import pyro_fed as pf
from pyro_fed.algorithm import message_limits
from pyro_fed.density import size
from pyro_fed.density.size import LARGE_DIM, clients_at_once, cost_of
from pyro_fed.ops.gaussian import DiagGaussian
from pyro_fed.ops.memory import RESULT_NUMBERS
from pyro_fed.ops.points import even_normals
from pyro_fed.runtime.executors.local import join_steps

CLIENTS, COLUMNS, CLASSES = 7, 40, 30


def scores(x, y):
    """A softmax regression of more than a thousand parameters."""
    w = pyro.sample("w", dist.Normal(x.new_zeros(COLUMNS, CLASSES), 1.0).to_event(2))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Categorical(logits=x @ w), obs=y)


@pytest.fixture(scope="module")
def fed():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, COLUMNS, generator=generator, dtype=torch.float64)
    y = torch.randint(CLASSES, (60,), generator=generator)
    return pf.Federation(scores, (x, y), plate="data", num_clients=CLIENTS, seed=0)


def room_for(monkeypatch, fed, clients):
    """Have so many clients of the federation fit together."""
    rows = int(fed.row_counts.max())
    numbers = fed.problem.dim + rows * cost_of(fed.problem).numbers
    monkeypatch.setattr(size, "COPIES_IN_STEP", RESULT_NUMBERS / (clients * numbers))


def widths(monkeypatch, algorithm, **options):
    """A run's draws, and how many clients each of its steps was of."""
    seen, kind = [], type(algorithm)
    step = kind.local_step

    def seeing(self, problem, shared, local, data, noise):
        seen.append(len(data.num_rows))
        return step(self, problem, shared, local, data, noise)

    with monkeypatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        patch.setattr(kind, "local_step", seeing)
        found = pf.run(algorithm, num_rounds=2, audit=False, log_likelihood=False, progress=False, **options)
    return torch.tensor(found["posterior"]["w"].values), seen


KINDS = {
    "FSGLD": pf.FSGLD(num_chains=4, surrogates=pf.FedEP(start="prior", client="ivon"), batch_size=4, burn_in=0, thin=1),
    "FedAvg": pf.FedAvg(chain_steps=2),
    "FedEP": pf.FedEP(start="prior", client="ivon"),
    "P2PVI": pf.P2PVI(),
}


def test_a_state_that_some_clients_renew_is_for_the_others_what_it_was():
    """As `FSGLD`'s clients measure a visit's longest step in their first one alone."""
    kept, at = {"longest": torch.tensor([1.0, 2.0, 3.0, 4.0])}, torch.tensor([3, 0, 2])
    message, nothing = {"sent": torch.zeros(1)}, {}
    steps = [(message, nothing, {}), (message, {"longest": torch.tensor([9.0])}, {}), (message, nothing, {})]
    messages, new, _ = join_steps(iter(steps), kept, at)
    assert new["longest"].tolist() == [4.0, 9.0, 3.0] and len(messages["sent"]) == 3


@pytest.mark.parametrize("name", KINDS)
def test_clients_in_parts_give_what_all_at_once_give(name, fed, monkeypatch):
    """To rounding, which a product of other sizes may do otherwise; of `FSGLD` the round is that of its four chains."""
    algorithm, options = KINDS[name], {"federation": fed, "num_draws": 5, **graph_of(KINDS[name], fed)}
    room_for(monkeypatch, fed, CLIENTS)
    whole, at_once = widths(monkeypatch, algorithm, **options)
    room_for(monkeypatch, fed, 3)
    parts, some = widths(monkeypatch, algorithm, **options)
    assert set(at_once) == {4 if name == "FSGLD" else CLIENTS} and set(some) == {3}
    torch.testing.assert_close(parts, whole, rtol=1e-9, atol=1e-9)


def test_there_is_room_for_fewer_clients_the_more_numbers_they_have(fed, monkeypatch):
    assert fed.problem.dim > LARGE_DIM
    room_for(monkeypatch, fed, 4)
    rows = int(fed.row_counts.max())
    assert clients_at_once(fed.problem, rows) == 4
    assert clients_at_once(fed.problem, 2 * rows) in (2, 3)
    assert clients_at_once(fed.problem, 1000 * rows) == 1


def test_clients_of_a_small_model_are_all_together(monkeypatch):
    monkeypatch.setattr(size, "COPIES_IN_STEP", RESULT_NUMBERS)
    assert clients_at_once(unequal_lines().problem, 13) > 10**9


def test_objections_one_client_at_a_time_are_those_of_all_together():
    generator = torch.Generator().manual_seed(0)
    draw = [torch.randn(5, 6, generator=generator, dtype=torch.float64) for _ in range(2)]
    draw[0][3] *= 1e6
    q, deltas = DiagGaussian(torch.full((5, 6), 2.0), torch.ones(5, 6)), DiagGaussian(*draw)
    scale = 2.0 + (draw[0].abs().sum(0) - draw[0].abs()) / 4
    wanted = {
        **message_limits.outlying_clients((draw[0] / scale).abs().amax(-1), "change of the precision"),
        **message_limits.outlying_clients(((draw[1] - draw[0] / 2) / scale.sqrt()).abs().amax(-1), "step"),
        "its precision has the wrong sign": (draw[0] < -message_limits.LARGEST_FALL * scale).any(-1),
    }
    found = pf.infer.tilted.IVON().objections(q, deltas, None)
    assert found.keys() == wanted.keys() and bool(found["its precision has the wrong sign"].any())
    assert all(torch.equal(found[reason], wanted[reason]) for reason in wanted)


def test_draws_of_several_gaussians_are_those_of_all_together():
    generator = torch.Generator().manual_seed(0)
    precision, eta = (torch.rand(3, 2, 4, generator=generator, dtype=torch.float64) + 0.5 for _ in range(2))
    both = DiagGaussian(precision, eta)
    noises = torch.Generator().manual_seed(1)
    noise = torch.stack([even_normals(8, 4, noises) for _ in range(6)], 1).reshape(8, 3, 2, 4)
    assert torch.equal(both.even_sample(8, torch.Generator().manual_seed(1)), both.transform(noise))
