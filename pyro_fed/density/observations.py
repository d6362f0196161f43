"""Observations of a model: values, distribution and predictions; and deterministic values that do not reveal data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

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


def observed_values(problem: Problem) -> dict[str, Tensor]:
    """Values of the observed sites inside the plate, in the original row order."""
    layout, z = problem.layout, torch.zeros(problem.dim, dtype=problem.dtype)
    sites = {name: site for name, site in layout.observed.items() if name not in layout.factors}

    def values(rows: tuple[Any, ...]) -> dict[str, Tensor]:
        trace = problem.execute_at(z, rows).trace
        return {name: trace.nodes[name]["value"] for name in sites}

    if not problem.arguments.has_many_rows or not all(problem.plate in site.dims for site in sites.values()):
        return values(problem.all_rows)
    block_values = [values(rows) for rows in row_blocks(problem.rows)]
    axes = {name: site.dims.index(problem.plate) for name, site in sites.items()}
    return {name: torch.cat([part[name] for part in block_values], axis) for name, axis in axes.items()}


def possible_outcomes(problem: Problem) -> list[Tensor]:
    """The observed values; with a `pyro.factor` also all columns of rows, since any may be the outcome."""
    columns = problem.arguments.columns if problem.layout.factors else ()
    return [*observed_values(problem).values(), *(leaf for _, nested, leaf in columns if nested is None)]


def observed_rows(log_lik: Tensor, elsewhere: Callable[[Tensor], Tensor], problem: Problem) -> Tensor:
    """Whether each row (n,) is observed, from log densities at draws (S, n), and at other points by `elsewhere`."""
    # The log density of a masked row is zero at all points; that of a row predicted with certainty at the draws alone.
    observed = (log_lik != 0).any(0)
    if bool(observed.all()):
        return observed
    spread = torch.randn(2, problem.dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    points = torch.cat([torch.zeros_like(spread[:1]), spread]).to(log_lik)
    return observed | (elsewhere(points) != 0).any(0)


def observation_distribution(problem: Problem, z: Tensor, rows: tuple[Tensor, ...]) -> Any:
    """The distribution of the observed site, of batch shape (m,), on rows (m, ...) at an unconstrained z (D,)."""
    return problem.execute_at(z, rows).trace.nodes[problem.layout.single_observed()]["fn"]


def observation(problem: Problem, z: Tensor, args: Any) -> dict[str, Tensor]:
    """Predictions of the observed rows (m, ...) among the model's arguments, at one vector z (D,).

    `log_prob` (m,), `value` (m, ...), and if available `mean` (m, ...), or `probs` (m, C) of categories; `labels` (m,
    L), the probability of each label, if a row has several binary labels.
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
    """Deterministic sites outside the plate that have the same values on all rows and on a row of zeros, at draws z."""
    names = [name for name, site in problem.reported.items() if problem.plate not in site.dims]
    rows: tuple[Tensor, ...] = pytree.tree_map(torch.zeros_like, problem.fewest_rows)
    points = z[:8]  # a few draws suffice to show a dependence on the data
    try:
        values, values_on_zeros = problem.constrain(points), problem.constrain(points, rows)
    except (*FAILURES, IndexError):
        return Public(problem.fewest_rows, [])  # the latents' values are the same on any rows
    if not problem.arguments.split:
        return Public(rows, [])
    unchanged = [
        name
        for name in names
        if values[name].shape == values_on_zeros[name].shape and values[name].equal(values_on_zeros[name])
    ]
    return Public(rows, unchanged)
