"""Observations of a model: their values, distribution and predictions; and values that reveal nothing of the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical
from torch.utils import _pytree as pytree

from pyro_fed.density.compiling.compiler import FAILURES
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.arguments import rows_like
from pyro_fed.density.rows.files import row_blocks
from pyro_fed.density.running.torch_modes import replacing
from pyro_fed.density.running.trace_sites import frame_of, sum_to_rows, without_event_dims
from pyro_fed.errors import DataError

if TYPE_CHECKING:
    from pyro_fed.density.problem import Problem


def observed_values(problem: Problem) -> dict[str, Tensor]:
    """Values of the observed sites inside the plate, in the original row order."""
    layout, z = problem.layout, torch.zeros(problem.dim, dtype=problem.dtype)
    sites = {name: site for name, site in layout.observed.items() if name not in layout.factors}

    def values(rows: tuple[Any, ...]) -> dict[str, Tensor]:
        trace = problem.execute_at(z, rows).trace
        return {name: trace.nodes[name]["value"] for name in sites}

    if not problem.arguments.has_many_rows or not all(problem.plate in site.dims for site in sites.values()):
        return values(problem.all_rows)
    each = [values(rows) for rows in row_blocks(problem.rows)]
    axes = {name: site.dims.index(problem.plate) for name, site in sites.items()}
    return {name: torch.cat([part[name] for part in each], axis) for name, axis in axes.items()}


def possible_outcomes(problem: Problem) -> list[Tensor]:
    """The observed values, and every column of rows where a `pyro.factor` may take any of them for the outcome."""
    columns = problem.arguments.columns if problem.layout.factors else ()
    return [*observed_values(problem).values(), *(leaf for _, nested, leaf in columns if nested is None)]


def observed_rows(log_lik: Tensor, elsewhere: Callable[[Tensor], Tensor], problem: Problem) -> Tensor:
    """Whether rows (n,) were observed, by log densities at draws (S, n), and `elsewhere` for those in doubt."""
    # A mask makes a log density zero everywhere; that of a row which draws predict with certainty is zero there too.
    seen = (log_lik != 0).any(0)
    if bool(seen.all()):
        return seen
    spread = torch.randn(2, problem.dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    points = torch.cat([torch.zeros_like(spread[:1]), spread]).to(log_lik)
    return seen | (elsewhere(points) != 0).any(0)


def observation_distribution(problem: Problem, z: Tensor, rows: tuple[Tensor, ...]) -> Any:
    """The distribution of the one observed site, on m rows (m, ...) at one unconstrained z (D,): batch shape (m,)."""
    return problem.execute_at(z, rows).trace.nodes[problem.layout.single_observed()]["fn"]


def observation(problem: Problem, z: Tensor, args: Any) -> dict[str, Tensor]:
    """Predictions of the observed rows (m, ...) among the model's arguments, at one vector z (D,).

    `log_prob` (m,), `value` (m, ...), and if torch has it `mean` (m, ...), or `probs` (m, C) of categories; `labels`
    (m, L), the probability of each, if a row has several of 0 or 1.
    """
    rows = rows_like(problem.arguments, problem.model, args, None)
    if len(rows[0]) == 0:
        raise DataError("the test data have no rows; nothing can be measured.")
    trace = problem.execute_at(z, rows, densities=True).trace
    site = trace.nodes[problem.layout.single_observed()]
    fn = site["fn"]
    out = {"log_prob": sum_to_rows(site, frame_of(site, problem.plate).dim), "value": site["value"]}
    if isinstance(fn, Categorical):
        return out | {"probs": fn.probs}
    if isinstance(fn, Bernoulli):
        return out | {"probs": torch.stack([1 - fn.probs, fn.probs], -1)}
    try:
        with replacing():  # Student's t writes NaN by a mask if it has no mean
            mean = fn.mean
    except NotImplementedError:  # for most transformed distributions
        return out
    if isinstance(without_event_dims(fn), Bernoulli) and mean.dim() == 2:
        out |= {"labels": mean}
    return out | {"mean": mean}


class Public(NamedTuple):
    """The part of draws that does not depend on the data."""

    rows: tuple[Tensor, ...]  # rows on which the sites' values are computed
    reported: list[str]  # names of the deterministic sites whose values do not depend on these rows


def without_data(problem: Problem, z: Tensor) -> Public:
    """Deterministic sites outside the plate with the same values on all rows as on a made-up one, at draws z."""
    names = [name for name, site in problem.reported.items() if problem.plate not in site.dims]
    rows: tuple[Tensor, ...] = pytree.tree_map(torch.zeros_like, problem.fewest_rows)
    some = z[:8]  # what depends on the data does so at any draw
    try:
        real, made_up = problem.constrain(some), problem.constrain(some, rows)
    except (*FAILURES, IndexError):
        return Public(problem.fewest_rows, [])  # the latents' values are the same on any rows
    if not problem.arguments.split:
        return Public(rows, [])
    alike = [name for name in names if real[name].shape == made_up[name].shape and real[name].equal(made_up[name])]
    return Public(rows, alike)
