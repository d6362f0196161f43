"""Shared by all guides: checks of their sites against the model's, a param store of their own, and stored draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self

import pyro
import torch
from torch import Tensor

from pyro_fed.algorithm.states import State
from pyro_fed.conventions.setting_checks import check_at_least
from pyro_fed.density.problem import Problem
from pyro_fed.density.running.handlers import RowsCount, for_pyro, run_by_pyro
from pyro_fed.density.running.trace_sites import innermost, unconstraining
from pyro_fed.errors import SettingError, warn_user


@contextmanager
def own_params(seed: int) -> Iterator[None]:
    """An empty param store and a seeded generator; both are restored afterwards."""
    store = pyro.get_param_store()
    before = store.get_state()
    with torch.random.fork_rng(devices=[]):
        store.clear()
        torch.default_generator.manual_seed(seed)  # `torch.manual_seed` seeds all devices, which takes milliseconds
        try:
            yield
        finally:
            store.clear()  # `set_state` does not remove entries
            store.set_state(before)


#: Unconstrained values whose transforms cover a support, up to rounding.
REACHING = (-16.0, -4.0, -1.0, 0.0, 1.0, 4.0, 16.0)


def sampled_sites(trace: Any) -> dict[str, Any]:
    """The messages of the sampled sites in Pyro's trace of a guide, by name."""
    return {
        name: node
        for name, node in trace.nodes.items()
        if node["type"] == "sample" and not node["is_observed"] and type(node["fn"]).__name__ != "_Subsample"
    }


def check_names(guide: str, guide_sites: set[str], problem: Problem, cure: str, warn: bool = True) -> None:
    """Refuse a guide whose global sites are not the model's; warn of unused sites inside the plate."""
    expected, local = set(problem.sites), set(problem.layout.local)
    unknown, missing = sorted(guide_sites - expected - local), sorted(expected - guide_sites)
    if unknown or missing:
        inside = f" and, inside plate '{problem.plate}', {sorted(local)}" if local else ""
        raise SettingError(
            f"guide {guide} lacks the sites {missing} and has {unknown} besides: the model's are "
            f"{sorted(expected)}{inside}; {cure}"
        )
    if guide_sites & local and warn:
        warn_user(
            f"guide {guide}: its sites {sorted(guide_sites & local)}, inside plate '{problem.plate}', are not used: "
            "clients integrate these latents out and draw them given the others at the end. They can be left out"
        )


def check_support(guide: str, msg: Any, support: Any) -> None:
    """Refuse a site, with message `msg`, whose distribution extends beyond the model's support."""
    kind, value = type(innermost(msg["fn"])).__name__, msg["value"]
    points = [value] if kind == "Delta" else _points_of(unconstraining(msg), value)
    if not all(bool(support.check(point).all()) for point in points):
        raise SettingError(
            f"guide {guide}: site '{msg['name']}' ({kind}) draws values outside the model's support {support}: its own "
            f"support is {msg['fn'].support}; give it a family of the model's support"
        )


def _points_of(transform: Any, value: Tensor) -> list[Tensor]:
    """Values that cover a support: a transform of unconstrained points, near and far from zero."""
    shape = transform.inverse_shape(value.shape)
    signs = (1 - 2 * (torch.arange(shape.numel()) % 2)).reshape(shape).to(value.dtype)
    return [transform(size * part) for size in REACHING for part in (torch.ones_like(signs), signs)]


def model_sites(problem: Problem) -> dict[str, tuple[Any, Any]]:
    """Each latent site's support and transform."""
    supports = {}

    def source(msg: Any, transform: Any) -> Tensor:
        supports[msg["name"]] = (msg["fn"].support, transform)
        return torch.zeros(transform.inverse_shape(msg["fn"].shape()), dtype=problem.dtype)

    problem.collect(source)
    return supports


@contextmanager
def pooled_model(problem: Problem, seed: int, temperature: float) -> Iterator[Callable[..., Any]]:
    """The model on all rows, with the likelihood to the power 1 / `temperature`, and its own params and randomness."""
    constants = problem.bound.constants
    with torch.enable_grad(), own_params(seed), run_by_pyro(problem.dtype, constants):
        model = for_pyro(problem.model, constants, problem.arguments.incomplete)
        if temperature != 1:
            model = RowsCount(1 / temperature, (problem.plate, *problem.arguments.nested_plates))(model)
        yield model


#: Number of draws that are stored by default: as many as the audit uses.
DEFAULT_KEPT_DRAWS = 4000


@dataclass(frozen=True, kw_only=True)
class KeptDraws:
    """An algorithm that stores draws of its guide in its state, `draws` (S, D), or (A, S, D) of agents.

    Args:
        num_guide_draws: number of stored draws of the fitted guide, each returned once by `run`; None stores as many
            as the run returns, and at least 4,000.
    """

    num_guide_draws: int | None = None

    def __post_init__(self) -> None:
        check_at_least(self, 1, "num_guide_draws", allow_none=True)

    def for_draws(self, num_draws: int) -> Self:
        """The algorithm with this number of draws, unless `num_guide_draws` is set."""
        if self.num_guide_draws is not None:
            return self
        return replace(self, num_guide_draws=max(num_draws, DEFAULT_KEPT_DRAWS))

    @property
    def kept_draw_count(self) -> int:
        """S, the number of draws that are stored."""
        return DEFAULT_KEPT_DRAWS if self.num_guide_draws is None else self.num_guide_draws

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        """The first `num_draws` of the stored draws: (1, S, D), or (A, S, D) of agents."""
        draws = shared["draws"]
        return draws.reshape(-1, *draws.shape[-2:])[:, :num_draws]
