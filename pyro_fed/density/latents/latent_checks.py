"""Checks for rows' latents that cannot be integrated out: bounded latents without a density, and those of networks.

A mask over a latent, such as over missing entries in stochastic variational inference, removes its density. If no other
density depends on the latent, its integral is infinite. For a latent without bounds this integral is constant in θ, and
is omitted (`LatentAscent.direction`); the log-Jacobian of a bounded latent is a slope that no quadrature resolves.

A network is evaluated at every node of every row's rule, and an exact curvature repeats this for each parameter and
each point. The same model takes seconds if these latents are entries of a global site, selected by a column of the
rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_fed.density.checks.points import FEW_DRAWS
from pyro_fed.density.compiling.compiler import FAILURES
from pyro_fed.density.compiling.layers import shows_layers
from pyro_fed.density.compiling.predictors import CHECK_ROWS, some_rows, tidy_graph
from pyro_fed.density.layout import Site
from pyro_fed.density.problem import Problem
from pyro_fed.density.running.site_values import mask_of
from pyro_fed.density.running.trace_sites import is_improper, unconstraining
from pyro_fed.density.size import cost_of
from pyro_fed.density.traits import LARGE_WORK, NETWORK_POINTS
from pyro_fed.errors import ModelError


def check_held(problem: Problem, trace: Any) -> None:
    """Refuse, by a ModelError, latents of rows with a constant density; `trace` is of all rows."""
    for name, site in problem.layout.local.items():
        free = _without_density(trace.nodes[name], site)
        if free is None or not _has_bounded_support(trace.nodes[name], site):
            continue
        for entry in free.any(0).nonzero().flatten().tolist():
            unused = free[:, entry] & _rows_that_ignore(problem, site.start + entry)
            if bool(unused.any()):
                row = int(unused.nonzero()[0])
                raise ModelError(
                    f"latent '{name}' has bounds and no density of its own in {int(unused.sum())} of {len(unused)} "
                    f"elements of plate '{problem.plate}', the first of them {row} (a mask, or an improper prior), and "
                    "no other density there depends on it: its integral is infinite. Mask only the observations, "
                    "not the latent: an unused latent with its density integrates to one"
                )


def _has_bounded_support(msg: Any, site: Site) -> bool:
    """Whether the log-Jacobian of the site's transform depends on its value, such as for a bounded support."""
    generator = torch.Generator().manual_seed(1)
    transform, shape = unconstraining(msg), site.unconstrained_shape
    log_jacobians = []
    for _ in range(2):
        z = torch.randn(shape, generator=generator, dtype=torch.float64).to(msg["value"])
        log_jacobians.append(transform.log_abs_det_jacobian(z, transform(z)))
    return not torch.equal(*log_jacobians)


def _without_density(msg: Any, site: Site) -> Tensor | None:
    """Whether each entry of a row (N, d) has no density in its own site; None if all have one."""
    rows, size = site.unconstrained_shape[site.axis or 0], site.row_size
    if is_improper(msg["fn"]):
        return torch.ones(rows, size, dtype=torch.bool)
    mask = mask_of(msg)
    if mask is None or bool(mask.all()):
        return None
    free = (~mask.bool()).expand(msg["fn"].shape()).movedim(site.axis or 0, 0).reshape(rows, -1)
    # An event whose unconstrained value has another number of entries, such as a simplex, is masked as a whole.
    return free if free.shape[1] == size else free.all(1, keepdim=True).expand(rows, size)


def _rows_that_ignore(problem: Problem, at: int) -> Tensor:
    """Whether no density of each row (N,) depends on the latent with the index `at`."""
    generator = torch.Generator().manual_seed(0)
    rows = problem.all_rows
    unused: Tensor | None = None
    for _ in range(FEW_DRAWS):
        z = torch.randn(problem.dim, generator=generator, dtype=problem.dtype)
        local_values = torch.randn(len(rows[0]), problem.local_dim, generator=generator, dtype=problem.dtype)
        changed_local = local_values.clone()
        changed_local[:, at] = torch.randn(len(local_values), generator=generator, dtype=problem.dtype)
        terms, changed_terms = (problem.log_terms(z, rows, local)[1] for local in (local_values, changed_local))
        for name in terms.keys() - {""}:  # except the Jacobian
            same = (terms[name] == changed_terms[name]) | (terms[name].isnan() & changed_terms[name].isnan())
            unused = same if unused is None else unused & same
    return torch.zeros(len(rows[0]), dtype=torch.bool) if unused is None else unused


def check_affordable(problem: Problem) -> None:
    """Refuse, by a ModelError, a network whose rows' own latents are too costly to integrate out."""
    # `LARGE_WORK` numbers take two seconds. An offset of each of twelve clients with twenty rows makes 5e8, a last
    # layer of eight weights 3e10, two codes of each of 200 rows 2e12.
    supported = not (problem.looped or problem.arguments.nested_plates or problem.layout.discrete)
    if not problem.local_dim or not supported:
        return
    if not problem.compiler.find_once("layers of rows' latents", lambda: _shows_layers(problem), problem):
        return
    numbers = cost_of(problem).numbers * problem.num_rows * NETWORK_POINTS * problem.dim
    if numbers <= LARGE_WORK:
        return
    names = sorted(problem.layout.local)
    raise ModelError(
        f"latents {names} of each element of plate '{problem.bound.plate}' are integrated out through a network, at "
        f"{problem.num_nodes} nodes an element and {NETWORK_POINTS} points of {problem.dim} parameters: "
        f"{numbers:.0e} numbers a round, of which {LARGE_WORK:.0e} take two seconds. Make them entries of one site "
        "outside of it, drawn in a plate of all elements and selected by a column of the rows, as "
        "values[element] with the partition pf.partition.ByGroup(element); or pool the rows for NUTS or SVI, which "
        "draw them. Fewer nodes (quadrature=) seldom suffice, and max_seconds= would end no round"
    )


def _shows_layers(problem: Problem) -> bool:
    """Whether a network has layers with the rows' own latents as weights or as inputs."""
    rows = some_rows(problem, CHECK_ROWS)
    width = problem.dim
    zero_latents = torch.zeros(len(rows[0]), problem.local_dim, dtype=problem.dtype, device=rows[0].device)
    theta, zero_point = zero_latents.new_zeros(width), zero_latents.new_zeros(width + zero_latents.numel())

    def as_inputs(z: Tensor, x: Tensor, *rows: Tensor) -> Tensor:
        return problem.conditional_parts(z, rows, x)[1].contiguous()

    def as_weights(all_: Tensor, *rows: Tensor) -> Tensor:
        return problem.conditional_parts(all_[:width], rows, all_[width:].view_as(zero_latents))[1].contiguous()

    try:
        graphs = tidy_graph(as_inputs, (theta, zero_latents, *rows)), tidy_graph(as_weights, (zero_point, *rows))
        return any(shows_layers(graph, width) for graph in graphs)
    except FAILURES:
        return False
