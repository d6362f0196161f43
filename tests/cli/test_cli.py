"""The command line, from the outside."""

from __future__ import annotations

import errno
import tomllib
import warnings

import pytest
from click.testing import CliRunner
from late import late

from pyro_fed.cli.main import main
from pyro_fed.recipes import library

az = late("arviz")

SMALL = ["--set", "num_particles=8", "--set", "local_steps=5", "--set", "distill_steps=5", "--rounds", "3"]

CONJUGATE = '''"""A mean with a Normal prior.

Ten rows, four for the test.
"""

import pyro
import pyro.distributions as dist
import torch

PLATE = "data"


def model(y):
    mu = pyro.sample("mu", dist.Normal(y.new_tensor(0.0), 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def load_data():
    y = torch.linspace(-1.0, 1.0, 14)
    return (y[:10],), (y[10:],)
'''


def call(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def model_file(tmp_path):
    path = tmp_path / "my_mean.py"
    path.write_text(CONJUGATE)
    return path


@pytest.fixture
def warnings_shown():
    """Warnings of a short run are shown to the user, as without pytest, and are no errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        yield


def test_help_names_every_command():
    result = call("--help")
    assert result.exit_code == 0
    assert [name for name in ("run", "list", "show") if f"\n  {name} " not in result.output] == []


def test_a_reader_who_has_seen_enough_is_told_nothing(monkeypatch):
    """`pyro-fed list | head -1`: the pipe is closed before everything is written."""

    def closed(*_, **__):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("click.echo", closed)
    result = call("list")
    assert result.exit_code == 1 and result.output == ""


def test_list_describes_models_recipes_and_algorithms():
    result = call("list")
    assert result.exit_code == 0
    for name, path in library.list_models().items():
        assert name in result.output
        assert library.model_description(path) in result.output
    for name, path in library.list_recipes().items():
        assert name in result.output
        assert tomllib.loads(path.read_text(encoding="utf-8"))["description"] in result.output
    algorithms = result.output.split("Algorithms")[1]
    assert {"SVGD", "DSVGD", "UDSVGD"} <= set(algorithms.split())


@pytest.mark.parametrize("name", sorted(library.list_recipes()))
def test_show_prints_the_recipe_and_the_other_defaults(name):
    result = call("show", name)
    assert result.exit_code == 0
    original = library.find_recipe(name).read_text(encoding="utf-8")
    assert original.rstrip() in result.output
    assert tomllib.loads(result.output) == tomllib.loads(original)
    assert "leaves at their defaults" in result.output
    if name == "fedep_m":
        assert "# client.shrinkage = 1.0" in result.output.splitlines()


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["run", "logistic_regresion", "dsvgd"], ["no model", "did you mean 'logistic_regression' or"]),
        (["run", "logistic_regression", "dsvdg"], ["no recipe 'dsvdg'", "'dsvgd'"]),
        (["show", "absent.toml"], ["absent.toml", "does not exist"]),
        (
            ["run", "logistic_regression", "dsvgd", "--set", "num_partcles=5"],
            ["unknown key 'num_partcles' of DSVGD", "num_particles"],
        ),
        (
            ["run", "logistic_regression", "dsvgd", "--set", "step_size=big"],
            ["'step_size'", "float", "'big'"],
        ),
        (["run", "logistic_regression", "dsvgd", "--set", "step_size"], ["expected key=value"]),
        (["run", "logistic_regression", "dsvgd", "--set", "num_particles=1"], ["num_particles", "1"]),
        (
            ["run", "logistic_regression", "fedep_m", "--set", "client.stps=1"],
            ["--set client", "'stps' of MCMC", "'steps'"],
        ),
        (["run", "logistic_regression", "fedep", "--set", "client=mcm"], ["--set", "'mcm'", "did you mean 'mcmc'?"]),
        (
            ["run", "logistic_regression", "dsvgd", "--partition", "dirichle:1"],
            ["partition 'dirichle:1' cannot be parsed"],
        ),
        (["run", "logistic_regression", "dsvgd", "--clients", "100000"], ["100000"]),
        (["run", "logistic_regression", "dsvgd", "--clients", "0"], ["--clients"]),
        (["run", "logistic", "dsvgd"], ["no model 'logistic': did you mean ", "'logistic_regression'"]),
        (["run", "logistic_regression", "dsvgd", "--rounds", "0"], ["--rounds"]),
    ],
)
def test_a_mistake_gets_one_line_and_exit_code_2(arguments, parts):
    result = call(*arguments)
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    error = result.stderr.splitlines()[-1]
    assert error.startswith("Error: ")
    for part in parts:
        assert part in error


def test_run_prints_everything_and_writes_the_result(model_file, tmp_path, warnings_shown):
    out = tmp_path / "new" / "result.nc"
    result = call("run", model_file, "dsvgd_paper", "--clients", 2, "--seed", 3, "--quiet", "--out", out, *SMALL)
    assert result.exit_code == 0, result.output
    blocks = ("Posterior", "mu", "log predictive density", "RMSE", "sent by the clients", "time")
    for part in ("my_mean: A mean with a Normal prior.", "num_particles=8", "2, 5 rows each (iid)", *blocks):
        assert part in result.output
    assert "; the others at their defaults" in " ".join(result.output.split())
    rounds = next(line for line in result.output.splitlines() if line.strip().startswith("rounds"))
    assert rounds.split() == ["rounds", "3"]
    written = az.from_netcdf(str(out))
    assert written["posterior"]["mu"].shape == (1, 8)
    table = result.output.split("Posterior")[1].splitlines()
    mean = next(float(line.split()[1]) for line in table if line.split()[:1] == ["mu"])
    assert mean == pytest.approx(float(written["posterior"]["mu"].mean()), rel=5e-3, abs=5e-3)


def test_run_without_a_recipe_says_what_it_did(model_file, warnings_shown):
    result = call("run", model_file, "--clients", 2, "--quiet")
    assert result.exit_code == 0, result.output
    done = result.output.split("What was done")[1].split("Posterior")[0]
    assert [line.split()[0] for line in done.splitlines() if "rounds" in line] == ["FedEP"]
    assert "(chosen): nothing speaks against it" in " ".join(done.split())
    assert result.output.split("Doubts")[1].split()[0] == "none"


def test_rounds_without_a_recipe_are_those_of_all_it_tries(model_file, warnings_shown):
    result = call("run", model_file, "--clients", 2, "--quiet", "--rounds", 2)
    assert result.exit_code == 0, result.output
    assert "ended by the budget, max_rounds=2" in " ".join(result.output.split("Doubts")[1].split())


def test_run_measures_the_accuracy_of_a_classifier(warnings_shown):
    result = call("run", "logistic_regression", "dsvgd_paper", "--clients", 3, "--quiet", "--parameters", 2, *SMALL)
    assert result.exit_code == 0, result.output
    accuracy = next(line.split() for line in result.output.splitlines() if line.strip().startswith("accuracy"))
    assert 0 <= float(accuracy[1]) <= 100
    assert "... and 30 more" in result.output


def test_run_without_test_data(warnings_shown):
    result = call("run", "gaussian_mixture_1d", "dsvgd_paper", "--clients", 2, "--quiet", *SMALL)
    assert result.exit_code == 0, result.output
    assert "none: this model has nothing to predict" in result.output


def test_a_divergence_is_one_line_and_exit_code_1(model_file, warnings_shown):
    result = call("run", model_file, "dsvgd_paper", "--clients", 2, "--quiet", "--set", "step_size=1e38", *SMALL)
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    error = result.stderr.splitlines()[-1]
    assert error.startswith("Error: ")
    assert "client 0, round " in error


def test_the_seed_decides_the_result(model_file, warnings_shown):
    def run(seed):
        output = call("run", model_file, "dsvgd_paper", "--clients", 2, "--quiet", "--seed", seed, *SMALL).output
        return output.split("Cost")[0]

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_warnings_are_one_line_each(model_file, warnings_shown):
    model_file.write_text(
        CONJUGATE.replace(
            "def load_data():\n", "def load_data():\n    import warnings\n    warnings.warn('odd\\ndata')\n"
        )
    )
    result = call("run", model_file, "dsvgd_paper", "--clients", 2, "--quiet", *SMALL)
    assert result.exit_code == 0, result.output
    assert "Warning: odd data" in result.stderr.splitlines()
