"""Standardising by all clients' rows, from their sums."""

import numpy as np
import pandas as pd
import pytest
import torch

import pyro_fed as pf
from pyro_fed.errors import DataError


@pytest.mark.parametrize("shift", [0.0, 1e9])
def test_the_clients_sums_give_the_pooled_moments(shift):
    """Also where squares would cancel; a client without rows and a constant column do not matter."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(50, 3, generator=generator, dtype=torch.float64) + shift
    x[:, 2] = 4.0
    parts = [pf.column_sums(part) for part in (x[:7], x[7:7], x[7:8], x[8:])]
    mean, sd = pf.pooled_moments(parts)
    torch.testing.assert_close(mean, x.mean(0), rtol=1e-13, atol=1e-12)
    torch.testing.assert_close(sd[:2], x[:, :2].std(0, correction=0), rtol=1e-6, atol=0)
    assert float(sd[2]) == 1.0


def test_without_rows_there_is_nothing_to_standardise_by():
    with pytest.raises(DataError, match="no client has any row"):
        pf.pooled_moments([pf.column_sums(torch.zeros(0, 2))])


FRAME = pd.DataFrame({"age": [61.0, 47.0, 47.0, 38.0], "dose": [1, 0, 2, 2], "smoker": [True, False, True, True]})


@pytest.mark.parametrize(
    "rows", [FRAME, FRAME.astype(float), FRAME.astype({"dose": "Int64"})], ids=["mixed", "one", "nullable"]
)
def test_a_data_frame_is_standardised_by_its_columns(rows):
    parts = [pf.column_sums(rows[:1]), pf.column_sums(rows[1:])]
    mean, sd = pf.pooled_moments(parts)
    values = FRAME.to_numpy(dtype=float)
    np.testing.assert_allclose(mean, values.mean(0))
    np.testing.assert_allclose(sd, values.std(0))
    scaled = (FRAME - mean.numpy()) / sd.numpy()
    np.testing.assert_allclose(scaled.to_numpy(dtype=float).std(0), 1.0)
    assert parts[0].columns == ("age", "dose", "smoker")


MISSING = pd.DataFrame({"age": [4711.0, 52.0, 4713.0], "bmi": [np.nan, 4714.0, np.nan], "y": [1.0, 2.0, np.inf]})


@pytest.mark.parametrize("make", [lambda x: x, lambda x: x.to_numpy(), lambda x: torch.tensor(x.to_numpy())])
def test_one_value_that_is_missing_is_named_and_no_row_is_printed(make):
    """Its SD was 1.0 without a word."""
    with pytest.raises(DataError, match=r"in column ('bmi'|1) \(2 of 3\), column ('y'|2) \(1 of 3\)") as error:
        pf.pooled_moments([pf.column_sums(make(MISSING))])
    assert "471" not in str(error.value)
    part = pf.column_sums(make(FRAME[["age", "dose"]].astype(float)))
    with pytest.raises(DataError, match=r"sums number 1 are not finite in column ('dose'|1): that client"):
        pf.pooled_moments([part, part._replace(mean=torch.tensor([1.0, float("nan")]))])


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (FRAME.assign(sex=["f", "m", "m", "f"]), "column 'sex' is text or categories"),
        (FRAME.assign(sex=pd.Categorical(["f", "m", "m", "f"])), "column 'sex' is text or categories"),
        (FRAME.assign(note=[None] * 4), "column 'note' must be an array of numbers"),
        ([4711, "4712 mg"], "rows"),
        ("4711", "rows must be an array of numbers, received a str"),
        (None, "received a NoneType"),
    ],
)
def test_what_has_no_mean_is_named_and_no_row_is_printed(rows, words):
    with pytest.raises(DataError, match=words) as error:
        pf.column_sums(rows)
    assert "471" not in str(error.value)


def test_clients_have_the_same_columns():
    one, other = pf.column_sums(FRAME), pf.column_sums(FRAME[["dose", "age", "smoker"]])
    with pytest.raises(
        DataError, match=r"\[age, dose, smoker\] in the first .* \[dose, age, smoker\] in those number 1"
    ):
        pf.pooled_moments([one, other])
    with pytest.raises(DataError, match=r"\(3,\) in the first client's sums and \(1,\)"):
        pf.pooled_moments([pf.column_sums(torch.zeros(2, 3)), pf.column_sums(torch.zeros(2, 1))])
