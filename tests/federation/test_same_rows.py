"""What has the same names in another order, or the same shape and other values, is brought into order or refused."""

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from arviz_results import criterion
from sklearn.utils import Bunch

import pyro_fed as pf

N = 24
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(N, 2, dtype=torch.float64, generator=GENERATOR)
Y = X @ torch.tensor([2.0, -1.0], dtype=torch.float64) + torch.randn(N, dtype=torch.float64, generator=GENERATOR)
FRAME = pd.DataFrame(X.numpy(), columns=["a", "b"])
QUIET = {"progress": False, "compile": "off", "audit": False}


def model(df, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(2, dtype=torch.float64), 1.0).to_event(1))
    with pyro.plate("data", len(df)):
        pyro.sample("y", dist.Normal(df @ w, 1.0), obs=y)


@pytest.fixture(scope="module")
def fed():
    return pf.Federation(model, (FRAME, Y), plate="data", num_clients=3)


@pytest.fixture(scope="module")
def result(fed):
    return pf.run(pf.FedEP(), fed, **QUIET)


def predicted(result, of, frame):
    return pf.predict(result, of, (frame, None))["posterior_predictive"]["y"].values


@pytest.mark.parametrize("named", ["federation", "model"])
def test_new_columns_are_taken_by_name(result, fed, named):
    of = fed if named == "federation" else model
    want = predicted(result, of, FRAME[:5])
    assert np.array_equal(predicted(result, of, FRAME[["b", "a"]][:5]), want)
    assert np.array_equal(predicted(result, of, FRAME.assign(c="not fitted")[["c", "b", "a"]][:5]), want)
    with pytest.raises(pf.errors.DataError, match=r"'df', a data frame, has the column\(s\) aa and not the earlier"):
        predicted(result, of, FRAME.rename(columns={"a": "aa"}))


def test_columns_of_renewed_data_are_taken_by_name(fed):
    same = fed.with_args((FRAME[["b", "a"]], Y))
    assert torch.equal(same.problem.arguments.leaves[0], fed.problem.arguments.leaves[0])
    with pytest.raises(pf.errors.DataError, match="without one of its columns"):
        fed.with_args((FRAME[["a"]], Y))


@pytest.mark.parametrize("kind", [dict, Bunch])
def test_keys_of_dictionaries_are_taken_by_name(kind):
    def by_key(data, *, y):
        model(torch.stack([data["a"], data["b"]], -1) * data["scale"][:, None], y)

    columns, more = {"a": X[:, 0], "b": X[:, 1], "scale": Y + 9}, {"data": None, "y": Y}
    turned = dict(reversed(columns.items()))
    fed = pf.Federation(by_key, (), {**more, "data": kind(**columns)}, plate="data", num_clients=3)
    other = fed.with_args((), {"y": Y, "data": kind(**turned)})
    assert all(torch.equal(*pair) for pair in zip(other.problem.rows, fed.problem.rows, strict=True))


def test_whole_numbers_are_new_values_of_a_column_of_fractions(result, fed):
    want = predicted(result, fed, pd.DataFrame({"a": [1.0, 0.0], "b": [0.0, 1.0]}))
    assert np.array_equal(predicted(result, fed, pd.DataFrame({"a": [1, 0], "b": [0, 1]})), want)


@pytest.mark.parametrize("ask", [pf.loo, pf.metrics.waic, pf.influence, pf.contributions, pf.leave_one_client_out])
def test_a_result_of_other_rows_is_refused(result, ask):
    other = pf.Federation(model, (FRAME, -Y), plate="data", num_clients=3)
    fewer = pf.Federation(model, (FRAME[:20], Y[:20]), plate="data", num_clients=3)
    for unlike, why in [(other, "'y' has other values"), (fewer, r"has the shape \(24")]:
        with pytest.raises(pf.errors.DataError, match=f"not of this federation's data: .*{why}"):
            ask(result, unlike)


def test_the_same_rows_in_another_order_or_dtype_are_the_same(result, fed):
    apart = [(FRAME[12:], Y[12:]), (FRAME[:12].astype(np.float32), Y[:12].float())]
    turned = pf.Federation.from_clients(model, apart, plate="data")
    found, expected = (criterion(pf.loo(result, one), "elpd") for one in (turned, fed))
    assert found == pytest.approx(expected, rel=1e-5)


def test_compare_says_that_a_result_is_of_other_data(result, fed):
    other = pf.run(pf.FedEP(), pf.Federation(model, (FRAME, -Y), plate="data", num_clients=3), **QUIET)
    table = pf.compare({"a": result, "b": other}, "a", federation=fed)
    assert "from other data" not in table["warnings"]["a"]
    for what in ("the reference", "the federation"):
        assert f"it was computed from other data than {what}: 'y' has other values" in table["warnings"]["b"]


def test_the_same_index_in_another_order_is_refused():
    sorted_alone = pd.Series(Y.numpy()).sort_values()
    with pytest.raises(pf.errors.DataError, match="'df' and 'y' have the same index in another order"):
        pf.Federation(model, (FRAME, sorted_alone), plate="data", num_clients=3)
    with pytest.raises(pf.errors.DataError, match="in another order"):
        pf.Federation.from_clients(model, {"b": (FRAME, sorted_alone)}, plate="data")
    by_row = pf.partition.SortedBy(by=sorted_alone)
    with pytest.raises(pf.errors.DataError, match="'df' and 'by' of SortedBy have the same index in another order"):
        pf.Federation(model, (FRAME, Y), plate="data", num_clients=3, partition=by_row)
    with pytest.raises(pf.errors.DataError, match="'df' and 'feature' of FeatureSkew have"):
        skewed = pf.partition.FeatureSkew(feature=sorted_alone, by=Y > 0)
        pf.Federation(model, (FRAME, Y), plate="data", num_clients=3, partition=skewed)
    assert by_row == pf.partition.SortedBy(by=sorted_alone.to_numpy())
    for y in (sorted_alone.loc[FRAME.index], sorted_alone.to_numpy(), pd.Series(Y.numpy(), index=range(5, N + 5))):
        pf.Federation(model, (FRAME, y), plate="data", num_clients=3)


def test_a_model_cannot_write_to_what_it_is_given():
    def writes(x, y):
        x[:, 0] = 0.0
        model(x, y)

    mine, kept = X.clone(), X.clone().numpy()
    for data in (mine, kept):
        with pytest.raises(pf.errors.ModelError, match="make a new tensor"):
            pf.Federation(writes, (data, Y), plate="data", num_clients=3)
        with pytest.raises(pf.errors.ModelError, match="make a new tensor"):
            pf.Federation.from_clients(writes, [(data[:9], Y[:9]), (data[9:], Y[9:])], plate="data")
    assert torch.equal(mine, X) and np.array_equal(kept, X.numpy())


def test_a_model_cannot_write_a_column():
    def writes(df, y):
        df["c"] = df["a"] * 2
        model(df[["a", "c"]], y)

    with pytest.raises(pf.errors.ModelError, match="a data frame is read only: compute the column before the model"):
        pf.Federation(writes, (FRAME, Y), plate="data", num_clients=3)
    with pytest.raises(pf.errors.ModelError, match=r"no 'assign' of pandas: .* to the frame before the federation"):
        pf.Federation(lambda df, y: model(df.assign(c=0.0), y), (FRAME, Y), plate="data", num_clients=3)
    with pytest.raises(pf.errors.ModelError, match=r"no column 'rank'.*frame.assign\(rank=None\)"):  # a name of pandas
        pf.Federation(lambda df: model(df[["a"]], df["rank"]), (FRAME,), plate="data", num_clients=3)


def test_a_function_whose_call_runs_nothing_is_refused():
    def generator(x, y):
        yield model(x, y)

    async def coroutine(x, y):
        model(x, y)

    for function, word in [(generator, "yield"), (coroutine, "async def")]:
        with pytest.raises(pf.errors.ModelError, match=word):
            pf.Federation(function, (X, Y), plate="data", num_clients=3)


def test_rows_that_the_model_picks_out_itself_are_named():
    def lag(y):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y) - 1):
            pyro.sample("y", dist.Normal(w * y[:-1], 1.0), obs=y[1:])

    with pytest.raises(pf.errors.ModelError, match=r"as long as plate 'data', which has 23 rows: 'y' has 24.*a lag"):
        pf.Federation(lag, (Y,), plate="data", num_clients=3)
