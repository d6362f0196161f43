"""Whether a model is a network is seen in its rows, not in their number."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import nn
from torch.nn import functional

import pyro_fed as pf
from pyro_fed.infer.averaging.fedavg import BurnIn
from pyro_fed.policy import chain_of, resolve

ROWS = 40
LINEAR = nn.Linear(12, 2)


def weights(name, *shape):
    return pyro.sample(name, dist.Normal(torch.zeros(shape), 1.0).to_event(len(shape)))


def observed(y, logits):
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def dense(x, y):
    hidden = torch.tanh(x @ weights("w", 12, 9) + weights("b", 9))
    observed(y, hidden @ weights("v", 9))


def in_units_of_scale(x, y):
    """Weights whose means have the rows' dtype and device, and nothing else of them."""
    hidden = torch.tanh(x @ (x.new_zeros(12, 9) + weights("s", 9).exp() * weights("w", 12, 9)))
    observed(y, hidden @ (torch.zeros_like(x[0, :9]) + weights("t", 1).exp() * weights("v", 9)))


def convolutional(x, y):
    maps = functional.conv2d(x.reshape(-1, 1, 3, 4), weights("kernel", 6, 1, 2, 2)).relu()
    observed(y, maps.flatten(1) @ weights("v", 36) + weights("level", 60).sum())


def attention(x, y):
    keys = x.reshape(-1, 3, 4) @ weights("k", 4, 14)
    seen = torch.softmax(keys @ keys.mT, -1) @ (x.reshape(-1, 3, 4) @ weights("u", 4, 14))
    observed(y, seen.mean(1) @ weights("v", 14))


def logistic(x, y):
    observed(y, torch.cat([x] * 10, 1) @ weights("w", 120))


def correlated_effects(x, y):
    """A factor times effects, of no rows."""
    factor = weights("factor", 12, 12).tril().exp()
    observed(y, x @ (factor @ weights("u", 12)))


def squashed(x, y):
    """An activation with no weights behind it but a scale."""
    observed(y, weights("scale", 1) * torch.tanh(torch.cat([x] * 10, 1) @ weights("w", 120)))


def basis(x, y):
    """Radial functions whose length scale is learned."""
    centres = torch.linspace(-2, 2, 150)
    length = weights("length", 1).exp()
    observed(y, torch.exp(-((x[:, :1] - centres) ** 2) / length) @ weights("v", 150))


@pytest.mark.parametrize(
    ("model", "network"),
    [
        *[(model, True) for model in (dense, in_units_of_scale, convolutional, attention)],
        *[(model, False) for model in (logistic, correlated_effects, squashed, basis)],
    ],
)
def test_layers_are_seen_in_the_rows(model, network):
    torch.manual_seed(0)
    x = torch.randn(ROWS, 12)
    fed = pf.Federation(model, (x, (x[:, 0] > 0).float()), plate="data", num_clients=2)
    assert fed.problem.traits.layers is network
    assert fed.problem.dim > 100 and fed.problem.traits.large(pf.FedEP.num_points) is network


def of_two_units(x, y):
    observed(y, torch.tanh(x @ weights("w", 12, 2)) @ weights("v", 2))


def own_last_layers(x, y):
    """The weights behind the units are those of the row's own group, and the product is written out."""
    group = (x[:, 0] > 0).long()
    observed(y, (torch.tanh(x @ weights("w", 12, 3)) * weights("v", 2, 3)[group]).sum(-1))


def written_out(x, y):
    observed(y, (torch.tanh(x @ weights("w", 12, 3)) * weights("v", 3)).sum(-1))


def frailties(x, y):
    """Rates times effects of groups: a nonlinear model, and no network."""
    group = (x[:, 0] > 0).long()
    rate = (x[:, :1] @ weights("w", 1, 4)).exp() * weights("v", 2, 4).exp()[group]
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Poisson(rate).to_event(1), obs=y[:, None].expand(-1, 4))


def overdispersed(x, y):
    """Several counts a row, each with a concentration of its own."""
    fn = dist.NegativeBinomial(weights("k", 4).exp(), logits=x @ weights("w", 12, 4))
    with pyro.plate("data", len(y)):
        pyro.sample("y", fn.to_event(1), obs=y[:, None].expand(-1, 4))


def module_without_activation(x, y):
    """By `functional_call`: `nn.Parameter(weights(...))` would take the weights out of the graph."""
    parts = {"weight": weights("w", 2, 12), "bias": weights("b", 2)}
    observed(y, torch.func.functional_call(LINEAR, parts, (x,))[:, 0])


def located_basis(x, y):
    centre, length = weights("centre", 1), weights("length", 1).exp()
    observed(y, torch.exp(-((x[:, :1] - centre - torch.linspace(-2, 2, 9)) ** 2) / length) @ weights("v", 9))


@pytest.mark.parametrize(
    ("model", "network"),
    [
        *[(model, True) for model in (of_two_units, own_last_layers, written_out)],
        *[(model, False) for model in (module_without_activation, located_basis, frailties, overdispersed)],
    ],
)
def test_so_they_are_where_parameters_are_few(model, network):
    torch.manual_seed(0)
    x = torch.randn(ROWS, 12)
    fed = pf.Federation(model, (x, (x[:, 0] > 0).float()), plate="data", num_clients=2)
    assert fed.problem.traits.layers is network
    assert not fed.problem.traits.large()
    for kind in (pf.infer.PVI, pf.infer.FedSEP, pf.infer.FedLap, pf.infer.BayesADMM, pf.P2PVI):
        assert (resolve(kind(), fed.problem.traits).algorithm.structure == "diag") is network
        assert resolve(kind(covariance="full"), fed.problem.traits).algorithm.structure == "full"
    exact = resolve(pf.FedEP(), fed.problem.traits).algorithm
    assert (exact.client, exact.structure, exact.curvature) == (pf.infer.tilted.Newton(), "full", "hessian")
    phases = [type(one) for one in chain_of(pf.FedEP(), fed.problem)]
    assert phases == ([BurnIn] if network else []) + [pf.FedLaplace, pf.FedEP]
