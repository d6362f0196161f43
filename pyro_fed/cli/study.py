"""``pyro-fed study``: a study by files that are mailed by hand, where no network is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyro_fed.cli import options

if TYPE_CHECKING:
    from pyro_fed.deployment.files import Combined


@click.group()
def study() -> None:
    """Run a study over sites that share no network: requests and answers are files, mailed by hand."""


@study.command()
@options.folder
@click.option("--model", required=True, shell_complete=options.complete_model, help="A model's name or .py file.")
@options.study_recipe
@click.option("--sites", required=True, metavar="A,B,...", help="The sites' names; they are numbered in this order.")
@click.option("--name", help="The study's name; default: that of DIR.")
@options.rounds
@click.option("--draws", type=click.IntRange(min=1), help="Number of draws of the result.")
@click.option("--min-clients", type=click.IntRange(min=0), help="Number of answers that a round needs.")
@click.option("--audit/--no-audit", default=True, show_default=True, help="One more exchange that checks the result.")
@options.path_option(
    "--template",
    text="A file with one made-up row, as for --data of `answer`, if a row of ones does not suit the model.",
)
@options.path_option("--start", text="The result.nc of an earlier study of this model, from whose sites it begins.")
@options.seed
def init(
    folder: Path, model: str, recipe_name: str, sites: str, name: str | None, rounds: int | None, draws: int | None,
    min_clients: int | None, audit: bool, template: Path | None, start: Path | None, seed: int,
) -> None:  # fmt: skip
    """Begin a study in the new folder DIR, and show how many mails it takes.

    DIR/outbox gets a first request for each site, with the model and the recipe. Mail it, and tell the sites the
    key's fingerprint in another way, for instance by telephone.
    """
    with options.needs_extra("files"):
        from pyro_fed.deployment.files import init_study

    made = init_study(
        folder,
        model,
        recipe_name,
        [site.strip() for site in sites.split(",")],
        name=name,
        seed=seed,
        num_rounds=rounds,
        num_draws=draws,
        min_clients=min_clients,
        audit=audit,
        template=template,
        start=start,
    )
    click.echo(f"This recipe needs {made.content['needs']}.")
    click.echo(f"Fingerprint of the coordinator's key, to read out by telephone: {made.fingerprint}")
    click.echo("Mail each site its file:")
    for path in sorted((folder / "outbox").iterdir()):
        click.echo(f"  {path}")


@study.command()
@click.argument("request", type=click.Path(path_type=Path))
@options.path_option(
    "--data",
    text="This site's rows: a .npz or .csv file with the model's arguments, or a .py file with load_rows. Needed once.",
)
@options.path_option("--folder", text="This site's folder; default: STUDY-SITE in the current one.")
@options.path_option("--out", file_okay=False, text="Folder of the answer; default: the current one.")
@options.path_option("--policy", text="This site's policy.toml; default: the one in its folder.")
@click.option(
    "--coordinator",
    metavar="SHA256:...",
    help="Fingerprint of the key, as the coordinator read it out; needed for the first answer with --yes.",
)
@click.option("--yes", is_flag=True, help="Do not ask; for scripts.")
def answer(
    request: Path, data: Path | None, folder: Path | None, out: Path | None, policy: Path | None,
    coordinator: str | None, yes: bool,
) -> None:  # fmt: skip
    """Answer a REQUEST at a site: show what would leave, ask, and write the file that is to be mailed back.

    The first request brings the model and the recipe: read them, since the model is code that runs here.
    """
    with options.needs_extra("files"):
        from pyro_fed.deployment.files import answer_request

    def confirm(shown: str, question: str) -> bool:
        click.echo(shown)
        return click.confirm(question)

    made = answer_request(
        request,
        data,
        folder=folder,
        out=out or Path(),
        coordinator=coordinator,
        policy=policy,
        confirm=None if yes else confirm,
    )
    click.echo(f"Mail it to the coordinator: {made}")


@study.command()
@options.folder
@click.argument("answers", nargs=-1, type=click.Path(path_type=Path))
@click.option("--go-on", is_flag=True, help="Continue without the sites that have not answered this exchange.")
def combine(folder: Path, answers: tuple[Path, ...], go_on: bool) -> None:
    """Take the sites' ANSWERS into the study in DIR, and write the next requests, or the result.

    Answers may be given one by one, and more than once. Without any, the command shows which answers are missing.
    """
    with options.needs_extra("files"):
        from pyro_fed.deployment.files import combine as combine_answers

    found = combine_answers(folder, answers, go_on=go_on)
    _tell(found)
    if found.refused:
        raise SystemExit(2)  # as for other wrong input


@study.command()
@options.folder
@click.argument("name")
def ask(folder: Path, name: str) -> None:
    """Ask the sites about the result of the study in DIR, by one more exchange.

    NAME is an estimand in ESTIMANDS of the model's file; "loo" for leave-one-out and WAIC; "leave_one_client_out", how
    well the others predict each site; or "influence", for recipes that leave no sites.
    """
    with options.needs_extra("files"):
        from pyro_fed.deployment.files import ask_sites

    _tell(ask_sites(folder, name))


def _tell(found: Combined) -> None:
    """Print the outcome of a `combine`."""
    for text in found.answers_taken:
        click.echo(text)
    for text in found.refused:
        click.secho(f"Refused: {text}", fg="yellow", err=True)
    if found.needs:
        click.echo(f"This recipe needs {found.needs}.")
    if found.result is None:
        click.echo(f"Exchange {found.exchange} waits for {', '.join(found.waiting)}. Mail each site its file:")
        for path in found.requests:
            click.echo(f"  {path}")
        return
    for text in found.findings:
        click.secho(f"Warning: {' '.join(text.split())}", fg="yellow", err=True)
    click.echo(f"Written to {found.result}; read it by arviz.from_netcdf({str(found.result)!r}).")


@study.command()
@click.argument("file", type=click.Path(path_type=Path))
def show(file: Path) -> None:
    """Print the contents of a request or an answer, without its numbers. The signature is not verified."""
    import json

    with options.needs_extra("files"):
        from pyro_fed.deployment.files.letter import ANSWER, REQUEST, read_letter

    kind = ANSWER if file.name.startswith(ANSWER) else REQUEST
    letter = read_letter(file, kind).letter
    texts = {name: letter.more[name] for name in ("model", "recipe") if name in letter.more}
    rest = {name: value for name, value in letter.more.items() if name not in texts}
    click.echo(f"{letter.kind} of exchange {letter.exchange}, site {letter.site}, study {letter.study}")
    click.echo(json.dumps(rest, indent=1))
    click.echo(f"body: {len(letter.body)} bytes")
    for name, text in texts.items():
        click.echo(f"\n# {name}\n{text}")
