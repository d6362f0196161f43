"""The models' contract: they trace, predict without labels, and load the data that they promise."""

import os
import re
from pathlib import Path

import numpy as np
import posteriordb
import pyro
import pytest
import torch
from pyro.infer import Predictive
from shipped_models import FLAT, imported

NAMES = (*FLAT, "eight_schools")
MODELS = imported(NAMES)
MIXTURES = ("gaussian_mixture_1d", "gaussian_mixture_2d")
WITHOUT_TEST = (*MIXTURES, "eight_schools")
WITH_LABELS = tuple(name for name in NAMES if name not in WITHOUT_TEST)
TEST_SHARE = {
    "gaussian_mean": 50 / 250,
    "linear_regression": 0.1,
    "logistic_regression": 0.2,
    "bnn_regression": 0.1,
    "bnn_classification": 0.14,
    "mlp_classification": 0.2,
}
NUM_ROWS = {"gaussian_mean": 250, "linear_regression": 442, "logistic_regression": 569, "bnn_regression": 442,
            "bnn_classification": 1797, "mlp_classification": 569}  # fmt: skip


@pytest.fixture(autouse=True)
def _validate():
    with pyro.validation_enabled(True):
        yield


@pytest.fixture
def uci_folder():
    """The folder with the UCI files, or a skip where this machine has none."""
    folder = os.environ.get("PYRO_FED_DATA")
    if not folder or not os.path.isfile(os.path.join(folder, "uci", "kin8nm.npz")):
        pytest.skip("the UCI files are not here: PYRO_FED_DATA names no folder with uci/kin8nm.npz")
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_a_model_traces_with_validation_and_its_plate_holds_the_rows(name):
    module = MODELS[name]
    train, _ = module.load_data()
    trace = pyro.poutine.trace(module.model).get_trace(*train)
    trace.compute_log_prob()
    assert torch.isfinite(trace.log_prob_sum())
    assert trace.nodes[module.PLATE]["value"].shape == (len(train[0]),)
    (observed,) = [
        trace.nodes[site]
        for site in trace.observation_nodes
        if site != module.PLATE and not trace.nodes[site]["infer"].get("_deterministic")
    ]
    assert observed["log_prob"].shape == (len(train[0]),)
    assert [frame.name for frame in observed["cond_indep_stack"]] == [module.PLATE]


@pytest.mark.parametrize("name", WITH_LABELS)
def test_without_labels_a_model_predicts_them(name):
    _, test = MODELS[name].load_data()
    draws = Predictive(MODELS[name].model, num_samples=3)(*test[:-1])["y"]
    assert draws.shape == (3, len(test[-1]))
    assert torch.isfinite(draws.double()).all()


@pytest.mark.parametrize(
    ("name", "hidden", "shape"), [("bnn_regression", 7, (10, 7)), ("bnn_classification", 100, (64, 100))]
)
def test_the_number_of_hidden_units_is_an_argument(name, hidden, shape):
    train, _ = MODELS[name].load_data()
    trace = pyro.poutine.trace(MODELS[name].model).get_trace(*train, hidden=hidden)
    assert trace.nodes["w1"]["value"].shape == shape


@pytest.mark.parametrize("name", WITH_LABELS)
def test_load_data_is_deterministic_by_seed(name):
    load = MODELS[name].load_data
    for again, first in zip(load(seed=3), load(seed=3), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(again, first, strict=True))
    assert not torch.equal(load(seed=3)[0][0], load(seed=4)[0][0])


@pytest.mark.parametrize("name", TEST_SHARE)
def test_train_and_test_are_disjoint_and_make_the_whole(name):
    train, test = MODELS[name].load_data()
    assert len(train[0]) + len(test[0]) == NUM_ROWS[name]
    assert len(test[0]) == int(np.ceil(TEST_SHARE[name] * NUM_ROWS[name]))
    for part in (train, test):
        assert {len(argument) for argument in part} == {len(part[0])}
        assert part[0].dtype == torch.float32

    def keys(part):
        return {(*np.atleast_1d(row).tolist(), float(y)) for row, y in zip(part[0].numpy(), part[1], strict=True)}

    assert len(keys(train)) == len(train[0])  # no row stands twice, so that the next line means something
    assert not keys(train) & keys(test)


@pytest.mark.parametrize("name", ["linear_regression", "logistic_regression", "bnn_regression"])
def test_covariates_are_standardised_by_the_training_part(name):
    (x, _), (x_test, _) = MODELS[name].load_data()
    columns = slice(None, -1) if name != "bnn_regression" else slice(None)
    torch.testing.assert_close(x[:, columns].mean(0), torch.zeros(x[:, columns].shape[1]), atol=1e-5, rtol=0)
    torch.testing.assert_close(
        x[:, columns].std(0, correction=0), torch.ones(x[:, columns].shape[1]), atol=1e-5, rtol=0
    )
    assert x_test[:, columns].mean(0).abs().max() > 1e-3  # the test part keeps its own mean
    if name != "bnn_regression":
        assert (torch.cat([x, x_test])[:, -1] == 1).all()


def test_digits_are_scaled_as_in_the_paper():
    (x, y), _ = MODELS["bnn_classification"].load_data()
    assert x.min() == pytest.approx(0.01)
    assert x.max() == pytest.approx(1.0)
    assert y.dtype == torch.int64
    assert y.unique().tolist() == list(range(10))


def test_uci_data_are_read_split_and_standardised(uci_folder):
    train, test = MODELS["bnn_regression"].load_data(name="kin8nm")
    assert (len(train[0]), len(test[0]), train[0].shape[1]) == (7372, 820, 8)
    assert float(train[1].mean()) == pytest.approx(0, abs=1e-5)
    assert float(train[1].std(correction=0)) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("name", MODELS["bnn_regression"].UCI)
def test_every_uci_set_is_finite_after_standardising(name, uci_folder):
    for part in MODELS["bnn_regression"].load_data(name=name):
        assert all(torch.isfinite(argument).all() for argument in part)


def test_uci_data_that_are_absent_say_how_to_get_them(monkeypatch, tmp_path):
    load = MODELS["bnn_regression"].load_data
    monkeypatch.setenv("PYRO_FED_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"PYRO_FED_DATA is .*holds uci/, or take name='diabetes'"):
        load(name="kin8nm")
    monkeypatch.delenv("PYRO_FED_DATA")
    with pytest.raises(FileNotFoundError, match="PYRO_FED_DATA is not set"):
        load(name="kin8nm")
    with pytest.raises(ValueError, match=r"'\.\./kin8nm' is not known; take diabetes or one of concrete"):
        load(name="../kin8nm")


@pytest.mark.parametrize("name", MIXTURES)
def test_the_mixtures_data_are_their_two_factors(name):
    train, test = MODELS[name].load_data()
    assert train[0].tolist() == [0.0, 1.0]
    assert test is None


def test_eight_schools_are_those_of_posteriordb():
    (sigma, y), test = MODELS["eight_schools"].load_data()
    assert test is None
    assert len(sigma) == len(y) == 8
    if posteriordb.HAVE_DATA:
        _, errors, estimates = posteriordb.CASES["eight_schools"].args()
        assert torch.equal(sigma.double(), errors)
        assert torch.equal(y.double(), estimates)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_ordinary_pyro(name):
    """No import of this project: the file runs wherever Pyro does."""
    source = Path(MODELS[name].__file__).read_text(encoding="utf-8")
    assert not re.search(r"(import|from) pyro_fed", source)
    assert len(MODELS[name].__doc__.splitlines()) > 5


def test_pairs_of_digits_are_half_alike_and_shards_share_no_class():
    module = MODELS["metric_learning"]
    (projections, alike), (test, _) = module.load_data()
    assert (len(projections), len(test)) == (10_000, 1_000)
    shard = module.shards(len(alike))
    assert shard.bincount().tolist() == [2_000] * 5
    assert [float(alike[shard == k].mean()) for k in range(5)] == [0.5] * 5
    assert (projections >= 0).all() and (projections.sum(1) > 0).all()
    near, far = (float(projections[alike == value].sum(1).mean()) for value in (1, 0))
    assert near < 0.8 * far


def test_the_mlp_has_the_papers_layers():
    module = MODELS["mlp_classification"]
    (x, y), _ = module.load_data()
    trace = pyro.poutine.trace(module.model).get_trace(x, y)
    shapes = [tuple(trace.nodes[f"w{i}"]["value"].shape) for i in (1, 2, 3, 4)]
    assert shapes == [(30, 18), (18, 18), (18, 8), (8, 2)]
