"""What the public face says of arguments that it cannot use: one sentence before any work, never a raw traceback."""

import contextlib
import inspect
import io
import random
import warnings

import fuzzing
import numpy as np
import pandas as pd
import pytest
import torch

import pyro_fed as pf
from pyro_fed.errors import PyroFedError, SettingError, shown, warn_user
from pyro_fed.ops.arviz_versions import group_of, with_group


def run(**options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pf.run(
            options.pop("algorithm", pf.FedAvg(chain_steps=1)), fuzzing.federation(), **fuzzing.FAST, **options
        )


def federation(**options):
    given = {"args": fuzzing.data(), "num_clients": 3} | options
    return pf.Federation(fuzzing.model, plate="data", **given)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: run(rounds=3), r"run has no argument 'rounds'; did you mean 'num_rounds'\?"),
        (lambda: run(num_rounds="3"), r"run: num_rounds must be a whole number or None, received '3' \(str\)"),
        (lambda: run(num_rounds=2.0), r"num_rounds must be a whole number or None, received 2\.0"),
        (lambda: run(num_rounds=True), "num_rounds must be a whole number"),
        (lambda: run(schedule="all"), r"schedule must be a Schedule, such as pf\.schedule\.All\(\)"),
        (lambda: run(schedule=pf.schedule.All), "schedule is the class All; expected a Schedule"),
        (lambda: run(algorithm=pf.FedEP), "algorithm is the class FedEP; .*: call it"),
        (lambda: run(num_threads=0), "num_threads must be at least 1, or None, received 0"),
        (lambda: run(min_clients=1.5), "min_clients must be a whole number or None"),
        (lambda: run(seed=-5), "seed must not be negative, received -5"),
        (lambda: run(resume="yes"), "resume must be True or False"),
        (lambda: pf.fit(fuzzing.federation(), max_round=3), "did you mean 'max_rounds'"),
        (lambda: pf.fit(pf.FedEP(), fuzzing.federation()), "too many positional .* only federation may be given"),
        (lambda: federation(dtype="float64"), r"dtype must be a dtype, such as torch\.float64, or None, received"),
        (lambda: pf.fit(fuzzing.federation(), algorithm="dsvgd"), r"fit chooses the algorithm: .*pf\.run\(pf\.FedEP"),
        (lambda: federation(num_clients="3"), "num_clients must be a whole number or None, received '3'"),
        (lambda: federation(num_clients=2.5), "num_clients must be a whole number or None"),
        (lambda: federation(partition="iid"), r"partition must be a Partition, such as pf\.partition\.IID\(\)"),
        (lambda: federation(partition=pf.partition.IID), "partition is the class IID"),
        (lambda: federation(quadrature=5), "quadrature must be a Quadrature"),
        (lambda: federation(dims={"w": ["a", "b"]}), r"dims\['w'\] has 2 names, .* has 1 dimension"),
        (lambda: federation(dims={"w": ["draw"]}), "the name 'draw' is taken"),
        (lambda: federation(dims={"w": ["data"]}), "'data'"),
        (lambda: federation(client=3), "Federation has no argument 'client'"),
        (lambda: federation(args=tuple(part[:0] for part in fuzzing.data())), "cannot be run|rows|fails"),
        (lambda: federation(args=(fuzzing.data()[0][:, :0], fuzzing.data()[1])), "cannot be run|fails"),
        (lambda: pf.executors.Ray(2.5), r"num_workers must be a whole number of at least 1, received 2\.5"),
        (lambda: pf.Private(norm=np.inf, noise_multiplier=1.0), "norm must be a finite number"),
        (lambda: pf.schedule.RoundRobin("2"), "clients_per_round must be a whole number"),
        (lambda: pf.partition.Dirichlet("a"), "Dirichlet"),
        (lambda: pf.FedEP(5), "FedEP"),
        (lambda: pf.FedEP(num_points="128"), "num_points"),
        (lambda: pf.graph.ring("3"), "ring: num_agents must be a whole number, received '3'"),
        (lambda: pf.graph.ring(3, mixings="x"), "ring has no argument 'mixings'; did you mean 'mixing'"),
        (lambda: pf.predict(fuzzing.result(), fuzzing.model, (torch.zeros(3, 5).double(), torch.zeros(3).double())),
         "predict: the model cannot be run on these arguments"),
        (lambda: pf.predict("idata", fuzzing.model), "predict: idata must be"),
        (lambda: pf.metrics.ksd(fuzzing.result(), fuzzing.federation(), num_draws=2.5),
         "num_draws must be a whole number"),
    ],
)  # fmt: skip
def test_an_argument_that_cannot_be_used_is_named(call, message):
    with pytest.raises(PyroFedError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_an_array_without_dimensions_is_no_list():
    for parts in (np.array("x"), torch.tensor(2.0)):
        with pytest.raises(pf.PyroFedError, match="parts"):
            pf.pooled_moments(parts)


def test_a_result_of_another_shape_is_no_traceback():
    known = fuzzing.result()
    other = with_group(known, "posterior", group_of(known, "posterior").isel(w_dim_0=[0]))
    for call in (lambda: pf.metrics.ksd(other, fuzzing.federation()), lambda: pf.predict(other, fuzzing.federation())):
        with pytest.raises(pf.errors.DataError):
            call()


def test_numpy_numbers_are_numbers():
    idata = run(num_rounds=np.int64(1), seed=np.int32(3), min_clients=np.int64(1))
    assert idata.attrs["seed"] == 3
    federation(num_clients=np.int64(2), seed=np.uint8(1))
    pf.FedEP(tolerance=np.float64(0.1), num_points=np.int64(64))


def test_the_cause_is_kept_where_a_model_raises():
    def model(x, y):
        raise KeyError("no such column")

    with pytest.raises(pf.errors.ModelError, match=r"the model fails at .*: KeyError: 'no such column'") as e:
        pf.Federation(model, fuzzing.data(), plate="data", num_clients=2)
    assert isinstance(e.value.__cause__, KeyError)


def test_signatures_are_those_of_the_functions():
    assert "num_rounds" in inspect.signature(pf.run).parameters
    assert "num_points" in inspect.signature(pf.FedEP).parameters
    assert pf.run.__doc__.startswith("Run an algorithm")


def test_every_public_function_is_fuzzed():
    known = {inspect.unwrap(function) for function, _, _ in fuzzing.targets().values()}
    public = {name: getattr(pf, name) for name in pf.__all__}
    for module in [value for value in public.values() if inspect.ismodule(value)]:
        public |= {f"{module.__name__}.{name}": getattr(module, name) for name in getattr(module, "__all__", ())}
    functions = {name: inspect.unwrap(value) for name, value in public.items() if inspect.isfunction(value)}
    assert len(functions) > 40
    assert not [name for name, function in functions.items() if function not in known]


def test_valid_calls_are_valid(tmp_path, monkeypatch):
    """Else the next test would say nothing."""
    monkeypatch.chdir(tmp_path)
    for name, (function, given, _) in fuzzing.targets().items():
        assert fuzzing.outcome(function, given) == "success", name


@pytest.mark.parametrize("seed", range(4))
def test_random_calls_succeed_or_are_refused(seed, tmp_path, monkeypatch):
    """100 calls each; `python tests/helpers/fuzzing.py --calls 10000` makes more."""
    monkeypatch.chdir(tmp_path)
    rng, found = random.Random(seed), fuzzing.targets()
    for _ in range(100):
        name, function, given = fuzzing.random_call(rng, found)
        if fuzzing.small_enough(given):
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                said = fuzzing.outcome(function, given)
            assert said in ("success", "refused"), (name, given)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pf.column_sums(torch.eye(2).to_sparse()), "'rows' is a sparse tensor"),
        (lambda: pf.metrics.log_predictive_density(torch.eye(2).to_sparse()), "log_prob must be"),
        (lambda: fuzzing.federation().client_data({1, 2}), "clients must be a list of"),
        (lambda: fuzzing.federation().client_data(torch.zeros(0, 2)), "clients must be a list of"),
        (lambda: pf.plots.plot_graph(pf.graph.ring(3), figsize=(-1.0, 0.0)), "figsize must be two numbers of inches"),
        (lambda: pf.graph.rotating_stars(2**40, 1), "is too large: .* take fewer agents"),
        (lambda: pf.graph.ring(10**30), "is too large"),
        (lambda: pf.graph.complete(100_000), "is too large"),
        (lambda: pf.graph.random_regular(2**40, 4), "is too large"),
    ],
)
def test_what_a_hundred_thousand_random_calls_found(call, message):
    with pytest.raises(PyroFedError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_no_error_prints_rows():
    """Arrays and frames in an error are told by their shape: their values may be patients'."""
    rows = np.array([[4711.0, 1.0], [4712.0, 0.0]])
    for value in (rows, rows[:, 0], torch.tensor(rows), pd.DataFrame(rows), pd.DataFrame(rows)[0]):
        assert f"values of shape {tuple(value.shape)} ({type(value).__name__})" == shown(value)
        if not isinstance(value, torch.Tensor):
            with pytest.raises(SettingError) as caught:
                pf.pooled_moments(value)
            assert "471" not in str(caught.value)
    with pytest.raises(pf.errors.DataError) as caught:
        pf.column_sums(torch.tensor(4711.0))
    assert "471" not in str(caught.value)
    assert shown(torch.tensor(3)) == "tensor(3) (Tensor)"


@pytest.mark.parametrize(
    "value", ["a" * 5_000_000, "a b " * 1_250_000, list(range(500_000))], ids=["word", "text", "list"]
)
def test_a_long_value_is_not_echoed_whole(value):
    """By every error and warning of the package: here where a setting, a name and a path are wrong, and in any text."""
    plain = SettingError(f"expected a number, received {value!r}; give one")
    warned = []
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warn_user(f"odd: {value!r}; look at it")
    warned += [str(one.message) for one in seen]
    texts = [str(plain), *warned]
    for wrong in (lambda: pf.FedEP(client=value), lambda: pf.FedEP(damping=value), lambda: pf.graph.ring(value)):
        with pytest.raises(pf.PyroFedError) as error:
            wrong()
        texts.append(str(error.value))
    assert all(len(text) < 5_000 for text in texts)
    assert texts[0].startswith("expected a number, received ")
    assert texts[0].endswith("give one")
