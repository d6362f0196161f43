"""Configuration of the documentation."""

import os
import re
import sys
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

import jupytext

sys.path.append(str(Path(__file__).parent))  # as Sphinx asks for: modules beside this file
import public_names

project = "pyro_fed"
author = "The pyro_fed authors"
copyright = "2026, The pyro_fed authors"
version = release = installed_version("pyro_fed")

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "pyro_fed"

myst_enable_extensions = ["dollarmath"]
nb_execution_mode = os.environ.get("PYRO_FED_DOCS_EXECUTE", "off")  # "auto" fills in the outputs: minutes

# The tutorials are scripts outside this folder: each becomes a notebook here.
PAGES = Path(__file__).parent / "_tutorials"
PAGES.mkdir(exist_ok=True)
for script in sorted((Path(__file__).parent.parent / "tutorials").glob("[0-9]*.py")):
    notebook = jupytext.read(script)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook.metadata["language_info"] = {"name": "python"}
    jupytext.write(notebook, PAGES / f"{script.stem}.ipynb")

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
