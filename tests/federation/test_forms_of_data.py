"""Data in the forms in which people hold them: what becomes of them in a federation and in its runs."""

import dataclasses
import functools

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from short_runs import quiet
from zoo_data import BINARY, N, X, Y
from zoo_sites import linear

import pyro_fed as pf
from pyro_fed.density.rows.arguments import flatten

HALVES = pf.partition.Explicit([list(range(6)), list(range(6, N))])
GROUPS = np.array(["oak", "elm", "fir"])[np.arange(N) % 3]


def federation(model, args, **options):
    return pf.Federation(model, args, **{"plate": "data", "partition": HALVES, **options})


def run(fed, **options):
    return quiet(pf.FedEP(num_points=16), fed, num_draws=20, **options)


def same(one, other):
    z = torch.linspace(-0.5, 0.5, one.problem.dim, dtype=one.problem.dtype)
    torch.testing.assert_close(one.problem.log_lik(z), other.problem.log_lik(z))
    torch.testing.assert_close(one.problem.log_prior(z), other.problem.log_prior(z))


def logistic(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def by_group(g, y):
    with pyro.plate("trees", 3):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(a[g], 1.0), obs=y)


def with_missing(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y, obs_mask=~torch.isnan(y))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_labels_in_whole_numbers_are_those_in_floating_point(dtype):
    same(federation(logistic, (X, BINARY.to(dtype))), federation(logistic, (X, BINARY.to(X.dtype))))


def test_large_counts_keep_their_dtype_in_places():
    table = torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64)

    def model(k):
        p = pyro.sample("p", dist.Dirichlet(torch.ones(3)))
        with pyro.plate("data", len(k)):
            pyro.sample("k", dist.Categorical(p * table.to(p.dtype)), obs=k)

    k = torch.arange(N) % 3
    assert federation(model, (k,)).problem.layout.observed["k"].shape == (N,)


def test_what_a_masked_array_hides_is_not_used():
    mask = np.arange(N) == 4
    masked = np.ma.masked_array(np.where(mask, 999.0, Y.numpy()), mask=mask)
    with pytest.raises(pf.errors.DataError, match=r"client 0, argument 'y'\[4\] is masked \(1 of 6 rows\).*obs_mask"):
        federation(linear, (X, masked))
    kept = torch.tensor(~mask)
    same(
        federation(with_missing, (X, masked)),
        pf.Federation(linear_like, (X[kept], Y[kept]), plate="data", num_clients=2),
    )


def linear_like(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def test_a_mask_in_a_table_and_in_nullable_columns_is_seen_too():
    frame = pd.DataFrame({"y": pd.Series([1, None, 3], dtype="Int64"), "x": [0.5, 1.5, 2.5]})
    leaf = flatten(lambda df: None, frame, None)
    assert leaf.names == ("df['y']", "df['x']")
    assert leaf.leaves[0].isnan().tolist() == [False, True, False]


def test_missing_values_that_the_model_handles_run_alike_in_all_executors():
    y = Y.clone()
    y[[2, 9]] = torch.nan
    fed = federation(with_missing, (X, y))
    one, other = run(fed), run(fed, executor="sequential")
    np.testing.assert_allclose(one["posterior"]["w"], other["posterior"]["w"])
    known = ~y.isnan()
    complete = pf.Federation(linear_like, (X[known], Y[known]), plate="data", num_clients=2)
    same(fed, complete)


def test_missing_values_that_only_a_comparison_sees_are_refused():
    def model(x, y):
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(b * (x[:, 0] > 0).to(y.dtype), 1.0), obs=y)

    x = X.clone()
    x[3, 0] = torch.nan
    with pytest.raises(pf.errors.DataError, match=r"argument 'x'\[3, 0\] is NaN.*never tests torch.isnan\(x\)"):
        federation(model, (x, Y))


def test_new_data_may_be_missing_where_the_first_were():
    y = Y.clone()
    y[2] = torch.nan
    fed = federation(with_missing, (X, y))
    fed.with_args((X, y.roll(1)))
    with pytest.raises(pf.errors.DataError, match=r"argument 'y'\[2\] is NaN"):
        federation(with_missing, (X, Y)).with_args((X, y))


@pytest.mark.parametrize("groups", [GROUPS, pd.Series(GROUPS), GROUPS.tolist(), list(GROUPS)])
def test_text_becomes_codes_with_labels_as_coordinates(groups):
    fed = federation(by_group, (groups, Y))
    assert fed.coords == {"trees": ["elm", "fir", "oak"]}
    codes = torch.tensor([["elm", "fir", "oak"].index(name) for name in GROUPS])
    same(fed, federation(by_group, (codes, Y)))
    assert list(run(fed)["posterior"]["a"].coords["trees"].values) == ["elm", "fir", "oak"]


def test_categories_keep_their_order_and_clients_agree_on_codes():
    ordered = pd.Series(pd.Categorical(GROUPS, categories=["oak", "elm", "fir"]))
    assert federation(by_group, (ordered, Y)).coords == {"trees": ["oak", "elm", "fir"]}
    clients = [(GROUPS[:2], Y[:2]), (GROUPS[2:], Y[2:])]  # the first has no fir
    apart = pf.Federation.from_clients(by_group, clients, plate="data")
    same(apart, federation(by_group, (GROUPS, Y)))


def test_new_data_are_coded_as_the_first_were():
    fed = federation(by_group, (GROUPS, Y))
    again = fed.with_args((np.array(["fir"] * N), Y))
    assert again.problem.arguments.leaves[0].unique().tolist() == [1]
    with pytest.raises(pf.errors.DataError, match="argument 'g' has the labels ash, which are not among elm, fir, oak"):
        fed.with_args((np.array(["ash"] * N), Y))


def test_a_label_that_is_missing():
    with pytest.raises(pf.errors.DataError, match=r"argument 'g'\[1\] has no label"):
        federation(by_group, (pd.Series(["oak", None, *GROUPS[2:]]), Y))


def test_a_table_answers_as_a_data_frame_and_as_a_matrix():
    frame = pd.DataFrame(X.numpy(), columns=["a", "b", "c"])
    seen = {}

    def model(df, y):
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        seen.update(columns=df.columns, shape=tuple(df.shape), rest=df.drop(columns="a").columns, last=df.loc[:, "c"])
        mean = torch.tensor(df[["a", "b"]].values) @ w[:2] + df.c * w[2]
        with pyro.plate("data", len(df)):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    same(federation(model, (frame, Y)), federation(linear_like, (X, Y)))
    assert seen["columns"] == ["a", "b", "c"] and seen["rest"] == ["b", "c"] and seen["shape"][1] == 3
    same(federation(linear_like, (frame, Y)), federation(linear_like, (X, Y)))


@dataclasses.dataclass(frozen=True)
class Study:
    x: torch.Tensor
    y: torch.Tensor
    place: str = "here"


def of_study(study):
    assert isinstance(study, Study) and study.place == "here"
    linear_like(study.x, study.y)


def test_a_dataclass_is_made_anew_for_each_client():
    fed = federation(of_study, Study(X, Y))
    assert fed.problem.arguments.row_names == ("study.x", "study.y")
    same(fed, federation(linear_like, (X, Y)))
    (study,), _ = fed.client_args(1)
    assert isinstance(study, Study) and len(study.x) == N - 6


def test_lists_of_numbers_are_data_and_lists_of_sizes_are_not():
    def model(x, sizes, y):
        assert sizes == [4, 2]
        linear_like(x, y)

    same(
        federation(model, (X, [4, 2], Y.tolist()), dtype=torch.float64),
        federation(linear_like, (X, Y), dtype=torch.float64),
    )


def test_a_list_that_may_be_one_argument_or_several():
    with pytest.raises(pf.errors.DataError, match=r"can take as one argument or as 2: pass a tuple"):
        federation(lambda x, y=None: linear_like(x, y), [X, Y])
    same(federation(linear_like, [X, Y]), federation(linear_like, (X, Y)))


def test_rows_on_another_dimension():
    def model(x, y):
        linear_like(x.T, y)

    fed = federation(model, (X.T, Y), shard={"x": 1})
    same(fed, federation(linear_like, (X, Y)))
    (x, y), _ = fed.client_args(0)
    assert x.shape == (3, 6) and y.shape == (6,)
    same(fed.without("1"), pf.Federation(linear_like, (X[:6], Y[:6]), plate="data", num_clients=1))
    same(fed.with_args((X.T + 1, Y)), federation(linear_like, (X + 1, Y)))
    clients = [(X[:6].T, Y[:6]), (X[6:].T, Y[6:])]
    same(pf.Federation.from_clients(model, clients, plate="data", shard={"x": 1}), fed)
    with pytest.raises(
        pf.errors.ModelError, match=r"shard=\{'x': 2\} names an axis that argument 'x' of shape \(3, 13\)"
    ):
        federation(model, (X.T, Y), shard={"x": 2})
    with pytest.raises(pf.errors.ModelError, match=r"Argument 'x' has shape \(3, 13\).*shard=\{'x': 1\}"):
        federation(model, (X.T, Y))


def test_conditioned_and_partial_models_have_their_data_split():
    def model(x):
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w, 1.0))

    for given, args in (
        (pyro.condition(model, data={"y": Y}), (X,)),
        (functools.partial(linear_like, X), (Y,)),
        (functools.partial(linear_like, y=Y), (X,)),
    ):
        fed = federation(given, args)
        assert len(fed.problem.arguments.sharded) == 2
        same(fed, federation(linear_like, (X, Y)))
    run(federation(pyro.condition(model, data={"y": Y}), (X,)))


def test_data_that_a_model_holds_are_named_with_the_call_to_write():
    def model(x):
        linear_like(x, Y)

    expected = (
        r"the global 'Y'\. All data must be arguments.*`def model\(x, Y\): \.\.\.` and `pf\.Federation\(model, \(x, Y\)"
    )
    with pytest.raises(pf.errors.ModelError, match=expected):
        federation(model, (X,))


def test_a_model_that_fails_names_its_line_and_its_arguments():
    with pytest.raises(pf.errors.ModelError, match=r"x @ w.*zoo_sites.py:\d+\).*'x' is int64 \(13, 3\).*x\.double\(\)"):
        federation(linear, (X.long(), Y))


def test_a_model_without_a_plate_is_told_where_to_write_one():
    def model(y):
        m = pyro.sample("m", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(m, 1.0), obs=y)

    line = r"`pyro\.sample\(\"y\", dist.Normal\(m, 1\.0\), obs=y\)` \(test_forms_of_data\.py:\d+\)"
    with pytest.raises(pf.errors.ModelError, match=rf"no plate.*{line}.*with pyro\.plate\('data', len\(y\)\)"):
        federation(model, (Y,))
