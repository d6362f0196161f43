"""``pyro-fed flower``: apps for Flower."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from pyro_fed.cli import options
from pyro_fed.errors import SettingError


@click.group()
def flower() -> None:
    """Apps for Flower, whose clients keep their data, and their signatures."""


@contextmanager
def extra() -> Iterator[None]:
    """A context for imports that need the extra `flower`; SettingError if it is not installed."""
    try:
        yield
    except ImportError as error:
        raise SettingError("this needs the extra: pip install 'pyro_fed[flower]'") from error


@flower.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--model", required=True, help="A model's name or the path of a .py file.")
@click.option("--recipe", "recipe_name", required=True, help="A recipe's name or the path of a .toml file.")
@options.clients(default=2, text="Clients to wait for.")
def new(folder: Path, model: str, recipe_name: str, clients: int) -> None:
    """Write an app to DIR that runs a RECIPE on a MODEL; edit `load_rows` in its client_app.py."""
    with extra():
        from pyro_fed.deployment.flower.apps.new import write_app

    written = write_app(folder, model, recipe_name, clients)
    click.echo(
        f"Written to {written}. Flower runs a copy of it from another folder: a file that load_data() or load_rows "
        "reads needs its whole path.\n"
        "Try a simulation, in which load_rows in its client_app.py deals out what the model's load_data() reads:\n"
        f"  flwr run {written} --stream --federation-config 'num-supernodes={clients}'\n"
        "Then replace load_rows by what reads a client's own rows."
    )


@flower.command()
@click.argument("fab", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--key",
    required=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Your private key: ssh-keygen -t ed25519.",
)
@click.option("--name", required=True, help="Your name in the nodes' file of trusted entities.")
def sign(fab: Path, key: Path, name: str) -> None:
    """Sign an app, FAB of `flwr build`, whose code you have read: it may run at nodes that trust your key."""
    with extra():
        from pyro_fed.deployment.flower.apps.signing import sign_app

    click.echo(f"Written to {sign_app(fab, key, name)}: it goes beside {fab.name}, to the server's folder of apps.")


@flower.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--port", default=9096, show_default=True, help="Of 127.0.0.1, where the SuperLink asks.")
def hub(folder: Path, port: int) -> None:
    """Hand signed apps in DIR to a SuperLink on this machine, until it is ended.

    The SuperLink's environment has FLWR_SUPERGRID_API_URL=http://127.0.0.1:PORT.
    """
    with extra():
        from pyro_fed.deployment.flower.apps.signing import serve_apps

    server = serve_apps(folder, port)
    click.echo(f"Apps of {folder} at http://127.0.0.1:{server.server_port}")
    server.serve_forever()
