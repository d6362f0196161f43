"""Cells: three that guard accuracy, adapters that fail, what is on disk, processes that die."""

import dataclasses
import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from forks import together
from pyro.infer.autoguide import AutoMultivariateNormal, AutoNormal

import pyro_fed as pf
from pyro_fed.analysis.bench import algorithms, subposteriors
from pyro_fed.analysis.bench import cell as cell_module
from pyro_fed.analysis.bench.adapters import pyro_svi_normal
from pyro_fed.analysis.bench.algorithms import AdapterError, Algorithm, find
from pyro_fed.analysis.bench.bench import run_benchmark
from pyro_fed.analysis.bench.cases.case import Split
from pyro_fed.analysis.bench.cases.library import all_cases
from pyro_fed.analysis.bench.cell import ASIDE, Cell, Outcome, Store, Task, code_files, code_version, run_cell
from pyro_fed.analysis.bench.clients import Clients
from pyro_fed.analysis.bench.processes import Died, _cpu_seconds, _hung, run_in_processes
from pyro_fed.errors import DataError, SettingError

CASES = all_cases()


def ran(case, split, algorithm, seed=0):
    return run_cell(Cell(case, split, algorithm.name, seed, "x"), CASES[case], algorithm)


def recipe(name):
    (found,) = find([name], [])
    return found


@pytest.mark.parametrize(
    ("case", "split", "name", "error", "low", "high"),
    [
        ("gaussian_covariance", "sorted/10", "fedep", 0.10, 0.95, 1.06),
        ("gaussian_mean", "iid/2", "p2p_vi", 0.10, 0.95, 1.06),
        ("normal_gamma", "iid/2", "fedep", 0.10, 0.85, 1.06),
    ],
)
def test_accuracy_is_guarded(case, split, name, error, low, high):
    """4,000 draws of a density: a mean's standard error is 0.016 SD, an SD's 1.1 %; a Gaussian loses skewed tails."""
    found = ran(case, split, recipe(name))
    assert found.outcome == "right", found
    assert found.scores["mean_error"] < error
    assert low < found.scores["sd_low"] and found.scores["sd_high"] < high
    assert 0.85 < found.scores["coverage"] < 0.93
    assert found.scores["rounds"] >= 1 and found.scores["bytes"] > 0 and found.scores["cpu_seconds"] > 0


def test_same_seed_same_numbers_and_a_wrong_answer_that_says_nothing(tmp_path):
    """An adapter that draws with the clock's help would not; this one is a Gaussian somewhere else."""
    path = tmp_path / "elsewhere.py"
    path.write_text(
        '"""A Gaussian somewhere else."""\nimport torch\n\n\ndef run(model, clients):\n'
        "    rows = sum(len(y) for _, y in clients)\n    assert rows == len(clients.pooled[1]) == 200\n"
        "    assert clients.plate == 'data' and clients.pooled[0].dtype == torch.float64\n"
        "    return {'theta': 10 + torch.randn(1, clients.num_draws)}\n"
    )
    one = Algorithm("elsewhere", path, True)
    first, again, other = (ran("gaussian_mean", "sorted/2", one, seed) for seed in (0, 0, 1))
    assert first.outcome == "wrong, silent"
    assert first.scores["mean_error"] > 10
    assert first.scores["coverage"] == 0.0
    assert first.scores["rounds"] is None and first.scores["bytes"] is None
    drop = ("cpu_seconds", "seconds")
    figures = [{name: value for name, value in one.scores.items() if name not in drop} for one in (first, again, other)]
    assert figures[0] == figures[1] != figures[2]
    assert first.parameters == again.parameters


@pytest.mark.parametrize(
    ("body", "kind", "text", "names"),
    [
        ("raise RuntimeError('no luck')", "failed", "no luck", "the file"),
        ("return 3", "refused", "must return an InferenceData", "its path"),
        ("return {'mu': torch.zeros(1, 10)}", "refused", "no site 'theta'", ""),
        ("return {'theta': torch.zeros(1, 10, 2)}", "refused", "expected the shape", ""),
        ("return clients.result({'theta': torch.zeros(1, 10)}, draws_are='notes')", "refused", "draws_are must be", ""),
        ("return {'theta': torch.full((1, 10), torch.nan)}", "refused", "not finite", ""),
    ],
)
def test_a_failing_adapter_is_a_cell_that_says_why(tmp_path, body, kind, text, names):
    path = tmp_path / "one.py"
    path.write_text(f"import torch\n\n\ndef run(model, clients):\n    {body}\n")
    found = ran("gaussian_mean", "iid/2", Algorithm("one", path, True))
    assert (found.outcome, found.answered) == (kind, False)
    assert text in found.error
    assert ("one.py" in found.error, str(tmp_path) in found.error) == (names != "", names == "its path")


def test_adapters_that_cannot_be_loaded(tmp_path):
    path = tmp_path / "none.py"
    for text, said in (("x = 1", "does not define run"), ("import nothing_like_it", "cannot be imported")):
        path.write_text(text)
        with pytest.raises(AdapterError, match=said):
            find(["fedep"], [path])
    with pytest.raises(AdapterError, match="expected a Python file"):
        find([str(tmp_path / "missing.py")], [])
    with pytest.raises(SettingError, match="no recipe or adapter 'fedepp'"):
        find(["fedepp"], [])
    path.write_text("def run(model, clients): ...")
    twin = tmp_path / "below" / "none.py"
    twin.parent.mkdir()
    twin.write_text("def run(model, clients): ...")
    with pytest.raises(DataError, match="several files are called"):
        find([], [path, twin])


@pytest.mark.parametrize("guide", [AutoNormal, AutoMultivariateNormal])
def test_draws_of_a_guide_have_the_sites_shapes_beside_latents_of_rows(guide):
    """`Predictive` gives sites outside a plate its axis, of length one."""

    def model(y):
        level = pyro.sample("level", dist.Normal(0.0, 1.0))
        slopes = pyro.sample("slopes", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("data", len(y)):
            own = pyro.sample("own", dist.Normal(level, 1.0))
            pyro.sample("y", dist.Normal(own.unsqueeze(-1) * slopes, 1.0).to_event(1), obs=y)

    y = torch.arange(12.0).reshape(4, 3)
    clients = Clients(pf.Federation(model, (y,), plate="data", num_clients=2), (y,), 0, 7)
    pyro.clear_param_store()
    fitted = pyro_svi_normal.fit(guide(model), model, clients, 2)
    posterior = pyro_svi_normal.guide_result(fitted, clients, 2).posterior
    assert {name: value.shape for name, value in posterior.items()} == {
        "level": (1, 7),
        "slopes": (1, 7, 3),
        "own": (1, 7, 4),
    }


def test_shipped_adapters_are_there_and_say_what_they_are():
    for one in find(list(algorithms.ADAPTERS), []):
        assert one.adapter and len(one.about) > 40
    assert {file.stem for file in algorithms.FOLDER.glob("[a-z]*.py")} == set(algorithms.ADAPTERS)


@pytest.mark.parametrize("name", ["pyro_consensus_nuts", "pyro_gaussian_product", "pyro_pie", "pyro_bfi"])
def test_one_shot_methods_are_right_where_they_are_exact(name, monkeypatch):
    """Gaussian posteriors of two clients with the same known precision; bounds of 4 standard errors of 150 draws."""
    monkeypatch.setattr(subposteriors, "DRAWS", 150)
    monkeypatch.setattr(subposteriors, "WARMUP", 50)
    case = all_cases()["gaussian_mean"]
    (one,) = find([name], [])
    found = one.run(case, Split.parse("iid/2").federation(case, 0), 0).posterior
    for site, known in case.reference(case.data()).values.items():
        draws = found[site].values
        assert np.abs((draws.mean((0, 1)) - known.mean((0, 1))) / known.std((0, 1))).max() < 0.33
        assert np.abs(np.log(draws.std((0, 1)) / known.std((0, 1)))).max() < 0.25


OUTCOME = Outcome("a", "iid/2", "b", 0, "v1", "right", scores={"mean_error": 0.1}, limit=10.0)


def test_cells_on_disk(tmp_path):
    store = Store(tmp_path / "cells")
    cell = Cell("a", "iid/2", "b", 0, "v1")
    assert store.read(cell, 10) is None
    store.write(OUTCOME)
    assert store.read(cell, 10) == OUTCOME
    assert store.read(dataclasses.replace(cell, seed=1), 10) is None
    newer = dataclasses.replace(cell, version="v2")
    assert store.read(newer, 10) is None
    assert Store(store.folder, any_version=True).read(newer, 10) == OUTCOME
    late = dataclasses.replace(OUTCOME, outcome="late")
    store.write(late)
    assert [store.read(cell, limit) for limit in (5, 10, 11, None)] == [late, late, None, None]
    table = tmp_path / "table.json"
    table.write_text(json.dumps({"cells": [dataclasses.asdict(dataclasses.replace(OUTCOME, seed=5))]}))
    store.take(table)
    assert store.read(dataclasses.replace(cell, seed=5), 10).seed == 5
    (store.folder / cell.file).write_text("{")
    with pytest.raises(DataError, match="is no file of a cell of the benchmark"):
        store.read(cell, 10)
    table.write_text("[]")
    with pytest.raises(DataError, match="is no table"):
        store.take(table)


def test_the_version_is_that_of_code_and_adapter(tmp_path):
    path = tmp_path / "one.py"
    path.write_text("def run(model, clients): ...")
    adapter, own = Algorithm("one", path, True), recipe("fedep")
    assert adapter.version("a") == adapter.version("b") and own.version("a") != own.version("b")
    before = adapter.version("a")
    path.write_text("def run(model, clients): return None")
    assert adapter.version("a") != before
    assert code_version() == code_version()
    root = Path(cell_module.__file__).parents[2]
    folders = {str(file.parent.relative_to(root)) for file in code_files(root)}
    assert {"analysis/judging", "runtime", "runtime/executors", "infer/ep", "."} <= folders
    assert all((root / one).is_dir() for one in ASIDE)
    assert not folders & {"cli", "deployment", "deployment/flower", "analysis/plots"}


def doomed(task):
    """What a process does, by the name of its algorithm."""
    if task.cell.algorithm == "spins":
        while True:
            pass
    if task.cell.algorithm == "waits":
        time.sleep(600)
    if task.cell.algorithm == "dies":
        os.kill(os.getpid(), signal.SIGSEGV)
    if task.cell.algorithm == "writes":
        Store(task.folder).write(dataclasses.replace(OUTCOME, algorithm="writes"))
    return "written"


def loaded(module):
    """Whether a process has loaded a module, and its number of threads."""
    return module in sys.modules, os.environ["OMP_NUM_THREADS"]


def zeros(count):
    """So many bytes."""
    return bytes(count)


@together
def test_processes_that_die_are_cells_that_say_so(tmp_path):
    def ended(*names, **options):
        tasks = [Task(Cell("a", "iid/2", name, 0, "v1"), Path("x"), False, None, tmp_path, None) for name in names]
        return {one.cell.algorithm: answer for one, answer in run_in_processes(doomed, tasks, 2, **options)}

    found = ended("spins", "dies", "writes", limit=1.0) | ended("waits", limit=0.2)
    assert found["writes"] == "written"
    assert Store(tmp_path).read(Cell("a", "iid/2", "writes", 0, "v1"), 60.0).outcome == "right"
    assert (found["spins"].late, found["waits"].late, found["dies"].late) == (True, True, False)
    assert "within 1 s of CPU" in found["spins"].reason
    assert "nor of waiting" in found["waits"].reason
    assert f"signal {signal.SIGSEGV.value}" in found["dies"].reason
    assert ended("spins", "dies", "writes", deadline=time.monotonic()) == {}  # it has passed


@together
def test_a_cell_whose_process_dies_says_so(tmp_path, monkeypatch):
    """And is run again with a higher limit, but not with the same one."""
    died = Died("no answer within 30 s of CPU time", late=True)
    monkeypatch.setattr(
        "pyro_fed.analysis.bench.bench.run_in_processes", lambda entry, tasks, *_, **__: ((one, died) for one in tasks)
    )
    asked = {"cases": ["gaussian_mean"], "partitions": ["iid/2"], "recipes": ["fedep"]}
    (found,) = run_benchmark(tmp_path, **asked, limit=30.0).outcomes
    assert (found.outcome, found.error, found.limit) == ("late", died.reason, 30.0)
    monkeypatch.setattr("pyro_fed.analysis.bench.bench.run_in_processes", lambda *_, **__: ())
    assert run_benchmark(tmp_path, **asked, limit=30.0).waiting == 0
    assert run_benchmark(tmp_path, **asked, limit=60.0).waiting == 1


@together
def test_a_new_process_has_loaded_nothing_and_returns_its_answer():
    (found,) = run_in_processes(loaded, ["pyro_fed.analysis.bench.preload"], warm=False)
    assert found == ("pyro_fed.analysis.bench.preload", (False, "1"))
    large = [10_000_000]  # more than a pipe holds
    assert [len(answer) for _, answer in run_in_processes(zeros, large)] == large


def test_a_quick_look_that_is_cut_off_has_whole_columns(tmp_path, monkeypatch):
    begun = []
    monkeypatch.setattr(
        "pyro_fed.analysis.bench.bench.run_in_processes", lambda entry, tasks, *_, **__: begun.extend(tasks) or ()
    )
    run_benchmark(tmp_path, quick=True)
    names = [task.cell.algorithm for task in begun]
    assert len(begun) == 55
    assert names == [name for name in dict.fromkeys(names) for _ in range(5)]


def test_a_process_that_waits_is_told_from_one_that_others_hold_up(monkeypatch):
    """A niced process may have a twentieth of a processor: its limit is on CPU, and it is late when that is used."""
    held_up = {"cpu": 3.0, "limit": 10.0, "seconds": 60.0}
    for change, hung in (({}, False), ({"cpu": 0.1}, True), ({"cpu": None}, True), ({"seconds": 49.0}, False)):
        now = held_up | change
        monkeypatch.setattr("pyro_fed.analysis.bench.processes._cpu_seconds", lambda pid, now=now: now["cpu"])
        assert _hung(1, now["limit"], now["seconds"]) is hung, change
    monkeypatch.undo()
    told = Path("/proc/self/stat").exists()
    assert _cpu_seconds(os.getpid()) == (pytest.approx(time.process_time(), abs=0.1) if told else None)


@together
def test_a_method_that_has_all_rows_is_run_once_a_case(tmp_path):
    path = tmp_path / "standard.py"
    path.write_text(
        '"""Draws of N(0, 1)."""\nimport torch\n\nPOOLED = True\n\n\ndef run(model, clients):\n'
        "    return clients.result({'theta': torch.randn(1, 4000)}, draws_are='independent')\n"
    )
    asked = {"cases": ["gaussian_mean"], "recipes": [str(path)]}
    said = []
    first = run_benchmark(tmp_path / "cells", **asked, partitions=["iid/2", "sorted/10"], on_outcome=said.append)
    assert ([one.split for one in first.outcomes], len(said), first.waiting) == (["iid/2", "sorted/10"], 1, 0)
    assert first.outcomes[0].parameters == first.outcomes[1].parameters
    every = run_benchmark(tmp_path / "cells", **asked, on_outcome=said.append)
    assert (len(every.outcomes), len(said)) == (7, 1)
    path.write_text(path.read_text().replace("4000", "3000"))
    nothing = run_benchmark(tmp_path / "cells", **asked, minutes=0)
    assert (nothing.outcomes, nothing.waiting) == ([], 7)


@together
def test_a_run_that_was_stopped_goes_on(tmp_path):
    path = tmp_path / "exact.py"
    path.write_text(
        '"""The answer itself."""\nimport torch\n\n\ndef run(model, clients):\n'
        "    s, y = clients.pooled\n    precision = 0.01 + (s**-2).sum()\n    mean = (y * s**-2).sum() / precision\n"
        "    draws = mean + torch.randn(1, 4000) / precision.sqrt()\n"
        "    return clients.result({'theta': draws}, draws_are='independent', doubts=['none, really'])\n"
    )
    asked = {"cases": ["gaussian_mean"], "recipes": [str(path)], "jobs": 2}
    folder, said = tmp_path / "cells", []
    nothing = run_benchmark(folder, **asked, minutes=0, on_outcome=said.append)
    assert (nothing.outcomes, said, nothing.waiting) == ([], [], 7)
    some = run_benchmark(folder, **asked, partitions=["iid/2", "sorted/10"], on_outcome=said.append)
    assert (len(some.outcomes), len(said), some.waiting) == (2, 2, 0)
    every = run_benchmark(folder, **asked, on_outcome=said.append)
    assert (len(every.outcomes), len(said)) == (7, 7)
    assert {one.outcome for one in every.outcomes} == {"right, doubted"}
    assert any("group/10: gaussian_mean has 0 groups" in text for text in every.left_out)
    again = run_benchmark(folder, **asked, on_outcome=said.append)
    assert (again, len(said)) == (every, 7)
    path.write_text(path.read_text().replace("mean + ", "1 + mean + "))
    changed = run_benchmark(folder, **asked, partitions=["iid/2"], on_outcome=said.append)
    assert [one.outcome for one in changed.outcomes] == ["wrong, said"]
    kept = run_benchmark(folder, **asked, partitions=["iid/10"], any_version=True, on_outcome=said.append)
    assert ([one.outcome for one in kept.outcomes], len(said)) == (["right, doubted"], 8)
    assert np.isfinite(every.outcomes[0].scores["cpu_seconds"])
    for wrong, text in ((["gausian_mean"], "did you mean|no case"), (["kidiq"], "needs posteriordb")):
        with pytest.raises(SettingError, match=text):
            run_benchmark(folder, cases=wrong, posteriordb=tmp_path, minutes=0)
