"""A run's configuration in Flower: what `run` takes, and nothing else."""

from importlib.util import find_spec

import pytest
from click.testing import CliRunner

import pyro_fed as pf
from pyro_fed.cli.main import main
from pyro_fed.errors import PyroFedError, SettingError
from pyro_fed.recipes import recipe

pytestmark = [
    pytest.mark.flower,
    pytest.mark.xdist_group("flower"),
    pytest.mark.skipif(find_spec("flwr") is None, reason="needs Flower"),
]


@pytest.fixture(scope="module")
def read():
    from pyro_fed.deployment.flower.configuration import read_configuration

    return read_configuration


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "lacks num-clients"),
        ({"num-clients": 0}, "num-clients must be at least 1"),
        ({"num-clients": 3, "min-client": 2}, "unknown key 'min-client'; did you mean 'min-clients'"),
        ({"num-clients": 3, "min_clients": 2}, "unknown key 'min_clients'; did you mean 'min-clients'"),
        ({"num-clients": 3, "min-clients": 1.5}, "'min-clients' expects int, received 1.5"),
        ({"num-clients": "3"}, "'num-clients' expects int, received '3'"),
        ({"num-clients": True}, "'num-clients' expects int, received True"),
        ({"num-clients": 3, "timeout": -1.0}, "timeout must be positive"),
        ({"num-clients": 3, "wait": float("nan")}, "wait must be positive"),
        ({"num-clients": 3, "resume": "yes"}, "'resume' expects bool, received 'yes'"),
        ({"num-clients": 3, "schedule": 3}, "'schedule' expects a name or a table, received 3"),
        ({"num-clients": 3, "schedule": "{name ="}, "is not a table of TOML"),
        ({"num-clients": 3, "schedule": "all", "schedule.name": "all"}, "is a value and a table"),
        ({"num-clients": 3, "out": "/dev/null/x.nc"}, "cannot be written"),
    ],
)
def test_what_is_refused(read, config, message):
    with pytest.raises(SettingError, match=message):
        read(config)


def test_every_key_and_its_place(read, tmp_path):
    out = str(tmp_path / "x.nc")
    config = {
        "num-clients": 3, "rounds": 7, "num-draws": 50, "seed": 2, "timeout": 5, "wait": 2.5, "compile": "off",
        "min-clients": 2, "checkpoint": "kept", "resume": True, "start": "none", "audit": False, "out": out,
        "schedule.name": "uniform_random", "schedule.clients_per_round": 2, "combination": "{name='clipped', norm=1}",
    }  # fmt: skip
    found = read(config, {"seed": 9, "schedule": pf.schedule.All(), "evaluate_every": 2})
    assert (found.num_clients, found.timeout, found.wait, found.out) == (3, 5.0, 2.5, out)
    algorithm, options = found.run_options(recipe.load("fedsep"), 3)
    assert type(algorithm).__name__ == "FedSEP"
    assert options == {
        "num_rounds": 7, "num_draws": 50, "seed": 2, "compile": "off", "min_clients": 2, "checkpoint": "kept",
        "resume": True, "audit": False, "evaluate_every": 2, "schedule": pf.schedule.UniformRandom(2),
        "combination": pf.combination.Clipped(norm=1),
    }  # fmt: skip


def test_what_is_not_set_is_the_apps_or_the_recipes(read):
    unset = {"num-clients": 2, "rounds": 0, "min-clients": "none", "checkpoint": "", "graph": "none", "combination": ""}
    found = read(unset, {"min_clients": 2, "combination": pf.combination.Median()})
    _, options = found.run_options(recipe.load("p2p_vi"), 4)
    assert options["graph"].num_agents == 4
    assert (options["min_clients"], options["combination"]) == (2, pf.combination.Median())
    assert "checkpoint" not in options


def test_objects_by_name(read):
    config = {"num-clients": 2, "combination": "{name = 'private', norm = 1.0, noise_multiplier = 2, delta = 1e-3}"}
    _, options = read(config).run_options(recipe.load("fedsep"), 2)
    assert options["combination"] == pf.Private(norm=1.0, noise_multiplier=2, delta=1e-3)
    for key, name, nearest in (("schedule", "round_robbin", "round_robin"), ("combination", "medain", "median")):
        with pytest.raises(SettingError, match=f"did you mean '{nearest}'"):
            read({"num-clients": 2, key: name}).run_options(recipe.load("fedsep"), 2)


def test_rounds_of_a_plan_are_a_limit(read):
    algorithm, options = read({"num-clients": 2, "rounds": 3}).run_options(recipe.load("auto"), 2)
    assert algorithm.max_rounds == 3
    assert "num_rounds" not in options


def test_the_apps_own_arguments():
    from pyro_fed.deployment.flower import server_app

    with pytest.raises(SettingError, match="no argument 'min_client'; did you mean 'min_clients'"):
        server_app("linear_regression", "fedep", min_client=2)
    with pytest.raises(SettingError, match="does not take executor=: the clients' nodes do the work"):
        server_app("linear_regression", "fedep", executor="vectorised")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"min-clients": 4}, "min_clients must lie in 0..3, received 4"),
        ({"rounds": -1}, "num_rounds must be at least 1"),
        ({"seed": -1}, "seed must not be negative"),
        ({"resume": True}, "resume = true needs checkpoint"),
        ({"resume": True, "checkpoint": "{folder}/none"}, "holds no state to resume from"),
        ({"checkpoint": "{folder}"}, "holds the state of a run: pass resume=True"),
        ({"start": "{folder}/none"}, "no state in .*none can be read: there is none"),
        ({"max_seconds": -1.0}, "max_seconds must be positive"),
    ],
)
def test_what_run_would_refuse_is_refused_before_anybody_is_waited_for(read, config, message, tmp_path):
    from pyro_fed.deployment.flower.server import serve

    (tmp_path / "round-00000001.safetensors").write_bytes(b"")
    given = {key: value.format(folder=tmp_path) if isinstance(value, str) else value for key, value in config.items()}
    own = {"max_seconds": given.pop("max_seconds")} if "max_seconds" in given else {}  # an argument of server_app
    with pytest.raises(PyroFedError, match=message):
        serve(None, "linear_regression", "fedep", read({"num-clients": 3, **given}, own))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("torch", "there is a package 'torch' already"),
        ("models", "there is a package 'models' already"),
        ("json", "there is a package 'json' already"),
        ("pyro-fed", "there is a package 'pyro_fed' already"),
        ("class", "'class' is a keyword of Python"),
        ("match", "'match' is a keyword of Python"),
        ("1st", "the app gets the name of its folder"),
    ],
)
def test_names_that_would_hide_or_break_something(name, message, tmp_path):
    arguments = ["flower", "new", str(tmp_path / name), "--model", "linear_regression", "--recipe", "fedep"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert not (tmp_path / name).exists()


def test_a_recipe_that_needs_all_rows_makes_no_app(tmp_path):
    arguments = ["flower", "new", str(tmp_path / "app"), "--model", "linear_regression", "--recipe", "nuts"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert "NUTS needs all rows in one place" in " ".join(result.output.split())
    assert not (tmp_path / "app").exists()


def test_a_new_app_has_every_key_and_what_is_written_is_read(read, tmp_path):
    """A quote in the recipe's name, which stands in the description; and each key of the configuration."""
    import ast
    import tomllib

    from pyro_fed.deployment.flower.configuration import LOO, OBJECTS, PLAIN, SECURE

    odd = tmp_path / 'say "so".toml'
    odd.write_text('algorithm = "pyro_fed.infer:FedEP"\n')
    app = tmp_path / "my-app"
    arguments = ["flower", "new", str(app), "--model", "linear_regression", "--recipe", str(odd), "--clients", "3"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    project = tomllib.loads((app / "pyproject.toml").read_text())
    assert project["project"]["description"] == 'say "so" on linear_regression, by pyro_fed'
    config = project["tool"]["flwr"]["app"]["config"]
    assert set(config) == {*PLAIN, *OBJECTS, SECURE, LOO}
    assert read(config | {"out": str(tmp_path / "x.nc")}).num_clients == 3
    for file in (app / "my_app").glob("*.py"):
        ast.parse(file.read_text())
    assert 'say "so"' in ast.get_docstring(ast.parse((app / "my_app" / "__init__.py").read_text()))
