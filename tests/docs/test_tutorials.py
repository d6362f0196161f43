"""The tutorials run, in their fast setting; what they claim, they assert themselves."""

import runpy
import warnings
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "tutorials"
TUTORIALS = sorted(FOLDER.glob("[0-9]*.py"))


def test_there_are_nine():
    assert [path.name[:2] for path in TUTORIALS] == [f"0{i}" for i in range(1, 10)]


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
@pytest.mark.usefixtures("close_figures")
def test_it_is_a_notebook_and_runs(path, monkeypatch):
    import jupytext  # takes a fifth of a second

    notebook = jupytext.read(path)
    assert notebook.cells[0].cell_type == "markdown"
    assert notebook.cells[0].source.startswith("# ")
    assert any("assert" in cell.source for cell in notebook.cells) or path.name[:2] in ("01", "07", "09")
    monkeypatch.setenv("PYRO_FED_FAST", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names = runpy.run_path(str(path))
    assert "pf" in names
