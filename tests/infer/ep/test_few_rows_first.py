"""A network of many rows makes its rounds by some of them first."""

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.infer.ep import ascent
from pyro_fed.policy import chain_of

QUIET = {"progress": False, "log_likelihood": False, "audit": False, "seed": 0}
F64 = torch.float64


def network(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([2, 3]).to_event(2))
    v = pyro.sample("v", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=torch.tanh(x @ w) @ v), obs=y)


def logistic(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def over(model, rows):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 2, generator=generator, dtype=F64)
    y = (torch.rand(rows, generator=generator, dtype=F64) < torch.sigmoid(x[:, 0])).to(F64)
    return pf.Federation(model, (x, y), plate="data", num_clients=4, seed=0)


@pytest.mark.parametrize(
    "model, rows, begun",
    [(network, 16_000, []), (network, 17_000, [4250]), (network, 70_000, [4375, 17_500]), (logistic, 70_000, [])],
)
def test_networks_of_many_rows_begin_by_a_quarter_of_them_and_of_these(model, rows, begun):
    problem = over(model, rows).problem
    chain = chain_of(pf.FedEP(), problem)
    assert [part.client.few_rows for part in chain if isinstance(part, pf.FedEP)] == [*begun, None]
    assert [part.few_rows for part in chain if isinstance(part, pf.FedLaplace)] == (begun[:1] or [None])
    private = pf.Private(norm=1.0, noise_multiplier=1.0)  # its noise is added in each round
    even = chain_of(pf.FedEP().contributions().form_for(private), problem)
    assert [part.client.few_rows for part in even if isinstance(part, pf.FedEP)] == [None]


def test_only_newton_steps_can_be_by_a_part_of_the_rows():
    with pytest.raises(pf.errors.SettingError, match="FedEP: start='few_rows' needs client='newton', since other"):
        pf.FedEP(start="few_rows", client="mcmc")


def test_as_many_rows_as_there_are_are_all_of_them():
    fed = over(logistic, 300)
    runs = [pf.run(pf.FedEP(client=pf.infer.tilted.Newton(few_rows=few)), fed, **QUIET) for few in (None, 300)]
    assert torch.equal(*(torch.as_tensor(run.posterior["w"].values) for run in runs))
    with pytest.warns(UserWarning, match="few_rows=75 of 300: this is the posterior given those rows alone"):
        fewer = pf.run(pf.FedEP(client=pf.infer.tilted.Newton(few_rows=75)), fed, **QUIET)  # SDs are those of so many
    wider = fewer.posterior["w"].std(("chain", "draw")) / runs[0].posterior["w"].std(("chain", "draw"))
    assert ((wider > 1.6) & (wider < 2.4)).all()


def test_a_start_need_not_be_known_better_than_more_rows_differ():
    assert ascent.network_limits(-5.0, 100_000)["min_rise"] == ascent.MIN_RISE_PER_ROW * 100_000 == 10.0
    assert ascent.network_limits(-5.0, 4_000, dim=60)["min_rise"] == ascent.MIN_RISE_PER_PARAMETER * 60 == 15.0
    assert ascent.network_limits(-5.0, 400_000, dim=60)["min_rise"] == 40.0
