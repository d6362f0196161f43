"""A node that runs its own code: in the place of the app that comes over the network, the site's approved copies.

A SuperNode starts the command `flwr-clientapp` for each message. `node_command` puts a command of that name before
Flower's on the node's PATH; it is Flower's own, without the step that unpacks the app and the one that imports it. The
app is `client_app` of the model and recipes that the site has approved, and of the site's own file with `load_rows`.
So a run brings orders and numbers, and nothing that it brings is executed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.clientapp import ClientApp

from pyro_fed.conventions.names import check_client_id
from pyro_fed.deployment.flower.client import client_app
from pyro_fed.deployment.policy import approval
from pyro_fed.deployment.policy.gate import site_folder
from pyro_fed.errors import SettingError
from pyro_fed.recipes.library import import_file
from pyro_fed.recipes.values import to_toml

#: Variables of the node's environment: the site's policy, and its file with `load_rows`.
POLICY, ROWS = "PYRO_FED_POLICY", "PYRO_FED_ROWS"
#: Arguments of a node that would bring in other settings, processes or packages.
REFUSED = ("--node-config", "--isolation", "--allow-runtime-dependency-installation")
#: The command that a SuperNode starts for each message.
COMMAND = "flwr-clientapp"
SCRIPT = """\
#!{python}
from pyro_fed.deployment.flower.own_code import main

main()
"""
#: Functions of Flower's process for a message that bring in the app.
UNPACK, IMPORT = "install_from_fab", "get_load_client_app_fn"


def node_command(
    folder: Path, name: str, policy: Path, rows: Path, given: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    """The command of a SuperNode that runs the site's own code, by a script in `folder`, and its environment."""
    check_client_id(name)
    place = site_folder(policy)
    if not approval.has_approval(place):
        raise SettingError(f"{place} has no approval: run pyro-fed node approve MODEL RECIPE --policy {policy}")
    if rows.suffix != ".py" or not rows.is_file():
        raise SettingError(f"--data {rows}: expected a Python file with load_rows(model, node_config)")
    if taken := [one for one in given if one.split("=")[0] in REFUSED]:
        raise SettingError(f"{', '.join(taken)}: pyro-fed node flower does not take this argument: leave it out")
    script = folder / COMMAND
    script.write_text(SCRIPT.format(python=sys.executable), encoding="utf-8")
    script.chmod(0o700)
    config = f"name={to_toml(name)} policy={to_toml(str(place / policy.name))}"
    environment = {
        "PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', '')}",
        POLICY: str(place / policy.name),
        ROWS: str(rows.absolute()),
    }
    return ["flower-supernode", *given, "--node-config", config], {**os.environ, **environment}


def own_app(environment: Mapping[str, str] = os.environ) -> ClientApp:
    """The app of the site's own folder."""
    missing = [name for name in (POLICY, ROWS) if name not in environment]
    if missing:
        raise SettingError(f"{', '.join(missing)} is not set: start the node by pyro-fed node flower")
    folder = site_folder(environment[POLICY])

    def load_rows(model: Any, node_config: Mapping[str, Any]) -> Any:
        # Imported here, where an exception leaves without its text.
        return import_file(Path(environment[ROWS]), "rows").load_rows(model, node_config)

    return client_app(approval.copied_model(folder), approval.recipe_files(folder), load_rows)


def main() -> None:
    """Flower's process for a message, with the site's own app."""
    from flwr.supernode.cli.flwr_clientapp import flwr_clientapp
    from flwr.supernode.runtime import run_clientapp

    if missing := [name for name in (UNPACK, IMPORT) if not hasattr(run_clientapp, name)]:
        raise SettingError(f"Flower's run_clientapp has no {', '.join(missing)}: install Flower 1.41")
    setattr(run_clientapp, UNPACK, lambda *_, **__: None)
    setattr(run_clientapp, IMPORT, lambda *_, **__: lambda *_: own_app())
    flwr_clientapp()
