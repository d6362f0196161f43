"""The command `compare` and its page, which is also opened by a browser where there is one."""

import re
import shutil
import subprocess
import warnings

import pytest
from click.testing import CliRunner
from test_cli import CONJUGATE

from pyro_fed.cli.main import main

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
CHEAP = {
    "svgd": {"num_particles": 40, "local_steps": 5},
    "nuts": {"num_samples": 60, "warmup_steps": 40, "num_chains": 2},
}


def call(*arguments):
    settings = [f"--set={name}.{key}={value}" for name, each in CHEAP.items() for key, value in each.items()]
    with warnings.catch_warnings():
        warnings.simplefilter("always")  # short runs warn, and the command shows it
        return CliRunner().invoke(main, ["compare", *map(str, arguments), *settings])


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    (folder / "my_mean.py").write_text(CONJUGATE)
    page = folder / "new" / "report.html"
    options = ("--reference", "nuts", "--clients", 2, "--quiet", "--out", page)
    result = call(folder / "my_mean.py", "svgd", *options)
    assert result.exit_code == 0, result.output
    return result.output, page


def test_the_table_is_printed(compared):
    output, page = compared
    for part in ("mean error", "sliced Wasserstein", "ELPD (LOO)", "RMSE", "sent by clients", str(page)):
        assert part in output
    rows = [line.split()[0] for line in output.splitlines() if line.strip().startswith(("svgd", "nuts"))]
    assert rows == ["svgd", "nuts"] * 4


def test_the_page_needs_no_other_file(compared):
    text = compared[1].read_text(encoding="utf-8")
    assert len(re.findall(r'src="data:image/svg\+xml;base64,', text)) >= 2
    assert re.findall(r'(?:src|href)="(?!data:)', text) == []
    for part in (
        "my_mean: 2 algorithms compared",
        "Can the results be trusted?",
        "<td>NUTS</td>",
        "10 rows over 2 clients",
    ):
        assert part in text


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_a_browser_shows_the_page(compared, tmp_path):
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--dump-dom"]
    shown = subprocess.run([BROWSER, *options, compared[1].as_uri()], capture_output=True, text=True, timeout=120)
    assert shown.returncode == 0
    assert shown.stdout.count("<tr") == 4 * 3  # the settings are a table too
    assert "Can the results be trusted?" in shown.stdout


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
