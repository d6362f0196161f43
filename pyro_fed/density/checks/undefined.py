"""Where a log density, its gradient or its second derivative is NaN or infinite, and the operation that causes it.

Torch computes derivatives of formulas: that of y log r at y = r = 0, of 0 ** k, or of a branch of torch.where that is
not taken may be NaN although the density is finite. A row with such an operation has no derivative at any point, and an
algorithm that follows derivatives fails at it, or leaves its client out: the model is refused. Other densities are
undefined only on a part of the space, such as beyond a bound that two latents share. Inference starts outside of that
part (`starts`) and leaves it out of its averages.

One gradient and one product with the Hessian over all rows show whether all is finite (`slopes_and_bends`). Only if
they are not, rows are examined one by one. The operation is the first of the backward pass that makes finite numbers
infinite or NaN, such as acos at 1, and not the product of its infinite derivative and a zero.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vjp

from pyro_fed.density.bound import RowDensities
from pyro_fed.density.checks.source import Line, Statements, is_users_file, line_text
from pyro_fed.density.running.handlers import run_model
from pyro_fed.errors import ModelError, listed

#: The orders of derivatives: each is checked only if those before it are finite.
ORDERS = ("log density", "gradient of the log density", "second derivative of the log density")
#: The name of an operation's node in the graph, and a line of the stack that torch's anomaly mode keeps of it.
_OPERATION, _FRAME = re.compile(r"(\w+?)Backward\d*"), re.compile(r'File "([^"]+)", line (\d+), in (.+)')
#: The cure, by the order.
_NO_DENSITY = "give the latents a support on which it is, or these rows a likelihood under which they are possible"
AWAY_FROM_EDGE = (
    "keep the operation away from its edge in these rows, such as rate.clamp_min(1e-30) in place of a rate of 0, or by "
    "torch.where on what it takes and on what it makes: `safe = torch.where(edge, 1.0, x)`, then `torch.where(edge, "
    "limit, f(safe))`; or leave out rows whose density is constant"
)


class UndefinedError(ModelError):
    """A density, or its derivative of an order, that is finite at no point; in these rows, if in any."""

    def __init__(self, message: str, rows: list[int], order: int) -> None:
        super().__init__(message)
        self.rows, self.order = rows, order


def slopes_and_bends(
    total: Callable[[Tensor, Tensor], tuple[Tensor, Any]], z: Tensor, local: Tensor
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], Any]:
    """Gradients of `total` in z (D,) and local (m, d), products of its Hessian and ones, and its extra result."""
    along = (0, 1) if local.numel() else (0,)
    at = (z, local)[: len(along)]

    def gradient(*at: Tensor) -> Any:
        return grad(total, along, has_aux=True)(*at, *(z, local)[len(at) :])

    found: Any = vjp(gradient, *at, has_aux=True)
    slopes, pull, aux = found
    return slopes, pull(tuple(map(torch.ones_like, slopes))), aux


def refuse_undefined(
    problem: RowDensities,
    points: Tensor,
    rows: tuple[Any, ...],
    local: Tensor,
    numbers: Tensor,
    walls: Sequence[str] = (),
) -> None:
    """Refuse rows whose density, or a derivative of it, is finite at none of the points (P, D).

    The rows have latents `local` (P, m, d), and `numbers` (m,) for the error. `walls` are sentences on sites whose
    density is zero on a part of the space.
    """
    each_row, outside = _finite(problem, points, rows, local)
    for order, what in enumerate(ORDERS):
        for part, inside in ((each_row, True), (outside, False)):
            bad = ~part[..., order].any(0)
            if not bool(bad.any()):
                continue
            row = int(bad.nonzero()[0])
            at = int(part[:, row, order - 1].float().argmax()) if order else 0
            one = tuple(leaf[row : row + 1] for leaf in rows)
            name, latents, operation = _cause(problem, points[at], one, local[at, row : row + 1], order)
            of = f" in {int(bad.sum())} of the {len(bad)} rows that were looked at" if inside else ""
            edge = problem.bound.arguments.edge_of(bad, numbers) if inside else ""
            along = f" along {listed(map(repr, latents))}" if latents else ""
            cures = [] if order else [". ".join(walls) or _NO_DENSITY]
            cure = "; or ".join([*cures, AWAY_FROM_EDGE] if order or edge else cures)
            raise UndefinedError(
                f"site '{name}': the {what}{along} is not finite{of}{edge}, near zero as where the priors have "
                f"their mass{operation}: {cure}",
                numbers[bad].tolist() if inside else [],
                order,
            )


def _finite(problem: RowDensities, points: Tensor, rows: tuple[Any, ...], local: Tensor) -> tuple[Tensor, Tensor]:
    """Whether density, gradient and second derivative are finite at P points: rows (P, m, 3), outside (P, 1, 3)."""

    def at(z: Tensor, own: Tensor, row: tuple[Any, ...], inside: bool) -> Tensor:
        def total(point: Tensor, latents: Tensor) -> tuple[Tensor, Tensor]:
            terms = problem.log_terms(point, row, latents)[inside]
            value = sum((term.sum() for term in terms.values()), point.new_zeros(()))
            return value, value

        slopes, bends, value = slopes_and_bends(total, z, own)
        found = [torch.stack([part.isfinite().all() for part in some]).all() for some in ((value,), slopes, bends)]
        return torch.stack(found).cumprod(0).bool()

    def looked_at(inside: bool, some: Tensor) -> Tensor:
        each = tuple(leaf[some.unsqueeze(1)] for leaf in rows)
        of_rows = problem.vmap(lambda z, own, row: at(z, own, row, inside), (None, 0, 0))
        found: Tensor = problem.vmap(lambda z, own: of_rows(z, own, each))(points, local[:, some].unsqueeze(2))
        return found

    return looked_at(True, torch.arange(len(rows[0]))), looked_at(False, torch.arange(1))


def _cause(
    problem: RowDensities, z: Tensor, row: tuple[Any, ...], local: Tensor, order: int
) -> tuple[str, list[str], str]:
    """The site, the latents along which a derivative is not finite, and a sentence on the operation."""
    statements: dict[str, Line] = {}
    at = z.detach().clone().requires_grad_(), local.detach().clone().requires_grad_()
    with (
        torch.enable_grad(),
        warnings.catch_warnings(),
        Statements(statements),
        torch.autograd.set_detect_anomaly(True, check_nan=False),
    ):
        warnings.simplefilter("ignore")
        outside, inside = problem.log_terms(at[0], row, at[1])
        for name, term in (inside | outside).items():
            if not order and not bool(term.isfinite().all()):
                return name, [], _place(statements.get(name))
            terms = _derivative((term,), at, order - 1) if order and term.requires_grad else ()
            made = [part.grad_fn for part in terms if part.grad_fn is not None]
            node, slopes = _first_infinite(made, partial(_derivative, terms, at, 1)) if terms else (None, ())
            if all(bool(slope.isfinite().all()) for slope in slopes):
                continue
            return name, _latents(problem, *slopes), _operation(node, statements.get(name))
    return next(iter(inside)), [], ""


def _first_infinite(ends: list[Any], backward: Callable[[], tuple[Tensor, ...]]) -> tuple[Any, tuple[Tensor, ...]]:
    """The first node of a graph that makes finite gradients infinite or NaN in a backward pass; the pass's result."""
    found, nodes = list[Any](), set(ends)
    while ends:
        new = {node for end in ends for node, _ in end.next_functions if node is not None} - nodes
        nodes, ends = nodes | new, list(new)

    def look(node: Any, made: tuple[Tensor | None, ...], given: tuple[Tensor | None, ...]) -> None:
        if not all(one is None or bool(one.isfinite().all()) for one in made) and all(
            one is None or bool(one.isfinite().all()) for one in given
        ):
            found.append(node)

    hooks = [node.register_hook(partial(look, node)) for node in nodes]
    try:
        result = backward()
    finally:
        for hook in hooks:
            hook.remove()
    return (found[0] if found else None), result


def _operation(node: Any, statement: Line | None) -> str:
    """A clause on a node's operation and its line in the model; on that of a derivative, what was derived."""
    line = None
    while node is not None:
        name, line, node = node.name(), line or _line(node.metadata), node.metadata.get("parent_")
        if node is None:
            match = _OPERATION.search(name)
            return f", by {match[1].lower()}{_place(line or statement)}" if match else ""
    return ""


def _derivative(terms: tuple[Tensor, ...], at: tuple[Tensor, ...], order: int) -> tuple[Tensor, ...]:
    """The gradient of a sum, or of the sum of its gradient."""
    for _ in range(order):
        total = torch.stack([part.sum() for part in terms]).sum()
        terms = torch.autograd.grad(total, at, create_graph=True, materialize_grads=True)
    return terms


def _latents(problem: RowDensities, slope: Tensor, own: Tensor) -> list[str]:
    """Names of the latents along which a gradient is not finite."""
    sites = [(site, slope[site.start : site.start + site.size]) for site in problem.sites.values()]
    sites += [(site, own[:, site.start : site.start + site.row_size]) for site in problem.layout.local.values()]
    return [site.name for site, part in sites if not bool(part.isfinite().all())]


def _line(metadata: dict[str, Any]) -> Line | None:
    """The model's line in the stack of a node; None if the operation is not in a line of its own."""
    frames = _FRAME.findall("".join(metadata.get("traceback_", ())))
    inside = [name for _, _, name in frames]
    if run_model.__name__ not in inside:
        return None
    frames = frames[inside.index(run_model.__name__) :]
    own = [(path, int(number)) for path, number, _ in frames if is_users_file(path)]
    return own[-1] if own else None


def _place(line: Line | None) -> str:
    return f" at {line_text(line)}" if line else ""
