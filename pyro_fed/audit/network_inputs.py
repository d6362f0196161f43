"""Errors in the inputs of a network: out of range of its units, or useless for its predictions.

**Out of range.** A unit's input is Σ_j x_j w_j. If a column's root mean square times the size of its weights under the
prior is far above one, the unit saturates: tanh is at ±1, and a rectifier is linear or zero. The gradient then nearly
vanishes. With weights of N(0, 1), a year, an income or a count is such a column.

**Useless.** The inputs of a row i predict its own outcome no better than the outcomes of other rows j:

    Δ_i = log 1/S Σ_s p(y_i | x_i, z_s) - mean over j of log 1/S Σ_s p(y_j | x_i, z_s)

The mean of Δ_i over the fitted rows is positive if the draws z_s have learned anything about y from x. It is zero for a
network whose weights stay at the prior, and also if x is uninformative. The user has to decide between the two; the
density of the rows alone shows neither.
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
from pyro_fed.density.compiling.recording import Recorder
from pyro_fed.density.problem import Problem
from pyro_fed.density.running.trace_sites import frame_of, sum_to_rows
from pyro_fed.ops.entries import evenly

#: A column is out of range if the root mean square of its contribution to a unit exceeds this. With weights of N(0, 1)
#: standardised columns, pixels of 0 to 16 and columns of tens are well below it.
MAX_CONTRIBUTION = 30.0
#: Median of |w| for w ~ N(0, 1). The size of weights is their median divided by this. A root mean square would depend
#: on few extreme weights, which data rule out, if scales have long tails, as in a horseshoe.
MEDIAN = NormalDist().inv_cdf(0.75)
#: Largest and smallest number of rows. With more rows an overfitted network's gain is plain too; with fewer none is.
MAX_COMPARED_ROWS, MIN_COMPARED_ROWS = 500, 20
#: Inputs are useful if the mean of Δ is more than this many standard errors above zero.
USEFUL_STANDARD_ERRORS = 2.0


def range_findings(problem: Problem, from_prior: Callable[[], Tensor | None]) -> list[Finding]:
    """One finding on the column that is farthest out of range of a network's units under the prior, or none."""
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
    column: int | None  # the column's number; None if all inputs are treated as one column
    leaf: int | None  # number of the row tensor that has the column; None if the inputs are not an argument itself


def _sizes(problem: Problem, draws: Tensor) -> Iterator[_Size]:
    """The worst column of each first layer by draws of the prior; a convolution or several products have one column."""
    rows = some_rows(problem, FEW_ROWS)
    graph = rows_graph(problem, FEW_ROWS)
    leaves = [node for node in graph.graph.nodes if node.op == "placeholder"][1:]
    products = first_products(graph)
    node_values = [_Values(graph, {node for pair in products for node in pair}).at(z, rows) for z in draws]
    for x, w in products:
        of_rows = node_values[0][x].double()
        of_weights = torch.stack([one[w] for one in node_values]).double().abs()
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

    def __init__(self, graph: Recorder, wanted: set[fx.Node]) -> None:
        super().__init__(fx.GraphModule(graph.root, graph.graph))
        self.wanted = wanted
        self.values: dict[fx.Node, Tensor] = {}

    def at(self, z: Tensor, rows: tuple[Tensor, ...]) -> dict[fx.Node, Tensor]:
        """The values of the wanted nodes at a flat vector (D,) and the graph's rows."""
        self.run(z, *rows)
        return self.values

    def run_node(self, n: fx.Node) -> Any:
        """Compute a node, and keep its value if it is wanted."""
        value = super().run_node(n)
        if n in self.wanted:
            self.values[n] = value
        return value


def useless_input_findings(problem: Problem, draws: Tensor) -> list[Finding]:
    """One finding on a network whose draws (S, D) predict rows no better from their own inputs than from others'."""
    if not (problem.traits.layers and problem.traits.one_outcome):
        return []
    rows = tuple(leaf[evenly(len(leaf), MAX_COMPARED_ROWS)] for leaf in problem.rows)
    if len(rows[0]) < MIN_COMPARED_ROWS:
        return []
    log_densities = [_log_densities(problem, z, rows) for z in draws[evenly(len(draws), NUM_DRAWS)].to(problem.dtype)]
    own_inputs, *other_inputs = (torch.stack(parts).logsumexp(0) for parts in zip(*log_densities, strict=True))
    gain = own_inputs - torch.stack(other_inputs).mean(0)
    mean, error = float(gain.mean()), float(gain.std()) / math.sqrt(len(gain))
    if not mean <= USEFUL_STANDARD_ERRORS * error:
        return []
    name = problem.layout.single_observed()
    return [sentences.inputs_tell_nothing(site=name, rows=len(gain), gain=mean, error=error)]


def _log_densities(problem: Problem, z: Tensor, rows: tuple[Tensor, ...]) -> list[Tensor]:
    """Log densities (m,) of the m rows' own observations given their inputs, then of other rows', `FEW_DRAWS` times."""
    site = problem.execute_at(z, rows).trace.nodes[problem.layout.single_observed()]
    dim = frame_of(site, problem.plate).dim
    along = dim - len(site["fn"].event_shape)
    log_densities = []
    for shift in (0, *(1 + len(rows[0]) * part // (FEW_DRAWS + 1) for part in range(1, FEW_DRAWS + 1))):
        log_prob = site["fn"].log_prob(site["value"].roll(shift, along))
        log_densities.append(sum_to_rows({**site, "log_prob": log_prob}, dim).double())
    return log_densities
