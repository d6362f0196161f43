"""Which numbers of a draw have a mean and an SD to be judged by."""

import pyro
import pyro.distributions as dist
import torch

import pyro_fed as pf
from pyro_fed.audit.moments import Quantities


def correlated(y):
    factor = pyro.sample("factor", dist.LKJCholesky(2, 2.0))
    scales = pyro.sample("scales", dist.LogNormal(0.0, 1.0).expand([2]).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.MultivariateNormal(torch.zeros(2), scale_tril=scales[:, None] * factor), obs=y)


def test_constants_of_a_transform_are_not_judged():
    """A factor of 2 x 2 correlations is (1, 0; r, sqrt(1 - r^2)): two of its four entries have no SD."""
    y = torch.randn(20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    problem = pf.Federation(correlated, (y,), plate="data", num_clients=2).problem
    z = torch.randn(100, problem.dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    quantities = Quantities.of(problem, z)
    assert [label for label in quantities.labels if "unconstrained" not in label] == [
        *("factor[1, 0]", "factor[1, 1]", "scales[0]", "scales[1]")
    ]
    values = quantities(z)
    assert values.shape == (100, len(quantities.labels)) == (100, len(quantities.along))
    r = values[:, quantities.labels.index("factor[1, 0]")]
    torch.testing.assert_close(values[:, quantities.labels.index("factor[1, 1]")], (1 - r.square()).sqrt())


def regression(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def test_double_draws_of_a_model_in_single_precision_are_its_own():
    """Draws around a point's mode are made in float64; the model's products take float32 alone."""
    x, y = torch.ones(20, 2), torch.ones(20)
    problem = pf.Federation(regression, (x, y), plate="data", num_clients=2).problem
    assert problem.dtype == torch.float32
    z = torch.randn(100, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert Quantities.of(problem, z).labels == ("w[0]", "w[1]")
