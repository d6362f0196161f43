"""Log densities, gradients and second derivatives that are NaN or infinite, and the operation that causes them.

Torch computes derivatives of formulas: that of y log r at y = r = 0, of 0 ** k, or of an unselected branch of
torch.where may be NaN although the density is finite. A row with such an operation has no derivative at any point, and
an algorithm that follows derivatives fails at it, or leaves its client out: the model is refused. Other densities are
undefined only on a part of the space, such as beyond a bound that depends on two latents. Inference starts outside this
part (`starts`) and leaves it out of its averages. Where a derivative is not finite although the density is, as that of
relu(x - c) ** k for c > x, algorithms that follow derivatives fail on this part: the user is warned.

Second derivatives are by reverse mode, or by forward over reverse mode if that is finite at more points: the branch
that torch.where does not select has a tangent and no part in the result, so that those of 0 ** k in k are zero.

One gradient and one product with the Hessian over all rows show whether all values are finite (`slopes_and_bends`). If
they are not, rows are examined singly. The cause is the first operation of the backward pass that makes finite numbers
infinite or NaN, such as acos at 1, not the later product of its infinite derivative and a zero.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad, jvp, vjp

from pyro_fed.conventions.limits import NEGLIGIBLE_MASS
from pyro_fed.density.bound import RowDensities
from pyro_fed.density.checks.source import Line, Statements, is_users_file, line_text
from pyro_fed.density.running.handlers import run_model
from pyro_fed.errors import ModelError, listed

#: Names of the derivatives by order; each is checked only if those of lower order are finite.
ORDERS = ("log density", "gradient of the log density", "second derivative of the log density")
#: Patterns of the name of an operation's node in the graph, and of a line of its stack in torch's anomaly mode.
_OPERATION, _FRAME = re.compile(r"(\w+?)Backward\d*"), re.compile(r'File "([^"]+)", line (\d+), in (.+)')
#: Cures for densities and for derivatives.
_NO_DENSITY = "give the latents a support on which it is finite, or a likelihood under which these rows are possible"
AWAY_FROM_EDGE = (
    "keep the operation away from its edge in these rows, such as rate.clamp_min(1e-30) in place of a rate of 0, or by "
    "torch.where on its input and on its output: `safe = torch.where(edge, 1.0, x)`, then `torch.where(edge, "
    "limit, f(safe))`; or leave out rows whose density is constant"
)


class UndefinedError(ModelError):
    """A density, or a derivative of it of some order, that is not finite; in these rows, at a share of the points."""

    def __init__(self, message: str, rows: list[int], order: int, share: float) -> None:
        super().__init__(message)
        self.rows, self.order, self.share = rows, order, share

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.rows, self.order, self.share)


def slopes_and_bends(
    total: Callable[[Tensor, Tensor], tuple[Tensor, Any]], z: Tensor, local: Tensor, forward: bool
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], Any]:
    """Gradients of `total` in z (D,) and local (m, d), products of its Hessian with ones, and its extra result.

    The products are by reverse mode, or by `forward` over reverse mode.
    """
    along = (0, 1) if local.numel() else (0,)
    at = (z, local)[: len(along)]

    def gradient(*at: Tensor) -> Any:
        return grad(total, along, has_aux=True)(*at, *(z, local)[len(at) :])

    ones = tuple(map(torch.ones_like, at))
    if forward:
        along_ones: Any = jvp(gradient, at, ones, has_aux=True)
        return along_ones  # type: ignore[no-any-return]
    results: Any = vjp(gradient, *at, has_aux=True)
    slopes, pull, aux = results
    return slopes, pull(ones), aux


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
    examined = _Examined(problem, points, rows, local, numbers)
    flags = _finite(problem, points, rows, local)
    for order in range(len(ORDERS)):
        for finite, inside in zip(flags, (True, False), strict=True):
            undefined = ~finite[..., order].any(0)
            if bool(undefined.any()):
                at = int(finite[:, int(undefined.nonzero()[0]), order - 1].float().argmax()) if order else 0
                where = "near zero and in the bulk of the priors"
                raise examined.error(undefined, at, order, inside, where, 1.0, walls)


def partly_undefined(
    problem: RowDensities, points: Tensor, rows: tuple[Any, ...], local: Tensor, numbers: Tensor
) -> list[UndefinedError]:
    """An error on rows with a finite density and an infinite or NaN derivative at many of the points, or none.

    The arguments are those of `refuse_undefined`. The share of the points is more than `NEGLIGIBLE_MASS`.
    """
    examined = _Examined(problem, points, rows, local, numbers)
    flags = _finite(problem, points, rows, local)
    for order in range(1, len(ORDERS)):
        for finite, inside in zip(flags, (True, False), strict=True):
            undefined = finite[..., order - 1] & ~finite[..., order]
            share = float(undefined.any(1).double().mean())
            if share > NEGLIGIBLE_MASS:
                at = int(undefined.sum(1).argmax())
                where = f"at {100 * share:.0f} % of the points examined, although the density is"
                return [examined.error(undefined[at], at, order, inside, where, share)]
    return []


class _Examined(NamedTuple):
    """The arguments of `refuse_undefined`."""

    problem: RowDensities
    points: Tensor
    rows: tuple[Any, ...]
    local: Tensor
    numbers: Tensor

    def error(
        self,
        undefined: Tensor,
        at: int,
        order: int,
        inside: bool,
        where: str,
        share: float,
        walls: Sequence[str] = (),
    ) -> UndefinedError:
        """The error on undefined rows, a mask (m,), or on the sites outside; `at` is the point for the cause."""
        row = int(undefined.nonzero()[0])
        single_row = tuple(leaf[row : row + 1] for leaf in self.rows)
        name, latents, operation = _cause(
            self.problem, self.points[at], single_row, self.local[at, row : row + 1], order
        )
        of = f" in {int(undefined.sum())} of the {len(undefined)} rows examined" if inside else ""
        edge = self.problem.bound.arguments.edge_of(undefined, self.numbers) if inside else ""
        along = f" along {listed(map(repr, latents))}" if latents else ""
        cures = [] if order else [". ".join(walls) or _NO_DENSITY]
        cure = "; or ".join([*cures, AWAY_FROM_EDGE] if order or edge else cures)
        return UndefinedError(
            f"site '{name}': the {ORDERS[order]}{along} is not finite{of}{edge}, {where}{operation}: {cure}",
            self.numbers[undefined].tolist() if inside else [],
            order,
            share,
        )


def _finite(problem: RowDensities, points: Tensor, rows: tuple[Any, ...], local: Tensor) -> tuple[Tensor, Tensor]:
    """Whether density, gradient and second derivative are finite at P points: rows (P, m, 3), outside (P, 1, 3)."""

    def at(z: Tensor, row_latents: Tensor, row: tuple[Any, ...], inside: bool) -> Tensor:
        def total(point: Tensor, latents: Tensor) -> tuple[Tensor, Tensor]:
            terms = problem.log_terms(point, row, latents)[inside]
            value = sum((term.sum() for term in terms.values()), point.new_zeros(()))
            return value, value

        slopes, bends, value = slopes_and_bends(total, z, row_latents, problem.forward_mode)
        flags = [
            torch.stack([part.isfinite().all() for part in indices]).all() for indices in ((value,), slopes, bends)
        ]
        return torch.stack(flags).cumprod(0).bool()

    def finite_by_row(inside: bool, indices: Tensor) -> Tensor:
        each = tuple(leaf[indices.unsqueeze(1)] for leaf in rows)
        of_rows = problem.vmap(lambda z, row_latents, row: at(z, row_latents, row, inside), (None, 0, 0))
        flags: Tensor = problem.vmap(lambda z, row_latents: of_rows(z, row_latents, each))(
            points, local[:, indices].unsqueeze(2)
        )
        return flags

    return finite_by_row(True, torch.arange(len(rows[0]))), finite_by_row(False, torch.arange(1))


def _cause(
    problem: RowDensities, z: Tensor, row: tuple[Any, ...], local: Tensor, order: int
) -> tuple[str, list[str], str]:
    """The site, the latents along which a derivative is not finite, and a clause on the operation."""
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
            output_nodes = [part.grad_fn for part in terms if part.grad_fn is not None]
            node, slopes = _first_infinite(output_nodes, partial(_derivative, terms, at, 1)) if terms else (None, ())
            if all(bool(slope.isfinite().all()) for slope in slopes):
                continue
            return name, _latents(problem, *slopes), _operation(node, statements.get(name))
    return next(iter(inside)), [], ""


def _first_infinite(ends: list[Any], backward: Callable[[], tuple[Tensor, ...]]) -> tuple[Any, tuple[Tensor, ...]]:
    """The first node that makes finite gradients infinite or NaN in a backward pass, and the result of the pass."""
    infinite_nodes, nodes = list[Any](), set(ends)
    while ends:
        new_nodes = {node for end in ends for node, _ in end.next_functions if node is not None} - nodes
        nodes, ends = nodes | new_nodes, list(new_nodes)

    def look(node: Any, outputs: tuple[Tensor | None, ...], inputs: tuple[Tensor | None, ...]) -> None:
        if not all(one is None or bool(one.isfinite().all()) for one in outputs) and all(
            one is None or bool(one.isfinite().all()) for one in inputs
        ):
            infinite_nodes.append(node)

    hooks = [node.register_hook(partial(look, node)) for node in nodes]
    try:
        result = backward()
    finally:
        for hook in hooks:
            hook.remove()
    return (infinite_nodes[0] if infinite_nodes else None), result


def _operation(node: Any, statement: Line | None) -> str:
    """A clause on a node's operation and its line in the model; for a derivative, on the original operation."""
    line = None
    while node is not None:
        name, line, node = node.name(), line or _line(node.metadata), node.metadata.get("parent_")
        if node is None:
            match = _OPERATION.search(name)
            return f", by {match[1].lower()}{_place(line or statement)}" if match else ""
    return ""


def _derivative(terms: tuple[Tensor, ...], at: tuple[Tensor, ...], order: int) -> tuple[Tensor, ...]:
    """The gradient of a sum (`order` 1), or of the sum of its gradient (2)."""
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
    """The model's line in the stack of a node; None if the operation is not on a line of the model."""
    frames = _FRAME.findall("".join(metadata.get("traceback_", ())))
    function_names = [name for _, _, name in frames]
    if run_model.__name__ not in function_names:
        return None
    frames = frames[function_names.index(run_model.__name__) :]
    model_lines = [(path, int(number)) for path, number, _ in frames if is_users_file(path)]
    return model_lines[-1] if model_lines else None


def _place(line: Line | None) -> str:
    return f" at {line_text(line)}" if line else ""
