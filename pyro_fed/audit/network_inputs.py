"""Errors in the inputs of a network: out of range of its units, or of no use to its predictions.

**Out of range.** A unit takes Σ_j x_j w_j. If a column's root mean square times the size of its weights under the prior
is far above one, the unit is nearly the same for all rows: tanh is at ±1, and a rectifier is linear or zero. Then there
is hardly a gradient to follow. With weights of N(0, 1), a year, an income or a count is such a column.

**Of no use.** An answer predicts a row by its own inputs no better than by those of other rows j:

    Δ_i = log 1/S Σ_s p(y_i | x_i, z_s) - mean over j of log 1/S Σ_s p(y_j | x_i, z_s)

The mean of Δ_i over the fitted rows is positive if the answer has learned anything about y from x. It is zero for a
network whose weights stay at the prior. The density of the rows alone would not show that, since x may be
uninformative. The user has to decide between the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from statistics import NormalDist
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.density.checks.points import FEW_DRAWS, FEW_ROWS, NUM_DRAWS
from pyro_fed.density.compiling.compiler import FAILURES
from pyro_fed.density.compiling.layers import first_products
from pyro_fed.density.compiling.predictors import rows_graph, some_rows
from pyro_fed.density.problem import Problem
from pyro_fed.density.running.trace_sites import frame_of, sum_to_rows
from pyro_fed.ops.entries import evenly

#: A column is out of range if the root mean square of its contribution to a unit is larger. With weights of N(0, 1)
#: standardised columns, pixels of 0 to 16 and columns of tens are well below.
MAX_CONTRIBUTION = 30.0
#: Median of |w| for w ~ N(0, 1). The size of weights is their median over this: if their scales have long tails, as
#: in a horseshoe, a root mean square would be that of few extreme weights, which data rule out.
MEDIAN = NormalDist().inv_cdf(0.75)
#: The most and the fewest rows that are used: of more rows the gain of an overfitted network is plain too, and fewer
#: show no gain plainly.
MAX_COMPARED_ROWS, MIN_COMPARED_ROWS = 500, 20
#: Inputs are of use if the mean of Δ is more than this many standard errors above zero.
USEFUL_STANDARD_ERRORS = 2.0


def range_findings(problem: Problem, from_prior: Callable[[], Tensor | None]) -> list[Finding]:
    """One finding on the column that is furthest out of range of a network's units, by draws of the prior; or none."""
    draws = from_prior() if problem.traits.layers else None
    if draws is None:
        return []
    try:
        worst = max(_sizes(problem, draws), default=None, key=lambda size: size.added)
    except FAILURES:
        return []
    if worst is None or worst.added <= MAX_CONTRIBUTION:
        return []
    names = [name for name, _, _ in problem.arguments.columns]
    what = "an input" if worst.column is None else f"column {worst.column}"
    if worst.leaf is not None and len(names) == len(problem.rows):
        what += f" of argument '{names[worst.leaf]}'"
    return [sentences.input_out_of_range(column=what, of_rows=worst.of_rows, of_weights=worst.of_weights)]


class _Size(NamedTuple):
    """How much a column of the inputs adds to a unit."""

    added: float  # root mean square of what the column adds
    of_rows: float  # root mean square of the column
    of_weights: float  # size of the column's weights under the prior
    column: int | None  # the column's number; None if all inputs are taken as one
    leaf: int | None  # number of the row tensor that has the column; None if it is not an argument itself


def _sizes(problem: Problem, draws: Tensor) -> Iterator[_Size]:
    """The worst column of each first layer by draws of the prior; a convolution or several products are one."""
    rows = some_rows(problem, FEW_ROWS)
    graph = rows_graph(problem, FEW_ROWS)
    leaves = [node for node in graph.graph.nodes if node.op == "placeholder"][1:]
    wanted = first_products(graph)
    seen = [_Values(graph, {node for pair in wanted for node in pair}).at(z, rows) for z in draws]
    for x, w in wanted:
        of_rows = seen[0][x].double()
        of_weights = torch.stack([one[w] for one in seen]).double().abs()
        by_column = of_weights.dim() == 3 and of_rows.shape[-1] == of_weights.shape[1]
        rows_by, weights_by = (of_rows.shape[-1], of_weights.shape[1]) if by_column else (1, 1)
        of_rows = of_rows.reshape(-1, rows_by).square().mean(0).sqrt()
        of_weights = of_weights.transpose(0, 1).reshape(weights_by, -1).median(1).values / MEDIAN
        size = (of_rows * of_weights).nan_to_num(nan=0.0)
        at = int(size.argmax())
        added, value, weight = (float(one[at]) for one in (size, of_rows, of_weights))
        yield _Size(added, value, weight, at if by_column else None, leaves.index(x) if x in leaves else None)


class _Values(fx.Interpreter):
    """Runs a graph and keeps the values of some nodes."""

    def __init__(self, graph: fx.GraphModule, wanted: set[fx.Node]) -> None:
        super().__init__(graph)
        self.wanted = wanted
        self.values: dict[fx.Node, Tensor] = {}

    def at(self, z: Tensor, rows: tuple[Tensor, ...]) -> dict[fx.Node, Tensor]:
        """The values of the wanted nodes at a flat vector (D,) and the graph's rows."""
        self.run(z, *rows)
        return self.values

    def run_node(self, n: fx.Node) -> Any:
        """Compute a node, and keep its value if it is wanted."""
        found = super().run_node(n)
        if n in self.wanted:
            self.values[n] = found
        return found


def useless_input_findings(problem: Problem, draws: Tensor) -> list[Finding]:
    """One finding on a network that predicts rows, by draws (S, D), no better by their own than by others' inputs."""
    if not (problem.traits.layers and problem.traits.one_outcome):
        return []
    rows = tuple(leaf[evenly(len(leaf), MAX_COMPARED_ROWS)] for leaf in problem.rows)
    if len(rows[0]) < MIN_COMPARED_ROWS:
        return []
    found = [_log_densities(problem, z, rows) for z in draws[evenly(len(draws), NUM_DRAWS)].to(problem.dtype)]
    own, *others = (torch.stack(parts).logsumexp(0) for parts in zip(*found, strict=True))
    gain = own - torch.stack(others).mean(0)
    mean, error = float(gain.mean()), float(gain.std()) / math.sqrt(len(gain))
    if not mean <= USEFUL_STANDARD_ERRORS * error:
        return []
    name = problem.layout.single_observed()
    return [sentences.inputs_tell_nothing(site=name, rows=len(gain), gain=mean, error=error)]


def _log_densities(problem: Problem, z: Tensor, rows: tuple[Tensor, ...]) -> list[Tensor]:
    """Log densities of observations, given inputs: of the m rows' own ones (m,), then of `FEW_DRAWS` others'."""
    site = problem.execute_at(z, rows).trace.nodes[problem.layout.single_observed()]
    dim = frame_of(site, problem.plate).dim
    along = dim - len(site["fn"].event_shape)
    found = []
    for shift in (0, *(1 + len(rows[0]) * part // (FEW_DRAWS + 1) for part in range(1, FEW_DRAWS + 1))):
        log_prob = site["fn"].log_prob(site["value"].roll(shift, along))
        found.append(sum_to_rows({**site, "log_prob": log_prob}, dim).double())
    return found
