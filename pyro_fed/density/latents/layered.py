"""Networks whose rows have latents of their own, such as clients' offsets, clients' last layers, or a decoder's codes.

Such latents are integrated out, row by row, wherever a density is computed: the network is computed at every node of
every row's rule. An exact curvature repeats that for each parameter and each point at which it is averaged, which takes
hours. The same model takes seconds if these latents are entries of a global site, chosen by a column of the rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_fed.density.compiling.compiler import FAILURES
from pyro_fed.density.compiling.layers import shows_layers
from pyro_fed.density.compiling.predictors import CHECK_ROWS, some_rows, tidy_graph
from pyro_fed.density.compiling.tracing import to_graph
from pyro_fed.density.problem import Problem
from pyro_fed.density.size import cost_of
from pyro_fed.density.traits import LARGE_WORK, NETWORK_POINTS
from pyro_fed.errors import ModelError


def check_affordable(problem: Problem) -> None:
    """Refuse a network whose rows' own latents cost too much to be integrated out.

    `LARGE_WORK` numbers a round take some two seconds, of fifty to hundreds of rounds. An offset of each of twelve
    clients with twenty rows makes 5e8 numbers, a last layer of eight weights 3e10, two codes of each of 200 rows 2e12.

    Args:
        problem: the model's densities.

    Raises:
        ModelError: names the latents, the cost and the cures.
    """
    plain = not (problem.looped or problem.arguments.nested_plates or problem.layout.discrete)
    if not problem.local_dim or not plain or not _has_layers(problem):
        return
    numbers = cost_of(problem).numbers * problem.num_rows * NETWORK_POINTS * problem.dim
    if numbers <= LARGE_WORK:
        return
    names = sorted(problem.layout.local)
    raise ModelError(
        f"latents {names} of each element of plate '{problem.bound.plate}' are integrated out through a network, at "
        f"{problem.num_nodes} nodes an element and {NETWORK_POINTS} points of {problem.dim} parameters: "
        f"{numbers:.0e} numbers a round, of which {LARGE_WORK:.0e} take two seconds. Make them entries of one site "
        "outside of it, drawn in a plate of all elements and chosen by a column of the rows, as "
        "values[element] with the partition pf.partition.ByGroup(element); or pool the rows for NUTS or SVI, which "
        "draw them. Fewer nodes (quadrature=) seldom suffice, and max_seconds= would end no round"
    )


def _has_layers(problem: Problem) -> bool:
    """Whether a network has layers that the rows' own latents enter, as weights or as inputs; found once."""
    found: bool = problem.compiler.find_once("layers of rows' latents", lambda: _shows_layers(problem), problem)
    return found


def _shows_layers(problem: Problem) -> bool:
    rows = some_rows(problem, CHECK_ROWS)
    width = problem.dim
    own = torch.zeros(len(rows[0]), problem.local_dim, dtype=problem.dtype, device=rows[0].device)
    theta, both = own.new_zeros(width), own.new_zeros(width + own.numel())

    def as_inputs(z: Tensor, x: Tensor, *rows: Tensor) -> Tensor:
        return problem.conditional_parts(z, rows, x)[1].contiguous()

    def as_weights(all_: Tensor, *rows: Tensor) -> Tensor:
        return problem.conditional_parts(all_[:width], rows, all_[width:].view_as(own))[1].contiguous()

    try:
        graphs = to_graph(as_inputs, (theta, own, *rows)), to_graph(as_weights, (both, *rows))
        return any(shows_layers(tidy_graph(graph), width) for graph in graphs)
    except FAILURES:
        return False
