"""The command line: ``pyro-fed run``, ``compare``, ``doctor``, ``flower``, ``agent``, ``study``, ``node`` and others.

Commands import what they need when they run: torch and Pyro take seconds, and `--help` needs neither.
"""

from __future__ import annotations

import inspect
import os
import platform
import shutil
import time
import warnings
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from pyro_fed.cli import options
from pyro_fed.cli.check import check
from pyro_fed.cli.compare import bench, compare
from pyro_fed.cli.network import agent, certificates, flower
from pyro_fed.cli.node import node
from pyro_fed.cli.options import parse_executor, parse_graph
from pyro_fed.cli.process import terminated_as_interrupted, typed_command
from pyro_fed.cli.study import study
from pyro_fed.conventions.html import MAX_SHOWN_ROWS
from pyro_fed.conventions.output import kept_elsewhere, write_result
from pyro_fed.conventions.toml_files import read_toml
from pyro_fed.conventions.version import VERSION
from pyro_fed.errors import DivergenceError, InterruptedRun, PyroFedError, TimeLimitError

if TYPE_CHECKING:
    from types import ModuleType

    from pyro_fed.algorithm.contract import Algorithm, Plan
    from pyro_fed.federation.federation import Federation
    from pyro_fed.recipes.recipe import Recipe
    from pyro_fed.results.inference_data import InferenceData


#: The packages that every run needs.
NEEDED = ("torch", "pyro-ppl", "arviz", "xarray", "numpy", "scipy", "pandas", "matplotlib", "h5netcdf")
#: The extras: the modules that they install, and what these are for.
EXTRAS = {
    "compare": (("jinja2",), "the page of pyro-fed compare and of pf.write_report"),
    "study": (("pandera", "tabulate"), "a study's codebook, pyro-fed check"),
    "agents": (("grpc", "cryptography"), "peers without a server, pyro-fed agent"),
    "formula": (("formulae",), "regressions by a formula, pf.glm"),
    "graphviz": (("graphviz",), "pictures of models, pf.render_model; also the program dot"),
    "files": (("cryptography",), "studies by files that are mailed, pyro-fed study"),
    "flower": (("flwr",), "clients on other machines, pyro-fed flower"),
    "ray": (("ray",), "several processes, --executor ray:N"),
    "privacy": (("opendp",), "noise of differential privacy, pf.Private"),
}


@click.command()
@options.as_json
def doctor(as_json: bool) -> None:
    """Show what is installed: versions, compiler, threads, GPU, and what each missing extra would add.

    The exit code is 1 if something that every run needs is missing.
    """
    machine = _machine()  # first, since it measures how long the import of torch takes
    from pyro_fed.analysis.report import overview

    versions = {"pyro_fed": VERSION, "python": platform.python_version()} | {name: _version(name) for name in NEEDED}
    found = {"versions": versions, "machine": machine, "extras": _extras()}
    missing = [name for name, text in found["versions"].items() if text == MISSING]
    if as_json:
        click.echo(overview.as_json(found))
    else:
        for title, entries in found.items():
            click.echo(overview.heading(title.capitalize()))
            for name, text in entries.items():
                click.echo(overview.field(name, text))
    if missing:
        raise click.ClickException(f"missing: {', '.join(missing)}; pip install pyro_fed installs them")


#: Of a package that is not there.
MISSING = "not installed"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return MISSING


def _machine() -> dict[str, str]:
    began = time.perf_counter()
    import torch

    spent = time.perf_counter() - began
    compiler = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++") or shutil.which("clang++")
    cuda: Any = torch.version.cuda  # without types
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none that torch can use"
    return {
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors",
        "threads of torch": f"{torch.get_num_threads()}; small problems are fastest with num_threads=1",
        "C++ compiler": compiler or "none: compile='inductor' is not available, and auto uses compile='trace'",
        "GPU": f"{gpu} (torch for {'CUDA ' + cuda if cuda else 'the CPU'}); computations use the CPU unless "
        "device='cuda'",
        "import of torch": f"{spent:.1f} s",
    }


def _extras() -> dict[str, str]:
    return {
        name: "installed" if all(map(find_spec, modules)) else f"pip install 'pyro_fed[{name}]' adds {what}"
        for name, (modules, what) in EXTRAS.items()
    }


class _InputError(click.ClickException):
    """An error of the user's input: one line without a traceback, and exit code 2."""

    exit_code = 2


class _Interrupted(click.ClickException):
    """Ctrl-C without a result: one line, and the exit code that shells give it."""

    exit_code = 130


class _Commands(click.Group):
    """Commands in the order in which they were added; errors and warnings are printed in one line each."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            try:
                return super().invoke(ctx)
            except InterruptedRun as error:
                raise _Interrupted(_one_line(error)) from error
            except (DivergenceError, TimeLimitError) as error:
                raise click.ClickException(_one_line(error)) from error
            except BrokenPipeError:  # the reader has closed the pipe, as `head` does: click ends silently
                raise
            except (PyroFedError, OSError) as error:
                raise _InputError(_one_line(error) or type(error).__name__) from error


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    context = click.get_current_context(silent=True)
    where = f" ({filename}:{lineno})" if context is not None and context.params.get("verbose") else ""
    click.secho(f"Warning: {_one_line(message)}{where}", fg="yellow", err=True)


def _one_line(message: Warning | BaseException | str) -> str:
    return " ".join(str(message).split())


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="pyro_fed", prog_name="pyro-fed")
def main() -> None:
    """Federated Bayesian inference for ordinary Pyro models.

    A MODEL is a name from `pyro-fed list` or the path of a .py file; a RECIPE a name or the path of a .toml
    file.
    """


@main.command()
@options.model
@options.recipe_or_auto
@options.federation
@options.rounds
@options.max_seconds
@options.assignments("KEY=VALUE", "num_particles=50")
@options.out
@options.report
@click.option(
    "--parameters",
    "max_parameters",
    type=click.IntRange(min=1),
    default=MAX_SHOWN_ROWS,
    show_default=True,
    help="Parameters in the posterior's table.",
)
@options.executor
@options.device
@options.graph
@options.checkpoint
@options.resume
@options.as_json
@options.verbose
@options.quiet
def run(
    model: str, recipe_name: str, clients: int | None, partition_text: str, rounds: int | None,
    max_seconds: float | None, assignments: tuple[str, ...], seed: int, out: Path | None, report: Path | None,
    max_parameters: int, executor_text: str, device: str | None, graph_text: str | None, checkpoint: Path | None,
    resume: bool, as_json: bool, verbose: bool, quiet: bool,
) -> None:  # fmt: skip
    """Run a RECIPE on a MODEL over clients. The default recipe is auto.

    auto starts with FedEP. If the checks of its answer raise doubts, it continues with FedAIS and with samplers, until
    two answers agree. Any other recipe is one algorithm.

    The model's training data are split over the clients; its test data measure the predictions. The command prints
    what was done, the posterior, the remaining doubts, the predictions and the cost.
    """
    import pyro_fed as pf
    from pyro_fed.algorithm.contract import Plan
    from pyro_fed.analysis.judging import metrics
    from pyro_fed.analysis.report import overview, page
    from pyro_fed.recipes import library, recipe
    from pyro_fed.recipes.experiment import build_federation
    from pyro_fed.recipes.values import parse_assignment
    from pyro_fed.results.inference_data import check_savable

    if resume and checkpoint is None:
        raise _InputError("--resume needs --checkpoint DIR, the folder with the state of the run to continue")
    if report is not None:
        page.check_report(report)
    module = library.load_model(model)  # which may import the recipe's algorithm
    chosen = recipe.load(recipe_name)
    assigned = dict(parse_assignment(text) for text in assignments)
    if rounds is not None and issubclass(chosen.algorithm, Plan):
        assigned["max_rounds"] = rounds
    algorithm = chosen.build(assigned, where="--set")
    out = options.result_file(out, chosen.name)
    fed, test = build_federation(module, clients, partition_text, seed, device)
    if out is not None:
        check_savable(fed.problem, "--out")
    settings = chosen.run_options(fed.num_clients)
    if rounds is not None and not issubclass(chosen.algorithm, Plan):
        settings["num_rounds"] = rounds
    if graph_text is not None:
        settings["graph"] = parse_graph(graph_text, fed.num_clients)
    if checkpoint is not None:
        settings["checkpoint"] = checkpoint
    settings |= {"executor": parse_executor(executor_text), "resume": resume, "max_seconds": max_seconds}
    if not as_json:
        click.echo(_run_block(module, chosen, algorithm, fed, partition_text))
    with terminated_as_interrupted():
        idata = pf.run(algorithm, fed, seed=seed, progress=not quiet, **settings)
    if out is not None:
        write_result(idata, out)
    if report is not None:
        title = f"{Path(str(module.__file__)).stem}: {chosen.name}"
        lead = f"{page.clients_line(fed)} ({partition_text}), seed {seed}"
        results = {chosen.name: idata}
        table = pf.compare(results, federation=fed, test=test)
        with kept_elsewhere(report) as place:
            page.write_report(place, table, results, fed, title=title, lead=lead, test=test, command=typed_command())
    if not as_json:
        click.echo(_answer_blocks(idata, max_parameters))
    measured = metrics.test_metrics(idata, fed, test) if test is not None else {}
    if as_json:
        click.echo(overview.as_json(overview.run_figures(idata, measured)))
        return
    click.echo("\n".join([overview.prediction_block(measured), overview.cost_block(idata)]))
    if out is not None:
        click.echo(f"\nWritten to {click.format_filename(out)}; read it by arviz.from_netcdf({str(out)!r}).")
    if report is not None:
        click.echo(f"\nWritten to {click.format_filename(report)}: open it in a browser.")


def _run_block(
    module: ModuleType, chosen: Recipe, algorithm: Algorithm | Plan, fed: Federation, partition_text: str
) -> str:
    from pyro_fed.analysis.report import overview
    from pyro_fed.recipes import library, recipe

    lines = [
        overview.field("model", f"{Path(str(module.__file__)).stem}: {library.first_line(module.__doc__)}"),
        overview.field("recipe", f"{chosen.name}: {chosen.description}"),
        overview.field("settings", recipe.changed_settings(algorithm)),
        overview.field("clients", f"{overview.client_line(fed.row_counts.tolist())} ({partition_text})"),
    ]
    return "\n".join([overview.heading("Run"), *lines])


def _answer_blocks(idata: InferenceData, max_parameters: int) -> str:
    """The blocks of text about an answer: the stages of a plan, the posterior, and doubts."""
    import pyro_fed as pf
    from pyro_fed.analysis.report import overview

    steps = [overview.steps_block(pf.metrics.steps(idata))] if "steps" in idata.attrs else []
    return "\n".join([*steps, overview.posterior_table(idata, max_parameters), overview.doubts_block(idata)])


main.add_command(check)
main.add_command(bench)
main.add_command(compare)
main.add_command(doctor)
main.add_command(flower)
main.add_command(agent)
main.add_command(certificates)
main.add_command(study)
main.add_command(node)


@main.command(name="list")
def list_all() -> None:
    """List the models, the recipes and the algorithms."""
    from pyro_fed.analysis.report import overview
    from pyro_fed.recipes import library

    models = {name: library.model_description(path) for name, path in library.list_models().items()}
    recipes = {name: read_toml(path).get("description", "") for name, path in library.list_recipes().items()}
    click.echo(overview.listing("Models", models))
    click.echo(overview.listing("Recipes", recipes))
    click.echo(overview.listing("Algorithms", _algorithms()))
    click.echo("\nTry: pyro-fed run logistic_regression --clients 10")


def _algorithms() -> dict[str, str]:
    """The algorithms that `pyro_fed.infer` offers, with the first line of their docstrings."""
    from pyro_fed import infer
    from pyro_fed.algorithm.contract import Algorithm, Plan
    from pyro_fed.recipes import library

    public = {name: getattr(infer, name) for name in dir(infer)}
    types = {
        name: value for name, value in public.items() if isinstance(value, type) and issubclass(value, Algorithm | Plan)
    }
    classes = {name: value for name, value in types.items() if not inspect.isabstract(value)}
    return {name: library.first_line(inspect.getdoc(cls)) for name, cls in sorted(classes.items())}


@main.command()
@options.recipe
@options.explained_model
def show(recipe_name: str, model: str | None) -> None:
    """Print a RECIPE and all its settings.

    The defaults of the settings that the recipe leaves out are printed at the end. With --model, the command also
    prints what would be run on that model with ten clients: every phase, its settings, and why each was chosen.
    """
    import pyro_fed as pf
    from pyro_fed.recipes import library, recipe
    from pyro_fed.recipes.experiment import build_federation

    chosen = recipe.load(recipe_name)
    defaults = chosen.left_out()
    click.echo(f"# {click.format_filename(chosen.path)}\n\n{chosen.path.read_text(encoding='utf-8').rstrip()}")
    click.echo(f"\n# Settings of {chosen.algorithm.__name__} that this recipe leaves at their defaults:")
    click.echo("\n".join(f"# {name} = {value}" for name, value in defaults.items()) or "# (none)")
    if model is not None:
        fed = build_federation(library.load_model(model), None, "iid", 0).federation
        graph = chosen.run_options(fed.num_clients).get("graph")
        explanation = str(pf.explain(chosen.build(), fed, graph=graph))
        click.echo(f"\n# On {model}:")
        click.echo("\n".join(f"# {line}" for line in explanation.splitlines()))
