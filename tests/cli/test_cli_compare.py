"""The command `compare` and its page."""

import json
import re
import warnings

import click
import pytest
from click.testing import CliRunner
from test_cli import CONJUGATE

from pyro_fed.cli.main import main
from pyro_fed.cli.process import run_apart

CHEAP = {
    "svgd": {"num_particles": 40, "local_steps": 5},
    "nuts": {"num_samples": 60, "warmup_steps": 40, "num_chains": 2},
}


def call(*arguments, cheap=("svgd", "nuts")):
    settings = [f"--set={name}.{key}={value}" for name in cheap for key, value in CHEAP[name].items()]
    with warnings.catch_warnings():
        warnings.simplefilter("always")  # short runs warn, and the command shows it
        return CliRunner().invoke(main, ["compare", *map(str, arguments), *settings])


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    (folder / "my_mean.py").write_text(CONJUGATE)
    page = folder / "new" / "report.html"
    options = ("--reference", "nuts", "--clients", 2, "--quiet", "--report", page)
    result = call(folder / "my_mean.py", "svgd", *options)
    assert result.exit_code == 0, result.output
    return result.output, page


def test_the_table_is_printed(compared):
    output, page = compared
    for part in ("mean error", "sliced Wasserstein", "ELPD (LOO)", "RMSE", "sent by clients", str(page)):
        assert part in output
    rows = [line.split()[0] for line in output.splitlines() if line.strip().startswith(("svgd", "nuts"))]
    assert rows == ["svgd", "nuts"] * 5


def test_a_reference_in_a_process_of_its_own_is_the_same(compared, tmp_path):
    (tmp_path / "my_mean.py").write_text(CONJUGATE)
    result = call(tmp_path / "my_mean.py", "svgd", "--reference", "nuts", "--clients", 2, "--quiet", "--apart")
    assert result.exit_code == 0, result.output
    rows = [
        [line.split() for line in output.splitlines() if line.strip().startswith(("svgd", "nuts"))][:6]
        for output in (compared[0], result.output)
    ]
    assert len(rows[0]) == 6 and rows[0] == rows[1]  # closeness, density and predictions; the rest has times


def test_a_process_that_fails_is_said():
    with (
        pytest.raises(click.ClickException, match="ended with status 2"),
        run_apart(["gaussian_mean", "nuts", "--no-such-option"]) as result,
    ):
        result()


#: Ends in an error in its first round.
DIVERGES = """
description = "Steps that are far too long"
algorithm = "pyro_fed.infer:FedAvg"
[settings]
step_size = 1e6  # on purpose
batch_size = 2  # whose steps are of a fixed length
"""


def test_a_run_that_ends_in_an_error_costs_no_other(tmp_path):
    """One that diverged has its last state in the table; a reference that takes too long has nothing."""
    (tmp_path / "my_mean.py").write_text(CONJUGATE)
    (tmp_path / "bad.toml").write_text(DIVERGES)
    given = [tmp_path / "my_mean.py", "svgd", tmp_path / "bad.toml", "--clients", 2, "--quiet"]
    options = ["--json", "--report", tmp_path / "page.html", "--out", tmp_path / "kept"]
    result = call(*given, *options, cheap=["svgd"])
    assert result.exit_code == 1
    said = json.loads(result.stdout)
    assert "left the finite numbers" in said["errors"]["bad"]
    assert list(said["results"]) == ["svgd", "bad"]
    assert "ended in an error: bad" in (tmp_path / "page.html").read_text()
    assert (tmp_path / "kept" / "svgd.nc").exists()
    assert "bad ended in an error" in result.stderr


def test_a_reference_without_a_result_costs_no_other(tmp_path):
    (tmp_path / "my_mean.py").write_text(CONJUGATE)
    (tmp_path / "peers.toml").write_text(DIVERGES.replace("FedAvg", "P2PFedAvg"))  # without a graph
    options = ("--clients", 2, "--quiet", "--reference", tmp_path / "peers.toml")
    result = call(tmp_path / "my_mean.py", "svgd", *options, cheap=["svgd"])
    assert result.exit_code == 1
    assert "peers ended in an error: P2PFedAvg" in result.stderr
    assert "nothing was compared with it" in result.stderr
    assert "svgd" in result.stdout


def test_apart_needs_a_reference():
    result = call("gaussian_mean", "fedep", "--apart")
    assert result.exit_code == 2 and "pass --reference" in result.output


def test_the_page_needs_no_other_file(compared):
    text = compared[1].read_text(encoding="utf-8")
    assert text.count('<svg class="figure"') >= 6
    assert re.findall(r'(?:src|href)="(?!#)', text) == []
    for part in (
        "my_mean: 2 algorithms compared",
        "Can the results be trusted?",
        "<td>NUTS</td>",
        "10 rows over 2 clients",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("svgd", "--set", "num_particles=5"), "expected RECIPE.KEY=VALUE"),
        (("svgd", "--reference", "nutz"), "no recipe 'nutz'"),
        (("svgd", "--set", "svgd.num_partcles=5"), "unknown key 'num_partcles'"),
    ],
)
def test_mistakes(arguments, part):
    result = CliRunner().invoke(main, ["compare", "gaussian_mean", *arguments])
    assert result.exit_code == 2
    assert part in result.stderr.splitlines()[-1]


def test_recipes_that_would_have_one_name_are_refused(tmp_path):
    """A recipe that was copied and changed, beside the one that it was copied from."""
    (tmp_path / "svgd.toml").write_text(DIVERGES)
    result = call("gaussian_mean", "svgd", tmp_path / "svgd.toml")
    assert result.exit_code == 2 and "would both be called 'svgd': rename the file" in result.output


def test_a_file_that_cannot_be_written_is_told_with_its_own_option(tmp_path):
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(main, ["run", "gaussian_mean", "svgd", "--report", str(tmp_path / "file" / "x.html")])
    assert result.exit_code == 2 and "--report=" in result.output and "--out=" not in result.output
