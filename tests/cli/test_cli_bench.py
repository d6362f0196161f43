"""The command `bench`."""

import json

from click.testing import CliRunner

from pyro_fed.cli.main import main

EXACT = '''"""The answer itself."""
import torch


def run(model, clients):
    s, y = clients.pooled
    precision = 0.01 + (s**-2).sum()
    mean = (y * s**-2).sum() / precision
    return {"theta": mean + torch.randn(1, 1000) / precision.sqrt()}
'''


def test_a_table_a_page_and_a_file(tmp_path):
    adapter = tmp_path / "exact.py"
    adapter.write_text(EXACT)
    out = tmp_path / "out"
    options = ["bench", "--cases", "gaussian_mean", "--partitions", "iid/2", "--algorithms", str(adapter)]
    result = CliRunner().invoke(main, [*options, "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "exact" in result.output and "benchmark.html" in result.output
    assert (out / "benchmark.html").is_file() and len(list((out / "cells").iterdir())) == 1
    (cell,) = json.loads((out / "benchmark.json").read_text())["cells"]
    assert cell["outcome"] == "right"

    for one in (out / "cells").iterdir():
        one.unlink()  # a checkout has the table alone
    again = CliRunner().invoke(main, [*options, "--out", str(out), "--json", "--minutes", "0", "--quiet"])
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["cells"] == [cell]

    wrong = CliRunner().invoke(main, ["bench", "--cases", "nothing", "--out", str(out), "--minutes", "0"])
    assert wrong.exit_code == 2 and "no case 'nothing'" in wrong.output
