"""Linear predictors in numbers w = φ(z) that all rows share, for φ that is not linear.

    log p(y_i | z) = f(u_i(w), t, row i),     u_i(w) = A_i w + b_i,     t = a few entries of w,     w = φ(z)

for example if coefficients are a scale times standard normal numbers (non-centred priors, horseshoes), or bounded.
φ is the part of the trace that depends on z alone; the rest is a function of w and rows, in which `predictors` looks
for linear predictors. At a point z, derivatives of rows are taken in w, and those of φ once for all rows:

    score = J's,     Hessian = J'H J + Σ_j s_j ∇²φ_j,     J = dφ/dz,   s and H in w

As in `predictors`, a structure is accepted only if it has the model's derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, fx
from torch.func import grad, vjp

from pyro_fed.density.compiling.predictors import (
    Predictors,
    Rows,
    find_structure,
    from_parts,
    numbers_of,
    parts_of,
    rows_graph,
    some_rows,
    subgraph,
    tidy_graph,
)
from pyro_fed.density.compiling.recording import Recorder, dependent_nodes, shape_of
from pyro_fed.density.problem import Problem
from pyro_fed.ops.batched import vmap

#: Largest number of shared numbers per parameter: the matrix products grow with their number.
MAX_SHARED_RATIO = 2


@dataclass(frozen=True, eq=False)
class Composed:
    """The function φ that rows share, from z (D,) to w (m,), and their predictors in w."""

    inner: Callable[[Tensor], Tensor]  # φ, z (D,) to w (m,)
    parts: Predictors  # predictors of the rows' log-likelihood as a function of w, for a number of rows
    dim: int  # m

    #: Steps with this structure may be stored, see `process`.
    is_traced = True

    def back(self, z: Tensor, score: Tensor, hessian: Tensor) -> tuple[Tensor, Tensor]:
        """Score (D,) and Hessian (D, D) in z, from those in w, (m,) and (m, m)."""
        pull = vjp(self.inner, z)[1]
        slopes = vmap(lambda v: pull(v)[0])(torch.eye(self.dim, dtype=z.dtype, device=z.device)).to(score)

        def along(point: Tensor) -> Tensor:
            return (self.inner(point) * score.to(point)).sum()

        curvature_pull = vjp(grad(along), z)[1]
        curvature_of_inner = vmap(lambda v: curvature_pull(v)[0])(torch.eye(len(z), dtype=z.dtype, device=z.device)).to(
            score
        )
        return slopes.T @ score, slopes.T @ hessian @ slopes + curvature_of_inner


def composed_structure(problem: Problem, rows: int) -> Composed | None:
    """The structure of a model's rows, `rows` at a time, by `find_structure`; None if there is none."""
    return find_structure(problem, "composed", rows, lambda count: _find_structure(problem, count), _derivatives)


def _derivatives(found: Composed, z: Tensor, rows: Rows, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    value, score, hessian = from_parts(found.parts, found.inner(z), rows, weight)
    return value, *found.back(z, score, hessian)


def _find_structure(problem: Problem, count: int) -> Composed | None:
    graph = rows_graph(problem, count)
    shared = _shared_nodes(graph, count)
    dim = numbers_of(shared)
    same_dtype = all(getattr(node.meta.get("tensor_meta"), "dtype", None) == problem.dtype for node in shared)
    if not shared or dim > MAX_SHARED_RATIO * problem.dim or not same_dtype:
        return None
    shapes = [shape_of(node) for node in shared]
    sizes = [shape.numel() for shape in shapes]
    ends = list(accumulate(sizes))
    shared_part, of_shared = _of_z(graph, shared), subgraph(graph, None, shared)
    z = torch.zeros(problem.dim, dtype=problem.dtype, device=problem.rows[0].device)

    def inner(point: Tensor) -> Tensor:
        return torch.cat([part.reshape(-1) for part in shared_part(point)])

    def of_rows(w: Tensor, *rows: Tensor) -> Tensor:
        shared_values = [
            w[end - size : end].reshape(shape) for shape, size, end in zip(shapes, sizes, ends, strict=True)
        ]
        value: Tensor = of_shared(z, *rows, *shared_values)
        return value.contiguous()

    parts = parts_of(tidy_graph(of_rows, (inner(z), *some_rows(problem, count))), dim, count, False)
    return None if parts is None else Composed(inner, parts, dim)


def _shared_nodes(graph: Recorder, count: int) -> list[fx.Node]:
    """The nodes of z alone that are combined with rows, or expanded to the number of rows."""
    nodes = list(graph.graph.nodes)
    z, *rows = [node for node in nodes if node.op == "placeholder"]
    of_z, of_rows = dependent_nodes(nodes, [z]), set(rows)
    for node in nodes:
        inputs = node.all_input_nodes
        is_expanded = count in shape_of(node) and not any(count in shape_of(one) for one in inputs) and node is not z
        if node.op == "output" or is_expanded or any(one in of_rows for one in inputs):
            of_rows.add(node)
    return [n for n in nodes if n in of_z and n not in of_rows and any(user in of_rows for user in n.users)]


def _of_z(graph: Recorder, wanted: list[fx.Node]) -> fx.GraphModule:
    """The part of a graph that computes some nodes from z alone."""
    part = subgraph(graph, wanted, [])
    for node in [node for node in part.graph.nodes if node.op == "placeholder"][1:]:
        part.graph.erase_node(node)
    part.recompile()
    return part
