"""Rows' latents that cannot be integrated out: bounded ones that nothing holds, and those of large networks.

A mask over a latent, as stochastic variational inference allows over entries that are missing, leaves its density out.
If no other density depends on it, its integral is infinite: of a latent without bounds it is the same at all θ, and is
left out (`LatentAscent.direction`), but the log-Jacobian of a bounded one is a slope that no quadrature ends.

A network is computed at every node of every row's rule, and an exact curvature repeats that for each parameter and each
point. The same model takes seconds if these latents are entries of a global site, chosen by a column of the rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pyro_fed.density.checks.points import FEW_DRAWS
from pyro_fed.density.compiling.compiler import FAILURES
from pyro_fed.density.compiling.layers import shows_layers
from pyro_fed.density.compiling.predictors import CHECK_ROWS, some_rows, tidy_graph
from pyro_fed.density.compiling.tracing import to_graph
from pyro_fed.density.problem import Problem
from pyro_fed.density.running.site_values import mask_of
from pyro_fed.density.running.trace_sites import is_improper, unconstraining
from pyro_fed.density.size import cost_of
from pyro_fed.density.traits import LARGE_WORK, NETWORK_POINTS
from pyro_fed.errors import ModelError

if TYPE_CHECKING:
    from pyro_fed.density.layout import Site
    from pyro_fed.density.problem import Problem


def check_held(problem: Problem, trace: Any) -> None:
    """Refuse, by a ModelError, latents of rows whose density is the same wherever they are; `trace` is of all rows."""
    for name, site in problem.layout.local.items():
        free = _without_density(trace.nodes[name], site)
        if free is None or not _has_bounded_support(trace.nodes[name], site):
            continue
        for entry in free.any(0).nonzero().flatten().tolist():
            alone = free[:, entry] & _rows_without_use(problem, site.start + entry)
            if bool(alone.any()):
                row = int(alone.nonzero()[0])
                raise ModelError(
                    f"latent '{name}' has bounds and no density of its own in {int(alone.sum())} of {len(alone)} "
                    f"elements of plate '{problem.plate}', the first of them {row} (a mask, or an improper prior), and "
                    "nothing else there depends on it: its integral is infinite. Take the mask off the latent, and "
                    "leave it over what is observed: a latent that nothing depends on integrates to one"
                )


def _has_bounded_support(msg: Any, site: Site) -> bool:
    """Whether the log-Jacobian of the site's transform depends on its value, as where its support has bounds."""
    generator = torch.Generator().manual_seed(1)
    transform, shape = unconstraining(msg), site.unconstrained_shape
    found = []
    for _ in range(2):
        z = torch.randn(shape, generator=generator, dtype=torch.float64).to(msg["value"])
        found.append(transform.log_abs_det_jacobian(z, transform(z)))
    return not torch.equal(*found)


def _without_density(msg: Any, site: Site) -> Tensor | None:
    """Which entries of a row (N, d) have no density in their own site; None where all have one."""
    rows, size = site.unconstrained_shape[site.axis or 0], site.row_size
    if is_improper(msg["fn"]):
        return torch.ones(rows, size, dtype=torch.bool)
    mask = mask_of(msg)
    if mask is None or bool(mask.all()):
        return None
    free = (~mask.bool()).expand(msg["fn"].shape()).movedim(site.axis or 0, 0).reshape(rows, -1)
    # An event that has another number of entries unconstrained, such as a simplex, is masked as a whole.
    return free if free.shape[1] == size else free.all(1, keepdim=True).expand(rows, size)


def _rows_without_use(problem: Problem, at: int) -> Tensor:
    """In which rows (N,) no density depends on number `at` of the rows' latents."""
    generator = torch.Generator().manual_seed(0)
    rows = problem.all_rows
    unused: Tensor | None = None
    for _ in range(FEW_DRAWS):
        z = torch.randn(problem.dim, generator=generator, dtype=problem.dtype)
        here = torch.randn(len(rows[0]), problem.local_dim, generator=generator, dtype=problem.dtype)
        there = here.clone()
        there[:, at] = torch.randn(len(here), generator=generator, dtype=problem.dtype)
        one, other = (problem.log_terms(z, rows, local)[1] for local in (here, there))
        for name in one.keys() - {""}:  # but the Jacobian
            same = (one[name] == other[name]) | (one[name].isnan() & other[name].isnan())
            unused = same if unused is None else unused & same
    return torch.zeros(len(rows[0]), dtype=torch.bool) if unused is None else unused


def check_affordable(problem: Problem) -> None:
    """Refuse, by a ModelError, a network whose rows' own latents cost too much to be integrated out."""
    # `LARGE_WORK` numbers take two seconds. An offset of each of twelve clients with twenty rows makes 5e8, a last
    # layer of eight weights 3e10, two codes of each of 200 rows 2e12.
    plain = not (problem.looped or problem.arguments.nested_plates or problem.layout.discrete)
    if not problem.local_dim or not plain:
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
        "outside of it, drawn in a plate of all elements and chosen by a column of the rows, as "
        "values[element] with the partition pf.partition.ByGroup(element); or pool the rows for NUTS or SVI, which "
        "draw them. Fewer nodes (quadrature=) seldom suffice, and max_seconds= would end no round"
    )


def _shows_layers(problem: Problem) -> bool:
    """Whether a network has layers that the rows' own latents enter, as weights or as inputs."""
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
