"""Particles of large models: what a run holds, and that clients one by one are as all at once."""

import gc

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.density.size import LARGE_DIM
from pyro_fed.infer.stein import survey
from pyro_fed.infer.surrogates import measuring
from pyro_fed.runtime import replies, rounds

CLIENTS, PARTICLES = 10, 20
QUIET = {"progress": False, "log_likelihood": False, "audit": False}


def network(x, y):
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1], 90), 1.0).to_event(2))
    v = pyro.sample("v", dist.Normal(x.new_zeros(90, 2), 1.0).to_event(2))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Categorical(logits=torch.tanh(x @ w) @ v), obs=y)


@pytest.fixture(scope="module")
def fed():
    x = torch.randn(100, 10, generator=torch.Generator().manual_seed(0))
    return pf.Federation(network, (x, (x[:, 0] > 0).long()), plate="data", num_clients=CLIENTS, seed=0)


def held(dim):
    """Numbers in tensors of the parameters' length, as vectors of them in double precision; of what is not frozen."""
    gc.collect()
    found = {}
    for one in gc.get_objects():
        if type(one) is torch.Tensor and one.dim() and one.shape[-1] == dim:
            storage = one.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values()) / (8 * dim)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_phase_holds_what_it_needs_and_nothing_of_those_before_it(fed, monkeypatch):
    """Each client's scores at the particles in the model's own precision, K N / 2 vectors, were there five times."""
    assert fed.problem.dim > LARGE_DIM
    gc.collect()
    gc.freeze()  # what earlier tests have left is none of it, and takes seconds to look through
    seen, one_round = {}, rounds.one_round

    def looked_at(phase, *others):
        after = one_round(phase, *others)
        name = type(phase.algorithm).__name__
        if name in ("Survey", "DSVGD"):
            seen[name] = held(fed.problem.dim)
        return after

    monkeypatch.setattr(rounds, "one_round", looked_at)
    monkeypatch.setattr(pf.FedEP, "default_rounds", lambda self, clients: 1)
    pf.run(pf.DSVGD(num_particles=PARTICLES), fed, num_rounds=2, **QUIET)
    assert max(seen["Survey"], seen["DSVGD"]) < 2 * CLIENTS * PARTICLES


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("algorithm", [pf.DSVGD(num_particles=PARTICLES, local_steps=2), pf.FSGLD()])
def test_clients_one_by_one_are_as_all_at_once(fed, algorithm, monkeypatch):
    """Up to rounding of single precision: products of other shapes."""
    monkeypatch.setattr(pf.FedEP, "default_rounds", lambda self, clients: 1)
    whole = pf.run(algorithm, fed, num_rounds=3, num_draws=4, **QUIET)
    monkeypatch.setattr(survey, "fits_in_memory", lambda numbers: False)
    monkeypatch.setattr(measuring, "fits_in_memory", lambda numbers: False)
    one_by_one = pf.run(algorithm, fed, num_rounds=3, num_draws=4, **QUIET)
    for name in ("w", "v"):
        assert abs(one_by_one.posterior[name].values - whole.posterior[name].values).max() < 1e-3


def test_messages_are_finite_client_by_client():
    values = torch.ones(3, 2, 4)
    values[1, 0, 2] = torch.inf
    expected = torch.tensor([True, False, True])
    assert torch.equal(replies.each_finite(values), expected)
