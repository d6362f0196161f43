"""Data that cannot be used, and data that are odd but can."""

import re

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from zoo_data import BINARY, N, X, Y, normal
from zoo_sites import linear

import pyro_fed as pf
from pyro_fed.density.rows import leaves

HALVES = pf.partition.Explicit([list(range(6)), list(range(6, N))])


def build(model, *args, partition=HALVES, **options):
    return pf.Federation(model, args, plate="data", partition=partition, **options)


def with_entry(tensor, position, value):
    changed = tensor.clone()
    changed[position] = value
    return changed


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (
            with_entry(X, (7, 2), torch.nan),
            Y,
            r"client 1, argument 'x'\[7, 2\] is NaN \(1 of 7 rows\). Nothing was run",
        ),
        (with_entry(X, slice(2, 5), torch.nan), Y, r"client 0, argument 'x'\[2, 0\] is NaN \(3 of 6 rows\)"),
        (with_entry(X, (0, 1), torch.inf), Y, r"client 0, argument 'x'\[0, 1\] is infinite \(1 of 6 rows\)"),
        (X, with_entry(Y, 12, -torch.inf), r"client 1, argument 'y'\[12\] is infinite \(1 of 7 rows\)"),
        (X.numpy(), np.where(np.arange(N) == 3, np.nan, 0.0), r"client 0, argument 'y'\[3\] is NaN"),
    ],
)
def test_values_that_are_not_finite_are_named(x, y, message):
    with pytest.raises(pf.errors.DataError, match=message):
        build(linear, x, y)


def test_the_cure_of_an_infinity_masks_it():
    infinite = with_entry(with_entry(X, (0, 1), torch.nan), (9, 0), torch.inf)
    for x, there in ((infinite, "torch.isfinite(x)"), (with_entry(X, (0, 1), torch.nan), "~torch.isnan(x)")):
        with pytest.raises(pf.errors.DataError, match=re.escape(f"`obs=x, obs_mask={there}`")) as error:
            build(linear, x, Y)
        assert f"`torch.where({there}, x, latent)`" in str(error.value)


def test_a_row_is_numbered_within_its_client_where_clients_are_apart():
    clients = [(X[:6], Y[:6]), (with_entry(X[6:], (1, 2), torch.nan), Y[6:])]
    with pytest.raises(pf.errors.DataError, match=r"client 1, argument 'x'\[1, 2\] is NaN \(1 of 7 rows\)"):
        pf.Federation.from_clients(linear, clients, plate="data")


def test_nan_in_a_shared_argument():
    def model(x, y, scale):
        return linear(x * scale, y)

    with pytest.raises(pf.errors.DataError, match=r"argument 'scale'\[1\], shared by all clients, is NaN"):
        build(model, X, Y, torch.tensor([1.0, torch.nan, 1.0]))


@pytest.mark.parametrize("count", [0, -1])
def test_no_clients(count):
    with pytest.raises(pf.errors.SettingError, match=f"num_clients must be at least 1, received {count}"):
        pf.Federation(linear, (X, Y), plate="data", num_clients=count)


def test_no_clients_apart():
    with pytest.raises(pf.errors.DataError, match=r"at least one client, received none"):
        pf.Federation.from_clients(linear, [], plate="data")


def test_no_rows_at_all():
    for shard in (None, ("x", "y")):
        with pytest.raises(pf.errors.DataError, match=r"no client has any row|the data have no rows"):
            pf.Federation.from_clients(linear, [(X[:0], Y[:0])], plate="data", shard=shard)


def test_more_clients_than_rows():
    with pytest.raises(ValueError, match=r"14 clients for 13 rows; take at most 13"):
        pf.Federation(linear, (X, Y), plate="data", num_clients=N + 1)


def test_an_unknown_number_of_clients():
    with pytest.raises(ValueError, match=r"pass num_clients"):
        pf.Federation(linear, (X, Y), plate="data")


@pytest.mark.parametrize("rows", [1, 2])
def test_clients_of_one_row(rows):
    fed = pf.Federation(linear, (X[:rows], Y[:rows]), plate="data", num_clients=rows)
    assert fed.row_counts.tolist() == [1] * rows
    z = torch.zeros(4, dtype=torch.float64)
    assert bool(fed.problem.log_lik(z).isfinite())


def test_leading_dimensions_that_disagree():
    with pytest.raises(pf.errors.DataError, match=r"'x' has 13 rows, 'y' has 12 rows"):
        build(linear, X, Y[:-1], shard=("x", "y"))
    with pytest.raises(
        pf.errors.DataError, match=r"same leading dimension, but .*'x' has 6 rows.*'y' has 5 rows.* at client 1"
    ):
        pf.Federation.from_clients(linear, [(X[:7], Y[:7]), (X[7:], Y[8:])], plate="data")


def test_shapes_that_differ_between_clients():
    clients = {"a": (X[:6], Y[:6]), "b": (X[6:, :2], Y[6:])}
    with pytest.raises(pf.errors.DataError, match=r"'x' has shape \(6, 3\) at client a and \(7, 2\) at client b"):
        pf.Federation.from_clients(linear, clients, plate="data")


def test_structures_that_differ_between_clients():
    def model(data):
        return linear(data["x"], data["y"])

    clients = [({"x": X, "y": Y},), ({"x": X, "z": Y},)]
    with pytest.raises(
        pf.errors.DataError, match=r"'data', a dictionary, has not the key\(s\) y and the key\(s\) z more at"
    ):
        pf.Federation.from_clients(model, clients, plate="data")


def test_a_scalar_where_rows_are_meant():
    with pytest.raises(
        pf.errors.DataError, match=r"'y' of client 1 is split by rows: expected an array of rows, received a sc"
    ):
        pf.Federation.from_clients(linear, [(X, Y), (X, Y[0])], plate="data")


@pytest.mark.parametrize(("first", "second"), [(1.0, 2.0), (torch.ones(2), torch.zeros(2)), (1.0, torch.ones(()))])
def test_shared_arguments_that_differ(first, second):
    def model(x, y, scale):
        return linear(x, y)

    with pytest.raises(pf.errors.DataError, match=r"'scale' is not split by rows.*clients 0 and 1 differ"):
        pf.Federation.from_clients(model, [(X[:6], Y[:6], first), (X[6:], Y[6:], second)], plate="data")


def test_text_is_no_measurement():
    with pytest.raises(pf.errors.ModelError, match=r"argument 'y' is text .* site 'y' \(Normal\), which takes numbers"):
        build(linear, X, pd.Series(["yes", "no"] * 6 + ["no"]))


def test_numbers_in_text_are_not_taken_for_labels():
    with pytest.raises(pf.errors.DataError, match=r"argument 'y' is text that reads as numbers.*pandas.to_numeric"):
        build(logistic, X, pd.Series(["1", "0"] * 6 + ["10"]))


@pytest.mark.parametrize(
    "dates", [["2024-03-01", "2023-11-30 12:00"], ["1.3.2024", "30.11.2023"], ["03/01/24", "11/30/23"]]
)
def test_dates_as_text_have_no_codes(dates):
    with pytest.raises(pf.errors.DataError, match=r"'y' is text that reads as dates.*pandas\.to_datetime\(y\)"):
        leaves.read_leaf(np.array(dates, dtype=object), "y", {})
    assert leaves.read_leaf(np.array(["2024-Q1", "1.3"], dtype=object), "y", {}).labels == ("1.3", "2024-Q1")


def logistic(x, y):
    w = pyro.sample("w", normal(0, 1, 3))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def counts(y):
    rate = pyro.sample("rate", dist.Gamma(1.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Poisson(rate), obs=y)


def classes(y):
    p = pyro.sample("p", dist.Dirichlet(torch.ones(3)))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Categorical(p), obs=y)


@pytest.mark.parametrize(
    ("model", "args", "kind"),
    [
        (logistic, (X, 2 * BINARY - 1), "Bernoulli"),
        (counts, (-torch.ones(N),), "Poisson"),
        (classes, (torch.full((N,), 3),), "Categorical"),
    ],
)
def test_labels_outside_the_support(model, args, kind):
    with pytest.raises(pf.errors.DataError, match=f"observed site 'y': its data are outside the support of {kind}"):
        build(model, *args)


def test_a_column_of_labels_is_refused_before_it_makes_a_density_a_pair_of_rows():
    with pytest.raises(
        pf.errors.DataError, match=rf"'y': its data have the shape \({N}, 1\), its .* Normal the shape \({N},\)"
    ):
        build(linear, X, Y[:, None])


@pytest.mark.filterwarnings("ignore:PaperDSVGD as published:UserWarning")  # two rounds
def test_a_constant_feature_and_a_rank_deficient_client():
    x = torch.cat([X[:, :2], torch.ones(N, 1)], 1).double()
    x[:6, 1] = 2 * x[:6, 0]
    fed = build(linear, x, Y)
    result = pf.run(
        pf.papers.PaperDSVGD(num_particles=60, local_steps=3, distill_steps=3),
        fed,
        num_rounds=2,
        progress=False,
        compile="off",
        audit=False,
    )
    assert bool(np.isfinite(result.posterior["w"].values).all())


@pytest.mark.parametrize("column", [-1, 2])
def test_extreme_scales_are_computed_in_double(column):
    """Row densities at scales from 1e-6 to 1e6 are those of the standardised problem."""
    scale = torch.tensor([1e-6, 1.0, 1e6], dtype=torch.float64)

    def rescaled(x, y):
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1 / scale).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    z = torch.tensor([0.3, -0.4, 0.1], dtype=torch.float64)
    problem = build(rescaled, X * scale, Y).problem
    expected = dist.Normal(X @ z, 1.0).log_prob(Y)
    torch.testing.assert_close(problem.pointwise_log_lik(z / scale), expected, rtol=1e-9, atol=1e-9)
