"""A run of agents on a network that was killed goes on to the same bits, in the averaging and in rounds of its own."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from short_runs import quiet

import pyro_fed as pf
from pyro_fed.infer.averaging.fedavg import BurnIn
from pyro_fed.policy.gaussian import AVERAGING_ROUNDS
from pyro_fed.runtime import rounds

AGENTS, UNITS, COLUMNS, OWN = 3, 12, 10, 3
OPTIONS = {"num_rounds": OWN, "num_draws": 5, "log_likelihood": False, "compile": "trace"}


def network(x, y):
    """156 parameters."""
    w1 = pyro.sample("w1", dist.Normal(x.new_zeros(COLUMNS, UNITS), 1.0).to_event(2))
    b1 = pyro.sample("b1", dist.Normal(x.new_zeros(UNITS), 1.0).to_event(1))
    w2 = pyro.sample("w2", dist.Normal(x.new_zeros(UNITS, 2), 1.0).to_event(2))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Categorical(logits=torch.relu(x @ w1 + b1) @ w2), obs=y)


@pytest.fixture(scope="module")
def fed():
    x = torch.randn(90, COLUMNS, generator=torch.Generator().manual_seed(0))
    return pf.Federation(network, (x, (x[:, 0] > 0).long()), plate="data", num_clients=AGENTS, seed=0)


@pytest.fixture(scope="module")
def whole(fed):
    return quiet(pf.P2PVI(), fed, **OPTIONS)


class Killed(Exception):
    """The process is gone."""


@pytest.mark.parametrize("stop", [BurnIn.rising // 2, AVERAGING_ROUNDS + 1])
def test_agents_of_a_network_go_on_to_the_same_bits(stop, fed, whole, tmp_path, monkeypatch):
    """Killed after so many rounds: while the averaging's rate rises, of which each agent keeps count, and after it."""
    save = rounds._save

    def dying(phase, context, network):
        save(phase, context, network)
        if len(context.record.rounds) == stop:
            raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(rounds, "_save", dying)
        quiet(pf.P2PVI(), fed, checkpoint=tmp_path, **OPTIONS)
    rest = quiet(pf.P2PVI(), fed, checkpoint=tmp_path, resume=True, **OPTIONS)
    assert all(np.array_equal(whole.posterior[name].values, rest.posterior[name].values) for name in whole.posterior)
    same = [name for name in whole.federation if name != "seconds"]
    assert whole.federation[same].equals(rest.federation[same])
