"""Writes a folder that `flwr run` can run: a model's file, a recipe's file, and two short apps to be edited."""

from __future__ import annotations

import importlib.util
import keyword
import re
import shutil
import sys
from pathlib import Path

from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.conventions.version import VERSION
from pyro_fed.errors import SettingError
from pyro_fed.recipes import library, recipe
from pyro_fed.recipes.values import to_toml

#: Packages of a checkout of this project, which are not installed.
OWN = ("benchmarks", "inference", "models", "tests", "tutorials")

PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = {name}
version = "1.0.0"
description = {description}
license = "Apache-2.0"
requires-python = ">=3.11"
# Of the model alone: Flower fetches what stands here from a package index before each run, unless it is told not to.
# pyro_fed[flower]>={version} is to be installed where the app runs.
dependencies = []

[tool.hatch.build.targets.wheel]
packages = [{package}]

[tool.flwr.app]
publisher = "pyro-fed"

[tool.flwr.app.components]
serverapp = {serverapp}
clientapp = {clientapp}

# What `pyro_fed.run` takes. "none": as server_app.py says, else the recipe. Flower lets `--run-config` replace what
# stands here, and nothing else.
[tool.flwr.app.config]
num-clients = {clients}         # to wait for
min-clients = "none"    # replies that a round needs; with fewer the run stops
rounds = 0              # 0: the recipe's
seed = 0
timeout = 600.0         # seconds that a client has for a round
wait = 600.0            # seconds to wait for clients
checkpoint = "none"     # a folder on the server for the state after every round
resume = false          # go on from there
start = "none"          # the checkpoint of an earlier run, whose sites this one begins with
schedule = "none"       # such as "round_robin", or '{{name = "uniform_random", clients_per_round = 2}}'
graph = "none"          # such as "ring", of algorithms without a server
combination = "none"    # such as "median", or '{{name = "private", norm = 1.0, noise_multiplier = 1.0, delta = 1e-3}}'
secure-aggregation = "none" # true, or '{{largest = 1e6}}': the server sees sums alone, and not every algorithm can
num-draws = "none"
audit = true
loo = "none"            # true, or the observed site where there are several: leave-one-out, WAIC, by clients' sums
influence = false       # how far each client moves each parameter
estimands = ""          # names in ESTIMANDS of the model's file, such as "risk, survival"
compile = "trace"       # "off", "trace" or "inductor"
out = "posterior.nc"    # on the server
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
        folder: the folder; it must not exist, or be empty. The app gets its name.
        model: the model's file, or its name in the library.
        chosen: the recipe's file, or its name in the library.
        clients: number of clients that the server waits for by default.

    Returns:
        The folder.

    Raises:
        SettingError: the folder is not empty, its name cannot be an app's, or the recipe cannot be read or needs
            all rows in one place.
        ModelError: there is no such model.

    Example:
        >>> write_app(Path("my-app"), "logistic_regression", "fedep", clients=2)
    """
    model_file = library.find_model(model)
    library.load_model(model_file, with_data=False)  # which may import the recipe's algorithm
    checked = recipe.load(chosen)
    if issubclass(checked.algorithm, Algorithm) and checked.algorithm.pooled:
        raise SettingError(
            f"recipe '{checked.name}': {checked.algorithm.__name__} needs all rows in one place, which Flower does not "
            "bring: take another one, such as fedep"
        )
    package = _package(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingError(f"{folder} exists already and is not an empty folder: choose another one")
    (folder / package).mkdir(parents=True)
    description = f"{checked.name} on {model_file.stem}, by pyro_fed"
    text = {
        "name": package.replace("_", "-"),
        "package": package,
        "description": description,
        "serverapp": f"{package}.server_app:app",
        "clientapp": f"{package}.client_app:app",
    }
    settings = {name: to_toml(value) for name, value in text.items()} | {"clients": clients, "version": VERSION}
    (folder / "pyproject.toml").write_text(PYPROJECT.format(**settings), encoding="utf-8")
    (folder / package / "__init__.py").write_text(f"{description + '.'!r}\n", encoding="utf-8")
    (folder / package / "client_app.py").write_text(CLIENT, encoding="utf-8")
    (folder / package / "server_app.py").write_text(SERVER, encoding="utf-8")
    shutil.copyfile(model_file, folder / package / "model.py")
    shutil.copyfile(checked.path, folder / package / "recipe.toml")
    return folder


def _package(folder: Path) -> str:
    """The name of the app's package, which is the folder's.

    Raises:
        SettingError: a package cannot have that name, or another package has it already.
    """
    package = folder.resolve().name.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", package):
        raise SettingError(f"the app is named like its folder: small letters, digits, '-'; received {folder.name!r}")
    if keyword.iskeyword(package) or keyword.issoftkeyword(package):
        raise SettingError(
            f"the app is named like its folder, and {package!r} is a word of Python: choose another name"
        )
    if package in OWN or package in sys.stdlib_module_names or _is_installed(package, folder):
        raise SettingError(
            f"the app is named like its folder, and there is a package {package!r} already, which it would hide: "
            f"choose another name, such as {package.replace('_', '-')}-app"
        )
    return package


def _is_installed(package: str, folder: Path) -> bool:
    """Whether Python finds a module of that name outside the folder; the folder itself may be found if it is empty."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        return False
    places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or [])
    return any(Path(place).resolve() != folder.resolve() for place in places)
