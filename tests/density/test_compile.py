"""Levels of compilation: they agree, are chosen by counts alone, and are paid for once."""

import warnings
from dataclasses import replace

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from algorithms import PAPER, SMALL, line, line_data, unequal_lines

import pyro_fed as pf
from pyro_fed.density.compiling import compiler as compiling
from pyro_fed.density.compiling import process
from pyro_fed.density.compiling.compiler import Compiler, choose_level, in_time, pays
from pyro_fed.density.compiling.inductor import inductor
from pyro_fed.density.compiling.tracing import to_graph
from pyro_fed.density.derivatives.rowwise import shared_curvature
from pyro_fed.density.rows.batches import Batch
from pyro_fed.ops.batched import quiet, vmap
from pyro_fed.runtime.executors import Vectorised, Work

#: Inductor's own imports use what torch has deprecated.
INDUCTOR = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
QUIET = {"progress": False, "executor": "sequential", "audit": False}


def run(algorithm, federation, rounds=4, **options):
    with warnings.catch_warnings():
        for short in (
            "the KDE of bandwidth",
            "PaperDSVGD as published",
            "the particles have not converged",
            "2 of 3 clients",
        ):
            warnings.filterwarnings("ignore", message=short)
        return pf.run(algorithm, federation, num_rounds=rounds, **{**QUIET, **options})


def positions(idata):
    return idata.posterior["w"].values


@INDUCTOR
def test_inductor_agrees_with_the_model_run_as_it_is_and_compiles_it_once():
    """Inductor's code of the first federation serves the second, whose prior's trace holds other rows."""
    from torch._dynamo.utils import counters  # its import takes a second

    algorithm = pf.papers.PaperDSVGD(num_particles=3, local_steps=2, distill_steps=1)
    for seed in range(2):
        counters.clear()
        process.forget()  # what is found in the same process is not even compiled
        fed = pf.Federation(line, line_data(seed=seed), plate="data", partition=unequal_lines().partition)
        compiled = run(algorithm, fed, compile="inductor")
        assert any(step.inductor for step in fed.problem.compiler.cache.values())
        plain = positions(run(algorithm, fed, compile="off"))
        np.testing.assert_allclose(positions(compiled), plain, rtol=1e-9, atol=1e-9)
    assert counters["inductor"]["fxgraph_cache_hit"] == 3  # steps that move and distil, and the scores that judge
    assert counters["inductor"]["fxgraph_cache_miss"] == 0


def test_one_step_serves_all_clients_and_rounds():
    """Three clients of 3, 7 and 13 rows, nine rounds: a compiled step for moving, for distilling, and for judging."""
    fed = unequal_lines()
    run(pf.papers.PaperDSVGD(**PAPER), fed, rounds=9, compile="trace")
    assert len(fed.problem.compiler.cache) == 3
    run(pf.papers.PaperDSVGD(**PAPER), fed, rounds=5, compile="trace")
    assert len(fed.problem.compiler.cache) == 3, "an equal algorithm is traced again"
    run(pf.papers.PaperDSVGD(**PAPER, step_size=0.1), fed, rounds=1, compile="trace")
    assert len(fed.problem.compiler.cache) == 6, "another algorithm takes another's step"


def test_rounds_of_unequal_width_share_a_step():
    """The vectorised executor fills a round up to the widest one so far."""
    fed = unequal_lines()
    problem = replace(fed.problem, compiler=Compiler("trace"))
    algorithm = pf.papers.PaperDSVGD(**PAPER)
    executor = Vectorised()
    shared, local = algorithm.init(problem, 3, torch.Generator().manual_seed(0), None)
    executor.start(algorithm, problem, fed.client_data(), local)
    replies = []
    for clients in ([0, 1, 2], [1], [0, 2]):
        at = torch.tensor(clients)
        work = Work(0, 0, clients, algorithm.download(shared, at))
        replies.append(executor.execute(work).messages["particles"])
    assert len(problem.compiler.cache) == 3
    torch.testing.assert_close(replies[0][[0, 2]], replies[2])
    torch.testing.assert_close(replies[0][[1]], replies[1])


def test_a_step_in_double_stays_in_double_whatever_the_default():
    """`torch.ones(3)` in a model is traced in double; run later under a float32 default, it must stay so."""

    def model(y):
        a = pyro.sample("a", dist.HalfCauchy(torch.ones(3)).to_event(1))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(a.sum(), torch.full((), 0.1)), obs=y)

    problem = pf.Federation(model, line_data()[1], plate="data", num_clients=1).problem
    z = torch.full((2, 3), 0.3, dtype=torch.float64)
    compiled = replace(problem, compiler=Compiler("trace"))
    traced = compiled.mapped(lambda p, one: p.log_prior(one) + p.log_lik(one), 0)
    assert torch.get_default_dtype() == torch.float32
    exact = problem.log_prior(z[0]) + problem.log_lik(z[0])
    for _ in range(2):
        assert float(traced(z)[1]) == pytest.approx(float(exact), rel=1e-14)


@pytest.mark.parametrize("clients", [[[0, 1, 2], [2, 0, 1]], [[0, 0, 2], [1, 2, 0]]])
def test_scans_in_turn_are_scans_of_the_chosen_constants_and_keep_every_so_many_steps(clients):
    """Whether each client has one in every scan, so that what is carried goes round, or some have several."""
    problem = unequal_lines().problem

    def step(_, carry, const, x):
        return carry * const + x, (carry, carry - x)

    at, start, const = torch.tensor(clients), torch.arange(3.0), torch.tensor([0.5, -1.0, 2.0])
    xs = torch.arange(24.0).reshape(8, 3)
    ends, (kept, every) = problem.scans(step, start, const, xs, at, 0, (2, 1))
    for scan, chosen in enumerate(at):
        start, (path, moved) = problem.scan(step, start, const[chosen], xs[4 * scan : 4 * scan + 4], 4)
        assert torch.equal(ends[scan], start) and torch.equal(every[4 * scan : 4 * scan + 4], moved)
        assert torch.equal(kept[2 * scan : 2 * scan + 2], path[1::2])


@INDUCTOR
def test_a_state_that_is_also_a_constant_is_not_taken_for_it():
    problem = unequal_lines().problem

    def step(_, carry, const, x):
        return carry + const + x, carry - const

    start = torch.arange(3.0)
    expected = [problem.scan(step, start.clone(), start.clone(), torch.ones(4, 3), 4)]
    for level in ("trace", "inductor"):
        problem = replace(problem, compiler=Compiler(level))
        expected.append(problem.scan(step, start, start, torch.ones(4, 3), 4))
    for carry, outs in expected[1:]:
        torch.testing.assert_close(carry, expected[0][0])
        torch.testing.assert_close(outs, expected[0][1])
    assert torch.equal(start, torch.arange(3.0))
    assert problem.scan(step, start, start, torch.ones(0, 3), 0) == (start, ())


def test_the_choice_is_a_function_of_counts():
    assert not pays(100, 1)
    assert pays(100, 10**6) == compiling.has_cpp_compiler()
    least = next(calls for calls in range(1, 10**6, 100) if pays(100, calls))
    assert all(pays(100, calls) for calls in range(least, 3 * least, 500))
    assert not any(pays(100, calls) for calls in range(1, least, 500))


def test_a_limit_of_time_pays_for_no_compilation_that_it_does_not_allow_for(monkeypatch):
    """A step of four seconds' compilation and more: not in a run of 39 seconds, in one of 4,000 as without a limit."""
    assert not in_time(0, 39.0) and in_time(0, 41.0) and not in_time(1000, 41.0) and in_time(10**6, None)
    chosen = []
    monkeypatch.setattr(torch._inductor, "compile", lambda graph, *_, **__: chosen.append(graph) or graph)
    monkeypatch.setattr(compiling, "repays", lambda nodes, calls: calls >= 20)
    monkeypatch.setattr(compiling, "TRACE_AFTER", 1)
    algorithm = pf.papers.PaperSVGD(**SMALL)  # four steps a round
    found = {}
    for limit in (39.0, 4000.0, None):
        run(algorithm, unequal_lines(), rounds=5, compile="auto", max_seconds=limit)
        found[limit] = len(chosen)
    assert found[39.0] == 0 and found[4000.0] > 0
    chosen.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        pf.run(pf.Auto(max_seconds=39.0), unequal_lines(), compile="auto", audit=False, progress=False)
    assert chosen == []


def test_auto_follows_that_choice_whatever_ran_before(monkeypatch):
    """A short run's traced step does not keep a long run from Inductor, nor the other way round."""
    chosen = []
    monkeypatch.setattr(torch._inductor, "compile", lambda graph, *_, **__: chosen.append(graph) or graph)
    monkeypatch.setattr(compiling, "pays", lambda nodes, calls: calls >= 20)
    monkeypatch.setattr(compiling, "TRACE_AFTER", 1)
    fed = unequal_lines()
    algorithm = pf.papers.PaperSVGD(**SMALL)  # four steps a round
    run(algorithm, fed, rounds=4, compile="auto")
    assert chosen == []
    run(algorithm, fed, rounds=5, compile="auto")
    assert len(chosen) == 1
    run(algorithm, fed, rounds=4, compile="auto")
    run(algorithm, fed, rounds=9, compile="auto")
    assert len(chosen) == 1


def branching_on_latents(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    mean = x @ w + (w[0] if w[0] > 0 else w[0] * 0.5)
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def branching_on_rows(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    scale = 1.0 if (x.abs() < 1e9).all() else 2.0
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, scale), obs=y)


LOOPED = pf.partition.Explicit([list(range(3)), list(range(3, 23))])


@pytest.mark.parametrize("model", [branching_on_latents, branching_on_rows])
@pytest.mark.parametrize("factory", [pf.papers.PaperSVGD, pf.papers.PaperDSVGD, pf.papers.UDSVGD])
def test_data_dependent_control_flow_falls_to_a_loop_with_one_warning(model, factory):
    fed = pf.Federation(model, line_data(), plate="data", partition=LOOPED)
    algorithm = factory(
        num_particles=3, local_steps=2, **({"distill_steps": 2} if factory is pf.papers.PaperDSVGD else {})
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = pf.run(algorithm, fed, num_rounds=2, **QUIET)
    told = [str(w.message) for w in caught if "one particle at a time" in str(w.message)]
    assert len(told) == 1
    assert "control flow" in told[0]
    assert np.isfinite(positions(result)).all()
    if model is branching_on_rows:
        plain = pf.Federation(line, line_data(), plate="data", partition=LOOPED)
        np.testing.assert_allclose(positions(result), positions(run(algorithm, plain, 2, compile="off")), rtol=1e-9)


@pytest.mark.filterwarnings("ignore:the model cannot be vectorised")
def test_what_is_measured_of_a_looped_model_is_what_it_is_of_the_same_one_mapped():
    models = (branching_on_rows, line)
    fed, plain = (pf.Federation(one, line_data(rows=6), plate="data", num_clients=2) for one in models)
    result = run(pf.papers.PaperSVGD(num_particles=3, local_steps=2), plain, 2)
    looped, mapped = (pf.metrics.ksd(result, one) for one in (fed, plain))
    assert looped == pytest.approx(mapped, rel=1e-12)


def test_what_cannot_be_traced_is_run_by_vmap():
    """Tracing alone defeated: a tensor's value asked for outside the mapped axes."""

    def scores(z):
        return z * torch.ones(()).mul(2).item() if torch.ones(3).sum().item() == 3 else z

    with pytest.warns(UserWarning, match=r"the model cannot be traced \(.*\); it is run by vmap") as caught:
        assert choose_level("auto", scores, (torch.ones(2, 2),)) == "off"
    assert len(caught) == 1


def test_levels_as_asked_for():
    for mode, level in (("auto", "trace"), ("trace", "trace"), ("inductor", "inductor"), ("off", "off")):
        assert choose_level(mode, torch.sin, (torch.ones(2, 2),)) == level


def test_code_that_gives_other_numbers_than_its_step_is_not_run(monkeypatch):
    fed, algorithm = unequal_lines(), pf.papers.PaperSVGD(**SMALL)
    traced = run(algorithm, fed, rounds=2, compile="trace")

    def wrong(graph, *_, **__):
        return lambda *leaves: [leaf * 1.01 for leaf in graph(*leaves)]

    monkeypatch.setattr(torch._inductor, "compile", wrong)
    with pytest.warns(UserWarning, match="Inductor's code for a step gives other numbers than the step itself"):
        compiled = run(algorithm, fed, rounds=2, compile="inductor")
    np.testing.assert_array_equal(positions(compiled), positions(traced))


def test_a_step_that_inductor_fails_on_is_run_as_it_was_traced(monkeypatch):
    fed, algorithm = unequal_lines(), pf.papers.PaperSVGD(**SMALL)
    traced = run(algorithm, fed, rounds=2, compile="trace")

    def failing(*_, **__):
        raise AssertionError("no lowering\nof this")

    monkeypatch.setattr(torch._inductor, "compile", failing)
    with pytest.warns(
        UserWarning, match=r"Inductor's code for a step cannot be compiled \(no lowering\); the traced step"
    ):
        compiled = run(algorithm, fed, rounds=2, compile="inductor")
    np.testing.assert_array_equal(positions(compiled), positions(traced))
    monkeypatch.setattr(compiling, "pays", lambda nodes, calls: True)
    monkeypatch.setattr(compiling, "TRACE_AFTER", 1)
    fed = unequal_lines()
    np.testing.assert_array_equal(positions(run(algorithm, fed, rounds=2, compile="auto")), positions(traced))


@INDUCTOR
def test_inductor_takes_views_of_what_its_own_operations_lay_out_otherwise():
    """A stack of transposed tensors is in order, and Inductor's is not, so that it has no view as a matrix."""

    def step(x):
        return [torch.ops.aten.view.default(torch.stack([x.permute(2, 1, 0)], 3).select(3, 0), [8, 3]) * 2]

    x = torch.arange(24.0).reshape(3, 2, 4)
    graph = to_graph(step, (x,))
    assert torch.equal(inductor(graph, [x])(x)[0], step(x)[0])


@INDUCTOR
@pytest.mark.filterwarnings("ignore:`torch._prims_common.check`:FutureWarning")
def test_inductor_writes_into_rows_that_are_one_row_in_memory_as_into_rows_of_their_own():
    """As mapped gradients are added into zeros. `index_copy` of equal rows was right: a first call does not tell."""
    aten, at, place = torch.ops.aten, torch.tensor([1, 3]), torch.tensor([0, 2])

    def step(x, rows):
        many = [(x * (k + 1)).expand(4, 5) for k in range(8)]
        return [
            aten.index_add(many[0], 1, at, rows),
            aten.index_copy(many[1], 1, at, rows),
            aten.index_fill(many[2], 0, at, 7.0),
            aten.index_put(many[3], [None, at], rows, True),
            aten._unsafe_index_put(many[4], [None, at], rows),
            aten.diagonal_scatter(many[5], rows[:, 0]) @ x,
            torch.func.vmap(lambda row: aten.index_add(many[6][0], 0, at, row))(rows),
            aten.index_add((x * 9).unfold(0, 3, 1), 1, place, rows[:3]),
        ]

    x, rows = torch.arange(1.0, 6.0), torch.arange(8.0).reshape(4, 2)
    code = inductor(to_graph(step, (x, rows)), [x, rows])
    for given in (rows[:1].expand(4, 2).contiguous(), rows):
        for found, expected in zip(code(x, given), step(x, given), strict=True):
            torch.testing.assert_close(found, expected)


def layered(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([4, 5]).to_event(2))
    v = pyro.sample("v", dist.Normal(0.0, 1.0).expand([5]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=torch.tanh(x @ w) @ v), obs=y)


@INDUCTOR
def test_inductor_gives_a_networks_curvatures():
    """These it miscompiled; a step whose code gives other numbers is run as traced, with a warning, an error here."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(6, 4, generator=g, dtype=torch.float64)
    problem = pf.Federation(layered, (x, (x.sum(1) > 0).double()), plate="data", num_clients=1).problem
    batch = Batch(tuple(leaf.unsqueeze(0) for leaf in problem.rows), torch.ones(1, 6, dtype=torch.float64))
    cut = torch.randn(1, 1, 3, problem.dim, generator=g, dtype=torch.float64)
    traced, compiled = (
        shared_curvature(replace(problem, compiler=Compiler(level)), cut, batch) for level in ("trace", "inductor")
    )
    assert traced is not None
    torch.testing.assert_close(compiled, traced, rtol=1e-10, atol=1e-10)


def test_inductor_without_a_compiler(monkeypatch):
    monkeypatch.setattr(compiling.shutil, "which", lambda _: None)
    assert not pays(100, 10**9)
    with pytest.raises(pf.errors.SettingError, match="needs a C\\+\\+ compiler"):
        choose_level("inductor", torch.sin, (torch.ones(2, 2),))


def test_threads_are_restored_after_an_error():
    before = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError), compiling.threads(before + 1):
        assert torch.get_num_threads() == before + 1
        raise ZeroDivisionError
    assert torch.get_num_threads() == before


def test_the_loop_maps_nested_structures_as_vmap_does():
    def function(a, b):
        return {"sum": a["x"] + b[0], "pair": (a["x"] * b[1], b[1])}

    args = ({"x": torch.arange(3.0)}, (torch.arange(3.0), torch.tensor(2.0)))
    dims = (0, (0, None))
    mapped = torch.func.vmap(function, dims)(*args)
    looped = Compiler("loop").vmap(function, dims)(*args)
    assert torch.equal(mapped["sum"], looped["sum"])
    assert all(torch.equal(a, b) for a, b in zip(mapped["pair"], looped["pair"], strict=True))


def test_torch_warns_of_its_own_calls_that_it_maps_slowly_and_not_of_ours():
    """A warning is an error in these tests: importing the package, and mapping by it, leave torch's warnings on."""

    def without_rule(x):
        return x.clone().clamp_(torch.zeros(()))

    x = torch.linspace(-1, 1, 6).reshape(3, 2)
    with quiet:  # another thread's call, which ends later
        assert torch.equal(vmap(without_rule)(x), x.clamp_min(0))
        assert torch.equal(torch.func.vmap(without_rule)(x), x.clamp_min(0))
    with pytest.raises(UserWarning, match="performance drop"):
        torch.func.vmap(without_rule)(x)
    with pytest.raises(ZeroDivisionError):
        vmap(lambda one: one / (1 // 0))(x)
    with pytest.raises(UserWarning, match="performance drop"):
        torch.func.vmap(without_rule)(x)
