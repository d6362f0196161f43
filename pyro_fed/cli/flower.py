"""``pyro-fed flower``: apps for Flower."""

from __future__ import annotations

from pathlib import Path

import click

from pyro_fed.cli import options
from pyro_fed.errors import SettingError


@click.group()
def flower() -> None:
    """Apps for Flower, whose clients keep their data."""


@flower.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--model", required=True, help="A model's name or the path of a .py file.")
@click.option("--recipe", "recipe_name", required=True, help="A recipe's name or the path of a .toml file.")
@options.clients(default=2, text="Clients to wait for.")
def new(folder: Path, model: str, recipe_name: str, clients: int) -> None:
    """Write an app to DIR that runs a RECIPE on a MODEL; edit `load_rows` in its client_app.py."""
    try:
        from pyro_fed.flower.new import write_app
    except ImportError as error:
        raise SettingError("this needs the extra: pip install 'pyro_fed[flower]'") from error

    written = write_app(folder, model, recipe_name, clients)
    click.echo(
        f"Written to {written}. Flower runs a copy of it from another folder: a file that load_data() or load_rows "
        "reads needs its whole path.\n"
        "Try a simulation, in which load_rows in its client_app.py deals out what the model's load_data() reads:\n"
        f"  flwr run {written} --stream --federation-config 'num-supernodes={clients}'\n"
        "Then replace load_rows by what reads a client's own rows."
    )
