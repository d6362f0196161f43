"""The command ``pyro-fed bench``: federated posteriors with known answers by any algorithm, one table, one page."""

from __future__ import annotations

import os
from pathlib import Path

import click

from pyro_fed.cli import options
from pyro_fed.cli.output import typed_command
from pyro_fed.conventions.output import check_writable


def _parts(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


@click.command()
@click.option("--quick", is_flag=True, help="Five small cases, one split each; ends within five minutes.")
@click.option("--cases", metavar="NAMES", help="Cases or patterns, separated by commas, e.g. 'linear*,kidiq'.")
@click.option("--partitions", metavar="TEXTS", help="Splits, e.g. iid/10,sorted/100,dirichlet:0.3/10,group/10.")
@click.option("--algorithms", metavar="NAMES", help="Recipes and adapters, names or paths, separated by commas.")
@click.option(
    "--adapter",
    "adapters",
    metavar="FILE",
    multiple=True,
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    help="Also run a method of your own: a file with run(model, clients). May be repeated.",
)
@click.option(
    "--posteriordb",
    metavar="DIR",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="A clone of posteriordb; default: $PYRO_FED_DATA/posteriordb.",
)
@click.option(
    "--out",
    metavar="DIR",
    type=options.ResultsFolder(single=False),
    default=Path("out/benchmark"),
    show_default=True,
    help="Folder for the results, benchmark.html and benchmark.json; cells that are there already are not run again.",
)
@click.option("--jobs", type=click.IntRange(min=1), help="Processes, one thread each; default 1, with --quick 2.")
@options.seed
@click.option("--limit", type=click.FloatRange(min=1), help="CPU seconds for each cell; default 300, with --quick 30.")
@click.option("--minutes", type=click.FloatRange(min=0), help="Start no cell after so many; 0 only writes the page.")
@click.option("--any-version", is_flag=True, help="Keep cells of other versions of the code, do not run them anew.")
@options.as_json
@options.quiet
def bench(
    quick: bool, cases: str | None, partitions: str | None, algorithms: str | None, adapters: tuple[Path, ...],
    posteriordb: Path | None, out: Path, jobs: int | None, seed: int, limit: float | None, minutes: float | None,
    any_version: bool, as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Run algorithms on posteriors with known answers, split over clients.

    Each answer is compared with the known one, and with its own warnings: right, right but doubted, wrong and said,
    wrong and silent. Each cell is a file in --out, so that a benchmark that was stopped goes on where it was.
    """
    from pyro_fed.analysis.bench.bench import as_values, column_headings, in_short, run_benchmark, summary
    from pyro_fed.analysis.bench.cell import Store
    from pyro_fed.analysis.bench.page import write_page
    from pyro_fed.analysis.report import overview, page

    out.mkdir(parents=True, exist_ok=True)
    page.check_report(out / "benchmark.html")
    table = check_writable(out / "benchmark.json", "--out")
    folder = out / "cells"
    Store(folder).take(table)
    results = run_benchmark(
        folder,
        cases=_parts(cases),
        partitions=_parts(partitions),
        recipes=_parts(algorithms),
        adapters=adapters,
        posteriordb=posteriordb,
        quick=quick,
        jobs=jobs or (min(2, os.cpu_count() or 1) if quick else 1),
        seed=seed,
        limit=limit,
        minutes=minutes,
        any_version=any_version,
        said=None if quiet else lambda outcome: click.echo(in_short(outcome), err=True),
    )
    text = overview.as_json(as_values(results))
    table.write_text(text + "\n", encoding="utf-8")
    write_page(out / "benchmark.html", results, command=typed_command())
    if as_json or results.outcomes:
        click.echo(text if as_json else _block(column_headings(), summary(results)))
    waiting = f"; {results.waiting} cells are left: the same command goes on" if results.waiting else ""
    click.echo(f"\nWritten to {out / 'benchmark.html'}: open it in a browser{waiting}.", err=as_json)


def _block(heads: list[str], rows: list[list[str]]) -> str:
    """The summary as aligned text, with a line for each figure and a column for each algorithm."""
    turned = [[head, *(row[number] for row in rows)] for number, head in enumerate(heads)]
    widths = [max(map(len, column)) for column in zip(*turned, strict=True)]
    return "\n".join(
        "  ".join(
            text.ljust(width) if not place else text.rjust(width)
            for place, (text, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in turned
    )
