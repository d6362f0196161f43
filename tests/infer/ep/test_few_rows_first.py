"""A network's rounds are made by some of its rows first; a step goes in each direction as far as it may by itself."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.algorithm.plan import chain_of
from pyro_fed.infer.ep import ascent
from pyro_fed.ops.gaussian_structures import FullGaussian

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
    even = chain_of(pf.FedEP().evenly(), problem)  # noise of privacy is added in each round
    assert [part.client.few_rows for part in even if isinstance(part, pf.FedEP)] == [None]


def test_as_many_rows_as_there_are_are_all_of_them():
    fed = over(logistic, 300)
    runs = [pf.run(pf.FedEP(client=pf.tilted.Newton(few_rows=few)), fed, **QUIET) for few in (None, 300)]
    assert torch.equal(*(torch.as_tensor(run.posterior["w"].values) for run in runs))
    fewer = pf.run(pf.FedEP(client=pf.tilted.Newton(few_rows=75)), fed, **QUIET)  # SDs are those of so many
    wider = fewer.posterior["w"].std(("chain", "draw")) / runs[0].posterior["w"].std(("chain", "draw"))
    assert ((wider > 1.6) & (wider < 2.4)).all()


def in_directions(relative, pull):
    """q, with directions in which a step has this precision relative to q's, and this score in SDs; the step."""
    dim = len(relative)
    generator = torch.Generator().manual_seed(1)
    root = torch.randn(dim, dim, generator=generator, dtype=F64) + 3 * torch.eye(dim, dtype=F64)
    turned = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=F64))[0]
    mean, outward = torch.linspace(-1, 1, dim, dtype=F64), torch.linalg.inv(root @ turned).mT
    precision = outward @ outward.mT
    change = (outward * (torch.tensor(relative, dtype=F64) - 1)) @ outward.mT
    score = outward @ torch.tensor(pull, dtype=F64)
    q, move = (FullGaussian(p, p @ mean + s) for p, s in ((precision, 0 * score), (change, score)))
    return q, move, root @ turned


@pytest.mark.parametrize(
    "radius, steps, precisions",
    [
        (math.inf, [0.5, 1.5, -2.0, 2.0], [1.0, 2.0, 0.5, 0.25]),  # one bends the wrong way: all are held
        (1.0, [0.5, 1.0, -1.0, 1.0], [1.0, 2.0, 0.5, 0.25]),
        (0.3, [0.3, 0.3, -0.3, 0.3], [1.0, math.exp(0.6), math.exp(-0.6), math.exp(-0.6)]),
    ],
)
def test_each_direction_is_held_by_itself(radius, steps, precisions):
    q, move, units = in_directions([1.0, 2.0, 0.5, -0.7], [0.5, 3.0, -3.0, 1.0])
    new = q.product(move).product(ascent.hold(q, move, radius, 0.05))
    away = torch.linalg.solve(units, new.mean() - q.mean())
    assert torch.allclose(away, torch.tensor(steps, dtype=F64), atol=1e-9)
    assert torch.allclose(units.mT @ new.precision @ units, torch.tensor(precisions, dtype=F64).diag(), atol=1e-9)


def test_a_step_within_its_radius_is_left_alone_and_a_parabola_is_foretold():
    q, move, _ = in_directions([1.0, 2.0, 0.5, 0.6], [0.5, 1.0, -0.4, 0.5])
    assert ascent.hold(q, move, 1.0, 0.05) is None and ascent.hold(q, move, math.inf, 0.05) is None
    new = q.product(move)
    gain = ascent.foretold(q, move, new)  # from q to the parabola's own Gaussian: what KL there was
    assert torch.allclose(gain, q.kl(new), atol=1e-9)
