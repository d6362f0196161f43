"""Clients that were dealt rows of certain outcomes differ by that: no warning, as there is of clients as they are."""

import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.audit.influence import follows_outcome, is_function


def line(x, y):
    """A line under known noise."""
    weights = pyro.sample("weights", dist.Normal(torch.zeros(2), 5.0).to_event(1))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Normal(weights[0] + weights[1] * x, 1.0), obs=y)


@pytest.fixture
def rows():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, generator=generator)
    return x, 0.5 + x + torch.randn(200, generator=generator)


def influence_warnings(fed):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = pf.run(pf.FedEP(), fed, progress=False, log_likelihood=False)
    return [str(one.message) for one in caught if "pf.influence" in str(one.message)], result.attrs["stands_apart"]


def test_rows_dealt_out_by_their_outcome_give_no_warning_and_an_attribute(rows):
    """SortedBy draws nothing: the figures are those of one data set, the same at every run."""
    fed = pf.Federation(line, rows, plate="rows", num_clients=10, partition=pf.partition.SortedBy(by=rows[1]))
    said, apart = influence_warnings(fed)
    assert not said
    assert "disagrees with the others" in apart


def test_clients_as_they_are_that_have_the_same_rows_are_warned_of(rows):
    order = rows[1].argsort()
    fed = pf.Federation.from_clients(line, [tuple(a[i] for a in rows) for i in order.chunk(10)], plate="rows")
    said, _ = influence_warnings(fed)
    assert "disagrees with the others" in said[0]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda x, y: pf.partition.SortedBy(by=y), True),
        (lambda x, y: pf.partition.SortedBy(by=-y.double()), True),
        (lambda x, y: pf.partition.Dirichlet(0.3, by=y > 0), True),
        (lambda x, y: pf.partition.MajorityShare(0.9, by=np.where(y > 0, "much", "little")), True),
        (lambda x, y: pf.partition.FeatureSkew(feature=x, by=y > 0), False),
        (lambda x, y: pf.partition.SortedBy(by=x), False),
        (lambda x, y: pf.partition.ByGroup(by=y > 0), False),
        (lambda x, y: pf.partition.IID(), False),
        (lambda x, y: pf.partition.Explicit(y.argsort().chunk(2)), False),
    ],
)
def test_whether_rows_were_dealt_out_by_their_outcome(rows, make, expected):
    fed = pf.Federation(line, rows, plate="rows", num_clients=2, partition=make(*rows))
    assert follows_outcome(fed, fed.problem) is expected


def written_out(x, y):
    weights = pyro.sample("weights", dist.Normal(torch.zeros(2), 5.0).to_event(1))
    with pyro.plate("rows", len(x)):
        pyro.factor("fit", -0.5 * (y - weights[0] - weights[1] * x) ** 2)


@pytest.mark.parametrize(("make", "expected"), [(pf.partition.SortedBy, True), (pf.partition.ByGroup, False)])
def test_rows_of_a_factor_are_dealt_out_by_an_outcome_too(rows, make, expected):
    fed = pf.Federation(written_out, rows, plate="rows", num_clients=2, partition=make(by=rows[1] > 0))
    assert follows_outcome(fed, fed.problem) is expected


def test_labels_in_any_order_follow_from_an_outcome_of_few_values_and_not_from_one_that_is_different_in_each_row():
    labels = np.array(["b", "a", "c"] * 10)
    outcome = np.array([0.0, 1.0, 2.0] * 10)
    assert is_function(labels, outcome)
    assert not is_function(np.arange(30), outcome)
    assert not is_function(labels, np.arange(30.0))
    assert not is_function(np.ones(30), outcome)
