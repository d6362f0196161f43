"""The command ``pyro-fed compare``: several recipes on one federation, one table, one page."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyro_fed.cli import options
from pyro_fed.cli.apart import run_apart
from pyro_fed.cli.output import typed_command
from pyro_fed.cli.parse import parse_executor
from pyro_fed.conventions.output import check_writable, kept_elsewhere
from pyro_fed.errors import PyroFedError, SettingError

if TYPE_CHECKING:
    import pandas as pd

    from pyro_fed.algorithm.contract import Algorithm
    from pyro_fed.recipes.recipe import Recipe


@click.command()
@options.model
@options.recipes
@options.reference
@options.apart
@options.federation
@options.assignments("RECIPE.KEY=VALUE", "nuts.num_samples=500")
@options.out("Write the comparison as one HTML page.")
@options.results
@options.executor
@options.max_seconds
@options.as_json
@options.verbose
@options.quiet
def compare(
    model: str, recipe_names: tuple[str, ...], reference: str | None, apart: bool, clients: int | None,
    partition_text: str, assignments: tuple[str, ...], seed: int, out: Path | None, results_folder: Path | None,
    executor_text: str, max_seconds: float | None, as_json: bool, verbose: bool, quiet: bool,
) -> None:  # fmt: skip
    """Compare several RECIPEs on a MODEL.

    All run on the same clients; the reference works on their pooled data. Printed is a table of how close
    they come to the reference, how well they predict and what they cost, and every reason to doubt a result.
    A run that ends in an error does not end the others: it is told at the end, with exit code 1.
    """
    import pyro_fed as pf
    from pyro_fed.analysis.report import page, plain
    from pyro_fed.recipes import library, recipe
    from pyro_fed.recipes.experiment import build_federation
    from pyro_fed.results.saving import check_savable

    if apart and reference is None:
        raise SettingError("--apart runs the reference in a process of its own: give --reference, such as nuts")
    if out is not None:
        page.check_report(out)
    if results_folder is not None:
        check_writable(results_folder / "comparison.json", "--results")
    names = list(dict.fromkeys([*recipe_names, *([reference] if reference else [])]))
    for name in names:
        if alike := [other for other in names if other != name and Path(other).stem == Path(name).stem]:
            raise SettingError(f"{name} and {alike[0]} would both be called '{Path(name).stem}': rename the file")
    chosen = {Path(name).stem: recipe.load(name) for name in names}
    algorithms = _algorithms(chosen, assignments)
    module = library.load_model(model)
    fed, test = build_federation(module, clients, partition_text, seed)
    if results_folder is not None:
        check_savable(fed.problem, "--results")
    stem = Path(reference).stem if reference else None
    split = {"clients": fed.num_clients, "partition": partition_text, "seed": seed}
    given = [part for key, value in split.items() for part in (f"--{key}", str(value))] + ["--executor", executor_text]
    if max_seconds is not None:
        given += ["--max-seconds", str(max_seconds)]
    results: dict[str, Any] = {}
    errors: dict[str, Exception] = {}
    with ExitStack() as running:
        waited = None
        if apart:
            own = (text.removeprefix(f"{stem}.") for text in assignments if text.startswith(f"{stem}."))
            settings_of = [part for text in own for part in ("--set", text)]
            waited = running.enter_context(run_apart([model, str(reference), *given, *settings_of, "--quiet"]))
        for name, algorithm in algorithms.items():
            if not quiet:
                click.echo(f"{name}: {chosen[name].description}", err=True)
            settings = {**chosen[name].run_options(fed.num_clients), "executor": parse_executor(executor_text)}
            settings |= {"seed": seed, "progress": not quiet, "max_seconds": max_seconds}
            try:
                results[name] = waited() if waited and name == stem else pf.run(algorithm, fed, **settings)
            except (PyroFedError, click.ClickException) as error:
                errors[name] = error
                if getattr(error, "result", None) is not None:
                    results[name] = error.result  # type: ignore[union-attr]
    if not results:
        raise next(iter(errors.values()))
    stem = stem if stem in results else None
    table = pf.compare(results, stem, federation=fed, test=test)
    what = {"model": Path(str(module.__file__)).stem, **split}
    said = {name: str(error) for name, error in errors.items()}
    values = {**what, "set": assignments, "reference": stem, "results": plain.comparison(table), "errors": said}
    click.echo(plain.as_json(values) if as_json else comparison_block(table))
    if results_folder is not None:
        results_folder.mkdir(parents=True, exist_ok=True)
        for name, idata in results.items():
            with kept_elsewhere(results_folder / f"{name}.nc") as place:
                idata.to_netcdf(str(place))
        (results_folder / "comparison.json").write_text(plain.as_json(values) + "\n", encoding="utf-8")
    if out is not None:
        title = f"{Path(str(module.__file__)).stem}: {len(results)} algorithms compared"
        lead = f"{page.clients_line(fed)} ({partition_text}), seed {seed}"
        lead += f"; ended in an error: {', '.join(errors)}" if errors else ""
        with kept_elsewhere(out) as place:
            page.write_report(
                place, table, results, fed, title=title, lead=lead, reference=stem, test=test, command=typed_command()
            )
        click.echo(f"\nWritten to {out}: open it in a browser.", err=as_json)
    if errors:
        for name, text in said.items():
            click.echo(f"\n{name} ended in an error: {text}", err=True)
        if reference is not None and stem is None:
            click.echo("\nNothing was compared with the reference, which has no result.", err=True)
        raise SystemExit(1)


def _algorithms(chosen: dict[str, Recipe], assignments: tuple[str, ...]) -> dict[str, Algorithm]:
    """The algorithms with their settings replaced.

    Raises:
        SettingError: a setting of a recipe that is not compared.
    """
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
    """The comparison as text: a block of columns a subject, then what speaks against the results.

    Args:
        table: of `pyro_fed.compare`.
    """
    import pandas as pd

    from pyro_fed.analysis.judging.compare import TABLES
    from pyro_fed.analysis.report import terminal

    lines = []
    for part in TABLES:
        if not (written := part.written(table)):
            continue
        block = pd.DataFrame(written, index=table.index)
        block.index.name = None
        lines += [terminal.heading(part.title), *(f"  {line}" for line in block.to_string().splitlines())]
    lines.append(terminal.heading("What speaks against them"))
    lines += [terminal.field(str(name), str(text) or "nothing") for name, text in table["warnings"].items()]
    return "\n".join(lines)
