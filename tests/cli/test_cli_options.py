"""Options of the shell for programs, machines and runs that go on."""

import inspect
import json
import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

import pyro_fed as pf
from pyro_fed.cli.main import main
from pyro_fed.cli.process import typed_command

RUN = ("run", "gaussian_mean", "fedep", "--clients", "3", "--rounds", "2")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def call(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)))


def values(*arguments):
    result = call(*arguments, "--json", "-q")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def commands(group, name=()):
    for key, command in group.commands.items():
        yield from commands(command, (*name, key)) if isinstance(command, click.Group) else [((*name, key), command)]


def test_a_file_of_data_is_data_and_rows_are_rows():
    """`--data` names a site's file in every command; `rows=` says which rows of nested plates belong together."""
    options = {
        (command, option): one.help or ""
        for command, given in commands(main)
        for one in given.params
        if isinstance(one, click.Option) and not one.hidden
        for option in one.opts
    }
    assert not [one for one in options if one[1] == "--rows"]
    files = {one for one, text in options.items() if re.search(r"'s rows[:,]|own Python file", text)}
    assert files == {one for one in options if one[1] == "--data"}
    assert {command for command, _ in files} == {
        ("agent",), ("study", "answer"), ("node", "approve"), ("node", "effects"), ("node", "flower")
    }  # fmt: skip
    takes_rows = {
        f"{where}.{name}": str(parameter.annotation)
        for where, place in (("pf", pf), ("pf.codebook", pf.codebook))
        for name in place.__all__
        if callable(one := getattr(place, name)) and not inspect.isclass(one)
        for parameter in inspect.signature(one).parameters.values()
        if parameter.name == "rows"
    }
    assert not [name for name, kind in takes_rows.items() if "Path" in kind]
    assert "Mapping" in str(inspect.signature(pf.Federation).parameters["rows"].annotation)


def test_json_has_what_the_text_says():
    found = values(*RUN)
    assert found["attributes"]["algorithm"] == "FedEP" and found["attributes"]["interrupted"] == 0
    assert all({"mean", "sd"} <= set(row) for row in found["posterior"].values())
    assert found["cost"]["bytes_up"] > 0 and isinstance(found["doubts"], list)


def test_json_of_a_point_has_its_value():
    found = values("run", "gaussian_mean", "fedavg", "--clients", "3", "--rounds", "2")
    assert all(set(row) == {"value"} for row in found["posterior"].values())


def test_json_of_a_comparison():
    result = call("compare", "gaussian_mean", "fedep", "--clients", "3", "--json", "-q")
    found = json.loads(result.stdout)
    assert (found["model"], found["clients"], list(found["results"])) == ("gaussian_mean", 3, ["fedep"])
    assert isinstance(found["results"]["fedep"]["warnings"], list)


def test_executors_agree_and_a_graph_is_taken():
    one, other = (values(*RUN, "--executor", name)["posterior"] for name in ("vectorised", "sequential"))
    assert one.keys() == other.keys()
    for name, row in one.items():
        assert row == pytest.approx(other[name], rel=1e-6)
    found = values("run", "gaussian_mean", "p2p_vi", "--clients", "4", "--rounds", "2", "--graph", "complete")
    assert found["attributes"]["algorithm"] == "P2PVI"


def test_a_run_goes_on_from_its_checkpoint(tmp_path):
    folder = tmp_path / "state"
    whole = values(*RUN, "--checkpoint", folder)
    again = values(*RUN, "--checkpoint", folder, "--resume")
    assert again["posterior"] == whole["posterior"]


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (("--device", "cuda:99"), "torch has no such device here"),
        (("--executor", "fast"), "expected vectorised, vectorized, sequential or ray:N"),
        (("--executor", "ray:0"), "expected vectorised, vectorized, sequential or ray:N"),
        (("--executor", "ray:²"), "expected vectorised, vectorized, sequential or ray:N"),
        (("--graph", "rnig"), "has no 'rnig'"),
        (("--graph", "erdos_renyi:often"), "expected numbers after the colon"),
        (("--resume",), "--resume needs --checkpoint DIR"),
    ],
)
def test_mistakes(options, part):
    result = call(*RUN, "-q", *options)
    assert result.exit_code == 2
    assert part in result.stderr.splitlines()[-1]


def test_doctor_says_versions_machine_and_extras():
    result = call("doctor")
    assert result.exit_code == 0, result.output
    assert "torch" in result.output and "GPU" in result.output
    found = json.loads(call("doctor", "--json").stdout)
    assert set(found) == {"versions", "machine", "extras"} and found["versions"]["arviz"][0] in "01"


def test_a_run_writes_its_page(tmp_path):
    page = tmp_path / "run.html"
    result = call(*RUN, "-q", "--report", page)
    assert result.exit_code == 0, result.output
    text = page.read_text(encoding="utf-8")
    for part in ("gaussian_mean: fedep", "over 3 clients", "Who holds what", "pyro_fed "):
        assert part in text
    assert "Cannot be drawn" not in text


@pytest.mark.parametrize(
    ("words", "begun", "expected"),
    [
        (["run"], "logistic", ["logistic_regression"]),
        (["run", "gaussian_mean"], "dsvgd_p", ["dsvgd_paper"]),
        (["compare", "gaussian_mean", "fedep"], "fedlapl", ["fedlaplace"]),
        (["compare", "gaussian_mean", "fedep", "--reference"], "nu", ["nuts"]),
        (["run"], "no_such", ["no_such"]),  # a file, which the shell completes
    ],
)
def test_names_are_completed(words, begun, expected):
    from click.shell_completion import ShellComplete

    found = ShellComplete(main, {}, "pyro-fed", "_PYRO_FED_COMPLETE").get_completions(words, begun)
    assert [item.value for item in found if item.value.startswith(begun)] == expected
    assert all(item.type == ("file" if begun == "no_such" else "plain") for item in found)


MODEL = '''
"""Pressure by age."""
import pandas as pd
import pyro
import pyro.distributions as dist

PLATE = "patients"


def model(hospital, age, pressure):
    level = pyro.sample("level", dist.Normal(130.0, 20.0))
    slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
    with pyro.plate("patients", len(age)):
        pyro.sample("pressure", dist.Normal(level + slope * (age - 60.0), 9.0), obs=pressure)


def load_data():
    patients = pd.DataFrame({"hospital": ["K\u00f6ln", "Bern", "Bern"] * 8, "age": [50.0, 60.0, 71.0] * 8})
    patients["pressure"] = 70 + patients["age"]
    return tuple(patients[name] for name in patients), None
'''


def test_clients_are_the_values_of_a_named_column(tmp_path):
    (tmp_path / "pressure.py").write_text(MODEL, encoding="utf-8")
    run = ("run", tmp_path / "pressure.py", "fedep", "--clients", "2", "--rounds", "1")
    found = values(*run, "--partition", "group:hospital")
    assert found["attributes"]["num_clients"] == 2
    result = call(*run, "--partition", "group:ward")
    assert result.exit_code == 2 and "there is no column 'ward'; there are ['hospital', 'age'" in result.stderr


def test_a_page_names_no_folder_of_the_machine(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = [
        "run",
        f"{tmp_path}/models/mine.py",
        f"--out={tmp_path}/a.nc",
        "--report",
        "/elsewhere/b.html",
        "--parameters",
        "3",
    ]
    monkeypatch.setattr("sys.argv", ["pyro-fed", *words])
    assert typed_command() == "pyro-fed run models/mine.py --out=a.nc --report b.html --parameters 3"


@pytest.mark.parametrize(
    "words", [["show", "fedpe"], ["run", "gaussian_mean", "fedpe"], ["compare", "a", "fedep", "fedpe"]]
)
def test_a_misspelt_recipe_is_answered_without_torch(words):
    program = "import sys\nfrom pyro_fed.cli.main import main\ntry:\n    main(sys.argv[1:])\n"
    program += "finally:\n    print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout.strip()) == (2, "False")
    assert "no recipe 'fedpe': did you mean" in found.stderr and "'fedep'" in found.stderr
