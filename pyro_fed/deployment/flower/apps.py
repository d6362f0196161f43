"""Apps for Flower: a folder that `flwr run` can run, with rows for simulations; and signatures of apps.

`flwr run FOLDER` sends an app without signatures, and Flower's own way to sign one (`flwr app review`) needs Flower's
platform. A SuperLink asks that platform for the apps that `flwr run @PUBLISHER/NAME==VERSION` names, at the address in
`FLWR_SUPERGRID_API_URL`. `serve_apps` answers these questions from a folder of apps (.fab files, of `flwr build`) and
of their signatures, which `sign_app` has made. Signatures are those of `flwr app review`: Ed25519, over eight bytes
with the time in seconds and the SHA-256 of the app's bytes. Nobody trusts this server: nodes check the signatures, with
the keys of their own `--trusted-entities`.

    trial.fab                       an app
    trial.fab.north.signature       {"public_key_id": "north", "signature": base64url, "signed_at": seconds}
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import keyword
import re
import shutil
import sys
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

from flwr.common.config import get_fab_config, get_metadata_from_config
from flwr.supercore.primitives.asymmetric_ed25519 import create_message_to_sign

from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.conventions.calls import cast_checked
from pyro_fed.conventions.names import check_client_id
from pyro_fed.conventions.version import VERSION
from pyro_fed.deployment.limits import MAX_REQUEST_BYTES
from pyro_fed.deployment.signing_keys import load_signing_key
from pyro_fed.errors import ModelError, SettingError
from pyro_fed.recipes import library, recipe
from pyro_fed.recipes.experiment import build_federation
from pyro_fed.recipes.values import to_toml


def simulated_rows(model: ModuleType, node_config: Mapping[str, Any], partition: str = "iid", seed: int = 0) -> Any:
    """The rows of client `partition-id` of `num-partitions`, as `pyro-fed run --clients` deals them.

    Args:
        model: a model's module, with `load_data`.
        node_config: the node's configuration in Flower, with `partition-id` and `num-partitions`.
        partition: how the rows are dealt to clients, such as "dirichlet:0.3".
        seed: seed of the partition.

    Returns:
        The model's positional arguments, with these rows only.

    Raises:
        SettingError: the node's configuration does not say which part is its own.
        ModelError: the model has no data to deal out.

    Example:
        >>> from pyro_fed.recipes.library import load_model
        >>> node_config = {"partition-id": 0, "num-partitions": 10}  # of Flower's context
        >>> x, y = simulated_rows(load_model("logistic_regression"), node_config, partition="dirichlet:0.3")
    """
    if not hasattr(model, "load_data"):
        raise ModelError(
            "the model's file has no load_data() whose rows could be split: read this client's own rows in "
            "load_rows, in client_app.py"
        )
    missing = [name for name in ("partition-id", "num-partitions") if name not in node_config]
    if missing:
        raise SettingError(
            f"this node's configuration lacks {missing}: start it with --node-config 'partition-id=0 "
            "num-partitions=2', or load the client's own data in client_app.py"
        )
    federation, _ = build_federation(model, int(node_config["num-partitions"]), partition, seed)
    return federation.client_args(int(node_config["partition-id"]))[0]


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
leave-one-client-out = false    # how well the others predict each client
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
    """Write an app, named like its new `folder`, of a model and a recipe, whose server waits for so many clients."""
    model_file = library.find_model(model)
    library.load_model(model_file, with_data=False)  # which may import the recipe's algorithm
    checked = recipe.load(chosen)
    if issubclass(checked.algorithm, Algorithm) and checked.algorithm.pooled:
        raise SettingError(
            f"recipe '{checked.name}': {checked.algorithm.__name__} needs all rows in one place, but with Flower "
            "they stay at the clients: use another one, such as fedep"
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
    """The name of the app's package, which is the folder's."""
    package = folder.resolve().name.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", package):
        raise SettingError(
            "the app gets the name of its folder: expected lower-case letters, digits and '-', received "
            f"{folder.name!r}"
        )
    if keyword.iskeyword(package) or keyword.issoftkeyword(package):
        raise SettingError(
            f"the app gets the name of its folder, and {package!r} is a keyword of Python: choose another name"
        )
    if package in OWN or package in sys.stdlib_module_names or _is_installed(package, folder):
        raise SettingError(
            f"the app gets the name of its folder, and there is a package {package!r} already, which it would hide: "
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


#: Where the server listens: the SuperLink is on the same machine.
HERE = "127.0.0.1"
#: The path of a SuperLink's question for an app.
QUESTION = "/hub/fetch-fab"


def sign_app(fab: Path, key: Path, signer: str) -> Path:
    """The file of an app's signature, beside it, by a private key in OpenSSH's format; nodes know the name `signer`."""
    check_client_id(signer)
    content, private = fab.read_bytes(), load_signing_key(key)
    _app_and_version(fab)
    signed_at = int(time.time())
    signature = private.sign(create_message_to_sign(hashlib.sha256(content).digest(), signed_at))
    text = base64.urlsafe_b64encode(signature).rstrip(b"=").decode()
    path = fab.with_name(f"{fab.name}.{signer}.signature")
    path.write_text(json.dumps({"public_key_id": signer, "signature": text, "signed_at": signed_at}), encoding="utf-8")
    return path


def serve_apps(folder: Path, port: int) -> ThreadingHTTPServer:
    """A server of the apps in a folder with their signatures, read anew for each question; port 0 takes a free one."""
    if not folder.is_dir():
        raise SettingError(f"{folder}: expected a folder of .fab files with their signatures")
    _apps(folder)

    class Hub(BaseHTTPRequestHandler):
        """Answers of one folder."""

        def do_POST(self) -> None:
            """Answer with the place of an app, and its signatures."""
            size = self.headers.get("Content-Length", "")
            question: Any = None
            if self.path == QUESTION and re.fullmatch(r"\d{1,9}", size) and int(size) <= MAX_REQUEST_BYTES:
                try:
                    question = json.loads(self.rfile.read(int(size)))
                except (ValueError, RecursionError):
                    question = None
            if not isinstance(question, dict):
                self.send_error(400)
                return
            name, version = str(question.get("app_id")), question.get("app_version")
            apps = {held: path for path, (app, held) in _apps(folder).items() if app == name}
            latest = max(apps, key=_version_key, default="")
            fab = apps.get(latest if version is None else str(version))
            if fab is None:
                self._send(404, {"detail": {"available_app_versions": sorted(apps, key=_version_key)}})
                return
            listening = cast_checked(self.server, ThreadingHTTPServer).server_port
            address = f"http://{HERE}:{listening}/{fab.name}"
            signatures = sorted(folder.glob(f"{fab.name}.*.signature"))
            signed = [json.loads(path.read_text(encoding="utf-8")) for path in signatures]
            self._send(200, {"fab_url": address, "verifications": signed})

        def do_GET(self) -> None:
            """Answer with an app's bytes."""
            fab = next((path for path in _apps(folder) if f"/{path.name}" == self.path), None)
            if fab is None:
                self.send_error(404)
                return
            self._write(200, "application/octet-stream", fab.read_bytes())

        def _send(self, code: int, answer: object) -> None:
            self._write(code, "application/json", json.dumps(answer).encode())

        def _write(self, code: int, kind: str, data: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return ThreadingHTTPServer((HERE, port), Hub)


def _apps(folder: Path) -> dict[Path, tuple[str, str]]:
    """The apps in a folder, each with its name and version."""
    return {path: _app_and_version(path) for path in sorted(folder.glob("*.fab"))}


def _app_and_version(fab: Path) -> tuple[str, str]:
    """An app's name, as `flwr run` has it, and its version; SettingError if the file is not an app."""
    try:
        name, version = get_metadata_from_config(get_fab_config(fab.read_bytes()))
    except Exception as error:  # of zip files, of TOML, of missing keys
        raise SettingError(f"{fab}: expected an app, a file of `flwr build`: {error}") from error
    return f"@{name}", version


def _version_key(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]
