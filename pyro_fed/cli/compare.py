"""The command ``pyro-fed compare``: several recipes on one federation, one table, one page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pandas as pd

import pyro_fed as pf
from pyro_fed.analysis.report import page, terminal
from pyro_fed.analysis.report.tables import TABLES, cell
from pyro_fed.errors import SettingError
from pyro_fed.recipes import library, recipe
from pyro_fed.recipes.experiment import build_federation
from pyro_fed.recipes.values import parse_assignment


@click.command()
@click.argument("model")
@click.argument("recipe_names", metavar="RECIPE...", nargs=-1, required=True)
@click.option("--reference", metavar="RECIPE", help="What the others are measured by, e.g. nuts.")
@click.option("--clients", type=click.IntRange(min=1), default=10, show_default=True, help="Number of clients.")
@click.option("--partition", "partition_text", metavar="TEXT", default="iid", show_default=True,
              help="How the rows go to the clients, e.g. dirichlet:0.3.")  # fmt: skip
@click.option("--set", "assignments", metavar="RECIPE.KEY=VALUE", multiple=True,
              help="Replace a setting of a recipe, e.g. --set nuts.num_samples=500.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the partition and of the runs.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the comparison as one HTML page.")
@click.option("--quiet", is_flag=True, help="No progress bars.")
def compare(
    model: str, recipe_names: tuple[str, ...], reference: str | None, clients: int, partition_text: str,
    assignments: tuple[str, ...], seed: int, out: Path | None, quiet: bool,
) -> None:  # fmt: skip
    """Compare several RECIPEs on a MODEL.

    All run on the same clients; the reference works on their pooled data. Printed is a table of how close
    they come to the reference, how well they predict and what they cost, and every reason to doubt a result.
    """
    names = list(dict.fromkeys([*recipe_names, *([reference] if reference else [])]))
    chosen = {Path(name).stem: recipe.load(name) for name in names}
    algorithms = _algorithms(chosen, assignments)
    module = library.load_model(model)
    fed, test = build_federation(module, clients, partition_text, seed)
    results = {}
    for name, algorithm in algorithms.items():
        if not quiet:
            click.echo(f"{name}: {chosen[name].description}", err=True)
        options = chosen[name].run_options(clients)
        results[name] = pf.run(algorithm, fed, seed=seed, progress=not quiet, **options)
    stem = Path(reference).stem if reference else None
    table = pf.compare(results, stem, federation=fed, test=test)
    click.echo(comparison_block(table))
    if out is not None:
        rows = terminal.client_line(fed.row_counts.tolist())
        title = f"{Path(str(module.__file__)).stem}: {len(results)} algorithms compared"
        lead = f"{fed.num_rows} rows over {rows} ({partition_text}), seed {seed}"
        page.write_report(out, table, results, fed, title=title, lead=lead, reference=stem, test=test)
        click.echo(f"\nWritten to {out}: open it in a browser.")


def _algorithms(chosen: dict[str, recipe.Recipe], assignments: tuple[str, ...]) -> dict[str, Any]:
    """The algorithms with their settings replaced.

    Raises:
        SettingError: a setting of a recipe that is not compared.
    """
    overrides: dict[str, dict[str, Any]] = {name: {} for name in chosen}
    for text in assignments:
        key, value = parse_assignment(text)
        name, dot, setting = key.partition(".")
        if not dot or name not in chosen:
            raise SettingError(
                f"--set {text!r}: expected RECIPE.KEY=VALUE with one of the recipes {list(chosen)}, "
                "such as --set nuts.num_samples=500"
            )
        overrides[name][setting] = value
    return {name: one.build(overrides[name], where=f"--set {name}") for name, one in chosen.items()}


def comparison_block(table: pd.DataFrame) -> str:
    """The comparison as text: a block of columns a subject, then what speaks against the results."""
    lines = []
    for part in TABLES:
        columns = {name: column for name, column in part.columns.items() if name in table}
        written = {c.heading: [cell(value, c.write) for value in table[name]] for name, c in columns.items()}
        block = pd.DataFrame(written, index=table.index)
        block.index.name = None
        lines += [terminal.heading(part.title), *(f"  {line}" for line in block.to_string().splitlines())]
    lines.append(terminal.heading("What speaks against them"))
    lines += [terminal.field(str(name), str(text) or "nothing") for name, text in table["warnings"].items()]
    return "\n".join(lines)
