"""The tutorials with what they print and draw, each executed once.

A tutorial that has run is kept as a notebook in `docs/_executed/`, under a digest of what its output depends on: its
own text, the package, models and recipes, the versions of what these stand on, and whether it ran in its fast setting.
The documentation shows what is kept, and `tests/docs/test_tutorials.py` runs what is not: one execution serves both.

Cells run in one process, as a script does. Figures are SVG with the colours of a style sheet (see
`pyro_fed.analysis.report.svg`), so that they suit light and dark pages.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import io
import os
import sys
import tempfile
import types
import warnings
from collections.abc import Iterator
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jupytext
import matplotlib as mpl
import nbformat
import numpy as np

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "docs" / "_executed"
TUTORIALS = sorted((ROOT / "tutorials").glob("[0-9]*.py"))

#: What outputs depend on besides the tutorial.
SOURCES = ("pyro_fed/**/*.py", "pyro_fed/**/*.html", "models/*.py", "inference/*.toml", "docs/executed.py")
PACKAGES = ("torch", "pyro-ppl", "arviz", "numpy", "xarray", "pandas", "matplotlib")


def executed(path: Path, fast: bool) -> nbformat.NotebookNode:
    """A tutorial with its outputs, from those kept, or by running it.

    Args:
        path: of the script.
        fast: in the setting of the tests: smaller runs.
    """
    digest = hashlib.sha256(f"{_environment()} {fast} ".encode() + path.read_bytes()).hexdigest()[:16]
    kept = KEPT / f"{path.stem}.{'fast' if fast else 'full'}.{digest}.ipynb"
    if not kept.exists():
        notebook = run(path, fast)
        KEPT.mkdir(exist_ok=True)
        for old in KEPT.glob(f"{path.stem}.{'fast' if fast else 'full'}.*.ipynb"):
            old.unlink()
        written = kept.with_suffix(f".{os.getpid()}")
        nbformat.write(notebook, written)
        written.rename(kept)  # whole or not at all: several processes may be at it
    return nbformat.read(kept, as_version=4)


@lru_cache(maxsize=1)
def _environment() -> str:
    """A digest of the code and the packages."""
    digest = hashlib.sha256(" ".join([sys.version, *(f"{name} {version(name)}" for name in PACKAGES)]).encode())
    for pattern in SOURCES:
        for file in sorted(ROOT.glob(pattern)):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def run(path: Path, fast: bool) -> nbformat.NotebookNode:
    """Run a tutorial in an empty folder; pages that it writes there are kept in the notebook's metadata, `files`.

    Args:
        path: of the script.
        fast: sets PYRO_FED_FAST for it.
    """
    mpl.use("Agg")
    from pyro_fed.analysis.plots.style import COLORS
    from pyro_fed.analysis.report import svg

    notebook, text = jupytext.read(path), path.read_text(encoding="utf-8")
    style = svg.STYLE | {"axes.prop_cycle": mpl.cycler(color=COLORS), "axes.spines.top": False}
    place = count = 0
    with _module(path) as module, _settings(fast), tempfile.TemporaryDirectory() as folder, mpl.rc_context(style):
        with contextlib.chdir(folder):
            for cell in notebook.cells:
                if cell.cell_type != "code":
                    continue
                place = text.index(cell.source, place)
                count += 1
                cell.execution_count = count
                cell.outputs = _run_cell(cell.source, module, path, text[:place].count("\n"), f"{path.stem}-{count}")
        pages = sorted(Path(folder).glob("*.html"))
        notebook.metadata["files"] = {page.name: page.read_text(encoding="utf-8") for page in pages}
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


@contextlib.contextmanager
def _module(path: Path) -> Iterator[types.ModuleType]:
    """A module that the cells share, which dataclasses and pickles find by its name."""
    module = types.ModuleType(f"tutorial_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    try:
        yield module
    finally:
        del sys.modules[module.__name__]


@contextlib.contextmanager
def _settings(fast: bool) -> Iterator[None]:
    before = os.environ.get("PYRO_FED_FAST")
    os.environ["PYRO_FED_FAST"] = str(int(fast))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if before is None:
            del os.environ["PYRO_FED_FAST"]
        else:
            os.environ["PYRO_FED_FAST"] = before


def _run_cell(source: str, module: types.ModuleType, path: Path, above: int, name: str) -> list[nbformat.NotebookNode]:
    """Run a cell and say what it showed: printed text, the value of its last line or what that prints, figures.

    Args:
        source: of the cell.
        module: whose names it sees and makes.
        path: of the script, for tracebacks and for who reads the source of functions.
        above: lines of the script above the cell.
        name: of the cell, different for each.
    """
    tree = ast.increment_lineno(ast.parse(source), above)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        exec(compile(tree, str(path), "exec"), vars(module))
        if isinstance(last, ast.Expr):
            shown = _printed(last.value)
            value = eval(compile(ast.Expression(shown or last.value), str(path), "eval"), vars(module))
            if shown is not None and not hasattr(value, "_repr_html_"):
                value = print(value)
    outputs = [nbformat.v4.new_output("stream", name="stdout", text=printed.getvalue())] if printed.getvalue() else []
    if value is not None and not _drawn(value):
        data = {"text/plain": repr(value)}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = value._repr_html_()
        outputs.append(nbformat.v4.new_output("display_data", data=data))
    return outputs + _figures(name)


def _printed(call: ast.expr) -> ast.expr | None:
    """What a call of `print` prints, if that is one thing: a page shows it as a notebook would."""
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print":
        alone = len(call.args) == 1 and not call.keywords and not isinstance(call.args[0], ast.Starred)
        return call.args[0] if alone else None
    return None


def _drawn(value: Any) -> bool:
    """Whether a value is axes or a figure, which is shown as such."""
    several = isinstance(value, np.ndarray | list | tuple) and len(value) > 0
    return isinstance(np.asarray(value, dtype=object).flat[0] if several else value, mpl.artist.Artist)


def _figures(name: str) -> list[nbformat.NotebookNode]:
    import matplotlib.pyplot as plt

    from pyro_fed.analysis.report import svg

    outputs = []
    for number in plt.get_fignums():
        figure = plt.figure(number)
        element = svg.inline(figure, f"t{name}-{number}", _seen(figure))
        data = {"text/html": f'<div class="figure-box">{element}</div>', "text/plain": _seen(figure)}
        outputs.append(nbformat.v4.new_output("display_data", data=data))
        plt.close(figure)
    return outputs


def _seen(figure: Any) -> str:
    """What a figure shows, from its titles, axes and legends."""
    panels = []
    for ax in figure.axes:
        axes = " against ".join(filter(None, (ax.get_ylabel(), ax.get_xlabel())))
        rows = [label.get_text() for label in ax.get_yticklabels()]
        named = [row for row in rows if not row.startswith("$") and any(map(str.isalpha, row))]
        if named and not ax.get_ylabel():
            axes += f" of {', '.join(named[:12])}{' and others' if len(named) > 12 else ''}"
        title = " ".join(ax.get_title().split())
        if ax.get_visible() and (title or axes):
            panels.append(", ".join(filter(None, (title, axes))))
    names = dict.fromkeys(label for ax in figure.axes for label in ax.get_legend_handles_labels()[1])
    return f"Figure: {'; '.join(panels) or 'one panel'}{'. Shown: ' + ', '.join(names) if names else ''}"


def main() -> None:
    """Run every tutorial that is not kept, in the setting of PYRO_FED_FAST, and say how long it took."""
    import time

    fast = os.environ.get("PYRO_FED_FAST", "1") == "1"
    for path in TUTORIALS:
        began = time.monotonic()
        notebook = executed(path, fast)
        figures = sum("figure-box" in str(output) for cell in notebook.cells for output in cell.get("outputs", ()))
        print(
            f"{path.stem:40} {time.monotonic() - began:6.1f} s {figures:3} figures {len(str(notebook)) / 1e6:6.2f} MB"
        )


if __name__ == "__main__":
    main()
