"""At the end of a run the clients' log-likelihoods add up to that of all rows, or it is said that they do not."""

import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.algorithm.record import Record
from pyro_fed.audit import Evidence
from pyro_fed.audit.densities import splitting

X = torch.randn(60, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 1.0
Y = 80.0 * X


def splits(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 100.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(w * x, 1.0), obs=y)


def far_out(x, y):
    """Rows need one another from w = 60 on, which the points of the first check do not reach."""
    w = pyro.sample("w", dist.Normal(0.0, 100.0))
    shift = torch.relu(w - 60.0) * x.mean()
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(w * x + 0.1 * shift, 1.0), obs=y)


def far_out_prior(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 100.0))
    pyro.factor("late", -torch.relu(w - 60.0) * len(y))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(w * x, 1.0), obs=y)


def last_rows(y):
    """One place of 4000, at a row that the first check does not look at in pairs."""
    m = pyro.sample("m", dist.Normal(0.0, 100.0))
    odd = torch.arange(len(y)) == 3000
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(torch.where(odd, m + 1.0, m), 0.1), obs=y)


def evidence(model, args, draws, clients=4):
    fed = pf.Federation(model, args, plate="data", num_clients=clients)
    record = Record(fed.client_names)
    return Evidence(pf.FedEP(), fed, fed.problem, {}, draws.reshape(1, -1, 1), record, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_model_that_splits(dtype):
    draws = torch.linspace(79.9, 80.1, 50, dtype=dtype)
    assert splitting(evidence(splits, (X.to(dtype), Y.to(dtype)), draws)) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("model", "site", "line"), [(far_out, "'y'", "x.mean()"), (far_out_prior, "'late'", "pyro.factor")]
)
def test_where_the_result_is_the_clients_do_not_add_up(model, site, line, dtype):
    draws = torch.linspace(79.9, 80.1, 50, dtype=dtype)
    (said,) = splitting(evidence(model, (X.to(dtype), Y.to(dtype)), draws))
    assert said.text.startswith("the model does not split over plate 'data'")
    assert f"in site {site}" in said.text
    assert line in said.text


def test_the_difference_is_that_of_the_sums():
    """Two clients; each one's shift is by its own mean, where all rows have the pooled one."""
    found = evidence(far_out, (X, Y), torch.full((3,), 80.0, dtype=torch.float64), clients=2)
    (said,) = splitting(found)

    def log_lik(x, y):
        return dist.Normal(80.0 * x + 0.1 * 20.0 * x.mean(), 1.0).log_prob(y).sum()

    parts = [log_lik(X[rows], Y[rows]) for rows in found.federation.client_rows]
    assert f"differ by {abs(float(sum(parts) - log_lik(X, Y))):.3g} in" in said.text


def test_every_row_is_looked_at():
    y = torch.zeros(4000, dtype=torch.float64)
    y[0], y[3000] = 2.0, 1.0  # the extremes of a column are among the rows of the first check
    (said,) = splitting(evidence(last_rows, (y,), torch.linspace(-0.01, 0.01, 20, dtype=torch.float64)))
    assert "torch.arange(len(y))" in said.text


def test_a_run_says_it():
    by_sign = pf.partition.Dirichlet(0.5, by=(X > 1).long())
    fed = pf.Federation(far_out, (X, Y), plate="data", num_clients=4, partition=by_sign)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of it, and of what follows from it
        found = pf.run(pf.FedLaplace(), fed, progress=False)
    assert "the model does not split over plate 'data'" in found.attrs["doubts"]
