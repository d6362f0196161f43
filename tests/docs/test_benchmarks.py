"""Every benchmark can be imported under the package as it is, and `benchmarks/README.md` lists it.

A folder with a `__main__.py` is one benchmark; in the others each file is one. `papers` and `accuracy` are both:
scripts, and a command of their folder.
"""

import importlib
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
DOCS = FOLDER.parent / "docs"
PAPERS = FOLDER / "papers"
COMMANDS = sorted(path.parent for path in FOLDER.glob("*/__main__.py"))
WHOLE = [folder for folder in COMMANDS if folder.name not in ("accuracy", "papers")]
#: What `benchmarks.accuracy` runs.
CASES = FOLDER / "accuracy" / "cases.py"
SCRIPTS = sorted(
    path
    for path in FOLDER.glob("*/*.py")
    if path.stem not in ("__init__", "__main__")
    and path.parent.name != "helpers"
    and path.parent not in WHOLE
    and path != CASES
)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_it_is_imported_and_has_a_main(path):
    name = f"benchmarks.{path.parent.name}.{path.stem}"
    assert callable(importlib.import_module(name).main)
    assert f"python -m {name}" in path.read_text(), "the header does not say how to run it"


@pytest.mark.parametrize("folder", COMMANDS, ids=lambda folder: folder.name)
def test_a_folder_that_is_one_benchmark_is_imported_and_listed(folder):
    assert callable(importlib.import_module(f"benchmarks.{folder.name}.__main__").main)
    command = f"python -m benchmarks.{folder.name}"
    assert command in (folder / "__main__.py").read_text(), "the header does not say how to run it"
    assert f"`{command}`" in (FOLDER / "README.md").read_text()


def test_the_readme_lists_all_of_them_and_no_others():
    text = (FOLDER / "README.md").read_text()
    sections = re.split(r"^## (\w+)/$", text, flags=re.M)[1:]
    listed = {
        (folder, name)
        for folder, section in zip(sections[::2], sections[1::2], strict=True)
        for name in re.findall(r"^\| `(\w+)", section, flags=re.M)
        if name != "python"
    }
    assert listed == {(path.parent.name, path.stem) for path in SCRIPTS}


def test_one_command_runs_every_script_of_the_papers(tmp_path, capsys):
    every = importlib.import_module("benchmarks.papers.__main__")
    scripts = {path.stem for path in SCRIPTS if path.parent == PAPERS} - {"mutations"}  # that runs tests, no figures
    assert {item.module for item in every.ITEMS.values()} == scripts
    assert {item.paper for item in every.ITEMS.values()} == {path.stem for path in (DOCS / "papers").glob("*.md")}
    quick = ["--only", "fsgld_figure_1", "--out", str(tmp_path)]
    assert every.main(quick) == 0
    assert "DSGLD over SGLD: 1.69" in (tmp_path / "fsgld_figure_1.txt").read_text()
    assert every.main(quick) == 0
    assert "there already" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="no such items"):
        every.main(["--only", "figure_99"])


def test_every_mutation_of_an_equation_has_its_place_and_its_tests():
    package, tests = FOLDER.parent / "pyro_fed", FOLDER.parent / "tests"
    module = importlib.import_module("benchmarks.papers.mutations")
    for equation in module.EQUATIONS:
        assert (tests / equation.tests[0]).is_file()
        for parts in equation.mutations:
            _, before, after = module.Mutation(*parts).mutated(package)
            assert before != after


@pytest.mark.parametrize(
    ("figures", "doubts", "said"),
    [
        ((0.1, 0.9, 1.1), [], "right"),
        ((0.1, 0.9, 1.1), ["some_code"], "right (some_code)"),
        ((0.7, 0.9, 1.1), [], "0.7; 0.9 to 1.1 (NOT SAID)"),
        ((0.1, 0.7, 1.1), ["some_code", "some_code"], "0.1; 0.7 to 1.1 (some_code)"),
        ((0.1, 0.0, 0.0), [], "0.1; a point"),
        ((0.1, 0.0, 0.0), ["some_code"], "0.1; a point (some_code)"),
        ((0.7, 0.0, 0.0), ["some_code"], "0.7; a point (some_code)"),
        ((0.7, 0.0, 0.0), [], "0.7; a point (NOT SAID)"),
    ],
)
def test_the_table_of_recipes_has_the_doubts_of_each_result_and_says_where_there_are_none(figures, doubts, said):
    cell = importlib.import_module("benchmarks.papers.recipes").cell
    record = dict(zip(("error", "sd_low", "sd_high"), figures, strict=True))
    assert cell({**record, "doubts": doubts, "interrupted": False}) == said
