"""Linear predictors in a model's rows: a row's log-likelihood depends on z through a few numbers that are linear in z.

    log p(y_i | z) = f(u_i(z), t, row i),     u_i(z) = A_i z + b_i  (p numbers a row),     t = a few entries of z

This holds for generalised linear models, robust regressions (t: the log scale) and models with group effects. In the
trace of the rows' log-likelihood, the operations before the first one that is nonlinear in z compute u, and the rest
computes f. A structure is accepted only if value, score and Hessian from its parts equal those of the model, at several
points and rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, fx
from torch.func import grad_and_value, vjp
from torch.fx.node import map_arg

from pyro_fed.density.compiling.compiler import FAILURES
from pyro_fed.density.compiling.recording import Recorder, dependent_nodes, operation_of, record, shape_of
from pyro_fed.density.compiling.tracing import drop_dead, free_strides, pin_dtypes, release, resizing_quietly
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.files import picked
from pyro_fed.ops.batched import second_order, vmap

Rows = tuple[Tensor, ...]
S = TypeVar("S")

#: Largest number of predictors of a row, and of predictors and direct entries of z together: each costs a derivative,
#: and expectations are taken over all of them.
MAX_PREDICTORS, MAX_ROW_NUMBERS = 4, 6
#: Smallest number of parameters per wide predictor: a network's rows have many predictors, the units of the first layer
#: and the entries of z after them, but fewer than entries of z.
WIDE_RATIO = 2
#: Number of rows in the comparison of the parts with the model.
CHECK_ROWS = 7

#: Operations that are linear in their first argument (in each tensor of a list), for any other arguments.
LINEAR = frozenset(
    (
        *("view", "_unsafe_view", "reshape", "slice", "select", "unsqueeze", "squeeze", "expand", "permute"),
        *("transpose", "t", "clone", "alias", "detach", "neg", "sum", "mean", "cat", "stack", "index"),
        *("index_select", "gather", "embedding", "split", "unbind", "diagonal", "flip", "lift_fresh_copy"),
    )
)
#: Operations that are linear in each of two arguments.
BILINEAR = frozenset(["mul", "mm", "bmm", "mv", "dot"])
#: Operations that are jointly linear in all of their arguments.
SUMS = frozenset(["add", "sub", "rsub"])
#: Sums of a term and a product.
SUMS_OF_PRODUCTS = frozenset(["addmm", "addmv", "baddbmm"])


@dataclass(frozen=True, eq=False)
class Predictors:
    """The parts of the rows' log-likelihood, for a fixed number of rows."""

    linear: Callable[..., Tensor]  # z (D,) and rows to the predictors, (m, p)
    rest: Callable[..., Tensor]  # predictors (m, p), z (D,) and rows to log-likelihoods (m,)
    direct: tuple[int, ...]  # entries t of z that `rest` uses directly, in order
    width: int  # p
    rows: int  # m

    @property
    def is_wide(self) -> bool:
        """Whether there are so many predictors that derivatives along all of them use one batched call."""
        return self.width > MAX_PREDICTORS or self.width + len(self.direct) > MAX_ROW_NUMBERS

    #: Steps with this structure may be stored, see `process`.
    is_traced = True


def predictors(problem: Problem, rows: int, wide: bool = False) -> Predictors | None:
    """The structure of a model's rows, by `find_structure`; `wide` as for `parts_of`."""
    return find_structure(
        problem,
        "wide predictors" if wide else "predictors",
        rows,
        lambda count: parts_of(rows_graph(problem, count), problem.dim, count, wide),
        from_parts,
    )


def find_structure(
    problem: Problem,
    name: str,
    rows: int,
    find: Callable[[int], S | None],
    derivatives: Callable[[S, Tensor, Rows, Tensor], tuple[Tensor, ...]],
) -> S | None:
    """A structure of a number of rows, if it has the model's derivatives on a few of them; computed once."""

    def found_or_none() -> S | None:
        is_check = rows == CHECK_ROWS
        if not (may_have(problem) if is_check else find_structure(problem, name, CHECK_ROWS, find, derivatives)):
            return None
        try:
            candidate = find(rows)
        except FAILURES:
            return None
        is_right = candidate is not None and (
            not is_check or is_the_model(problem, lambda *at: derivatives(candidate, *at))
        )
        return candidate if is_right else None

    structure: S | None = problem.compiler.find_once((name, rows), found_or_none, problem)
    return structure


def may_have(problem: Problem) -> bool:
    """Whether rows are tensors, each with its own density in one run, and reverse mode has second derivatives."""
    nested = problem.arguments.nested_plates
    return not (problem.looped or problem.local_dim or nested or problem.layout.discrete or problem.forward_mode)


def rows_graph(problem: Problem, count: int) -> Recorder:
    """The graph of the log-likelihoods (m,) of m rows at z (D,), traced once for all that look at it."""

    def traced() -> Recorder:
        z = torch.zeros(problem.dim, dtype=problem.dtype, device=problem.rows[0].device)
        picked = some_rows(problem, count)
        return tidy_graph(lambda point, *rows: problem.log_parts(point, rows)[1].contiguous(), (z, *picked))

    graph: Recorder = problem.compiler.find_once(("rows", count), traced, problem)
    return graph


def tidy_graph(function: Callable[..., Tensor], leaves: Sequence[Tensor]) -> Recorder:
    """The simplified graph of a function, of which parts are extracted; no code is made of the whole."""
    graph = record(function, leaves)
    pin_dtypes(graph.graph)
    drop_dead(graph.graph)
    free_strides(graph.graph)
    release(graph.root, graph.graph)
    return graph


def some_rows(problem: Problem, count: int) -> Rows:
    """`count` rows, evenly spaced; repeated from the first if there are fewer."""
    total = len(problem.rows[0])
    at = torch.arange(count, device=problem.rows[0].device)
    at = at * (total // count) if total >= count else at % total
    return tuple(picked(leaf, at) for leaf in problem.rows)


def parts_of(graph: Recorder, dim: int, count: int, wide: bool, with_latents: bool = False) -> Predictors | None:
    """The predictors in a graph of log-likelihoods (m,) of z (D,) and m rows.

    `wide` allows more numbers than `MAX_ROW_NUMBERS`, up to one in `WIDE_RATIO` parameters. `with_latents`: the first
    row tensor holds latents, in which predictors are also linear; then m may count the rows of a nested plate, and
    entries of z that are used elsewhere are `direct`.
    """
    nodes = list(graph.graph.nodes)
    inputs = [node for node in nodes if node.op == "placeholder"]
    linear_inputs = inputs[: 1 + with_latents]
    kind: dict[fx.Node, str] = {}
    for node in nodes:
        kind[node] = "linear" if node in linear_inputs else _kind(node, kind)
    of_z, of_rows = dependent_nodes(nodes, inputs[:1]), dependent_nodes(nodes, inputs[1:])
    ends = [n for n in nodes if kind[n] == "linear" and n in of_z and any(kind[user] == "other" for user in n.users)]
    in_rows = [node for node in ends if node in of_rows]
    if with_latents:
        in_rows = [node for node in in_rows if shape_of(node).count(count) == 1]
    ends_of_rows = _fewest_ends(in_rows, kind, of_rows)
    shapes = [shape_of(node) for node in ends_of_rows]
    if not ends_of_rows or any(shape.count(count) != 1 for shape in shapes):
        return None
    axes = [shape.index(count) for shape in shapes]
    widths = [shape.numel() // count for shape in shapes]
    direct = _direct(graph, [node for node in ends if node not in in_rows], dim)
    numbers = len(direct) + sum(widths)
    if (sum(widths) > MAX_PREDICTORS or numbers > MAX_ROW_NUMBERS) and not (wide and WIDE_RATIO * numbers <= dim):
        return None
    linear, rest = subgraph(graph, ends_of_rows, []), subgraph(graph, None, ends_of_rows)

    def all_linear(z: Tensor, *rows: Tensor) -> Tensor:
        blocks = [u.movedim(a, 0).reshape(count, -1) for u, a in zip(linear(z, *rows), axes, strict=True)]
        return torch.cat(blocks, 1) if len(blocks) > 1 else blocks[0]

    def after(u: Tensor, z: Tensor, *rows: Tensor) -> Tensor:
        end_values = []
        for part, shape, axis in zip(u.split(widths, 1), shapes, axes, strict=True):
            other_axes = shape[:axis] + shape[axis + 1 :]
            end_values.append(part.reshape(count, *other_axes).movedim(0, axis))
        value: Tensor = rest(z, *rows, *end_values)
        return value

    return Predictors(all_linear, after, direct, sum(widths), count)


def _fewest_ends(ends: list[fx.Node], kind: dict[fx.Node, str], of_rows: set[fx.Node]) -> list[fx.Node]:
    """The ends, or their sources if these have fewer numbers: u for u, -u and y - u."""
    origins = list(dict.fromkeys(_origin(node, kind, of_rows) for node in ends))
    return origins if numbers_of(origins) < numbers_of(ends) else ends


def _origin(node: fx.Node, kind: dict[fx.Node, str], of_rows: set[fx.Node]) -> fx.Node:
    """The first node in a chain of linear values of rows, each computed from one of the same length."""
    while True:
        linear_inputs = [one for one in node.all_input_nodes if kind[one] == "linear"]
        if (
            len(linear_inputs) != 1
            or linear_inputs[0] not in of_rows
            or numbers_of(linear_inputs) != numbers_of([node])
        ):
            return node
        node = linear_inputs[0]


def numbers_of(nodes: Iterable[fx.Node]) -> int:
    """The total number of numbers in the values of nodes."""
    return sum(shape_of(node).numel() for node in nodes if "tensor_meta" in node.meta)


def _kind(node: fx.Node, kind: dict[fx.Node, str]) -> str:
    """The dependence of a value on z: "none", "linear" (plus a constant), or "other"."""
    before = [kind[one] for one in node.all_input_nodes]
    if all(one == "none" for one in before):
        return "none"
    if node.op == "output" or node.op != "call_function" or "other" in before:
        return "other"
    name = operation_of(node)
    if name == "getitem":
        return "linear"
    depends = [isinstance(one, fx.Node) and kind[one] != "none" for one in node.args]
    if name in SUMS:
        return "linear"
    if name in LINEAR and not any(depends[1:]):
        return "linear"
    if name in BILINEAR and sum(depends) == 1:
        return "linear"
    if name == "div" and depends[0] and not any(depends[1:]):
        return "linear" if len(node.args) == 2 and not node.kwargs else "other"
    if name in SUMS_OF_PRODUCTS and sum(depends[1:]) <= 1:
        return "linear"
    if name == "_to_copy" and node.meta["tensor_meta"].dtype.is_floating_point:
        return "linear"
    return "other"


def _direct(graph: Recorder, ends: list[fx.Node], dim: int) -> tuple[int, ...]:
    """The entries of z in linear values that are the same for all rows."""
    if not ends:
        return ()
    part = subgraph(graph, ends, [])
    z = next(node for node in graph.graph.nodes if node.op == "placeholder").meta["tensor_meta"]
    rows = [
        torch.zeros(node.meta["tensor_meta"].shape, dtype=node.meta["tensor_meta"].dtype)
        for node in graph.graph.nodes
        if node.op == "placeholder"
    ][1:]
    eye = torch.eye(dim, dtype=z.dtype)
    zero = [value.clone() for value in part(eye[0] * 0, *rows)]
    entries = [
        j for j in range(dim) if any(bool((a != b).any()) for a, b in zip(part(eye[j], *rows), zero, strict=True))
    ]
    return tuple(entries)


def subgraph(graph: Recorder, wanted: list[fx.Node] | None, given: list[fx.Node]) -> fx.GraphModule:
    """The part of a graph that computes the wanted nodes (None: its output), with the `given` nodes as inputs."""
    part_graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            copies[node] = part_graph.node_copy(node)
    for number, node in enumerate(given):
        copies[node] = part_graph.placeholder(f"given_{number}")
    for node in graph.graph.nodes:
        if node.op == "output" or node in copies:
            continue
        copies[node] = part_graph.node_copy(node, lambda one: copies[one])
    if wanted is None:
        [end] = [node for node in graph.graph.nodes if node.op == "output"]
        part_graph.output(map_arg(end.args[0], lambda one: copies[one]))
    else:
        part_graph.output([copies[node] for node in wanted])
    drop_dead(part_graph)
    return fx.GraphModule(graph.root, part_graph)


def is_the_model(problem: Problem, ours: Callable[[Tensor, Rows, Tensor], tuple[Tensor, ...]]) -> bool:
    """Whether `ours`, of a point (D,), rows and weights, returns the model's value, score and Hessian."""
    rows = some_rows(problem, CHECK_ROWS)
    generator = torch.Generator().manual_seed(0)
    points = 0.3 * torch.randn(3, problem.dim, generator=generator, dtype=torch.float64)  # three, near the origin
    points = points.to(rows[0].device, problem.dtype)
    weight = torch.rand(CHECK_ROWS, generator=generator, dtype=torch.float64).to(points) + 0.5
    tolerance = 2.0 * torch.finfo(problem.dtype).eps ** 0.5  # half of the digits, the accuracy of second derivatives

    def weighted(z: Tensor) -> Tensor:
        return (problem.log_parts(z, rows)[1] * weight).sum()

    def model(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        value, score, curvature = second_order(weighted, z, vmap)
        return value, score, -curvature

    try:
        with resizing_quietly():
            model_values, own_values = vmap(model)(points), vmap(lambda z: ours(z, rows, weight))(points)
    except FAILURES:
        return False
    for a, b in zip(model_values, own_values, strict=True):
        size = a.reshape(len(a), -1).abs().amax(1).clamp_min(torch.finfo(a.dtype).tiny)
        difference = (a - b).reshape(len(a), -1).abs().amax(1)
        if not bool(a.isfinite().all() & b.isfinite().all() & (difference <= tolerance * size).all()):
            return False
    return True


def from_parts(found: Predictors, z: Tensor, rows: Rows, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Value (), score (D,) and Hessian (D, D) of a weighted sum of rows at one point, from the parts."""
    start = found.linear(z, *rows)
    basis = torch.eye(len(z), dtype=z.dtype, device=z.device)
    slopes = vmap(lambda step: found.linear(z + step, *rows) - start, out_dims=-1)(basis)  # (m, p, D)
    value, of_u, of_t, uu, ut, tt = curvatures(found, start, z, rows, weight)
    picks = basis[list(found.direct)]
    score = torch.einsum("mp,mpd->d", of_u, slopes) + of_t @ picks
    cross = torch.einsum("mpd,mpr->dr", slopes, ut) @ picks
    hessian = torch.einsum("mpd,mpe->de", slopes, torch.einsum("mpq,mqd->mpd", uu, slopes))
    return value, score, hessian + cross + cross.T + picks.T @ tt @ picks


def curvatures(
    found: Predictors, u: Tensor, z: Tensor, rows: Rows, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Value () of weighted rows and derivatives in predictors u (m, p) and direct t (r,): u, t, uu, ut and tt."""
    at = list(found.direct)

    def total(u: Tensor, t: Tensor) -> Tensor:
        full_z = z.index_copy(0, torch.tensor(at, device=z.device), t) if at else z
        return (found.rest(u, full_z, *rows) * weight).sum()

    t = z[at] if at else z[:0]
    both: Any = grad_and_value(total, (0, 1))
    (first, value), pull = vjp(both, u, t)[:2]
    zero, zeros = torch.zeros_like(value), (torch.zeros_like(u), torch.zeros_like(t))
    if found.is_wide:
        return value, *first, *_along_all(found.width, u, t, lambda *direction: pull((direction, zero)))
    by_u, by_t = [], []
    for k in range(found.width):
        direction = torch.zeros_like(u)
        direction[:, k] = 1.0
        by_u.append(pull(((direction, zeros[1]), zero))[0])
    for k in range(len(at)):
        direction = torch.zeros_like(t)
        direction[k] = 1.0
        by_t.append(pull(((zeros[0], direction), zero)))
    uu = torch.stack(by_u, 2)
    if not by_t:
        return value, first[0], first[1], uu, u.new_zeros(*u.shape, 0), u.new_zeros(0, 0)
    return value, *first, uu, torch.stack([one[0] for one in by_t], 2), torch.stack([one[1] for one in by_t], 1)


def _along_all(
    width: int, u: Tensor, t: Tensor, pull: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor, Tensor]:
    """Second derivatives (m, p, p), (m, p, r) and (r, r) from products with all directions, in one call."""
    count = width + len(t)
    eye = torch.eye(count, dtype=u.dtype, device=u.device)
    of_u, of_t = vmap(pull)(eye[:, None, :width].expand(-1, len(u), -1), eye[:, width:])
    return of_u[:width].permute(1, 2, 0), of_u[width:].permute(1, 2, 0), of_t[width:]
