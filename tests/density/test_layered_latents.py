"""Networks whose rows have latents of their own: refused before they run for hours, with cures that work."""

import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.density.latents.latent_checks import check_affordable
from pyro_fed.errors import ModelError

CLIENTS, ROWS, UNITS = 6, 20, 8


def weights(name, *shape):
    return pyro.sample(name, dist.Normal(torch.zeros(shape), 1.0).to_event(len(shape)))


def hidden(x):
    return torch.tanh(x @ weights("w", 3, UNITS) + weights("b", UNITS))


def last_layers(x, y):
    """Each element's own weights behind units that all share."""
    units = hidden(x)
    with pyro.plate("clients", len(x)):
        v = pyro.sample("v", dist.Normal(torch.zeros(UNITS), 1.0).to_event(1))
        pyro.sample("y", dist.Normal((units * v[..., None, :]).sum(-1), 0.3).to_event(1), obs=y)


def offsets(x, y):
    """A number of each element's own beside the network."""
    mean = hidden(x) @ weights("v", UNITS)
    with pyro.plate("clients", len(x)):
        a = pyro.sample("a", dist.Normal(0.0, 0.5))
        pyro.sample("y", dist.Normal(mean + a[..., None], 0.3).to_event(1), obs=y)


def effects(x, y):
    """As many latents of each element's own, and no network."""
    scale = pyro.sample("scale", dist.HalfNormal(torch.ones(3)).to_event(1))
    with pyro.plate("clients", len(x)):
        v = pyro.sample("v", dist.Normal(torch.zeros(3), scale).to_event(1))
        pyro.sample("y", dist.Normal((x * v[..., None, :]).sum(-1), 0.3).to_event(1), obs=y)


def decoder(x, y):
    """A code of each row that a network makes its outcomes of."""
    w, v = weights("w", 2, UNITS), weights("v", UNITS, ROWS)
    with pyro.plate("clients", len(y)):
        z = pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        pyro.sample("y", dist.Normal(torch.tanh(z @ w) @ v, 0.3).to_event(1), obs=y)


def outcomes():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(CLIENTS, ROWS, 3, generator=generator)
    return x, torch.sin(2 * x[..., 0]) + 0.3 * torch.randn(CLIENTS, ROWS, generator=generator)


def of(model):
    return pf.Federation(model, outcomes(), plate="clients", num_clients=3, seed=0)


@pytest.mark.parametrize("limit", [None, 10.0])
@pytest.mark.parametrize(("model", "latent"), [(last_layers, "v"), (decoder, "z")])
def test_what_would_take_hours_is_refused_with_the_cures(model, latent, limit):
    """Also where `max_seconds` would end it: that is looked at between steps, of which the first does not end."""
    with pytest.raises(ModelError, match=rf"latents \['{latent}'\] .* through a network.*ByGroup\(element\).*NUTS"):
        pf.run(pf.FedEP(), of(model), seed=0, progress=False, max_seconds=limit)


@pytest.mark.parametrize("model", [offsets, effects])
def test_what_takes_seconds_is_not_refused(model):
    check_affordable(of(model).problem)


def test_the_cure_is_run():
    """The same layers as entries of one site, chosen by a column; the rows have a noise of 0.3."""

    def model(x, y, element):
        units = hidden(x)
        with pyro.plate("elements", CLIENTS):
            v = pyro.sample("v", dist.Normal(torch.zeros(UNITS), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal((units * v[element]).sum(-1), 0.3), obs=y)

    x, y = outcomes()
    element = torch.arange(CLIENTS).repeat_interleave(ROWS)
    rows = x.reshape(-1, 3), y.reshape(-1), element
    apart = pf.partition.ByGroup(element)
    fed = pf.Federation(model, rows, plate="data", num_clients=3, partition=apart, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a network has not come to rest after the default rounds
        idata = pf.run(pf.FedEP(), fed, seed=0, progress=False, audit=False)
    assert pf.metrics.test_metrics(idata, fed, rows)["rmse"] < 0.45
