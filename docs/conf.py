"""Configuration of the documentation."""

import os
import re
import sys
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

import nbformat

sys.path.append(str(Path(__file__).parent))  # as Sphinx asks for: modules beside this file
import executed
import gallery
import models_pages
import public_names

project = "pyro_fed"
author = "The pyro_fed authors"
copyright = "2026, The pyro_fed authors"
version = release = installed_version("pyro_fed")

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "_executed"]
html_theme = "furo"
html_title = "pyro_fed"

html_static_path = ["_static"]
html_css_files = ["pages.css", "generated/colours.css"]

myst_enable_extensions = ["dollarmath"]
nb_execution_mode = "off"  # `executed` has run the tutorials, or runs them now; the tests take the same runs

# The tutorials are scripts outside this folder: each becomes a notebook with outputs here. Their fast setting is the
# tests'; PYRO_FED_FAST=0 runs all of it, in minutes.
HERE = Path(__file__).parent
PAGES, GENERATED = HERE / "_tutorials", HERE / "_static" / "generated"
PAGES.mkdir(exist_ok=True)
GENERATED.mkdir(exist_ok=True, parents=True)
notebooks = {
    path.stem: executed.executed(path, os.environ.get("PYRO_FED_FAST", "1") == "1") for path in executed.TUTORIALS
}
for stem, notebook in notebooks.items():
    for name, page in notebook.metadata.pop("files", {}).items():
        (GENERATED / name).write_text(page, encoding="utf-8")
    nbformat.write(notebook, PAGES / f"{stem}.ipynb")
(PAGES / "gallery.html").write_text(gallery.cards(notebooks), encoding="utf-8")
models_pages.write(HERE / "_models")
(GENERATED / "colours.css").write_text(gallery.colours(), encoding="utf-8")

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_preserve_defaults = True  # a default as it is written
default_role = "code"  # `name` in a docstring is a name, not a reference
napoleon_google_docstring = True
napoleon_custom_sections = [("Class attributes", "params_style")]


def setup(app: Any) -> None:
    """Fill the API pages with the names that the package's doors offer; take |x| in a docstring for a magnitude."""

    def fill(_: Any, page: str, source: list[str]) -> None:
        if page.startswith("api/"):
            source[0] = public_names.filled(source[0])

    def magnitudes(_: Any, _kind: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
        lines[:] = [re.sub(r"(`[^`]*`)|\|(?=\S)", lambda found: found[1] or r"\|", line) for line in lines]

    app.connect("source-read", fill)
    app.connect("autodoc-process-docstring", magnitudes)
