"""Flower: the sequential answer over a Grid, exactly once whatever is lost, and clients that cannot be trusted."""

import dataclasses
import resource
import warnings
from importlib.util import find_spec

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from algorithms import line, line_data, unequal_lines
from arviz_results import groups_of
from click.testing import CliRunner
from families import FAMILIES, assert_same, sequential

import pyro_fed as pf
from pyro_fed.cli.main import main
from pyro_fed.errors import DataError, ModelError, ProtocolError, QuorumError, SettingError
from pyro_fed.recipes.library import load_model
from pyro_fed.runtime.executors import Faulty
from pyro_fed.runtime.fingerprint import fingerprint

pytestmark = [
    pytest.mark.flower,
    pytest.mark.xdist_group("flower"),
    pytest.mark.skipif(find_spec("flwr") is None, reason="needs Flower"),
]


def quiet_serve(flower, grid, model, recipe, **config):
    """Without the warnings that so short a run deserves; keys of the configuration with "_" for "-"."""
    given = {"num_clients": 3, "timeout": 100.0, "compile": "off", "audit": False, **config}
    settings = flower.read_configuration({key.replace("_", "-"): value for key, value in given.items()})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return flower.serve(grid, model, recipe, settings)


@pytest.mark.parametrize("family", FAMILIES)
def test_same_answer_over_a_grid(flower, family, tmp_path):
    model, recipes = flower.write_case(tmp_path)
    found = quiet_serve(flower, flower.grid(model, recipes), model, recipes[family])
    assert_same(found, sequential(family))
    assert not {"log_likelihood", "observed_data", "constant_data"} & groups_of(found)


def test_the_stages_of_a_plan_over_a_grid(flower, tmp_path):
    model, recipes = flower.write_case(tmp_path, {"Auto": ""})
    found = quiet_serve(flower, flower.grid(model, recipes), model, recipes["Auto"])
    assert_same(found, pf.run(pf.FedEP(), unequal_lines(), executor="sequential", progress=False, compile="off"))
    assert found.attrs["chosen"] == "FedEP"
    short = quiet_serve(flower, flower.grid(model, recipes), model, recipes["Auto"], rounds=1)
    assert "ended by the budget, max_rounds=1" in short.attrs["doubts"]


EFFECTS = """
import pyro
import pyro.distributions as dist

PLATE = "hospital"
{rows}

def model({arguments}):
    mu = pyro.sample("mu", dist.Normal(0.0, 2.0))
    tau = pyro.sample("tau", dist.LogNormal(0.0, 0.5))
    with pyro.plate("hospital", {size}):
        a = pyro.sample("a", dist.Normal(mu, tau))
{likelihood}


def load_data():
    raise NotImplementedError("the rows are at the clients")
"""
#: A model whose rows are the groups, and one whose groups have rows and a covariate of their own.
ONE_A_ROW = {
    "rows": "",
    "arguments": "noise, y",
    "size": "len(noise)",
    "likelihood": '        pyro.sample("y", dist.Normal(a, noise), obs=y)',
}
NESTED = {
    "rows": 'ROWS = {"patient": "whose"}',
    "arguments": "noise, whose, y, count, size",
    "size": "count",
    "likelihood": """    with pyro.plate("patient", len(y)):
        pyro.sample("y", dist.Normal(a[whose] + size[whose], noise), obs=y)""",
}


@pytest.mark.parametrize("kind", [ONE_A_ROW, NESTED], ids=["one a row", "nested"])
def test_hospitals_keep_their_effects_over_a_grid(flower, tmp_path, kind):
    """As many groups as each hospital has, of any number of rows; the server has one made-up group."""
    model, recipes = flower.write_case(tmp_path, {"FedEP": ""})
    model.write_text(EFFECTS.format(**kind))
    rng, rows = np.random.default_rng(0), []
    for groups in (2, 1, 3):
        whose = np.repeat(np.arange(groups), 1 if kind is ONE_A_ROW else groups + 1)
        noise, y = rng.uniform(0.5, 1.5, len(whose)), 2 * rng.normal(size=len(whose))
        rows.append((noise, y) if kind is ONE_A_ROW else (noise, whose, y, groups, rng.normal(size=groups)))
    client = flower.client_app(model, list(recipes.values()), lambda module, node: rows[node["partition-id"]], False)
    found = quiet_serve(flower, flower.LocalGrid(client), model, recipes["FedEP"])
    module = load_model(model)
    nested = getattr(module, "ROWS", None)
    fed = pf.Federation.from_clients(module.model, rows, plate="hospital", rows=nested)
    same = pf.run(pf.FedEP(), fed, executor="sequential", progress=False, compile="off", audit=False)
    for name in ("mu", "tau"):
        assert np.array_equal(found.posterior[name], same.posterior[name])
    assert "a" not in found.posterior  # the effects are at the hospitals


SIMULATED = ("FedEP", "P2PVI")
SECURE = {"FedSEP": '[settings]\nstart = "prior"\n[run]\nnum_rounds = 3'}


def test_same_answer_in_a_simulation(flower, tmp_path, monkeypatch):
    """An algorithm with a server, one without, and secure aggregation, in one simulation, whose start takes longest.

    The app that Flower's processes run is that of the tests over a grid, which take all families.
    """
    for name in ("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
        monkeypatch.setenv(name, "0")
    model, recipes = flower.write_case(tmp_path, flower.RECIPES | SECURE)
    server, found = flower.ServerApp(), {}

    @server.main()
    def every_family(grid, context):
        for family in SIMULATED:
            found[family] = quiet_serve(flower, grid, model, recipes[family], timeout=300.0)  # its processes start
        secure = {"secure_aggregation": "{largest = 1e4}", "timeout": 300.0}
        found["FedSEP"] = quiet_serve(flower, grid, model, recipes["FedSEP"], **secure)

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0}}
    start = {"init_args": {"num_cpus": 1, "include_dashboard": False}}  # one process plays all clients in turn
    flower.run_simulation(server, flower.make_client(model, recipes.values()), 3, backend_config=resources | start)
    for family in SIMULATED:
        assert_same(found[family], sequential(family))
    options = {"compile": "off", "progress": False, "num_rounds": 3, "log_likelihood": False, "audit": False}
    summed = pf.run(pf.infer.FedSEP(start="prior"), unequal_lines(), executor="sequential", **options)
    np.testing.assert_allclose(found["FedSEP"].posterior["w"].values, summed.posterior["w"].values, atol=1e-3)


class Losing(Faulty):
    """Clients that fail in given rounds."""

    def __init__(self, faults):
        super().__init__("sequential")
        self.faults = faults

    def _fault(self, round, client):
        return "dies" if (round, client) in self.faults else ""


PRIOR = {"FedEP-prior": '[settings]\nstart = "prior"\n[run]\nnum_rounds = 5'}


@pytest.mark.parametrize("kind", ["request", "reply", "error", "garbage", "replay"])
def test_what_is_lost_counts_nowhere_and_what_arrived_counts_once(flower, kind, tmp_path):
    """The server's q and the clients' sites stay in step: the answer is that of a run with the same clients away."""
    faults = dict.fromkeys([(1, 0), (2, 0), (2, 2), (3, 1)], kind)
    model, recipes = flower.write_case(tmp_path, PRIOR)
    grid = flower.grid(model, recipes, dict(faults))
    found = quiet_serve(flower, grid, model, recipes["FedEP-prior"], timeout=0.05)  # the clients answer at once
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        options = {"compile": "off", "progress": False, "num_rounds": 5, "log_likelihood": False}
        expected = pf.run(pf.FedEP(start="prior"), unequal_lines(), executor=Losing(faults), **options)
    assert np.array_equal(found.posterior["w"].values, expected.posterior["w"].values)
    assert np.array_equal(found.federation["participated"].values, expected.federation["participated"].values)
    assert (~found.federation["participated"].values).sum() == len(faults)


def test_pooled_algorithms_are_refused(flower, tmp_path):
    model, recipes = flower.write_case(tmp_path, {"NUTS": "[settings]\nnum_samples = 10"})
    with pytest.raises(SettingError, match="NUTS needs all rows in one place"):
        quiet_serve(flower, flower.grid(model, recipes), model, recipes["NUTS"])


def test_another_recipe_at_the_clients_is_told_by_both(flower, tmp_path):
    model, recipes = flower.write_case(tmp_path, PRIOR | {"FedEP-damped": "[settings]\ndamping = 0.5"})
    grid = flower.grid(model, {"FedEP-damped": recipes["FedEP-damped"]})
    with pytest.raises(QuorumError, match=r"client \d failed: client \d: the server runs FedEP\("):
        quiet_serve(flower, grid, model, recipes["FedEP-prior"], min_clients=1)


def test_too_few_clients_end_the_wait(flower, tmp_path):
    model, recipes = flower.write_case(tmp_path, PRIOR)
    grid = flower.grid(model, recipes)
    with pytest.raises(QuorumError, match=r"3 of 4 clients have joined within 0\.1 s"):
        quiet_serve(flower, grid, model, recipes["FedEP-prior"], num_clients=4, wait=0.1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"bytes", "a description is text"),
        ("x" * 200_000, "a description is text of at most"),
        ("[1, 2]", "not the description of a client"),
        ('{"name": "0"}', "not the description of a client"),
        ("[" * 50_000, "not the description of a client"),
    ],
)
def test_what_is_no_description(flower, text, message):
    with pytest.raises(ProtocolError, match=message):
        flower.Description.from_record(flower.ConfigRecord({"description": text}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "../etc"}, "client id"),
        ({"num_rows": -1}, "num_rows must be a whole number"),
        ({"rows": {"x": ([2**40], "float64")}}, "the shape of a row must be at most 8"),
        ({"rows": {"x": ([2], "Tensor")}}, "a dtype must be one of torch's"),
        ({"rows": {"x": ([99_999, 99_999], "float64")}}, "a row has 1e[+]10 numbers, expected at most"),
    ],
)
def test_a_description_that_lies(flower, change, message):
    record = dataclasses.replace(flower.GOOD, **change).to_record()
    with pytest.raises(ProtocolError, match=message):
        flower.Description.from_record(record)


@pytest.mark.parametrize("claimed", [10**8, 10**12])
def test_rows_that_a_client_claims_allocate_nothing(flower, claimed, tmp_path):
    """8e8 bytes and more, if the server had a number for each row."""
    liar = dataclasses.replace(flower.GOOD, name="1", num_rows=claimed)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    fed = flower.RemoteFederation(line, "data", [flower.GOOD, liar])
    data = fed.client_data()
    assert fed.row_counts.tolist() == [3, claimed]
    assert (data.row_index.tolist(), data.num_rows.tolist()) == ([[0], [0]], [3, claimed])
    assert (fed.num_rows, fed.summary()["rows"].tolist()) == (claimed + 3, [3, claimed])
    fingerprint(pf.FedEP(), fed, 4, None, None, 0, None, None)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB


def test_descriptions_travel_whole_and_must_agree(flower):
    assert flower.Description.from_record(flower.GOOD.to_record()).sites == flower.GOOD.sites
    with pytest.raises(DataError, match="two nodes have the same name or partition-id"):
        flower.RemoteFederation(line, "data", [flower.GOOD, flower.GOOD])
    other = dataclasses.replace(flower.GOOD, name="1", rows={"x": ([3], "float64"), "y": ([], "float64")})
    with pytest.raises(DataError, match="clients 0 and 1 differ in rows"):
        flower.RemoteFederation(line, "data", [flower.GOOD, other])
    computed = dataclasses.replace(flower.GOOD, order=[])
    with pytest.raises(ModelError, match="pass template= to server_app"):
        flower.RemoteFederation(line, "data", [computed])
    template = tuple(leaf[:1] for leaf in line_data())
    assert flower.RemoteFederation(line, "data", [computed], template).num_rows == 3


def test_text_must_stand_for_the_same_at_every_client(flower):
    """A hospital without the third stage would number the fourth as others number the third."""

    def staged(stage, y):
        level = pyro.sample("level", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(level[stage], 1.0), obs=y)

    def said(name, stage):
        own = pf.Federation.from_clients(staged, {name: (stage, torch.zeros(3))}, plate="data")
        return flower.Description.from_record(flower.Description.of(name, own).to_record())

    categories = ["I", "II", "III"]
    whole = said("north", np.array(categories))
    with pytest.warns(UserWarning, match=r"'stage' has 2 labels, \[I, III\], and the model picks by it one of 3"):
        part = said("south", np.array(["I", "III", "III"]))
    with pytest.raises(DataError, match=r"north and south have different labels of stage: .*pandas\.Categorical"):
        flower.RemoteFederation(staged, "data", [whole, part])
    same = said("south", pd.Categorical(["I", "III", "III"], categories=categories))
    assert flower.RemoteFederation(staged, "data", [whole, same]).num_rows == 6


def test_clients_whose_data_frames_differ_are_refused(flower):
    """By place `df @ w` of a frame whose columns stand in another order is another model."""

    def matrix(df, y):
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(df @ w, 1.0), obs=y)

    def said(name, columns):
        own = (pd.DataFrame(torch.ones(3, 2).numpy(), columns=columns), torch.zeros(3))
        fed = pf.Federation.from_clients(matrix, {name: own}, plate="data")
        return flower.Description.from_record(flower.Description.of(name, fed).to_record())

    with pytest.raises(DataError, match=r"north and south have data frames 'df' .*\[age, dose\] and \[dose, age\]"):
        flower.RemoteFederation(matrix, "data", [said("north", ["age", "dose"]), said("south", ["dose", "age"])])
    same = [said("north", ["age", "dose"]), said("south", ["age", "dose"])]
    assert flower.RemoteFederation(matrix, "data", same).num_rows == 6


def test_an_order_with_other_settings_is_refused(flower):
    with pytest.raises(ProtocolError, match="expected the settings"):
        flower.Order.from_record(flower.ConfigRecord({"job": "work"}))


@pytest.mark.parametrize(
    ("folder", "message"),
    [("taken", "exists already"), ("No App!", "the app gets the name of its folder")],
)
def test_new_refuses_what_is_there_and_names_that_are_none(folder, message, tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("")
    arguments = ["flower", "new", str(tmp_path / folder), "--model", "linear_regression", "--recipe", "fedep"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_ask_over_a_grid(flower, tmp_path):
    """A schedule that asks all clients first."""
    text = '[settings]\nnum_particles = 5\nlocal_steps = 2\ndistill_steps = 2\n[run]\nnum_rounds = 3\nschedule = "KSD"'
    model, recipes = flower.write_case(tmp_path, {"PaperDSVGD": text.replace('"KSD"', '{name = "ksd"}')})
    found = quiet_serve(flower, flower.grid(model, recipes), model, recipes["PaperDSVGD"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        algorithm = pf.papers.PaperDSVGD(num_particles=5, local_steps=2, distill_steps=2)
        options = {"schedule": pf.schedule.KSD(), "num_rounds": 3, "executor": "sequential"}
        same = pf.run(algorithm, unequal_lines(), compile="off", progress=False, log_likelihood=False, **options)
    assert np.array_equal(found.posterior["w"].values, same.posterior["w"].values)


SEP = {"FedSEP": '[settings]\nstart = "prior"\n[run]\nnum_rounds = 3'}


def over_grid_and_here(flower, folder, recipes, name, algorithm, config, options):
    """The same run over a grid, told by its configuration, and in one process, told by arguments."""
    model, files = flower.write_case(folder, recipes)
    found = quiet_serve(flower, flower.grid(model, files), model, files[name], **config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        same = {"executor": "sequential", "compile": "off", "progress": False, "log_likelihood": False, "audit": False}
        return found, pf.run(algorithm, unequal_lines(), **same, **options)


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ({"combination": "median"}, {"combination": pf.combination.Median()}),
        (
            {"schedule": "{name = 'uniform_random', clients_per_round = 2}", "seed": 3, "num_draws": 20},
            {"schedule": pf.schedule.UniformRandom(2), "seed": 3, "num_draws": 20},
        ),
        ({"schedule": "round_robin", "rounds": 5}, {"schedule": pf.schedule.RoundRobin(), "num_rounds": 5}),
    ],
)
def test_what_the_configuration_says_is_what_run_takes(flower, config, options, tmp_path):
    algorithm = pf.infer.FedSEP(start="prior")
    found, same = over_grid_and_here(flower, tmp_path, SEP, "FedSEP", algorithm, config, {"num_rounds": 3} | options)
    assert np.array_equal(found.posterior["w"].values, same.posterior["w"].values)
    assert np.array_equal(found.federation["participated"].values, same.federation["participated"].values)


def test_a_private_run_over_a_grid(flower, tmp_path):
    """What is spent and released is as in one process; the noise is drawn from the operating system."""
    config = {"combination": "{name = 'private', norm = 1.0, noise_multiplier = 2.0, delta = 1e-2}"}
    private = pf.Private(norm=1.0, noise_multiplier=2.0, delta=1e-2)
    options = {"num_rounds": 3, "combination": private}
    found, same = over_grid_and_here(flower, tmp_path, SEP, "FedSEP", pf.infer.FedSEP(start="prior"), config, options)
    assert (found.attrs["epsilon"], found.attrs["delta"]) == (same.attrs["epsilon"], same.attrs["delta"])
    assert groups_of(found) == groups_of(same) == {"posterior", "federation"}


def test_sites_of_an_earlier_run_are_where_the_next_one_begins(flower, tmp_path):
    model, files = flower.write_case(tmp_path, {"FedEP": ""})
    before = quiet_serve(flower, flower.grid(model, files), model, files["FedEP"], checkpoint=str(tmp_path / "kept"))
    after = quiet_serve(flower, flower.grid(model, files), model, files["FedEP"], start=str(tmp_path / "kept"))
    assert len(after.federation["round"]) == 1 < len(before.federation["round"])
    np.testing.assert_allclose(after.posterior["w"].values, before.posterior["w"].values, rtol=1e-9)
