"""README says what its programs print: its table, its command, its first program, and a row that is run again."""

import contextlib
import importlib.util
import io
import json
import re
import shlex
from pathlib import Path

import pytest

import pyro_fed as pf
from pyro_fed.ops.arviz_versions import NEW

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text()
RECORD = json.loads((ROOT / "docs" / "comparison.json").read_text())


@pytest.fixture(scope="module")
def writer():
    spec = importlib.util.spec_from_file_location("comparison", ROOT / "docs" / "comparison.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_is_that_of_the_record(writer):
    assert writer.with_table(TEXT, RECORD) == TEXT, "run: python docs/comparison.py"


def test_the_record_is_of_the_command_that_make_demo_runs(writer):
    (command,) = re.findall(r"pyro-fed compare (.*?)\n\n", (ROOT / "Makefile").read_text(), re.DOTALL)
    words = [word for word in shlex.split(command.replace("\\\n", " ")) if word != "--apart"]
    recipes = words[1 : words.index("--reference")]
    options = list(zip(words[words.index("--reference") :: 2], words[words.index("--reference") + 1 :: 2], strict=True))
    given = dict(options)
    assert words[0] == RECORD["model"]
    assert {*recipes, given["--reference"]} == set(RECORD["results"]) == set(writer.NAMES)
    assert [value for name, value in options if name == "--set"] == RECORD["set"]
    shared = ("clients", "partition", "seed", "reference")
    assert [given[f"--{name}"] for name in shared] == [str(RECORD[name]) for name in shared]


def test_leave_one_out_has_the_same_rows_in_all_results():
    """Rows that are predicted with certainty are among them: 447, 453 and 452 rows of 455 were counted."""
    rows = set(re.findall(r"of (\d+) rows", json.dumps(RECORD)))
    assert rows == set(re.findall(r"([\d,]+) rows[),.;]", TEXT.partition("<!-- until here -->")[2].partition("## ")[0]))
    assert len(rows) == 1


@pytest.mark.filterwarnings("ignore:these draws are not the posterior's")
def test_a_row_that_is_run_again_costs_what_the_table_says():
    """The cheapest row that says much: FedEP with the FedLaplace that it starts from."""
    from pyro_fed.recipes import library, recipe
    from pyro_fed.recipes.experiment import build_federation

    module = library.load_model(RECORD["model"])
    fed, test = build_federation(module, RECORD["clients"], RECORD["partition"], RECORD["seed"])
    idata = pf.run(recipe.load("fedep").build(), fed, seed=RECORD["seed"], progress=False, audit=False)
    row, record = RECORD["results"]["fedep"], idata["federation"]
    found = pf.metrics.test_metrics(idata, fed, test)
    assert (record.sizes["round"], int(record["bytes_up"].sum())) == (row["rounds"], row["bytes_up"])
    assert found["accuracy"] == pytest.approx(row["accuracy"])
    assert found["log_predictive_density"] == pytest.approx(row["test_log_density"], abs=5e-4)  # three digits are shown


def numbers_and_words(text):
    """Numbers, and what stands between them."""
    pattern = r"-?\d+\.?\d*"
    return [float(one) for one in re.findall(pattern, text)], re.sub(r"\s+", " ", re.sub(pattern, "#", text)).strip()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_first_program_prints_what_stands_below_it():
    program, printed = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", TEXT, re.DOTALL).groups()
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(program, "README.md", "exec"), {"__name__": "readme"})
    expected, found = printed, out.getvalue()
    if NEW:  # ArviZ 1.x has other intervals
        expected, found = (text[text.index("  algorithm") :] for text in (expected, found))
    (values, words), (here, same) = numbers_and_words(expected), numbers_and_words(found)
    assert same == words
    assert here == pytest.approx(values, abs=0.02)  # the last digits are the processor's
