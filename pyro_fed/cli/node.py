"""``pyro-fed node``: a site approves what may leave it, and checks what has left."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyro_fed.cli import options
from pyro_fed.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyro_fed.deployment.policy.gate import Gate

#: The ledger, as an argument.
LEDGER = click.argument("ledger", type=click.Path(path_type=Path, exists=True, dir_okay=False))


@click.group()
def node() -> None:
    """Approve what may leave this site, and check what has left."""


@node.command()
@options.model
@click.argument("recipes", metavar="RECIPE...", nargs=-1, required=True)
@click.option(
    "--policy",
    "policy_path",
    metavar="FILE",
    type=click.Path(path_type=Path),
    default="policy.toml",
    show_default=True,
    help="The site's rules, in its own folder, into which the approval is written.",
)
@options.data_file(
    "The site's rows, as for `pyro-fed agent`, for the numbers that will leave; default: the model's load_data()."
)
@click.option("--yes", is_flag=True, help="Approve without asking.")
def approve(model: str, recipes: tuple[str, ...], policy_path: Path, rows_path: Path | None, yes: bool) -> None:
    """Show what a MODEL and RECIPEs will send from here, and approve them.

    From then on this site runs nothing else: no other model, setting, version of pyro_fed or policy.
    """
    from pyro_fed.analysis.report import overview
    from pyro_fed.deployment.policy import approval
    from pyro_fed.deployment.policy.gate import POLICY, Gate, site_folder
    from pyro_fed.deployment.policy.rules import Policy
    from pyro_fed.recipes import library, recipe

    folder = site_folder(policy_path)
    policy = Policy.read(folder / POLICY)
    module = library.load_model(model, with_data=False)
    loaded = [recipe.load(one) for one in recipes]
    asked = approval.Request.of(model, [approval.recipe_facts(one) for one in loaded], policy)
    gate = Gate("this site", policy, folder=folder, approval=asked.digest)
    click.echo(overview.heading("To be approved"))
    click.echo(overview.field("model", f"{library.find_model(model)}, SHA-256 {asked.model}"))
    for one in loaded:
        click.echo(overview.field("recipe", f"{one.name}: {one.description or one.algorithm.__name__}"))
        click.echo(overview.field("settings", recipe.changed_settings(one.build())))
    click.echo(overview.field("version", f"pyro_fed {asked.version}"))
    click.echo(overview.field("rules", policy.in_words()))
    click.echo(overview.heading("What will leave"))
    for line in _leaving(module, loaded, gate, rows_path):
        click.echo(click.wrap_text(line, overview.LINE_WIDTH, "- ", "  "))
    if not yes:
        click.confirm("\nApprove this?", abort=True)
    found = approval.approve(folder, model, recipes, policy)
    click.echo(f"\nApproved: {found.digest}\nWritten to {folder / approval.FOLDER}.")


def _leaving(module: Any, loaded: list[Any], gate: Gate, rows_path: Path | None) -> Iterator[str]:
    """Lines on what will leave, by kind."""
    from functools import cache

    from pyro_fed.density.rows.arguments import flatten
    from pyro_fed.deployment.policy import report, rules
    from pyro_fed.deployment.policy.rules import KINDS
    from pyro_fed.federation.federation import Federation

    rows = _own_rows(module, rows_path)
    if rows is None:
        yield "without rows, the numbers in a message are not known: pass --data"
        return
    nested = getattr(module, "ROWS", None)
    dtype = flatten(module.model, rows, None).floating_dtype()
    own = Federation.from_clients(module.model, {"site": rows}, plate=module.PLATE, rows=nested, dtype=dtype)
    gate.rows = own.num_rows
    share = cache(lambda: rules.rows_share(own.problem, own.client_data()))
    columns = [str(column) for value in rows for column in getattr(value, "columns", ())]
    yield f"description, once: {KINDS['description']}; {own.num_rows:,} rows" + (
        f", columns {', '.join(columns)}" if columns else ""
    )
    for one in loaded:
        for sent in report.preview(module.model, rows, module.PLATE, nested, one):
            yield report.in_words(sent, gate, share)
    for sent in report.questions(module, own.problem):
        yield report.in_words(sent, gate, share)
    if gate.policy.max_rounds is not None:
        yield f"at most {gate.policy.max_rounds} updates and answers to questions leave in all"
    yield f"notice, where this site fails or leaves: {KINDS['notice']}"


def _own_rows(module: Any, rows_path: Path | None) -> tuple[Any, ...] | None:
    """The site's rows from a file, or the model's own training data; None without both."""
    if rows_path is not None:
        from pyro_fed.deployment.rows import load_rows

        return load_rows(rows_path, module.model)
    if not hasattr(module, "load_data"):
        return None
    try:
        return tuple(module.load_data()[0])
    except (NotImplementedError, OSError):  # the rows are elsewhere
        return None


@node.command()
@LEDGER
@click.option(
    "--head", help="The hash of a line that was kept elsewhere. Without it, lines missing at the end are not detected."
)
def verify(ledger: Path, head: str | None) -> None:
    """Check that no line of LEDGER, what_left.jsonl, was changed, removed or moved."""
    from pyro_fed.deployment.policy.gate import verify

    lines = verify(ledger, head)
    left = sum(line["left"] for line in lines)
    last = lines[-1]["hash"] if lines else "none"
    click.echo(f"{len(lines):,} lines are intact. Messages that left: {left:,}; refused: {len(lines) - left:,}.")
    if head is None:
        click.echo("Lines that were removed from the end are not detected without --head.")
    click.echo(f"Keep this elsewhere, for --head: {last}")


@node.command()
@LEDGER
@click.option("--out", required=True, type=options.PAGE, help="The HTML page.")
@click.option("--head", help="The hash of a line that was kept elsewhere.")
def report(ledger: Path, out: Path, head: str | None) -> None:
    """Write a page for a data-protection officer on what left by LEDGER, what_left.jsonl."""
    from pyro_fed.conventions.output import kept_elsewhere
    from pyro_fed.deployment.policy.report import write_report

    if out.resolve() == ledger.resolve():
        raise SettingError(f"--out {out} is the ledger itself: give the page another name")
    with kept_elsewhere(out) as place:
        write_report(place, ledger, head)
    click.echo(f"Written to {out}: open it in a browser.")


@node.command()
@options.model
@click.argument("result", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@options.data_file("The site's rows, as for `pyro-fed agent`.", required=True)
@click.option("--name", required=True, help="This site's name.")
@options.path_option("--policy", "policy_path", metavar="FILE", required=True, text="policy.toml.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The file with the numbers, to be sent.")
@click.option("--page", required=True, type=options.PAGE, help="The HTML page for the person who consents.")
@click.option("--yes", is_flag=True, help="Consent without being asked.")
def effects(
    model: str, result: Path, rows_path: Path, name: str, policy_path: Path, out: Path, page: Path, yes: bool
) -> None:  # fmt: skip
    """Write the mean and SD of this site's own effects, by RESULT of a run of MODEL, once a person consents."""
    import arviz

    from pyro_fed.conventions.output import kept_elsewhere, write_file
    from pyro_fed.deployment.claimed_federation import own_federation
    from pyro_fed.deployment.policy import approval, consent
    from pyro_fed.deployment.rows import load_rows
    from pyro_fed.recipes import library

    gate = approval.approved_gate(policy_path, name, model, lambda: [])
    module = library.load_model(model, with_data=False)
    rows, nested = load_rows(rows_path, module.model), getattr(module, "ROWS", None)
    own = own_federation(module.model, name, rows, module.PLATE, nested, "elsewhere")
    gate.rows = own.num_rows
    found = consent.Effects.of(arviz.from_netcdf(str(result)), own)
    message = found.message(name)
    with kept_elsewhere(page) as place:
        consent.write_consent(place, found, gate, message)
    click.echo(f"Written to {page}: open it in a browser.")
    for effect, (mean, sd) in found.moments.items():
        click.echo(f"{effect}: mean {mean:.3g}, SD {sd:.3g}")
    if not yes:
        click.confirm("May these numbers leave?", abort=True)
    write_file(out, gate.release(message))
    click.echo(f"Written to {out}: it may be sent.")


@node.command(context_settings={"ignore_unknown_options": True})
@click.option("--name", required=True, help="This client's name.")
@options.path_option("--policy", "policy_path", metavar="FILE", required=True, text="policy.toml.")
@options.data_file("This site's own Python file with load_rows(model, node_config).", required=True)
@click.argument("given", metavar="[ARGUMENTS OF flower-supernode]...", nargs=-1, type=click.UNPROCESSED)
def flower(name: str, policy_path: Path, rows_path: Path, given: tuple[str, ...]) -> None:
    """Start a SuperNode of Flower that runs what this site has approved, and no code from the network."""
    import subprocess
    import sys
    import tempfile

    with options.needs_extra("flower"):
        from pyro_fed.deployment.flower.own_code import node_command
    with tempfile.TemporaryDirectory(prefix="pyro_fed-") as folder:
        command, environment = node_command(Path(folder), name, policy_path, rows_path, given)
        sys.exit(subprocess.run(command, env=environment).returncode)
