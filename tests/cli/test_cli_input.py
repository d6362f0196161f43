"""What the shell says of input that it cannot use: a line, and exit code 2; never a traceback, never work before it."""

import collections
import random
import textwrap
from pathlib import Path

import fuzzing_commands
import pytest
from click.testing import CliRunner

from pyro_fed.cli.main import main

MODEL = """
import pyro, torch, pyro.distributions as dist
PLATE = "data"
def model(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)
def load_data():
    x = torch.randn(12, 2, generator=torch.Generator().manual_seed(0))
    return (x, x.sum(1)), None
"""
RECIPE = 'algorithm = "pyro_fed.infer:FedAvg"\n[settings]\nchain_steps = 1\n[run]\nnum_rounds = 1\n'


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A folder with a model, a recipe, and bad ones."""
    monkeypatch.chdir(tmp_path)
    contents = {
        "model.py": MODEL,
        "recipe.toml": RECIPE,
        "raises.py": "raise KeyError('at import')",
        "no_data.py": MODEL + "def load_data():\n    raise OSError('no such table')\n",
        "odd_data.py": MODEL + "def load_data():\n    return 5\n",
        "odd_test.py": MODEL.replace("(x, x.sum(1)), None", "(x, x.sum(1)), (x,)"),
        "quits.py": "raise SystemExit(7)",
        "fails.py": MODEL.replace("x @ w", "x @ w.foo"),
        "deep.toml": "a = " + "[" * 5000 + "]" * 5000,
        "outside.toml": RECIPE.replace("pyro_fed.infer:FedAvg", "../x:Y"),
        "abstract.toml": RECIPE.replace("pyro_fed.infer:FedAvg", "pyro_fed.algorithm.contract:Algorithm"),
        "no_algorithm.toml": RECIPE.replace("pyro_fed.infer:FedAvg", "pyro_fed.algorithm.record:Record"),
        "range.toml": RECIPE.replace("chain_steps = 1", "chain_steps = -1"),
        "empty.toml": "",
        "binary.toml": "\udcff\x00",
    }
    for name, text in contents.items():
        (tmp_path / name).write_text(textwrap.dedent(text), errors="surrogateescape")
    return tmp_path


def shell(*arguments):
    return CliRunner().invoke(main, list(arguments))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "model.py", "recipe.toml", "--seed", "-5"], "-5 is not in the range"),
        (["run", "model.py", "deep.toml"], "nested too deeply"),
        (["run", "model.py", "outside.toml"], "a recipe imports nothing but pyro_fed.infer"),
        (["run", "model.py", "abstract.toml"], "is a base class of algorithms"),
        (["run", "model.py", "no_algorithm.toml"], "of Record"),
        (["run", "model.py", "range.toml"], "chain_steps must be a whole number of at least 1"),
        (["run", "model.py", "empty.toml"], "'algorithm' is missing"),
        (["run", "model.py", "binary.toml"], "is not a TOML file"),
        (["run", "model.py", "x" * 5000 + ".toml"], "no recipe"),
        (["run", "raises.py", "recipe.toml"], "KeyError: 'at import'"),
        (["run", "no_data.py", "recipe.toml"], "load_data() raised OSError: no such table"),
        (["run", "odd_test.py", "recipe.toml"], "odd_test.py: load_data() returns test data that cannot be used: the"),
        (["run", "quits.py", "recipe.toml"], "quits.py cannot be imported: SystemExit: 7"),
        (["run", "odd_data.py", "recipe.toml"], "load_data() must return (train, test)"),
        (["run", "fails.py", "recipe.toml"], "the model fails at"),
        (["run", "model.py", "recipe.toml", "--set", "chain_steps=" + "[" * 5000], "chain_steps"),
        (["run", "model.py", "recipe.toml", "--partition", "dirichlet:x"], "dirichlet"),
        (["run", "model.py", "recipe.toml", "--out", "model.py/"], "--out is the folder of the result"),
        (["run", "model.py", "recipe.toml", "--out", "/dev/full"], "the folder of the results, and 'full' is a file"),
        (["run", "model.py", "recipe.toml", "--out", "model.py/below.nc"], "cannot be written"),
        (["compare", "model.py", "recipe.toml", "--report", "/dev/full"], "No space left on device"),
        (["run", "model.py", "recipe.toml", "--out", "a.csv"], "or a NetCDF file, such as 'a.nc'"),
        (["run", "model.py", "recipe.toml", "--out", "a.zarr"], "to_zarr"),
        (["run", "model.py", "recipe.toml", "--report", "a.pdf"], "an HTML page, whatever its name: call it 'a.html'"),
        (["compare", "model.py", "recipe.toml", "--report", "a.nc"], "an HTML page"),
        (["compare", "model.py", "recipe.toml", "--out", "a.html"], "the results; the page is --report a.html"),
        (["compare", "model.py", "recipe.toml", "--out", "a.nc"], "--out is the folder of the results: call it 'a'"),
        (["bench", "--out", "a.html"], "--out is the folder of the results; call it 'a'"),
    ],
)
def test_one_line_and_exit_code_2(files, arguments, words):
    result = shell(*arguments)
    assert result.exit_code == 2, result.output
    assert words in " ".join(result.output.split())
    assert "Traceback" not in result.output
    assert "Run" not in result.output.split()  # nothing was begun


@pytest.mark.parametrize("command", [("compare", "--report"), ("run", "--report")])
def test_a_missing_extra_is_told_before_the_runs(files, monkeypatch, command):
    from importlib import util

    find = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name, *a: None if name == "jinja2" else find(name, *a))
    result = shell(command[0], "model.py", "recipe.toml", command[1], "r.html")
    assert (result.exit_code, "pip install 'pyro_fed[compare]'" in result.output) == (2, True)


@pytest.mark.filterwarnings("ignore:this point is not the posterior's mode")  # after one round
def test_a_name_that_no_terminal_can_show(files):
    result = shell("run", "model.py", "recipe.toml", "--quiet", "--out", "\udcff")
    assert result.exception is None and "Written to" in result.output and Path("\udcff/recipe.nc").is_file()


@pytest.mark.filterwarnings("ignore:this point is not the posterior's mode")  # after one round
def test_a_result_whose_file_cannot_be_written_after_all_is_kept(files, monkeypatch):
    import shutil

    import arviz as az

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    result = shell("run", "model.py", "recipe.toml", "--quiet", "--out", "result.nc")
    assert result.exit_code == 2
    kept = Path(result.output.split("The result is kept in ")[1].strip())
    assert "w" in az.from_netcdf(kept).posterior


def test_random_command_lines_models_and_recipes_end_well():
    """100 of them; a thousand with `python tests/helpers/fuzzing_commands.py`."""
    rng = random.Random(0)
    for _ in range(100):
        *what, wrong = fuzzing_commands.called(rng, collections.Counter())
        assert wrong is None, (what, wrong)
