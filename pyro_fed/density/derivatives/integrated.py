"""Score and curvature of likelihoods with integrated latents of rows, by linear predictors.

With f_i(θ, x) the log joint density of row i and its latents x, and ω_iq its posterior's weights at the nodes x_iq of
`latents.quadrature`,

    ∇ log p_i  = E_ω[∇f_i]                                                                    (Fisher's identity)
    ∇² log p_i = E_ω[∇²f_i] + Cov_ω[∇f_i]                                                     (Louis' identity)

If the observations depend on θ and x through a few numbers that are linear in both (`compiling.predictors`), such as
the patients' logits a_h + x_i'β in a hospital h with effect a_h, derivatives and their means over the nodes are
computed in these numbers, and the means are multiplied by the covariates once at the end. Observations may be in a
plate nested in the rows.

Source: Louis (1982), *Finding the observed information matrix when using the EM algorithm*, JRSS B 44.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.func import jvp, vjp
from torch.utils import _pytree as pytree

from pyro_fed.density.compiling.compiler import FAILURES
from pyro_fed.density.compiling.predictors import (
    CHECK_ROWS,
    Predictors,
    curvatures,
    is_the_model,
    parts_of,
    some_rows,
    tidy_graph,
)
from pyro_fed.density.derivatives.row_sums import sums_of
from pyro_fed.density.latents.quadrature import NearbyModes
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import Batch
from pyro_fed.ops.batched import FiniteSums, Moments, vmap


@dataclass(frozen=True)
class Integrated:
    """Sums over a client's rows of log marginal likelihoods and derivatives, by the predictors of its observations."""

    parts: Predictors

    def add(self, problem: Problem, total: FiniteSums, batch: Batch, points: Tensor) -> tuple[FiniteSums, Any]:
        """The sum over points (s, D)."""
        return total.add(Moments(*self.at(problem, points, batch.rows, batch.weight, *batch.near))), ()

    def at(
        self, problem: Problem, points: Tensor, rows: Any, weight: Tensor, near: NearbyModes | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Value (s,), score (s, D) and curvature (s, D, D) of weighted rows (m, ...) at points (s, D)."""
        parts, leaves, owner = self.parts, pytree.tree_leaves(rows), owners(problem, rows)
        chosen = list(parts.direct)
        eye = torch.eye(points.shape[-1], dtype=points.dtype, device=points.device)
        of_t, origin = eye[chosen], points.new_zeros(len(weight), problem.local_dim)
        slopes = vmap(lambda z: parts.linear(z, origin, *leaves))(eye) - parts.linear(0 * eye[0], origin, *leaves)

        def at(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            place, log_weight = problem.quadrature.nodes_at(problem, z, rows, near)

            def look(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
                """Predictors (n, p), and of each row the log joint density (m,) with derivatives in u and in t."""
                u, t = parts.linear(z, x, *leaves), z[chosen]

                def log_joint(u: Tensor, t: Tensor) -> Tensor:
                    whole = z.index_copy(0, torch.tensor(chosen, device=z.device), t) if chosen else z
                    return parts.rest(u, whole, x, *leaves)

                value, pull = vjp(lambda one: log_joint(one, t), u)[:2]
                along = vmap(lambda e: jvp(lambda one: log_joint(u, one), (t,), (e,))[1])
                return u, value, pull(torch.ones_like(value))[0], along(torch.eye(len(t)).to(t)) if chosen else t[:0]

            us, values, of_u, by_t = vmap(look)(place)
            values = values + log_weight
            log_marginal = torch.logsumexp(values, 0)
            posterior = (values - log_marginal).exp()  # (Q, m)
            share = posterior * weight
            means = vmap(lambda u, x, w: curvatures(parts, u, z, (x, *leaves), w))(us, place, share)
            _, score, curvature = sums_of(slopes, of_t, [part.sum(0) for part in means])
            scores = _to_groups(torch.einsum("qnp,dnp->qnd", of_u, slopes), owner, len(weight))  # (Q, m, D)
            scores = scores + by_t.movedim(1, -1).to(scores) @ of_t if chosen else scores
            away = scores - (posterior.unsqueeze(-1) * scores).sum(0)
            spread = (away * share.unsqueeze(-1)).flatten(0, 1).mT @ away.flatten(0, 1)
            return (log_marginal * weight).sum(), score, curvature - spread

        found: tuple[Tensor, Tensor, Tensor] = vmap(at)(points)
        return found


def integrated(problem: Problem, rows: Any) -> Integrated | None:
    """The integration of rows of these shapes by their predictors; None if there are none, or too many to pay."""

    def checked() -> bool:
        """Check a few rows in float64, since float32 rounds long sums."""
        at = torch.arange(CHECK_ROWS) % len(problem.rows[0])
        bound = problem.bound
        few = replace(problem, bound=replace(bound, arguments=bound.arguments.alone(at))).doubled()
        found = _find(few, some_rows(few, CHECK_ROWS))
        if found is None:
            return False

        def ours(z: Tensor, rows: Any, weight: Tensor) -> tuple[Tensor, ...]:
            value, score, curvature = found.at(few, z.unsqueeze(0), rows, weight)
            return value[0], score[0], -curvature[0]

        return is_the_model(few, ours)

    if problem.looped or problem.layout.discrete or not problem.local_dim:
        return None
    if not problem.compiler.find_once("integrated", checked, problem):
        return None
    shapes = tuple(leaf.shape for leaf in pytree.tree_leaves(rows))
    found: Integrated | None = problem.compiler.find_once(("integrated", shapes), lambda: _find(problem, rows), problem)
    return found


def owners(problem: Problem, rows: Sequence[Any]) -> Tensor | None:
    """The row (n,) of each observation with predictors, of m rows; None if each row has one observation."""
    members = problem.arguments.members(rows)
    owner: Tensor | None = max((one.owner for one in members.values()), key=len) if members else None
    return owner


def _find(problem: Problem, rows: Any) -> Integrated | None:
    leaves, spec = pytree.tree_flatten(rows)
    groups, owner = len(rows[0]), owners(problem, rows)
    count = groups if owner is None else len(owner)
    if owner is not None and count == groups:
        return None  # the axes of rows and of observations cannot be distinguished
    shapes = (problem.dim,), (groups, problem.local_dim)
    z, x = (torch.zeros(shape, dtype=problem.dtype, device=leaves[0].device) for shape in shapes)

    def of_rows(point: Tensor, place: Tensor, *leaves: Tensor) -> Tensor:
        return problem.conditional_parts(point, pytree.tree_unflatten(list(leaves), spec), place)[1].contiguous()

    try:
        graph = tidy_graph(of_rows, (z, x, *leaves))
        parts = parts_of(graph, problem.dim, count, wide=True, with_latents=True)
    except FAILURES:
        return None
    if parts is None or parts.width + len(parts.direct) >= problem.dim:
        return None
    return Integrated(parts)


def _to_groups(terms: Tensor, owner: Tensor | None, groups: int) -> Tensor:
    """Sums over the observations of each row, (Q, m, D), of terms (Q, n, D)."""
    if owner is None:
        return terms
    if groups == 1:
        return terms.sum(1, keepdim=True)
    return terms.new_zeros(len(terms), groups, terms.shape[-1]).index_add(1, owner, terms)
