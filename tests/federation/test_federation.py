"""How data and clients come together, whichever way they are given."""

import pickle

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from zoo_data import GROUP, N, X, Y
from zoo_rows import closure, keywords, named_as_plate, sized, star, tables
from zoo_sites import linear

import pyro_fed as pf

SPLIT = [list(range(4)), list(range(4, 5)), list(range(5, N))]


def both(model, args, kwargs=None, **options):
    """The same rows pooled with an explicit partition, and apart."""
    pooled = pf.Federation(model, args, kwargs, plate="data", partition=pf.partition.Explicit(SPLIT), **options)
    clients = [pooled.client_args(k)[0] for k in range(len(SPLIT))]
    return pooled, clients


def assert_same(pooled, apart):
    assert [rows.tolist() for rows in apart.client_rows] == [rows.tolist() for rows in pooled.client_rows] == SPLIT
    assert apart.problem.arguments.names == pooled.problem.arguments.names
    for a, b in zip(apart.problem.rows, pooled.problem.rows, strict=True):
        assert torch.equal(a, b)
    z = torch.linspace(-0.5, 0.5, pooled.problem.dim, dtype=pooled.problem.dtype)
    assert torch.equal(apart.problem.pointwise_log_lik(z), pooled.problem.pointwise_log_lik(z))
    assert torch.equal(apart.problem.log_prior(z), pooled.problem.log_prior(z))


@pytest.mark.parametrize(
    ("model", "args"),
    [
        (linear, (X, Y)),
        (star, (X[:, 0], X[:, 1], Y)),
        (tables, ({"x": X, "y": Y}, [2.0, 0.5])),
        (named_as_plate, (X,)),
    ],
)
def test_data_apart_and_data_pooled_are_the_same(model, args):
    pooled, clients = both(model, args)
    assert_same(pooled, pf.Federation.from_clients(model, clients, plate="data"))


def test_a_dictionary_of_which_a_part_is_split():
    def model(data):
        return linear(data["x"] * data["scale"], data["y"])

    args = ({"x": X, "y": Y, "scale": torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)},)
    pooled, clients = both(model, args)
    assert pooled.problem.arguments.row_names == ("data['x']", "data['y']")
    assert_same(pooled, pf.Federation.from_clients(model, clients, plate="data"))
    named = pf.Federation(model, args, plate="data", num_clients=2, shard=("data['x']", "data['y']"))
    assert named.problem.arguments.row_names == pooled.problem.arguments.row_names


def test_shared_keyword_arguments():
    def with_target(x, y, prior_sd):
        return keywords(x, y=y, prior_sd=prior_sd)

    kwargs = {"prior_sd": torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)}
    pooled, clients = both(with_target, (X, Y), kwargs)
    apart = pf.Federation.from_clients(with_target, clients, plate="data", kwargs=kwargs)
    assert_same(pooled, apart)
    assert apart.problem.arguments.row_names == ("x", "y")


def test_a_row_count_given_as_a_number_is_summed_over_the_clients():
    clients = [(X[rows], Y[rows], len(rows)) for rows in SPLIT]
    apart = pf.Federation.from_clients(sized, clients, plate="data")
    pooled, _ = both(sized, (X, Y, N))
    assert_same(pooled, apart)


@pytest.mark.filterwarnings("ignore:the particles have not converged:UserWarning")  # one round
def test_names_of_clients_reach_tables_and_messages():
    clients = {"north": (X[:6], Y[:6]), "south": (X[6:], Y[6:])}
    fed = pf.Federation.from_clients(linear, clients, plate="data")
    assert fed.client_names == ["north", "south"]
    assert list(fed.summary().index) == ["north", "south"]
    options = {"num_rounds": 1, "progress": False, "compile": "off", "audit": False}
    result = pf.run(pf.papers.PaperSVGD(num_particles=5, local_steps=2), fed, **options)
    assert result.federation.client.values.tolist() == ["north", "south"]
    bad = clients | {"south": (X[6:], torch.full((7,), torch.nan, dtype=torch.float64))}
    with pytest.raises(pf.errors.DataError, match=r"client south, argument 'y'\[0\] is NaN \(7 of 7 rows\)"):
        pf.Federation.from_clients(linear, bad, plate="data")
    with pytest.raises(pf.errors.DataError, match=r"client names must differ as text, received \['1', '1'\]"):
        pf.Federation.from_clients(linear, {1: clients["north"], "1": clients["south"]}, plate="data")


def test_the_guess_is_the_tensors_with_as_many_rows_as_the_plate():
    fed = pf.Federation(linear, (X, Y), plate="data", num_clients=3)
    assert fed.problem.arguments.row_names == ("x", "y")
    assert fed.row_counts.tolist() == [5, 4, 4]
    args, _ = fed.client_args(1)
    assert torch.equal(args[0], X[fed.client_rows[1]])


def test_an_ambiguous_guess_asks_for_shard():
    square = torch.randn(3, 3, dtype=torch.float64)
    with pytest.raises(pf.errors.ModelError, match=r"'x' has shape \(3, 3\).*ambiguous.*shard=\('x', 'y'\)"):
        pf.Federation(linear, (square, Y[:3]), plate="data", num_clients=2)
    fed = pf.Federation(linear, (square, Y[:3]), plate="data", num_clients=2, shard=("x", "y"))
    assert fed.num_rows == 3


def test_shard_overrules_a_wrong_guess():
    """Three prior means for three rows are shared, whatever their number."""

    def model(x, y, prior_mean):
        return linear(x - 0 * prior_mean.sum(), y)

    args = (
        X[:3, :1].expand(3, 3)[:, [0, 1, 2, 0]][:, :3].clone(),
        Y[:3],
        torch.zeros(3, dtype=torch.float64),
    )
    for shard in (("x", "y"), (0, 1), [0, -2]):
        fed = pf.Federation(model, args, plate="data", num_clients=2, shard=shard)
        assert fed.problem.arguments.row_names == ("x", "y")
    with pytest.raises(
        pf.errors.ModelError, match=r"shard= names \['z'\], but the model's arguments are \['x', 'y', 'prior_mean'\]"
    ):
        pf.Federation(model, args, plate="data", num_clients=2, shard=("x", "z"))
    with pytest.raises(pf.errors.ModelError, match=r"shard= names \[9\]"):
        pf.Federation(model, args, plate="data", num_clients=2, shard=9)


def test_one_name_is_enough():
    fed = pf.Federation(named_as_plate, X, plate="data", num_clients=2, shard="data")
    assert fed.problem.arguments.row_names == ("data",)


def test_shard_that_names_no_rows():
    with pytest.raises(pf.errors.ModelError, match="names no tensor with rows"):
        pf.Federation(sized, (X, Y, N), plate="data", num_clients=2, shard="n")


def test_a_closure_is_split_by_the_plates_indices():
    fed = pf.Federation(closure, plate="data", num_clients=4)
    assert fed.problem.arguments.rows == ()
    z = torch.tensor([0.3])
    expected = torch.distributions.Normal(0.3, 1.0).log_prob(Y).to(torch.float32)
    for index in fed.client_rows:
        torch.testing.assert_close(fed.problem.pointwise_log_lik(z, (index,)).float(), expected[index])


def test_summary_counts_rows_and_labels():
    labels = (Y > 0).double()
    parts = pf.partition.Explicit(SPLIT)
    table = pf.Federation(linear, (X, labels), plate="data", partition=parts).summary()
    assert table["rows"].tolist() == [4, 1, 8]
    assert table["share"].sum() == pytest.approx(1.0)
    assert table["label 1"].tolist() == [int(labels[rows].sum()) for rows in SPLIT]
    assert (table["label 0"] + table["label 1"]).tolist() == [4, 1, 8]
    assert list(pf.Federation(linear, (X, Y), plate="data", partition=parts).summary()) == ["rows", "share"]


@pytest.mark.parametrize(
    ("likelihood", "columns"),
    [
        (lambda eta: dist.Poisson(eta.exp()), []),
        (lambda eta: dist.ZeroInflatedPoisson(eta.exp(), gate=torch.tensor(0.1, dtype=eta.dtype)), []),
        (lambda eta: dist.Binomial(4, logits=eta).mask(torch.tensor(True)), []),
        (lambda eta: dist.Binomial(1, logits=eta), ["label 0", "label 1"]),
        (lambda eta: dist.Bernoulli(logits=eta), ["label 0", "label 1"]),
    ],
    ids=["Poisson", "zero-inflated", "Binomial", "one trial", "Bernoulli"],
)
def test_counts_are_no_labels(likelihood, columns):
    def model(x, y):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", likelihood(x[:, 0] * w), obs=y)

    parts = pf.partition.Explicit(SPLIT)
    fed = pf.Federation(model, (X, (Y > 0).double()), plate="data", partition=parts)
    assert list(fed.summary()) == ["rows", "share", *columns]


def test_the_labels_are_what_partitions_go_by():
    fed = pf.Federation(linear, (X, GROUP.double()), plate="data", partition=pf.partition.ByGroup())
    for index in fed.client_rows:
        assert len(set(GROUP[index].tolist())) == 1


def test_the_seed_decides_the_partition():
    splits = [pf.Federation(linear, (X, Y), plate="data", num_clients=3, seed=seed).client_rows for seed in (0, 0, 1)]
    assert all(torch.equal(a, b) for a, b in zip(splits[0], splits[1], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(splits[0], splits[2], strict=True))


def test_empty_clients_warn_once_and_add_nothing():
    clients = [(X[:0], Y[:0]), (X, Y), (X[:0], Y[:0])]
    with pytest.warns(UserWarning, match="clients 0, 2 have no rows: they contribute nothing") as caught:
        fed = pf.Federation.from_clients(linear, clients, plate="data")
    assert len(caught) == 1
    assert fed.row_counts.tolist() == [0, N, 0]
    assert fed.client_data().full_batch().weight.sum(1).tolist() == [0, N, 0]


def test_identical_clients_warn():
    with pytest.warns(UserWarning, match="clients a and c have identical data: their rows are counted twice"):
        pf.Federation.from_clients(linear, {"a": (X, Y), "b": (X, -Y), "c": (X.clone(), Y.clone())}, plate="data")


def test_arrays_frames_and_lists_of_arrays_become_tensors():
    frame = pd.DataFrame(X.numpy(), columns=list("abc"))
    fed = pf.Federation(linear, (frame, pd.Series(Y.numpy())), plate="data", num_clients=2)
    assert torch.equal(fed.problem.rows[0], X)

    def columns(parts, y):
        return linear(torch.stack(parts, 1), y)

    fed = pf.Federation(columns, (list(X.numpy().T), Y.numpy()), plate="data", num_clients=2)
    assert len(fed.problem.rows) == 4


def test_dtypes_are_promoted_to_the_widest():
    fed = pf.Federation(linear, (X.float(), Y), plate="data", num_clients=2)
    assert {leaf.dtype for leaf in fed.problem.rows} == {torch.float64} == {fed.problem.dtype}
    assert pf.Federation(linear, (X.half(), Y.float()), plate="data", num_clients=2).problem.dtype == torch.float32


def test_the_users_tensors_are_not_changed():
    x, y = X.clone().requires_grad_(), Y.clone()
    fed = pf.Federation(linear, (x, y), plate="data", num_clients=2)
    assert not fed.problem.rows[0].requires_grad
    assert x.requires_grad
    assert np.array_equal(x.detach().numpy(), X.numpy())


def test_repr_says_what_it_is():
    fed = pf.Federation(linear, (X, Y), plate="data", num_clients=2)
    assert repr(fed) == "Federation(2 clients, 13 rows, plate='data', 4 parameters, IID)"


@pytest.mark.parametrize("kind", [lambda x: x, torch.tensor], ids=["numpy", "torch"])
def test_what_is_done_to_the_data_afterwards_changes_nothing(kind):
    """A notebook that standardises in place, in a later cell: the federation has the rows that it was given."""

    def model(x, g, y, scale):
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(b * x + scale[g], 1.0), obs=y)

    rng = np.random.default_rng(0)
    arrays = [kind(part) for part in (rng.normal(size=12), np.arange(12) % 2, rng.normal(size=12), np.ones(2))]
    fed = pf.Federation(model, tuple(arrays), plate="data", num_clients=3)
    other = fed.with_args(tuple(arrays))
    z = torch.ones(1, dtype=torch.float64)
    before = [part.problem.log_lik(z) for part in (fed, other)]
    for part in arrays:
        part[:] = 0
    assert [part.problem.log_lik(z) for part in (fed, other)] == before
    assert pf.Federation(model, tuple(arrays), plate="data", num_clients=3).problem.log_lik(z) != before[0]


@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec:FutureWarning")  # torch's own, in reading its trees
def test_a_federation_that_has_run_can_be_pickled():
    """What is compiled stays behind, and the copy answers to the bit."""
    fed = pf.Federation(linear, (X, Y), plate="data", num_clients=3)
    options = {"progress": False, "log_likelihood": False, "audit": False}
    first = pf.run(pf.FedEP(), fed, seed=1, **options)
    again = pf.run(pf.FedEP(), pickle.loads(pickle.dumps(fed)), seed=1, **options)
    for name, values in first["posterior"].items():
        np.testing.assert_array_equal(values, again["posterior"][name])
