"""Where models and recipes are found: by name in the shipped library, or by path.

``models/`` and ``inference/`` at the top of a checkout are what a user reads, copies and edits. In a wheel
the same folders lie under ``pyro_fed/_library``; an editable install has no ``_library`` and uses the
checkout's.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from pyro_fed.conventions.names import closest
from pyro_fed.errors import ModelError, PyroFedError, SettingError

#: What a model file defines: the Pyro model, the plate that is split, ``load_data() -> (train, test)``.
MODEL_PARTS = ("model", "PLATE", "load_data")


def library_folder(kind: str) -> Path:
    """The folder of the shipped ``"models"`` or ``"inference"`` files."""
    package = Path(__file__).resolve().parents[1]
    packaged = package / "_library"
    return (packaged if packaged.is_dir() else package.parent) / kind


def list_models() -> dict[str, Path]:
    """The shipped models, name to file, in alphabetical order.

    Example:
        >>> "logistic_regression" in list_models()
        True
    """
    return _files_of_kind("models", ".py")


def list_recipes() -> dict[str, Path]:
    """The shipped recipes, name to file, in alphabetical order.

    Example:
        >>> "dsvgd" in list_recipes()
        True
    """
    return _files_of_kind("inference", ".toml")


def _files_of_kind(kind: str, suffix: str) -> dict[str, Path]:
    files = sorted(library_folder(kind).glob(f"*{suffix}"))
    return {file.stem: file for file in files if not file.name.startswith("_")}


def find_recipe(name_or_path: str | Path) -> Path:
    """The file of a recipe.

    Args:
        name_or_path: a name in the library (``"dsvgd"``), or the path of a ``.toml`` file.

    Raises:
        SettingError: there is no such file; the message names the closest recipes.

    Example:
        >>> find_recipe("dsvgd").name
        'dsvgd.toml'
    """
    cure = "Give a name, or the path of a .toml file."
    return _find("recipe", name_or_path, list_recipes(), ".toml", SettingError, cure)


def find_model(name_or_path: str | Path) -> Path:
    """The file of a model.

    Args:
        name_or_path: a name in the library (``"logistic_regression"``), or the path of a ``.py`` file.

    Raises:
        ModelError: there is no such file; the message names the closest models.

    Example:
        >>> find_model("logistic_regression").name
        'logistic_regression.py'
    """
    cure = "Give a name, or the path of a .py file, in which load_data() reads the rows, from a CSV file for instance."
    return _find("model", name_or_path, list_models(), ".py", ModelError, cure)


def _find(
    kind: str, name_or_path: str | Path, listed: dict[str, Path], suffix: str, error: type[PyroFedError], cure: str
) -> Path:
    """The file of a name or path; the error says why there is none."""
    name = str(name_or_path)
    if name in listed:
        return listed[name]
    path = Path(name).expanduser()
    with suppress(OSError, ValueError):  # a name that is too long, or has a null in it
        if path.suffix == suffix and path.is_file():
            return path
    why = "that file does not exist" if path.suffix == suffix else closest(name, list(listed))
    raise error(f"no {kind} {name!r}: {why if why.endswith('?') else f'{why}.'} {cure}")


def load_model(name_or_path: str | Path, *, with_data: bool = True) -> ModuleType:
    """Import a model file as a module of its own.

    The file is executed: it is code, load only what you trust.

    Args:
        name_or_path: a name in the library (``"logistic_regression"``), or the path of a ``.py`` file.
        with_data: whether the rows are to come from its ``load_data``; where clients have their own it needs none.

    Returns:
        A module with ``model``, ``PLATE`` and, where asked for, ``load_data``.

    Raises:
        ModelError: no such file, an error while it was executed, or one of the names is missing.

    Example:
        >>> load_model("logistic_regression").PLATE
        'data'
    """
    path = find_model(name_or_path).resolve()
    try:
        module = import_file(path, "model")
    except (Exception, SystemExit) as error:  # the file is the user's code, which may raise anything
        raise ModelError(f"model file {path} cannot be imported: {type(error).__name__}: {error}") from error
    missing = [part for part in MODEL_PARTS if (with_data or part != "load_data") and not hasattr(module, part)]
    if missing:
        raise ModelError(
            f"model file {path} does not define {', '.join(missing)}; a model file defines "
            "model(...), PLATE (the name of the plate over the data) and load_data() -> (train, test)."
        )
    return module


def import_file(path: Path, kind: str) -> ModuleType:
    """The module of a user's Python file, which this executes; whatever the file raises is raised."""
    # Two files of one name in two folders are two modules, and neither shadows an installed package.
    name = f"pyro_fed_{kind}_{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ImportError("expected a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and typing look a class's module up by name
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def model_description(path: Path) -> str:
    """The first line of a model file's docstring, read without executing the file."""
    try:
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    except (SyntaxError, ValueError, RecursionError) as error:
        return f"(no Python file: {error})"
    return first_line(docstring)


def first_line(text: str | None) -> str:
    """The first non-empty line of a text, or ``""``."""
    return next((line.strip() for line in (text or "").splitlines() if line.strip()), "")


def labels_in(module: ModuleType | None) -> dict[str, Any]:
    """The arguments `dims` and `coords` of a federation, from `DIMS` and `COORDS` of a model's file."""
    return {"dims": getattr(module, "DIMS", None), "coords": getattr(module, "COORDS", None)}
