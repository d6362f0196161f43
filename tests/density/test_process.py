"""What is traced once in a process serves the same model alone: what its density depends on keeps others away."""

import datetime
import os
import time
import types
import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule, PyroSample

import pyro_fed as pf
from pyro_fed.density import traits_search as search
from pyro_fed.density.compiling import process
from pyro_fed.density.compiling.digest import digest

SCALE = 1.0
SETTINGS = {"scale": 1.0, "parts": [1.0, 2.0]}
RUNS = [0]


def data(seed=0, rows=24, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 2, generator=generator, dtype=torch.float64)
    return x.to(dtype), (x.sum(1) + torch.randn(rows, generator=generator, dtype=torch.float64)).to(dtype)


def closed(scale):
    """A regression whose noise is in its closure, and which does not count its runs."""

    def model(x, y):
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w, scale), obs=y)

    return model


def reads_global(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, SCALE), obs=y)


def calls_helper(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, noise()), obs=y)


def noise():
    return SETTINGS["scale"] * SETTINGS["parts"][0]


def shares(x, y, scale):
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, scale), obs=y)


def reads_environment(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, float(os.environ["PYRO_FED_TEST_SCALE"])), obs=y)


class Regression(PyroModule):
    def __init__(self, scale):
        super().__init__()
        self.w = PyroSample(dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        self.scale = scale

    def forward(self, x, y):
        mean = x @ self.w
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(mean, self.scale), obs=y)


@pytest.fixture(autouse=True)
def fresh():
    process.forget()
    yield
    process.forget()


def draws(model, args, **options):
    return draws_of(pf.Federation(model, args, plate="data", num_clients=2), **options)


def draws_of(fed, **options):
    """Draws of chains whose single step, of prior and rows, is traced; other algorithms have four to seven."""
    options = {"compile": "trace", "audit": False, "progress": False, "log_likelihood": False, **options}
    chains = pf.infer.SummedLangevin(step_size=0.01, num_chains=2, burn_in=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # so few rounds have not converged
        return pf.run(chains, fed, num_rounds=4, **options).posterior["w"].values


def alone(*args, **options):
    """The same where nothing has been traced before."""
    process.forget()
    return draws(*args, **options)


def traces(monkeypatch):
    """A list that gets an entry for every trace."""
    from pyro_fed.density.compiling import compiler

    made, trace = [], compiler.trace
    monkeypatch.setattr(compiler, "trace", lambda *args: made.append(1) or trace(*args))
    return made


def test_a_second_federation_on_fresh_data_traces_nothing(monkeypatch):
    made = traces(monkeypatch)
    draws(closed(1.0), data(0))
    assert made
    made.clear()
    again = draws(closed(1.0), data(1))  # another function object, of the same code and closure
    assert not made
    assert np.array_equal(again, alone(closed(1.0), data(1)))
    assert made


def test_algorithms_of_one_problem_share_what_coincides(monkeypatch):
    made = traces(monkeypatch)
    fed = pf.Federation(closed(1.0), data(), plate="data", num_clients=2)
    options = {"compile": "trace", "audit": False, "progress": False}
    pf.run(pf.FedEP(), fed, **options)
    made.clear()
    other = pf.Federation(closed(1.0), data(), plate="data", num_clients=2)
    pf.run(pf.FedLaplace(), other, **options)
    assert not made


@pytest.mark.filterwarnings("ignore::UserWarning")  # of two rounds
@pytest.mark.parametrize(
    ("dtype", "level"), [(torch.float64, "trace"), (torch.float32, "trace"), (torch.float64, "off")]
)
def test_what_a_run_asks_of_a_model_before_it_begins_is_found_once(dtype, level, monkeypatch):
    """Whether scores jump, by which agents choose their start."""
    asked = []
    inner = search.scores_jump
    monkeypatch.setattr(search, "scores_jump", lambda *args: asked.append(args) or inner(*args))
    options = {"compile": level, "audit": False, "progress": False, "log_likelihood": False, "num_rounds": 2}
    for seed in range(2):
        fed = pf.Federation(closed(1.0), data(seed, dtype=dtype), plate="data", num_clients=3)
        pf.run(pf.P2PVI(), fed, graph=pf.graph.ring(3), **options)
    assert len(asked) == 1


@pytest.mark.parametrize("kind", [pf.FedAvg, pf.infer.FedProx, pf.infer.FedDyn])
def test_steps_made_of_an_algorithms_own_gradient_are_kept(kind, monkeypatch):
    made = traces(monkeypatch)
    options = {"compile": "trace", "audit": False, "progress": False, "log_likelihood": False, "num_rounds": 2}
    counts = []
    for seed in range(2):
        pf.run(kind(), pf.Federation(closed(1.0), data(seed), plate="data", num_clients=2), **options)
        counts.append(len(made))
    assert counts[0] == counts[1] > 0


def changed_closure():
    return (closed(1.0), data()), (closed(2.0), data())


def changed_tensor_in_closure():
    return (closed(torch.tensor(1.0).double()), data()), (closed(torch.tensor(2.0).double()), data())


def changed_shared_argument():
    one = torch.ones((), dtype=torch.float64)
    return (shares, (*data(), one)), (shares, (*data(), 2 * one))


def changed_number_among_arguments():
    return (shares, (*data(), 1.0)), (shares, (*data(), 2.0))


def changed_module():
    return (Regression(1.0), data()), (Regression(2.0), data())


def changed_dtype():
    return (closed(1.0), data()), (closed(1.0), data(dtype=torch.float32))


def changed_rows():
    return (closed(1.0), data()), (closed(1.0), data(rows=25))


@pytest.mark.parametrize(
    "change",
    [
        changed_closure,
        changed_tensor_in_closure,
        changed_shared_argument,
        changed_number_among_arguments,
        changed_module,
        changed_dtype,
        changed_rows,
    ],
)
def test_what_differs_is_traced_again(change):
    first, second = change()
    before = draws(*first)
    after = draws(*second)
    assert np.array_equal(after, alone(*second))
    assert not np.array_equal(before, after)


@pytest.mark.parametrize("place", ["global", "helper", "list", "environment", "in place"])
def test_what_changes_under_the_same_function_is_traced_again(place, monkeypatch):
    held = torch.ones((), dtype=torch.float64)
    model = {
        "global": reads_global,
        "helper": calls_helper,
        "list": calls_helper,
        "environment": reads_environment,
        "in place": closed(held),
    }[place]
    monkeypatch.setenv("PYRO_FED_TEST_SCALE", "1.0")
    before = draws(model, data())
    if place == "global":
        monkeypatch.setitem(globals(), "SCALE", 2.0)
    elif place == "helper":
        monkeypatch.setitem(globals(), "noise", lambda: 2.0)
    elif place == "list":
        monkeypatch.setitem(SETTINGS, "parts", [2.0])
    elif place == "environment":
        monkeypatch.setenv("PYRO_FED_TEST_SCALE", "2.0")
    else:
        held.mul_(2)
    after = draws(model, data())
    assert not np.array_equal(before, after)
    assert np.array_equal(after, alone(closed(2.0), data()))


@pytest.mark.parametrize("place", ["global", "environment"])
def test_a_federation_whose_model_changes_is_traced_again(place, monkeypatch):
    monkeypatch.setenv("PYRO_FED_TEST_SCALE", "1.0")
    model = reads_global if place == "global" else reads_environment
    fed = pf.Federation(model, data(), plate="data", num_clients=2)
    draws_of(fed)
    if place == "global":
        monkeypatch.setitem(globals(), "SCALE", 2.0)
    else:
        monkeypatch.setenv("PYRO_FED_TEST_SCALE", "2.0")
    assert np.array_equal(draws_of(fed), alone(closed(2.0), data()))


def test_data_of_the_model_itself_are_part_of_it():
    def model_on(own):
        def model():
            mu = pyro.sample("w", dist.Normal(0.0, 1.0))
            with pyro.plate("data", len(own)) as index:
                pyro.sample("y", dist.Normal(mu, 1.0), obs=own[index])

        return model

    before, after = draws(model_on(data(0)[1]), ()), draws(model_on(data(1)[1]), ())
    assert not np.array_equal(before, after)
    assert np.array_equal(after, alone(model_on(data(1)[1]), ()))


@pytest.mark.filterwarnings("ignore::UserWarning")  # so few rounds have not converged
def test_settings_of_the_algorithm_are_part_of_a_step():
    fed = pf.Federation(closed(1.0), data(), plate="data", num_clients=2)
    options = {"num_rounds": 2, "compile": "trace", "audit": False, "progress": False}
    first = pf.run(pf.DSVGD(num_particles=4), fed, **options).posterior["w"].values
    fed = pf.Federation(closed(1.0), data(), plate="data", num_clients=2)
    other = pf.run(pf.DSVGD(num_particles=4, step_size=0.5), fed, **options).posterior["w"].values
    assert not np.array_equal(first, other)


def test_a_handler_around_the_run_keeps_its_traces_to_itself():
    fed = pf.Federation(closed(1.0), data(), plate="data", num_clients=2)
    with pyro.poutine.mask(mask=True):
        assert process.mark_of(fed.problem, "off") is None
    assert process.mark_of(fed.problem, "off") is not None


def test_auto_traces_what_is_called_often_and_answers_the_same_to_the_bit(monkeypatch):
    from pyro_fed.density.compiling import compiler

    made = traces(monkeypatch)
    monkeypatch.setattr(compiler, "TRACE_AFTER", 20)
    few = draws(closed(1.0), data(), compile="auto")
    assert not made
    monkeypatch.setattr(compiler, "TRACE_AFTER", 4)
    for _ in range(2):
        again = draws(closed(1.0), data(), compile="auto")
    assert made
    assert np.array_equal(few, again)


def softmax(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([2, 3]).to_event(2))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Categorical(logits=x @ w), obs=y)


@pytest.mark.filterwarnings("ignore::UserWarning")  # so few rounds have not converged
@pytest.mark.parametrize("algorithm", [pf.FedEP(), pf.FedAvg(), pf.DSVGD(num_particles=10, local_steps=3)])
def test_a_run_is_repeated_to_the_bit_whatever_ran_before(algorithm):
    """By vmap at first, and later as a graph, in which a softmax could be another kernel."""
    x, y = data()
    fed = pf.Federation(softmax, (x, (2 + y).clamp(0, 2).long()), plate="data", num_clients=2)
    options = {"progress": False, "audit": False, "log_likelihood": False, "num_rounds": 4}
    runs = [pf.run(algorithm, fed, **options).posterior["w"].values for _ in range(3)]
    assert (runs[0] == runs[1]).all() and (runs[0] == runs[2]).all()


def test_digests_tell_functions_apart():
    def made(constant):
        return lambda z: z + constant

    assert digest(made(1)) == digest(made(1))
    assert digest(made(1)) != digest(made(1.0))
    assert digest(made(torch.ones(2))) == digest(made(torch.ones(2)))
    assert digest(made(torch.ones(2))) != digest(made(torch.ones(2, dtype=torch.float64)))
    assert digest(made(torch.ones(1))) != digest(made(torch.ones(1).expand(1, 1)))
    assert digest(made(torch.zeros(()).expand(1))) is not None  # of stride 0
    assert digest(made(np.arange(3))) != digest(made(np.arange(3.0)))
    assert digest(made({"a": [1, 2]})) != digest(made({"a": [2, 1]}))
    assert digest(made(noise)) != digest(made(draws))
    assert digest(lambda z: z + 1) != digest(lambda z: z + 2)
    assert digest(lambda z, a=1: z) != digest(lambda z, a=2: z)


def writes_global():
    global SCALE
    SCALE = 3.0


@pytest.mark.parametrize("scale", ["1.0", "2.0"])
def test_what_reads_the_environment_has_no_digest(scale, monkeypatch):
    """No step that was traced under one is taken for another's."""
    monkeypatch.setenv("PYRO_FED_TEST_SCALE", scale)
    assert digest(reads_environment) is None


def test_what_cannot_be_followed_has_no_digest():
    module = types.ModuleType("helpers")
    for value in (
        open,
        np.random.default_rng(),
        torch.Generator(),
        module,
        lambda: time.time(),
        lambda: datetime.datetime.now(),
        time.time,
        lambda: open("a").read(),  # noqa: SIM115  (it is not run)
        lambda: eval("1"),
        lambda: torch.randn(1),
        writes_global,
        iter([1]),
        (one for one in ()),
        np.array([object()]),
    ):
        assert digest(value) is None


@pytest.mark.filterwarnings("ignore::UserWarning")  # of a Gaussian in a hierarchy
def test_other_forms_of_a_model_that_has_changed_are_traced_again_too():
    """The audit's chains walk on the non-centred form: they find what they find in a process that knows nothing."""
    noise = [1.0]

    def model(group, y):
        tau = pyro.sample("tau", dist.HalfNormal(y.new_ones(())))
        a = pyro.sample("a", dist.Normal(y.new_zeros(4), tau).to_event(1))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(a[group], noise[0]), obs=y)

    group = torch.arange(24) % 4
    data = group, 2.0 * group - 3.0 + torch.linspace(-1, 1, 24, dtype=torch.float64)

    def measured(fed):
        found = pf.run(pf.FedEP(), fed, compile="trace", progress=False, log_likelihood=False)
        return found["audit"]["sd_ratio"].values

    fed = pf.Federation(model, data, plate="data", num_clients=2)
    before = measured(fed)
    noise[0] = 2.0
    again = measured(fed)
    process.forget()
    np.testing.assert_array_equal(again, measured(pf.Federation(model, data, plate="data", num_clients=2)))
    assert not np.array_equal(again, before)
