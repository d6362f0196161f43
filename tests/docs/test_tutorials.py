"""The tutorials run, in their fast setting; what they claim, they assert themselves.

`docs/executed.py` runs each, or takes the run that the documentation has made of the same code.
"""

import ast
import importlib.util
import re
from pathlib import Path

import pytest
from late import late

style = late("pyro_fed.analysis.plots.style")

ROOT = Path(__file__).parents[2]
TUTORIALS = sorted((ROOT / "tutorials").glob("[0-9]*.py"))


def docs_module(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def executed():
    return docs_module("executed")


def shown_by_the_page_alone(notebook):
    """Cells with a value that is not printed, or a figure without `plt.show()`: a script shows neither."""
    found = []
    for cell in notebook.cells:
        statements = [ast.unparse(one) for one in ast.parse(cell.source).body] if cell.cell_type == "code" else []
        for output in cell.get("outputs", ()):
            is_figure = "figure-box" in output.get("data", {}).get("text/html", "")
            shown = "plt.show()" in statements if is_figure else statements[-1].startswith("print(")
            if output.output_type == "display_data" and not shown:
                found.append(cell.source)
    return found


def test_there_are_twelve():
    assert [path.name[:2] for path in TUTORIALS] == [f"{i:02}" for i in range(1, 13)]


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
@pytest.mark.usefixtures("close_figures")
def test_it_is_a_notebook_and_runs(executed, path):
    notebook = executed.executed(path, fast=True)
    assert notebook.cells[0].cell_type == "markdown"
    assert notebook.cells[0].source.startswith("# ")
    assert any("assert" in cell.source for cell in notebook.cells) or path.name[:2] in ("01", "07", "09")
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    figures = [one.data["text/html"] for one in outputs if "figure-box" in one.get("data", {}).get("text/html", "")]
    assert figures
    assert not shown_by_the_page_alone(notebook)
    for figure in figures:
        assert "#000000" not in figure and not any(light.lower() in figure for light in style.DARK)  # but variables
        assert re.search(r'aria-label="Figure: [^"]{10,}"', figure)


SCRIPT = """# %% [markdown]
# # A title
# Words first. And then others.

# %%
import matplotlib.pyplot as plt
import pandas as pd
from dataclasses import dataclass

@dataclass
class Kept:
    value: "int" = 3

def seven():
    return 7

print(seven())
print(Kept())

# %%
print(pd.DataFrame({"a": [1]}))

# %%
_, ax = plt.subplots()
ax.plot([0, 1], color="black", label="line")
ax.set_xlabel("round")
plt.show()
"""


def test_cells_are_run_as_a_notebook_runs_them(executed, tmp_path):
    script = tmp_path / "00_small.py"
    script.write_text(SCRIPT)
    notebook = executed.run(script, fast=True)
    _, first, table, second = notebook.cells
    assert [one.text for one in first.outputs] == ["7\nKept(value=3)\n"]
    assert "<table" in table.outputs[0].data["text/html"]  # what a script prints is shown as a notebook shows it
    (figure,) = second.outputs
    assert 'aria-label="Figure: round. Shown: line"' in figure.data["text/html"]
    assert "#000000" not in figure.data["text/html"]
    assert not shown_by_the_page_alone(notebook)
    cards = docs_module("gallery").cards({"00_small": notebook})
    assert "<strong>A title</strong><span>Words first.</span>" in cards and 'id="g00_small-3-1-' in cards
    script.write_text(
        SCRIPT.replace('print(pd.DataFrame({"a": [1]}))', 'pd.DataFrame({"a": [1]})').replace("plt.show()", "")
    )
    assert [one[:2] for one in shown_by_the_page_alone(executed.run(script, fast=True))] == ["pd", "_,"]
    script.write_text("# %% [markdown]\n# # A title\n\n# %%\n1 / 0\n")
    with pytest.raises(ZeroDivisionError) as raised:
        executed.run(script, fast=True)
    last = raised.traceback[-1]
    assert (Path(last.path).name, last.lineno + 1) == ("00_small.py", 5)
