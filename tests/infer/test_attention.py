"""A `torch.nn.TransformerEncoder` with priors in the place of its parameters: a network like any other."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroSample
from pyro.nn.module import to_pyro_module_
from short_runs import quiet
from torch import nn

import pyro_fed as pf

LENGTH, WIDTH, ROWS, HELD = 5, 8, 300, 100


class Classifier(nn.Module):
    """Whether the largest entry of a sequence comes first or later, from the mean over its encoded places."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=True)
        self.place = nn.Linear(2, WIDTH)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, 2)

    def forward(self, x):
        places = torch.linspace(-1, 1, LENGTH).expand(x.shape)
        encoded = self.encoder(self.place(torch.stack([x, places], -1)))
        return self.out(encoded.mean(-2))


def model_of(layers):
    to_pyro_module_(layers)
    for module in layers.modules():
        for name, value in list(module.named_parameters(recurse=False)):
            setattr(module, name, PyroSample(dist.Normal(torch.zeros_like(value), 1.0).to_event(value.dim())))

    def model(x, y):
        logits = layers(x)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Categorical(logits=logits), obs=y)

    return model


@pytest.fixture(scope="module")
def sequences():
    x = torch.randn(ROWS + HELD, LENGTH, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > x[:, 1:].mean(1)).long()
    return (x[:ROWS], y[:ROWS]), (x[ROWS:], y[ROWS:])


@pytest.mark.parametrize("algorithm", [pf.FedEP(), pf.FSGLD()], ids=["FedEP", "FSGLD"])
def test_an_encoder_trains_by_default(algorithm, sequences):
    """Chance is a half."""
    train, test = sequences
    fed = pf.Federation(model_of(Classifier()), train, plate="data", num_clients=4, seed=0)
    idata = quiet(algorithm, fed, num_rounds=20, num_draws=50, log_likelihood=False, compile="auto")
    assert pf.metrics.test_metrics(idata, fed, test)["accuracy"] > 0.8
