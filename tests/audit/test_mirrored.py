"""Clients of few rows that say the opposite of the others', by their rows' density given these and mirrored."""

import math
import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.audit.mirrored_clients import MAX_FALSE_NAMING, mirrored_clients
from pyro_fed.ops.gaussian import FullGaussian

MEAN, CLIENTS = 1.0, 10


def sites_of(sums, counts):
    """Sites of rows N(θ, 1), whose sums and numbers are these, and their product."""
    sites = FullGaussian(counts.double()[:, None, None], sums[:, None])
    return FullGaussian(sites.precision.sum(0) + 1e-6, sites.eta.sum(0)), sites


def found(sums, counts):
    """Log of the means' ratio, by client, of normal rows."""

    def log_lik(k, points):
        return sums[k] * points[:, 0] - 0.5 * counts[k] * points[:, 0].square()

    q, sites = sites_of(sums, counts)
    return mirrored_clients(q, sites, counts, log_lik, torch.Generator().manual_seed(0))


def test_the_ratio_is_that_of_two_normal_densities():
    """Given the others, N(m, s²), a client's sum Σ y of n rows has a density whose logarithm is odd in m."""
    counts = torch.full((CLIENTS,), 6)
    sums = (MEAN * counts).double()
    sums[3] *= -1
    mean, variance = sums[counts.new_tensor([0, 1, 2, 4, 5, 6, 7, 8, 9])].sum() / 54, 1 / 54
    expected = -2 * float(mean * sums[3]) / (1 + 6 * variance)
    assert found(sums, counts) == {3: pytest.approx(expected, abs=0.05)}


@pytest.mark.parametrize(
    ("counts", "flipped", "told"),
    [
        ([6] * 10, -1.0, [3]),
        ([6] * 10, 0.0, []),  # another mean, which is not the opposite
        ([6] * 3 + [600] + [6] * 6, -1.0, []),  # the others are on the other side for what it says
        ([6] * 3 + [0] + [6] * 6, -1.0, []),
    ],
)
def test_only_the_opposite_of_what_the_others_know_is_told(counts, flipped, told):
    counts = torch.tensor(counts)
    sums = (MEAN * counts).double()
    sums[3] *= flipped
    assert list(found(sums, counts)) == told


def test_honest_clients_are_told_less_often_than_promised():
    """Rows of eight clients in 500 cohorts; three standard errors more than the 5 % that are promised are no chance."""
    generator = torch.Generator().manual_seed(0)
    counts = torch.full((8,), 2)
    sums = 0.5 * counts + counts.sqrt() * torch.randn(500, 8, generator=generator, dtype=torch.float64)
    false = sum(bool(found(cohort, counts)) for cohort in sums) / len(sums)
    assert false < MAX_FALSE_NAMING + 3 * math.sqrt(MAX_FALSE_NAMING * (1 - MAX_FALSE_NAMING) / len(sums))


def model(x, y):
    w = pyro.sample("w", dist.Normal(x.new_zeros(3), 2.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


@pytest.mark.parametrize("flips", [True, False])
def test_a_run_warns_of_a_client_of_few_rows_whose_labels_are_flipped(flips):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(80, 3, generator=generator, dtype=torch.float64)
    y = (torch.rand(80, generator=generator) < (2 * x @ x.new_tensor([1.0, -1.0, 0.5])).sigmoid()).double()
    y[8:16] = 1 - y[8:16] if flips else y[8:16]
    parts = list(zip(x.split(8), y.split(8), strict=True))
    fed = pf.Federation.from_clients(model, parts, plate="data")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        idata = pf.run(pf.FedEP(), fed, progress=False, log_likelihood=False, compile="trace", seed=0)
    warned = [str(one.message) for one in caught if "client" in str(one.message)]
    assert len(warned) == flips and ("client 1 " in idata.attrs["stands_apart"]) is flips
    assert not flips or "as likely under the opposite of what the others say" in warned[0]
