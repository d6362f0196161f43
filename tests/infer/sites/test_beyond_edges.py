"""Rows with linear predictors whose densities end at an edge: points beyond it are left out, as of other models."""

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf

N = 12
X = torch.linspace(-1.5, 1.5, N, dtype=torch.float64)
LEVELS = torch.linspace(0.5 / N, 1 - 0.5 / N, N, dtype=torch.float64)
Y = torch.special.ndtri(LEVELS)[torch.randperm(N, generator=torch.Generator().manual_seed(0))] * (1 + 0.2 * X)


def straight_scale(x, y):
    """The scale is 1 + b x; beyond |b| = 2/3 it is negative for a row."""
    a, b = pyro.sample("a", dist.Normal(x.new_tensor(0.0), 3.0)), pyro.sample("b", dist.Normal(x.new_tensor(0.0), 0.5))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(a, 1 + b * x, validate_args=False), obs=y)


def moments():
    """Means and SDs by quadrature on a grid."""
    a, b = torch.meshgrid(
        torch.linspace(-2, 2, 401).double(), torch.linspace(-0.666, 0.666, 401).double(), indexing="ij"
    )
    scale = 1 + b[..., None] * X
    log_density = (-(((Y - a[..., None]) / scale) ** 2) / 2 - scale.log()).sum(-1) - (a / 3) ** 2 / 2 - 2 * b**2
    weight = torch.softmax(log_density.flatten(), 0).reshape(a.shape)
    return [(float((weight * z).sum()), float((weight * (z - (weight * z).sum()) ** 2).sum().sqrt())) for z in (a, b)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("clients", [3, 6])
def test_points_beyond_an_edge_are_left_out(clients):
    fed = pf.Federation(straight_scale, (X, Y), plate="data", num_clients=clients)
    idata = pf.run(pf.FedEP(), fed, progress=False, log_likelihood=False, audit=False, seed=1)
    for name, (mean, sd) in zip("ab", moments(), strict=True):
        values = idata["posterior"][name].values
        assert abs(values.mean() - mean) < 0.1 * sd and abs(values.std() / sd - 1) < 0.15
