"""The arguments and options of the commands, each declared once.

So an option of several commands is changed in one place. `--help` lists a command's options in the order of its
decorators; `federation` is the group of options that make the clients. Nothing slow is imported here, so that
`pyro-fed --help` is quick.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from pyro_fed.conventions.names import DEFAULT_CLIENTS
from pyro_fed.conventions.output import PAGE_ENDINGS, check_writable
from pyro_fed.conventions.toml_files import read_toml
from pyro_fed.conventions.version import REMOVED_IN
from pyro_fed.errors import SettingError

if TYPE_CHECKING:
    from pyro_fed.graph import Graph
    from pyro_fed.runtime.executors import Executor

#: A command, which a decorator of click takes and returns.
Command = TypeVar("Command", bound=Callable[..., Any])


@contextmanager
def needs_extra(name: str) -> Iterator[None]:
    """A context for imports that need an extra; SettingError if it is not installed."""
    try:
        yield
    except ImportError as error:
        raise SettingError(f"this needs the extra: pip install 'pyro_fed[{name}]'") from error


class WritableFile(click.Path):
    """A file of one format; whether it can be written is checked before any work."""

    def __init__(self, content: str, endings: tuple[str, ...]) -> None:
        super().__init__(dir_okay=False, path_type=Path)
        self.content, self.endings = content, endings

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The path, after the checks."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if path.suffix and path.suffix.lower() not in self.endings:
            better = path.with_suffix(self.endings[0]).name
            self.fail(f"{path.name!r} would be {self.content}: call it {better!r}", param, ctx)
        try:
            return check_writable(path, param.opts[0] if param is not None else "--out")
        except SettingError as error:
            self.fail(str(error), param, ctx)


#: A page.
PAGE = WritableFile("an HTML page, whatever its name", PAGE_ENDINGS)
#: Endings of the names of results.
RESULT_ENDINGS = (".nc", ".nc4", ".cdf", ".netcdf", ".h5", ".hdf5")
#: Endings of formats in which no result is written.
OTHER_FORMATS = (".csv", ".json", ".npz", ".parquet", ".pkl", ".pt", ".txt", ".xlsx", ".zarr")


class ResultsFolder(click.Path):
    """The folder of a command's results; for a command with one result, a name that ends as a result's is the file."""

    def __init__(self, single: bool) -> None:
        super().__init__(path_type=Path)
        self.single = single

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The path, after the checks."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        ending = path.suffix.lower()
        if ending in PAGE_ENDINGS:
            has_report = ctx is not None and any(one.name == "report" for one in ctx.command.params)
            page = f"the page is --report {path.name}" if has_report else f"call it {path.stem!r}"
            self.fail(f"--out is the folder of the results; {page}", param, ctx)
        if ending in RESULT_ENDINGS and not self.single:
            self.fail(f"--out is the folder of the results: call it {path.stem!r}", param, ctx)
        if self.single and ending in OTHER_FORMATS and not path.is_dir():
            better = path.with_suffix(RESULT_ENDINGS[0]).name
            text = f"--out is the folder of the result, or a NetCDF file, such as {better!r}. {_format_cure(path)}"
            self.fail(text, param, ctx)
        if path.exists() and not path.is_dir() and not (self.single and ending in RESULT_ENDINGS):
            self.fail(f"--out is the folder of the results, and {path.name!r} is a file", param, ctx)
        return path


def result_file(out: Path | None, name: str) -> Path | None:
    """The file of the result with a name, from `--out`: in the folder, or that file; checked to be writable."""
    if out is None:
        return None
    return check_writable(out if out.suffix.lower() in RESULT_ENDINGS else out / f"{name}.nc", "--out")


def _format_cure(path: Path) -> str:
    """A sentence on how a result is written in the format that a path's ending promises."""
    if path.suffix.lower() == ".zarr":
        return "ArviZ writes a Zarr store: arviz.from_netcdf(...).to_zarr(...)"
    return "Make tables of a result by arviz.from_netcdf(...).to_dataframe(), or by arviz.summary"


def known_recipes(_: click.Context, __: click.Parameter, given: Any) -> Any:
    """Recipes by name or path as they were given, once their files are found: before torch is imported."""
    from pyro_fed.recipes.library import find_recipe

    for name in given if isinstance(given, tuple) else (given,):
        if name is not None:
            find_recipe(name)
    return given


def complete_model(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    """Models and files whose names begin so, for the shell's completion."""
    from pyro_fed.recipes import library

    listed = library.list_models()
    return _complete_names({name: library.model_description(path) for name, path in listed.items()}, begun)


def complete_recipe(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    """Recipes and files whose names begin so, for the shell's completion."""
    from pyro_fed.recipes import library

    listed = library.list_recipes()
    return _complete_names({name: read_toml(path).get("description", "") for name, path in listed.items()}, begun)


def _complete_names(described: dict[str, str], begun: str) -> list[CompletionItem]:
    """The names that begin so, with descriptions, which some shells show; or files, if there are none."""
    found = [CompletionItem(name, help=text) for name, text in described.items() if name.startswith(begun)]
    return found or [CompletionItem(begun, type="file")]


def path_option(
    *names: str, text: str, metavar: str | None = None, required: bool = False, **checks: bool
) -> Callable[[Command], Command]:
    """An option whose value is a path; `checks` are those of `click.Path`."""
    kind = click.Path(path_type=Path, **checks)
    return click.option(*names, metavar=metavar, required=required, type=kind, help=text)


# -- The model and the recipes ------------------------------------------------------------------------------------

_RECIPE: dict[str, Any] = {"callback": known_recipes, "shell_complete": complete_recipe}

model = click.argument("model", shell_complete=complete_model)
recipe = click.argument("recipe_name", metavar="RECIPE", **_RECIPE)
recipe_or_auto = click.argument("recipe_name", metavar="[RECIPE]", default="auto", **_RECIPE)
recipes = click.argument("recipe_names", metavar="RECIPE...", nargs=-1, required=True, **_RECIPE)
reference = click.option(
    "--reference", metavar="RECIPE", help="The recipe whose result the others are compared with, e.g. nuts.", **_RECIPE
)
study_recipe = click.option(
    "--recipe", "recipe_name", default="files", show_default=True, help="A recipe's name or .toml file.", **_RECIPE
)
apart = click.option(
    "--apart", is_flag=True, help="Run the reference in a second process at the same time: faster on two cores."
)
explained_model = click.option(
    "--model", help="A model's name or file: print what would be run on it, and why.", shell_complete=complete_model
)


def assignments(metavar: str, example: str) -> Callable[[Command], Command]:
    """The option `--set`, which replaces a recipe's settings; `metavar` says how one is written, such as KEY=VALUE."""
    text = f"Replace one setting of a recipe, e.g. --set {example}. May be repeated."
    return click.option("--set", "assignments", metavar=metavar, multiple=True, help=text)


# -- The clients and the run --------------------------------------------------------------------------------------

partition = click.option(
    "--partition",
    "partition_text",
    metavar="TEXT",
    default="iid",
    show_default=True,
    help="How the rows are split over the clients: iid, dirichlet:0.3, group:COLUMN, ...",
)
rounds = click.option(
    "--rounds",
    type=click.IntRange(min=1),
    help="Number of rounds, for auto of all stages together. Default: the recipe's.",
)
max_seconds = click.option(
    "--max-seconds",
    type=click.FloatRange(min=0, min_open=True),
    help="Time limit in seconds; two thirds of it are for the rounds. The result is what they have found by then.",
)
seed = click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the partition and of the runs."
)
device = click.option(
    "--device", metavar="NAME", help="Where the clients' steps are computed, such as cuda.  [default: cpu]"
)
executor = click.option(
    "--executor",
    "executor_text",
    metavar="TEXT",
    default="vectorised",
    show_default=True,
    help="How the clients' work is run: vectorised, sequential, or ray:N over N processes.",
)
graph = click.option(
    "--graph",
    "graph_text",
    metavar="TEXT",
    help="Run without a server over this graph: ring, star, erdos_renyi:0.5, or another builder of pyro_fed.graph.",
)
checkpoint = path_option(
    "--checkpoint", metavar="DIR", file_okay=False, text="Keep the state after every round in DIR; not with auto."
)
resume = click.option("--resume", is_flag=True, help="Continue from the state in the folder of --checkpoint.")


def clients(default: int | None, text: str = "Number of clients.") -> Callable[[Command], Command]:
    """The option `--clients`, with its default and its text in `--help`."""
    shown = default is not None
    return click.option("--clients", type=click.IntRange(min=1), default=default, show_default=shown, help=text)


def federation(command: Command) -> Command:
    """The options that make the federation: `--clients`, `--partition` and `--seed`."""
    text = f"Number of clients.  [default: {DEFAULT_CLIENTS}, or one for each group of --partition group]"
    for option in (seed, partition, clients(None, text)):
        command = option(command)
    return command


class _DataFile(click.Option):
    """The option `--data`, whose value may also be given by its old name `--rows`."""

    OLD = "old_rows"

    def consume_value(self, ctx: click.Context, opts: Any) -> Any:
        """The value of either name; a FutureWarning, which is for users, on the old one."""
        old = opts.get(self.OLD)
        if old is not None:
            said = f"--rows is --data now; version {REMOVED_IN} takes it under that name alone: --data {old}"
            warnings.warn(said, FutureWarning, stacklevel=1)
            opts = {self.name: old, **opts}
        return super().consume_value(ctx, opts)


def data_file(text: str, required: bool = False) -> Callable[[Command], Command]:
    """The option `--data`, a site's rows, as `rows_path`; `--rows`, its old name, is hidden."""

    def decorate(command: Command) -> Command:
        kind = click.Path(path_type=Path)
        old = click.option("--rows", _DataFile.OLD, type=kind, hidden=True, expose_value=False)
        own = click.option(
            "--data", "rows_path", metavar="FILE", cls=_DataFile, required=required, type=kind, help=text
        )
        return own(old(command))

    return decorate


# -- A site's own files -------------------------------------------------------------------------------------------

folder = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
agent_data = data_file(
    "This agent's rows: a .npz or .csv file with the model's arguments, or a .py file with load_rows().", required=True
)
policy = path_option(
    "--policy",
    "policy_path",
    metavar="FILE",
    text="The site's rules on what may leave: policy.toml, in a folder that also has the ledger and the approval.",
)
peers = path_option(
    "--peers",
    "peers_path",
    metavar="FILE",
    required=True,
    text="TOML file with all agents, their addresses and the graph; the same at every agent.",
)
certificates = path_option(
    "--certificates",
    "folder",
    metavar="DIR",
    required=True,
    text="Folder with NAME.key, NAME.crt and the authority's ca.crt.",
)

# -- What is printed and written ----------------------------------------------------------------------------------

out = click.option(
    "--out",
    metavar="DIR",
    type=ResultsFolder(single=True),
    help="Write the result as NetCDF: DIR/NAME.nc, by the name of the recipe or the agent, or a file *.nc.",
)
results = click.option(
    "--out",
    "results_folder",
    metavar="DIR",
    type=ResultsFolder(single=False),
    help="Write every result to DIR/RECIPE.nc, and the numbers of the tables to DIR/comparison.json.",
)
report = click.option("--report", type=PAGE, help="Write a report as one HTML page, with figures.")
quiet = click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
verbose = click.option("-v", "--verbose", is_flag=True, help="Show where each warning comes from.")
as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")


# -- Options that are made into objects ---------------------------------------------------------------------------


def parse_executor(text: str) -> str | Executor:
    """The executor of `--executor`: "vectorised", "sequential", or "ray:2" for two processes."""
    name, _, count = text.partition(":")
    if name == "ray" and count.isdecimal() and int(count):
        from pyro_fed.runtime.executors import Ray

        return Ray(num_workers=int(count))
    from pyro_fed.runtime.executors.local import NAMED

    if text not in NAMED:
        raise SettingError(f"--executor {text!r}: expected {', '.join(NAMED)} or ray:N with N processes, such as ray:2")
    return text


def parse_graph(text: str, num_clients: int) -> Graph:
    """The graph of `--graph`, a builder of `pyro_fed.graph` and its arguments, such as "small_world:4,0.1"."""
    from pyro_fed.recipes.values import resolve_component

    name, _, rest = text.partition(":")
    try:
        values = [int(one) if one.strip().isdecimal() else float(one) for one in rest.split(",") if one.strip()]
    except ValueError:
        raise SettingError(
            f"--graph {text!r}: expected numbers after the colon, such as erdos_renyi:0.5, received {rest!r}"
        ) from None
    graph: Graph = resolve_component("pyro_fed.graph", name, Path("--graph"), num_clients, *values)
    return graph
