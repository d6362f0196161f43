"""A directory that `flwr run` can run: a model's file, a recipe's, and two short apps of one's own."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from pyro_fed.conventions.version import VERSION
from pyro_fed.errors import SettingError
from pyro_fed.recipes import library, recipe

PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = "{description}"
license = "Apache-2.0"
requires-python = ">=3.11"
dependencies = ["pyro_fed[flower]>={version}"]

[tool.hatch.build.targets.wheel]
packages = ["{package}"]

[tool.flwr.app]
publisher = "pyro-fed"

[tool.flwr.app.components]
serverapp = "{package}.server_app:app"
clientapp = "{package}.client_app:app"

[tool.flwr.app.config]
num-clients = {clients}     # to wait for
rounds = 0          # 0: the recipe's
seed = 0
timeout = 600.0     # seconds to wait for clients, and for each round
compile = "trace"   # "off", "trace" or "inductor"
out = "posterior.nc"
"""

CLIENT = '''\
"""A client: its own rows, and the model and recipe that it shares with the server."""

from pathlib import Path

from pyro_fed.flower import client_app, simulated_rows

HERE = Path(__file__).parent


def load_rows(model, node_config):
    """The model's arguments with this client's rows alone: replace it by what reads your own data.

    Here: part `partition-id` of `num-partitions` of the model's training data, for simulations.
    """
    return simulated_rows(model, node_config)


app = client_app(HERE / "model.py", HERE / "recipe.toml", load_rows)
'''

SERVER = '''\
"""The server: it runs the recipe with the clients that have joined, and writes the posterior."""

from pathlib import Path

from pyro_fed.flower import server_app

HERE = Path(__file__).parent

app = server_app(HERE / "model.py", HERE / "recipe.toml")
'''


def write_app(folder: Path, model: str, chosen: str, clients: int) -> Path:
    """Write an app.

    Args:
        folder: where; it must not exist, or be empty. Its name becomes the app's.
        model: the model's file, or its name in the library.
        chosen: the recipe's, likewise.
        clients: how many the server waits for, unless it is told otherwise.

    Returns:
        the folder.

    Raises:
        SettingError: the folder holds something, its name is none for an app, or the recipe cannot be read.
        ModelError: there is no such model.
    """
    model_file, checked = library.find_model(model), recipe.load(chosen)
    library.load_model(model_file)
    package = folder.resolve().name.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", package):
        raise SettingError(f"the app is named like its folder: small letters, digits, '-'; received {folder.name!r}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingError(f"{folder} is there already: choose another folder")
    (folder / package).mkdir(parents=True)
    settings = {
        "name": package.replace("_", "-"),
        "package": package,
        "clients": clients,
        "version": VERSION,
        "description": f"{checked.name} on {model_file.stem}, by pyro_fed",
    }
    (folder / "pyproject.toml").write_text(PYPROJECT.format(**settings), encoding="utf-8")
    (folder / package / "__init__.py").write_text(f'"""{settings["description"]}."""\n', encoding="utf-8")
    (folder / package / "client_app.py").write_text(CLIENT, encoding="utf-8")
    (folder / package / "server_app.py").write_text(SERVER, encoding="utf-8")
    shutil.copyfile(model_file, folder / package / "model.py")
    shutil.copyfile(checked.path, folder / package / "recipe.toml")
    return folder
