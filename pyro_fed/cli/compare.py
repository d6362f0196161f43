"""The commands ``pyro-fed compare``, of recipes on one federation, and ``bench``, on posteriors with known answers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from pyro_fed.cli import options
from pyro_fed.cli.options import parse_executor
from pyro_fed.cli.process import run_apart, typed_command
from pyro_fed.conventions.output import check_writable, kept_elsewhere, replaced_file, write_result
from pyro_fed.errors import PyroFedError, SettingError, StoppedError

if TYPE_CHECKING:
    import pandas as pd

    from pyro_fed.algorithm.contract import Algorithm
    from pyro_fed.recipes.recipe import Recipe
    from pyro_fed.results.inference_data import InferenceData


@click.command()
@options.model
@options.recipes
@options.reference
@options.apart
@options.federation
@options.assignments("RECIPE.KEY=VALUE", "nuts.num_samples=500")
@options.results
@options.report
@options.executor
@options.device
@options.max_seconds
@options.as_json
@options.verbose
@options.quiet
def compare(
    model: str, recipe_names: tuple[str, ...], reference: str | None, apart: bool, clients: int | None,
    partition_text: str, assignments: tuple[str, ...], seed: int, results_folder: Path | None, report: Path | None,
    executor_text: str, device: str | None, max_seconds: float | None, as_json: bool, verbose: bool, quiet: bool,
) -> None:  # fmt: skip
    """Compare several RECIPEs on a MODEL.

    All run on the same clients; the reference works on their pooled data. The command prints how close
    they come to the reference, how well they predict, what they cost, and every reason to doubt a result.
    A run that ends in an error does not end the others: the error is printed at the end, and the exit code is 1.
    """
    import pyro_fed as pf
    from pyro_fed.analysis.report import overview, page
    from pyro_fed.recipes import library
    from pyro_fed.recipes.experiment import build_federation
    from pyro_fed.results.inference_data import check_savable

    if apart and reference is None:
        raise SettingError(
            "--apart runs the reference in a second process: pass --reference as well, such as --reference nuts"
        )
    if report is not None:
        page.check_report(report)
    if results_folder is not None:
        check_writable(results_folder / "comparison.json", "--out")
    module = library.load_model(model)  # which may import the recipes' algorithms
    chosen = _chosen_recipes(recipe_names, reference)
    algorithms = _algorithms(chosen, assignments)
    fed, test = build_federation(module, clients, partition_text, seed, device)
    if results_folder is not None:
        check_savable(fed.problem, "--out")
    name_of_model, stem = Path(str(module.__file__)).stem, Path(reference).stem if reference else None
    split = {"clients": fed.num_clients, "partition": partition_text, "seed": seed}
    with ExitStack() as running:
        waited = None
        if apart:
            given = _client_options(split, executor_text, max_seconds) + _settings_of(str(stem), assignments)
            waited = running.enter_context(run_apart([model, str(reference), *given, "--quiet"]))

        def result_of(name: str) -> InferenceData:
            if not quiet:
                click.echo(f"{name}: {chosen[name].description}", err=True)
            if waited is not None and name == stem:
                return waited()
            settings = {**chosen[name].run_options(fed.num_clients), "executor": parse_executor(executor_text)}
            settings |= {"seed": seed, "progress": not quiet, "max_seconds": max_seconds}
            return pf.run(algorithms[name], fed, **settings)

        results, errors = _results(algorithms, result_of)
    if not results:
        raise next(iter(errors.values()))
    compared_with = stem if stem in results else None
    table = pf.compare(results, compared_with, federation=fed, test=test)
    messages = {name: str(error) for name, error in errors.items()}
    values = {"model": name_of_model, **split, "set": assignments, "reference": compared_with}
    values |= {"results": overview.comparison_figures(table), "errors": messages}
    click.echo(overview.as_json(values) if as_json else comparison_block(table))
    if results_folder is not None:
        _write_results(results_folder, results, overview.as_json(values))
    if report is not None:
        title = f"{name_of_model}: {len(results)} algorithms compared"
        lead = f"{page.clients_line(fed)} ({partition_text}), seed {seed}"
        lead += f"; ended in an error: {', '.join(errors)}" if errors else ""
        subject = {"title": title, "lead": lead, "command": typed_command()}
        with kept_elsewhere(report) as place:
            page.write_report(place, table, results, fed, reference=compared_with, test=test, **subject)
        click.echo(f"\nWritten to {report}: open it in a browser.", err=as_json)
    if errors:
        _end_with_errors(messages, lost_reference=reference is not None and compared_with is None)


def _end_with_errors(messages: Mapping[str, str], lost_reference: bool) -> NoReturn:
    """Print the errors by which runs ended, and end the program with status 1."""
    for name, text in messages.items():
        click.echo(f"\n{name} ended in an error: {text}", err=True)
    if lost_reference:
        click.echo("\nThe reference has no result, so nothing was compared with it.", err=True)
    raise SystemExit(1)


def _chosen_recipes(recipe_names: tuple[str, ...], reference: str | None) -> dict[str, Recipe]:
    """The recipes, with the reference's, by their names in the table; SettingError if two files have the same name."""
    from pyro_fed.recipes import recipe

    names = list(dict.fromkeys([*recipe_names, *([reference] if reference else [])]))
    for name in names:
        if alike := [other for other in names if other != name and Path(other).stem == Path(name).stem]:
            raise SettingError(f"{name} and {alike[0]} would both be called '{Path(name).stem}': rename the file")
    return {Path(name).stem: recipe.load(name) for name in names}


def _client_options(split: dict[str, Any], executor_text: str, max_seconds: float | None) -> list[str]:
    """Words of a command, by which another process runs on the same clients."""
    given = [part for key, value in split.items() for part in (f"--{key}", str(value))] + ["--executor", executor_text]
    return given if max_seconds is None else [*given, "--max-seconds", str(max_seconds)]


def _settings_of(stem: str, assignments: tuple[str, ...]) -> list[str]:
    """The `--set` options of one recipe, as words of the command that runs this recipe."""
    own = (text.removeprefix(f"{stem}.") for text in assignments if text.startswith(f"{stem}."))
    return [part for text in own for part in ("--set", text)]


def _results(
    names: Iterable[str], result_of: Callable[[str], InferenceData]
) -> tuple[dict[str, InferenceData], dict[str, Exception]]:
    """The results by name, with those of runs that were stopped by an error; and the errors by name."""
    results: dict[str, InferenceData] = {}
    errors: dict[str, Exception] = {}
    for name in names:
        try:
            results[name] = result_of(name)
        except (PyroFedError, click.ClickException) as error:
            errors[name] = error
            if isinstance(error, StoppedError) and error.result is not None:
                results[name] = error.result
    return results, errors


def _write_results(folder: Path, results: dict[str, InferenceData], comparison: str) -> None:
    """Write each result into a file of its own, and the comparison's values into comparison.json."""
    for name, idata in results.items():
        write_result(idata, folder / f"{name}.nc")
    with replaced_file(folder / "comparison.json") as file:
        file.write(f"{comparison}\n".encode())


def _algorithms(chosen: dict[str, Recipe], assignments: tuple[str, ...]) -> dict[str, Algorithm]:
    """The algorithms, with the settings of `--set`."""
    from pyro_fed.recipes.values import parse_assignment

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
    """The comparison as text: a block of columns for each subject, then what speaks against the results."""
    import pandas as pd

    from pyro_fed.analysis.judging.compare import TABLES, findings_of
    from pyro_fed.analysis.report import overview
    from pyro_fed.codes.finding import doubts_among, texts

    lines = []
    for part in TABLES:
        if not (written := part.written(table)):
            continue
        block = pd.DataFrame(written, index=table.index)
        block.index.name = None
        lines += [overview.heading(part.title), *(f"  {line}" for line in block.to_string().splitlines())]
    found = findings_of(table)
    lines.append(overview.heading("What speaks against them"))
    lines += [overview.field(name, "; ".join(texts(doubts_among(every))) or "nothing") for name, every in found.items()]
    remarks = {name: "; ".join(texts(one for one in every if not one.is_doubt)) for name, every in found.items()}
    if any(remarks.values()):
        lines.append(overview.heading("Remarks, which speak against no result"))
        lines += [overview.field(name, text) for name, text in remarks.items() if text]
    return "\n".join(lines)


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
@options.path_option(
    "--posteriordb",
    metavar="DIR",
    file_okay=False,
    exists=True,
    text="A clone of posteriordb; default: $PYRO_FED_DATA/posteriordb.",
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
@click.option(
    "--minutes", type=click.FloatRange(min=0), help="Minutes after which no cell is started; 0 only writes the page."
)
@click.option(
    "--any-version", is_flag=True, help="Keep the cells of other versions of the code instead of running them again."
)
@options.as_json
@options.quiet
def bench(
    quick: bool, cases: str | None, partitions: str | None, algorithms: str | None, adapters: tuple[Path, ...],
    posteriordb: Path | None, out: Path, jobs: int | None, seed: int, limit: float | None, minutes: float | None,
    any_version: bool, as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Run algorithms on posteriors with known answers, split over clients.

    Each answer is compared with the known one, and with its own warnings: right, right but doubted, wrong and said,
    wrong and silent. Each cell is a file in --out, so a benchmark that was stopped continues where it was.
    """
    from pyro_fed.analysis.bench.bench import as_values, column_headings, outcome_line, run_benchmark, summary
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
        on_outcome=None if quiet else lambda outcome: click.echo(outcome_line(outcome), err=True),
    )
    text = overview.as_json(as_values(results))
    table.write_text(text + "\n", encoding="utf-8")
    write_page(out / "benchmark.html", results, command=typed_command())
    if as_json or results.outcomes:
        click.echo(text if as_json else _block(column_headings(), summary(results)))
    waiting = f"; {results.waiting} cells are left: run the same command to continue" if results.waiting else ""
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
