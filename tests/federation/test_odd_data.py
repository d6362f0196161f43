"""Data that no model objects to and that are wrong all the same; tables that differ in form from client to client."""

import contextlib
import threading
import warnings

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine

import pyro_fed as pf
from pyro_fed.results.inference_data import check_savable

QUIET = {"progress": False, "compile": "off", "audit": False, "log_likelihood": False}


def logit(x, y):
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), 2.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def levels(x, group):
    a = pyro.sample("a", dist.Normal(torch.zeros(3, dtype=x.dtype), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Normal(a[group], 1.0), obs=x)


def table(df):
    logit(torch.as_tensor(df[["a", "b"]].values), torch.as_tensor(df["y"].values))


def rows(client, count=20):
    generator = torch.Generator().manual_seed(client)
    x = torch.randn(count, 2, generator=generator, dtype=torch.float64)
    return x, torch.bernoulli((x[:, 0]).sigmoid(), generator=generator)


def frame(client, columns=("a", "b", "y"), **dtypes):
    x, y = rows(client)
    made = pd.DataFrame(x.numpy().round(3), columns=["a", "b"]).assign(y=y.numpy())
    return made[list(columns)].astype(dtypes)


def federation(*clients, model=logit):
    return pf.Federation.from_clients(model, list(clients), plate="data")


def said(*clients, model=logit):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        federation(*clients, model=model)
    return " ".join(str(one.message) for one in caught)


@pytest.mark.parametrize(("value", "count"), [(-999.0, 3), (99999.0, 2), (1e30, 1), (-1e200, 1)])
def test_numbers_that_stand_for_what_is_missing_are_named(value, count):
    x, y = rows(1)
    x[2 : 2 + count, 1] = value
    words = said(rows(0), (x, y), rows(2))
    where = f"argument 'x', column 1, is {value:g} in {count} row(s) of client(s) 1, first in row 2,"
    assert where in words and "drop these rows" in words


def test_long_tails_codes_and_constants_are_nothing_to_name():
    x, y = rows(0, 300)
    tails = torch.tan(torch.pi * (torch.rand(300, generator=torch.Generator().manual_seed(3)).double() - 0.5))
    x = torch.stack([tails, (x[:, 0] > 1.5).double(), torch.ones(300).double(), x[:, 1].round()], 1)
    assert said((x[:150], y[:150]), (x[150:], y[150:])) == ""


def test_rows_of_another_client_and_rows_twice_are_named():
    x, y = rows(1)
    shared = (torch.cat([x, rows(0)[0][:12]]), torch.cat([y, rows(0)[1][:12]]))
    assert "12 of the 20 rows of client 0 occur more than once, at client(s) 1," in said(rows(0), shared)
    assert "24 of the 32 rows of client 1 occur more than once, twice at" in said(
        rows(0), (torch.cat([x, x[:12]]), torch.cat([y, y[:12]])), rows(2)
    )
    coarse = [((x > 0).double(), y) for x, y in (rows(0), rows(1))]
    assert said(*coarse) == ""  # a few combinations of codes recur in any data


@pytest.mark.parametrize("times", [2, 3, 100])
@pytest.mark.parametrize("kind", ["measurements", "codes"])
def test_a_client_whose_rows_are_all_there_several_times_is_named(times, kind):
    """A table that was joined twice: most rows recur then, as codes do, but none other than `times` times."""
    x, y = rows(1, 40)
    if kind == "codes":
        x = torch.arange(80).reshape(40, 2).double()
    words = said(rows(0), (x.repeat(times, 1), y.repeat(times)), rows(2))
    assert f"client 1 has every row {times} times, equal in every column" in words


def test_codes_that_recur_by_chance_are_not_said_to_be_counted_several_times():
    """Forty different rows, each as often as chance has it: the numbers have no common divisor."""
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randint(0, 20, (400, 1), generator=generator).double()
        y = torch.randint(0, 2, (400,), generator=generator).double()
        assert said((x[:200], y[:200]), (x[200:], y[200:])) == ""


def one_column(y):
    mean = pyro.sample("mean", dist.Normal(0.0, 100.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mean, 5.0), obs=y)


@pytest.mark.filterwarnings("error")
def test_rows_whose_measurement_is_missing_are_not_equal():
    """A covariate that four in ten have not, and a binary outcome: two rows of (NaN, 1) may be any two."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(80, generator=generator, dtype=torch.float64)
    x[torch.rand(80, generator=generator) < 0.4] = torch.nan
    y = (torch.rand(80, generator=generator) < 0.6).double()

    def imputed(x, y):
        b = pyro.sample("b", dist.Normal(torch.zeros(2, dtype=y.dtype), 1.0).to_event(1))
        known = torch.where(x.isnan(), 0.0, x)
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Bernoulli(logits=b[0] + b[1] * known), obs=y)

    pf.Federation(imputed, (x, y), plate="data", num_clients=4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("size", "decimals"), [(8, 0), (30, 0), (60, 1), (400, 1), (1000, 2)])
def test_counts_and_rounded_numbers_alone_recur_by_chance(size, decimals, dtype):
    """Rows of one column, of SD 5: a few of 30 whole numbers are equal in any data, and of 1,000 to two decimals."""
    for seed in range(10):
        y = 30 + 5 * torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        y = y.round(decimals=decimals).to(dtype)
        assert said((y[: size // 2],), (y[size // 2 :],), model=one_column) == ""


def test_measurements_alone_that_recur_are_named():
    y = torch.randn(30, generator=torch.Generator().manual_seed(0), dtype=torch.float64).round(decimals=4)
    words = said((y[:15],), (torch.cat([y[15:], y[:8]]),), model=one_column)
    assert "8 of the 15 rows of client 0 occur more than once, at client(s) 1" in words


def test_codes_of_minus_one_are_said_to_be_the_last_groups():
    x, group = rows(0)[0][:, 0], torch.arange(20) % 3
    missing = group.where(torch.arange(20) > 3, -1)
    words = said((x, group), (x + 1, missing), model=levels)
    assert "looks up by negative numbers at `pyro.sample" in words and "-1 among 4 of 40 entries" in words
    assert "negative" in said((x, group), (x + 1, group), model=lambda x, g: levels(x, g - 1))
    assert said((x, group), (x + 1, group), model=levels) == ""


def test_a_code_that_the_model_does_not_know_is_found():
    x, group = rows(0)[0][:, 0], torch.arange(20) % 3
    with pytest.raises(pf.errors.ModelError, match=r"'group' is 7 at client 1, row 5, where the model knows 0 to 2"):
        federation((x, group), (x + 1, group.where(torch.arange(20) != 5, 7)), model=levels)
    with pytest.raises(pf.errors.ModelError, match=r"whole numbers: pass them as \.long\(\)"):
        federation((x, group.double()), (x + 1, group.double()), model=levels)


def test_a_label_outside_the_support_is_found():
    x, y = rows(1)
    with pytest.raises(pf.errors.DataError, match=r"^client 1, row \d+: observed site 'y'.*expected 0 and 1"):
        federation(rows(0), (x, y + 1), rows(2))


@pytest.mark.parametrize("other", [frame(1, ("y", "b", "a")), frame(1, y=int), frame(1, a="float32"), frame(1, y=bool)])
def test_tables_in_another_form_are_the_same_tables(other):
    plain = pf.run(pf.FedEP(), federation((frame(0),), (frame(1),), model=table), **QUIET)
    found = pf.run(pf.FedEP(), federation((frame(0),), (other,), model=table), **QUIET)
    assert np.abs(plain.posterior.w.values - found.posterior.w.values).max() < 1e-5


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (frame(1, ("a", "y")), r"argument 'df', a data frame, has not the column\(s\) b at client 1"),
        (frame(1).assign(id=3.0), r"the column\(s\) id more at client 1"),
        (frame(1, b=str).replace({"b": r"\."}, {"b": ","}, regex=True), r"'df'\['b'\] is text at client 1.*decimal"),
        (frame(1).assign(b=None), r"'df'\['b'\] has no value at client 1"),
        (frame(1).to_numpy(), r"argument 'df' is a data frame at client 0 and a ndarray at client 1"),
    ],
)
def test_tables_that_differ_are_told_by_column(other, words):
    with pytest.raises(pf.errors.DataError, match=words):
        federation((frame(0),), (other,), model=table)


def test_dictionaries_in_another_order():
    def model(data):
        logit(data["x"], data["y"])

    (x, y), (u, v) = rows(0), rows(1)
    assert federation(({"x": x, "y": y},), ({"y": v, "x": u},), model=model).num_rows == 40


def test_labels_that_differ_by_their_spelling_alone_are_named():
    x = rows(0)[0][:, 0]
    spelt = [["low", "high"], ["Low ", "high"]]
    one, other = ((x, np.array(labels * 10)) for labels in spelt)
    assert "argument 'group' has 'Low ' and 'low': labels that differ only by" in said(one, other, model=levels)
    assert "capitals" not in said(one, one[::1], model=levels)


def test_names_that_look_alike_are_one():
    with pytest.raises(pf.errors.DataError, match="look the same"):
        pf.Federation.from_clients(logit, {"Z\u00fcrich": rows(0), "Zu\u0308rich": rows(1)}, plate="data")


@pytest.mark.parametrize(
    "handler",
    [poutine.scale(scale=0.1), poutine.condition(data={"w": torch.zeros(2)}), poutine.trace(), pyro.plate("p", 3)],
)
def test_no_handler_around_a_call_changes_the_posterior(handler):
    fed = federation(rows(0), rows(1))
    with handler, pytest.raises(pf.errors.SettingError, match="inside Pyro's handlers"):
        pf.run(pf.FedEP(), fed, **QUIET)
    with handler, pytest.raises(pf.errors.SettingError, match="outside of their `with` block"):
        federation(rows(0), rows(1))


def test_runs_in_two_threads_and_in_inference_mode_are_those_alone():
    """Pyro's handlers are one stack for all threads."""
    feds = [federation(rows(0), rows(1)), federation(rows(2), rows(3))]
    alone = [pf.run(pf.FedEP(), fed, **QUIET).posterior.w.values for fed in feds]
    found = {}

    def go(number):
        with contextlib.suppress(Exception):
            found[number] = pf.run(pf.FedEP(), feds[number], **QUIET).posterior.w.values

    threads = [threading.Thread(target=go, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(found[number], alone[number]) for number in (0, 1))
    with torch.inference_mode():
        assert np.array_equal(pf.run(pf.FedEP(), feds[0], **QUIET).posterior.w.values, alone[0])


@pytest.mark.parametrize("name", ["chain", "draw", ".", ""])
def test_sites_that_no_result_can_hold_are_refused_before_the_run(name):
    def model(y):
        w = pyro.sample(name, dist.Normal(y.new_zeros(()), 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(w, 1.0), obs=y)

    with pytest.raises(pf.errors.ModelError, match=f"site {name!r}: .*rename it"):
        pf.Federation(model, (rows(0)[0][:, 0],), plate="data", num_clients=2)


@pytest.mark.parametrize("name", ["chain", "draw", "w", "y"])
def test_plates_that_no_result_can_hold_are_refused_before_the_run(name):
    def model(y):
        w = pyro.sample("w", dist.Normal(y.new_zeros(()), 1.0))
        with pyro.plate(name, len(y)):
            pyro.sample("y", dist.Normal(w, 1.0), obs=y)

    with pytest.raises(pf.errors.ModelError, match=f"plate {name!r}.*(call|rename)"):
        pf.Federation(model, (rows(0)[0][:, 0],), plate=name, num_clients=2)


def test_sites_that_no_file_can_hold_are_refused_where_one_is_asked_for():
    def model(y):
        w = pyro.sample("a/b", dist.Normal(y.new_zeros(()), 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(w, 1.0), obs=y)

    fed = pf.Federation(model, (rows(0)[0][:, 0],), plate="data", num_clients=2)
    with pytest.raises(pf.errors.SettingError, match=r"--out: no file of ArviZ holds .*a/b"):
        check_savable(fed.problem, "--out")


def between(low, high):
    """Rows of which an interval is known."""
    mean = pyro.sample("mean", dist.Normal(0.0, 2.0))
    normal = dist.Normal(mean, 1.0)
    with pyro.plate("data", len(low)):
        pyro.factor("y", (normal.cdf(high) - normal.cdf(low)).clamp_min(1e-30).log())


def left_out(y):
    mean = pyro.sample("mean", dist.Normal(0.0, 2.0))
    with pyro.plate("data", len(y)), poutine.mask(mask=y != -999):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def replaced(y, x):
    """A latent stands for a covariate that is missing."""
    w, level = (pyro.sample(name, dist.Normal(0.0, 1.0)) for name in ("w", "level"))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(w * torch.where(x == -999, level, x), 1.0), obs=y)


def not_read(y, other):
    one_column(y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("model", [between, left_out, replaced, not_read])
def test_numbers_that_the_model_takes_for_no_number_are_nothing_to_name(model, dtype):
    """1e9 as a bound that is none; -999 that the model masks, replaces or does not read."""
    y = torch.randn(60, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(dtype)
    far = y.clone() + 1.0
    far[4:9] = 1e9 if model is between else -999
    args = (far,) if model is left_out else (y, far)
    assert said(*(tuple(a[part] for a in args) for part in (slice(30), slice(30, 60))), model=model) == ""


def steep(y, x):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Poisson((w * x).exp()), obs=y)


def tailed(y, x):
    mean = pyro.sample("mean", dist.Normal(0.0, 2.0))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.StudentT(4.0, mean, 1.0), obs=x)


@pytest.mark.parametrize(
    ("model", "value", "whole"),
    [(steep, 99, False), (steep, 99, True), (steep, -999, False), (tailed, 1e9, False), (tailed, 1e30, False)],
)
def test_numbers_that_the_model_takes_for_numbers_are_named_however_it_uses_them(model, value, whole):
    generator = torch.Generator().manual_seed(2)
    x, y = torch.randn(60, generator=generator), torch.poisson(torch.full((60,), 3.0), generator=generator)
    x = x.round().long() if whole else x
    x[4:9] = value
    assert "5 row(s) of client(s) 0, first in row 4" in said((y[:30], x[:30]), (y[30:], x[30:]), model=model)
