"""Rows in files: the draws of the same rows in memory, no copy of the rows, and nothing sent but their place."""

import gc
import pickle
import sys
from itertools import pairwise

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyarrow import parquet, table

import pyro_fed as pf
from pyro_fed.density.rows import arguments, files
from pyro_fed.density.rows.files import is_mapped

ROWS, DIM = 600, 3


def model(x, y):
    w = pyro.sample("w", dist.Normal(x.new_zeros(DIM), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, DIM)).astype(np.float32)
    return x, (rng.random(ROWS) < 1 / (1 + np.exp(-x[:, 0]))).astype(np.float32)


def saved(folder, **arrays):
    """The arrays as memory-mapped files."""
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return tuple(np.load(folder / f"{name}.npy", mmap_mode="r") for name in arrays)


def draws(fed):
    idata = pf.run(pf.FedLaplace(), fed, num_rounds=6, num_draws=20, audit=False, progress=False, compile="off")
    return idata.posterior["w"].values


def clients_of(x, y, sizes=(100, 200, 300)):
    ends = np.cumsum([0, *sizes])
    return [(x[a:b], y[a:b]) for a, b in pairwise(ends)]


def federation(x, y, *, model=model, **settings):
    return pf.Federation.from_clients(model, clients_of(x, y), plate="data", **settings)


@pytest.fixture(scope="module")
def expected(rows):
    return draws(federation(*rows))


def test_parts_of_one_file_are_not_copied_and_give_the_draws_of_rows_in_memory(tmp_path, rows, expected):
    fed = federation(*saved(tmp_path, x=rows[0], y=rows[1]))
    assert all(map(is_mapped, fed.problem.rows))
    assert files.place_of(fed.problem.rows[0]).path == str(tmp_path / "x.npy")
    np.testing.assert_array_equal(draws(fed), expected)


@pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec:FutureWarning")  # torch's own, as it pickles
def test_files_of_several_clients_are_pooled_on_disk_and_each_is_sent_the_place_of_its_own(tmp_path, rows, expected):
    held = []
    for number, (x, y) in enumerate(clients_of(*rows)):
        (tmp_path / str(number)).mkdir()
        held.append(saved(tmp_path / str(number), x=x, y=y))
    fed = pf.Federation.from_clients(model, held, plate="data")
    np.testing.assert_array_equal(draws(fed), expected)
    own = fed.problem.arguments.alone(fed.client_rows[1])
    sent = pickle.dumps(own)
    assert len(sent) < own.rows[0].nbytes and str(tmp_path / "1" / "x.npy").encode() in sent
    for mine, theirs in zip(pickle.loads(sent).rows, held[1], strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs)
    (tmp_path / "1" / "x.npy").unlink()
    with pytest.raises(pf.errors.DataError, match="cannot be read here"):
        pickle.loads(sent)


def test_another_dtype_is_written_to_disk_once_which_is_freed_again(tmp_path, rows, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    fed = federation(*saved(tmp_path, x=rows[0], y=rows[1]), dtype=torch.float64)
    assert all(is_mapped(leaf) and leaf.dtype == torch.float64 for leaf in fed.problem.rows)
    in_memory = federation(*rows, dtype=torch.float64)
    np.testing.assert_array_equal(draws(fed), draws(in_memory))
    assert list(tmp_path.glob("pyro_fed_rows_*"))
    del fed
    gc.collect()
    assert not list(tmp_path.glob("pyro_fed_rows_*"))


def writing(x, y):
    x[:, 1:].mul_(0.5)
    model(x, y)


def test_a_model_that_writes_into_its_rows_is_refused_and_the_file_is_as_it_was(tmp_path, rows):
    for x, y in (rows, saved(tmp_path, x=rows[0], y=rows[1])):
        with pytest.raises(pf.errors.ModelError, match=r"writes to its argument 'x'.*make a new tensor"):
            pf.Federation(writing, (x, y), plate="data", num_clients=2)
        with pytest.raises(pf.errors.ModelError, match=r"writes to its argument 'x'.*make a new tensor"):
            federation(x, y, model=writing)
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), rows[0])


def test_columns_and_backward_rows_of_a_file_are_what_they_are_in_memory(tmp_path, rows):
    x, _ = saved(tmp_path, x=rows[0], y=rows[1])
    for part, whole in ((x[:, 1:], rows[0][:, 1:]), (x[::2], rows[0][::2]), (x[::-1], rows[0][::-1])):
        read = arguments.flatten(lambda x: None, part, None).leaves[0]
        np.testing.assert_array_equal(read.numpy(), whole)


@pytest.fixture
def few_are_many(monkeypatch):
    """Checks that ask some of many rows ask 64 of 600."""
    monkeypatch.setattr("pyro_fed.ops.memory.RESULT_NUMBERS", 256)
    for place in ("density.rows.arguments", "density.build", "federation.pooling"):
        monkeypatch.setattr(sys.modules[f"pyro_fed.{place}"], "ROWS_TOGETHER", 64)


def of(make, x, y):
    return make(x, y) if make is federation else make(model, (x, y), plate="data", num_clients=3)


@pytest.mark.parametrize("make", [federation, pf.Federation])
def test_a_federation_of_many_rows_is_that_of_all_looked_at_at_once(request, monkeypatch, rows, make):
    build = sys.modules["pyro_fed.density.build"]
    regular = build._all_are_regular
    whole = of(make, *rows)
    request.getfixturevalue("few_are_many")
    asked = []
    monkeypatch.setattr(build, "_all_are_regular", lambda problem: asked.append(problem) or regular(problem))
    some = of(make, *rows)
    assert len(asked) == 1
    assert some.problem.layout == whole.problem.layout and some.num_rows == ROWS
    np.testing.assert_array_equal(draws(some), draws(whole))


@pytest.mark.parametrize("value", [0.5, np.nan])
def test_one_wrong_row_of_many_is_named(few_are_many, rows, value):
    y = rows[1].copy()
    y[407] = value
    with pytest.raises(pf.errors.DataError, match=r"row 107|'y'\[107"):
        federation(rows[0], y)


def rare(x):
    return 1 + 0.5 * (x[:, 1] == -9).sum()


@pytest.mark.parametrize("statistic", [lambda x: x.std(0), rare])
def test_a_statistic_of_many_rows_is_refused_though_few_rows_may_lack_its_cause(few_are_many, rows, statistic):
    x = rows[0].copy()
    x[[11, 303, 597], 1] = -9

    def scaled(x, y):
        return model(x / statistic(x), y)

    with pytest.raises(pf.errors.ModelError, match="plate 'data'"):
        federation(x, rows[1], model=scaled)


@pytest.mark.parametrize("scaled", [False, True])
def test_one_dose_of_zero_among_many_has_its_second_derivative_or_is_named(few_are_many, scaled):
    """That of 0 ** hill is zero by forward mode, and that of (0 scale) ** 1.5 is finite by none."""
    dose = torch.linspace(0.1, 3.0, ROWS, dtype=torch.float64)
    dose[407] = 0.0

    def response(dose, y):
        hill = pyro.sample("hill", dist.LogNormal(dose.new_tensor(0.0), 0.5))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal((dose * hill) ** 1.5 if scaled else dose**hill, 0.1), obs=y)

    def made():
        return pf.Federation(response, (dose, dose**1.3), plate="data", num_clients=3, partition=pf.partition.IID())

    if scaled:
        with pytest.warns(UserWarning, match=r"row 407: site 'y': the second derivative .* is not finite"):
            made()
        return
    draws = pf.run(pf.FedEP(), made(), audit=False, progress=False, log_likelihood=False)["posterior"]["hill"]
    assert abs(float(draws.mean()) - 1.3) < 0.01  # ten SDs


def test_a_shared_statistic_is_that_of_all_rows(few_are_many, rows):
    fed = federation(*rows, model=lambda x, y: model(x - pf.shared("mean", lambda: x.mean(0)), y))
    held = next(iter(fed.problem.bound.constants.values()))
    torch.testing.assert_close(held, torch.as_tensor(rows[0]).mean(0))


def test_counts_of_many_rows_are_computed_in_float64_where_all_at_once_are(few_are_many, rows):
    def counts(x, y):
        w = pyro.sample("w", dist.Normal(x.new_zeros(DIM), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Poisson((7 + 0.1 * x @ w).exp()), obs=y)

    assert federation(rows[0], 3000 * rows[1] + 100, model=counts).problem.dtype == torch.float64


def test_what_is_as_long_as_all_rows_is_so_where_few_are_looked_at(few_are_many, rows):
    def means(x, y):
        w = pyro.sample("w", dist.Normal(x.new_zeros(DIM), 1.0).to_event(1))
        mean = pyro.deterministic("mean", x @ w)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    assert federation(*rows, model=means).problem.layout.reported["mean"].shape == (ROWS,)


def test_repeated_rows_and_far_values_among_many_are_found(rows):
    x = np.random.default_rng(1).standard_normal((4000, DIM)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.float32)
    x[100:800], y[100:800] = x[1000:1700], y[1000:1700]
    with pytest.warns(UserWarning, match="occur more than once"):
        pf.Federation.from_clients(model, [(x[:2000], y[:2000]), (x[2000:], y[2000:])], plate="data")
    x = np.random.default_rng(1).standard_normal((4000, DIM)).astype(np.float32)
    x[[7, 3999], 1] = -999
    with pytest.warns(UserWarning, match="column 1, is -999 in 2 row"):
        pf.Federation(model, (x, y), plate="data", num_clients=2)


class Items(torch.utils.data.Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return ROWS

    def __getitem__(self, i):
        return torch.as_tensor(self.rows[0][i]), self.rows[1][i]


def test_a_dataset_and_a_parquet_file_are_the_rows_that_they_hold(tmp_path, rows, expected, monkeypatch):
    monkeypatch.setattr("pyro_fed.ops.memory.CACHE_NUMBERS", 256 * (1 + DIM))
    x, y = pf.partition.rows_on_disk(Items(rows), tmp_path / "items")
    np.testing.assert_array_equal(draws(federation(x, y)), expected)
    columns = {f"x{j}": rows[0][:, j] for j in range(DIM)}
    parquet.write_table(table({**columns, "y": rows[1]}), tmp_path / "all.parquet", row_group_size=250)
    held = pf.partition.rows_on_disk(tmp_path / "all.parquet", tmp_path / "read", {"x": list(columns), "y": "y"})
    assert isinstance(held["x"], np.memmap)
    np.testing.assert_array_equal(draws(federation(held["x"], held["y"])), expected)


def test_items_of_another_kind_and_names_that_are_no_file_s_are_refused(tmp_path):
    with pytest.raises(pf.errors.DataError, match="int64 numbers, and a later one float64"):
        pf.partition.rows_on_disk([1, 0.5, 2], tmp_path)
    with pytest.raises(pf.errors.DataError, match=r"no file can have the name '\.\./x'"):
        pf.partition.rows_on_disk([{"../x": 1.0}], tmp_path)
    parquet.write_table(table({"mg/dl": [1.0], "x": [2.0], "kind": ["a"]}), tmp_path / "t.parquet")
    with pytest.raises(pf.errors.DataError, match="no file can have the name 'mg/dl'"):
        pf.partition.rows_on_disk(tmp_path / "t.parquet", tmp_path)
    assert pf.partition.rows_on_disk(tmp_path / "t.parquet", tmp_path, {"a": "mg/dl"})["a"].tolist() == [1.0]


def test_a_client_without_rows_and_a_disk_that_is_full_leave_no_copy(tmp_path, monkeypatch, rows):
    monkeypatch.setattr(files.tempfile, "tempdir", str(tmp_path))
    x, _ = saved(tmp_path, x=rows[0], y=rows[1])
    parts = [arguments.flatten(lambda x: None, part, None).leaves[0] for part in (x[:20], x[20:20], x[20:60])]
    np.testing.assert_array_equal(files.pooled(parts).numpy(), rows[0][:60])

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "blocks", full)
    with pytest.raises(OSError, match="No space"):
        files.written(parts, torch.float64)
    assert not list(tmp_path.glob("pyro_fed_rows_*"))


def test_parquet_columns_that_no_model_can_take_are_refused_by_name(tmp_path):
    parquet.write_table(table({"a": [1, None, 3], "b": ["u", "v", "w"]}), tmp_path / "t.parquet")
    for column, said in (("a", "'a' holds whole numbers"), ("b", r"b.*do not hold"), ("c", "no columns")):
        with pytest.raises(pf.errors.DataError, match=said):
            pf.partition.rows_on_disk(tmp_path / "t.parquet", tmp_path, {"x": column})
