"""The algorithms of the benchmark: recipes of this package, and adapters, Python files that run other methods."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pyro
import torch

from pyro_fed.analysis.bench.cases.case import Case
from pyro_fed.analysis.bench.clients import Clients, startable_clients
from pyro_fed.conventions.names import closest
from pyro_fed.errors import DataError, PyroFedError, SettingError
from pyro_fed.federation.federation import Federation
from pyro_fed.recipes import recipe
from pyro_fed.recipes.library import first_line, import_file, list_recipes
from pyro_fed.runtime.run import run

if TYPE_CHECKING:
    from pyro_fed.results.inference_data import InferenceData

#: The recipes that are compared by default.
RECIPES = ("fedep", "fedais", "p2p_vi", "dsvgd", "fsgld", "consensus_mc", "auto", "fedlaplace")
#: The adapters that are compared by default.
ADAPTERS = (
    *("pyro_nuts", "pyro_svi_normal", "pyro_svi_full", "pyro_laplace"),
    *("pyro_consensus_nuts", "pyro_gaussian_product", "pyro_pie", "pyro_bfi"),
)
#: The adapters of a quick benchmark: of methods on pooled data, without one that takes long and resembles another.
QUICK_ADAPTERS = ("pyro_nuts", "pyro_svi_normal", "pyro_laplace")
#: The folder of the adapters that this package ships.
FOLDER = Path(__file__).parent / "adapters"
#: Libraries whose version is part of a cell's version, so that cells are run anew when one changes.
FOUNDATIONS = ("torch", "pyro-ppl", "arviz")
#: Number of draws from an answer that is a density: they give an SD to 1.1 %.
NUM_DRAWS = 4000
#: Characters of a version's digest: enough to tell versions apart.
DIGEST_LENGTH = 12


class AdapterError(PyroFedError):
    """An adapter cannot be loaded, or has not returned draws."""


@dataclass(frozen=True)
class Algorithm:
    """A recipe or an adapter that the benchmark runs; `name`, that of its file without the suffix, is unique."""

    name: str
    path: Path
    adapter: bool

    @property
    def about(self) -> str:
        """A description in one line: the recipe's, or the first line of the adapter's docstring."""
        if self.adapter:
            return first_line(load_adapter(self.path).__doc__)
        return recipe.load(self.path).description

    @property
    def pooled(self) -> bool:
        """Whether the algorithm works on the pooled rows, so that its answer does not depend on the split."""
        return self.adapter and bool(getattr(load_adapter(self.path), "POOLED", False))

    def version(self, code: str) -> str:
        """A digest of all that the answers depend on; `code` digests this package, which adapters do not use."""
        parts = [self.path.read_text(encoding="utf-8"), code, *map(version, FOUNDATIONS)]
        if self.adapter:
            parts.pop(1)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:DIGEST_LENGTH]

    def run(self, case: Case, federation: Federation, seed: int) -> InferenceData:
        """Run the algorithm on a case, whose rows are split over the clients of `federation`.

        Raises:
            AdapterError: an adapter returned something else than a result or draws.
            PyroFedError: the run was refused.
            Exception: whatever an adapter raises.
        """
        return self._adapted(case, federation, seed) if self.adapter else self._run_recipe(federation, seed)

    def _run_recipe(self, federation: Federation, seed: int) -> InferenceData:
        chosen = recipe.load(self.path)
        options = {"num_draws": NUM_DRAWS, **chosen.run_options(federation.num_clients)}
        return run(chosen.build(), federation, seed=seed, progress=False, log_likelihood=False, **options)

    def _adapted(self, case: Case, federation: Federation, seed: int) -> InferenceData:
        function = load_adapter(self.path).run
        clients = Clients(federation, case.data(), seed, NUM_DRAWS)
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            pyro.clear_param_store()
            pyro.set_rng_seed(seed)
            found = function(startable_clients(case.model), clients)
        finally:
            torch.set_default_dtype(before)
            pyro.clear_param_store()
        return as_result(found, clients, self.path)


def as_result(found: Any, clients: Clients, path: Path) -> InferenceData:
    """An adapter's return value, a result or draws by site, as a result; AdapterError if it is neither."""
    try:
        if isinstance(found, Mapping) and "posterior" not in found:
            found = clients.result(found)
        found["posterior"].sizes["draw"]
    except Exception as error:  # an adapter may return anything
        raise AdapterError(
            f"{path}: run(model, clients) must return an InferenceData with the group posterior, or draws "
            f"(chain, draw, *shape) by site; received {type(found).__name__} ({error})"
        ) from error
    result: InferenceData = found
    return result


@functools.cache
def load_adapter(path: Path) -> ModuleType:
    """The module of an adapter's file, whose code this executes: load only files that you trust."""
    try:
        module = import_file(path, "adapter")
    except Exception as error:  # the user's code may raise any kind of error
        raise AdapterError(f"adapter {path} cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(getattr(module, "run", None)):
        raise AdapterError(
            f"adapter {path} does not define run(model, clients) -> InferenceData: see "
            "pyro_fed.analysis.bench.clients for an example"
        )
    return module


def find(names: list[str], adapters: list[Path]) -> list[Algorithm]:
    """The algorithms by name or path, and further adapters' files; `RECIPES` and `ADAPTERS` if `names` is empty."""
    found = [_algorithm_named(name) for name in names or (*RECIPES, *ADAPTERS)]
    found += [Algorithm(path.stem, path, True) for path in adapters]
    for one in found:
        if one.adapter:
            load_adapter(one.path)
    names = [one.name for one in found]
    twice = sorted(
        {name for name in names if names.count(name) > 1 and len({o.path for o in found if o.name == name}) > 1}
    )
    if twice:
        raise DataError(f"algorithms must have different names, but several files are called {twice}: rename one")
    return list({one.name: one for one in found}.values())


def _algorithm_named(name: str) -> Algorithm:
    shipped = {file.stem: file for file in sorted(FOLDER.glob("*.py")) if not file.name.startswith("_")}
    path = Path(name).expanduser()
    if name in shipped or path.suffix == ".py":
        return Algorithm(path.stem, shipped.get(name, path), True)
    if name in list_recipes() or path.suffix == ".toml":
        return Algorithm(path.stem, recipe.load(name).path, False)
    raise SettingError(f"no recipe or adapter '{name}'; {closest(name, [*list_recipes(), *shipped])}")
